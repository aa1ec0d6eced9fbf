use std::{fs, os::unix::fs::PermissionsExt as _};

use windlass_control::{is_data_dir, store::Log};

use super::*;

/// A data directory with a store and a key.
fn data_dir(dir: &Path) -> PathBuf {
    let (empty, data) = (dir.join("empty"), dir.join("data"));
    fs::create_dir(&empty).unwrap();
    drop(Log::create(&empty, &[], &windlass_control::store::Counters::default()).unwrap());
    restore_store(&data, &empty.join("log-00000001")).unwrap();
    fs::create_dir(data.join(PKI)).unwrap();
    fs::write(data.join("pki/ca.key"), "a key").unwrap();
    fs::set_permissions(data.join("pki/ca.key"), fs::Permissions::from_mode(0o600)).unwrap();
    data
}

#[test]
fn a_backup_is_restored_into_an_empty_directory_only() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, other) = (data_dir(dir.path()), dir.path().join("backup.tar"), dir.path().join("other"));
    let in_use = Log::open(&data.join("store")).unwrap();
    write_archive(&data, &file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(write_archive(&data, &file).unwrap_err().to_string().contains("is there already"));
    assert!(read_archive(&file, &data).unwrap_err().to_string().contains("has a cluster already"));
    drop(in_use);
    read_archive(&file, &other).unwrap();
    assert!(is_data_dir(&other) && Log::open(&other.join("store")).is_ok());
    assert_eq!(fs::read_to_string(other.join("pki/ca.key")).unwrap(), "a key");
    assert_eq!(fs::metadata(other.join("pki/ca.key")).unwrap().permissions().mode() & 0o777, 0o600);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn what_is_no_backup_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (data_dir(dir.path()), dir.path().join("backup.tar"));
    write_archive(&data, &file).unwrap();
    let bytes = fs::read(&file).unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        let (file, target) = (dir.path().join(name), dir.path().join(format!("of-{name}")));
        fs::write(&file, bytes).unwrap();
        assert!(read_archive(&file, &target).is_err(), "{name}");
        assert!(!is_data_dir(&target), "{name}");
        let left: Vec<_> = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
        read_archive(&dir.path().join("backup.tar"), &target).unwrap();
        assert!(is_data_dir(&target) && target.join(PKI).is_dir(), "{name}");
    };
    refused("short", &bytes[..700]);
    refused("nothing", b"");
    let mut damaged = bytes.clone();
    damaged[512 + 20] ^= 1;
    refused("damaged", &damaged);
    let mut foreign = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    foreign.append_data(&mut header, "letter", &b"x"[..]).unwrap();
    refused("foreign", &foreign.into_inner().unwrap());
}

/// Nor is a link followed to wherever it leads, nor a pipe waited for.
#[test]
fn what_is_not_in_the_directory_of_keys_is_not_in_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (data_dir(dir.path()), dir.path().join("backup.tar"));
    let (odd, outside) = (data.join("pki/nodes/odd"), dir.path().join("outside"));
    fs::create_dir(data.join("pki/nodes")).unwrap();
    fs::create_dir(&outside).unwrap();
    let made: [&dyn Fn(); 4] = [
        &|| std::os::unix::fs::symlink("../ca.key", &odd).unwrap(),
        &|| std::os::unix::fs::symlink(&outside, &odd).unwrap(),
        &|| std::os::unix::fs::symlink("nowhere", &odd).unwrap(),
        &|| drop(std::os::unix::net::UnixListener::bind(&odd).unwrap()),
    ];
    for make in made {
        make();
        let refused = format!("{:#}", write_archive(&data, &file).unwrap_err());
        assert!(refused.contains("odd is neither a file nor a directory"), "{refused}");
        let left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("backup")), "nothing is left");
        fs::remove_file(&odd).unwrap();
    }
    fs::write(&odd, "a key of a node").unwrap();
    write_archive(&data, &file).unwrap();
    let restored = dir.path().join("restored");
    read_archive(&file, &restored).unwrap();
    assert_eq!(fs::read_to_string(restored.join("pki/nodes/odd")).unwrap(), "a key of a node");
}

/// A restore that was interrupted after it made a cluster leaves copies of secrets: the next command removes them.
#[test]
fn what_a_finished_restore_has_left_goes_with_the_next_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (data_dir(dir.path()), dir.path().join("backup.tar"));
    write_archive(&data, &file).unwrap();
    unpack(&file, &data.join(RESTORE_DIR)).unwrap();
    let refused = read_archive(&file, &data).unwrap_err().to_string();
    assert!(refused.contains("has a cluster already") && !data.join(RESTORE_DIR).exists(), "{refused}");
    assert!(is_data_dir(&data) && data.join("pki/ca.key").exists());
}

/// Its keys came first in the archive, and the copy of the store is damaged.
#[test]
fn a_restore_that_fails_leaves_nothing_in_its_way() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file, target) = (data_dir(dir.path()), dir.path().join("backup.tar"), dir.path().join("target"));
    write_archive(&data, &file).unwrap();
    let damaged = dir.path().join("damaged.tar");
    let mut archive = tar::Builder::new(File::create(&damaged).unwrap());
    archive.append_dir_all(PKI, data.join(PKI)).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o600);
    archive.append_data(&mut header, STORE, &b"bad"[..]).unwrap();
    archive.into_inner().unwrap();
    assert!(read_archive(&damaged, &target).is_err());
    assert!(!target.join(PKI).exists() && !target.join(RESTORE_DIR).exists());
    read_archive(&file, &target).unwrap();
    assert!(is_data_dir(&target));
}

/// A process that was killed between its steps leaves what they have done.
#[test]
fn a_restore_that_was_cut_off_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (data_dir(dir.path()), dir.path().join("backup.tar"));
    write_archive(&data, &file).unwrap();
    for has_moved_keys in [false, true] {
        let target = dir.path().join(format!("target-{has_moved_keys}"));
        fs::create_dir_all(&target).unwrap();
        unpack(&file, &target.join(RESTORE_DIR)).unwrap();
        if has_moved_keys {
            fs::rename(target.join(RESTORE_DIR).join(PKI), target.join(PKI)).unwrap();
        }
        read_archive(&file, &target).unwrap();
        assert!(is_data_dir(&target) && target.join("pki/ca.key").exists() && !target.join(RESTORE_DIR).exists());
    }
}

/// Between any two steps of a backup and of a restore the process may end, or the disk refuse: there is a whole archive, a whole
/// cluster, or none, and the next attempt succeeds.
#[test]
fn each_step_of_a_backup_and_of_a_restore_may_fail() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = (data_dir(dir.path()), dir.path().join("backup.tar"));
    write_archive(&data, &file).unwrap();
    let words = |error: anyhow::Error| format!("{error:#}");
    let backups = windlass_model_disk::Case {
        what: "a backup",
        prepare: &|_| (),
        act: &|dir| {
            let to = dir.join("archive");
            if fs::exists(&to).unwrap() { Ok(()) } else { write_archive(&data, &to).map(drop).map_err(words) }
        },
        judge: &|dir, done, what| {
            let to = dir.join("archive");
            assert!(to.exists() || !done, "{what}: there is none");
            if to.exists() {
                let unpacked = dir.join("looked-at");
                unpack(&to, &unpacked).unwrap_or_else(|e| panic!("{what}: {e:#}"));
                fs::remove_dir_all(&unpacked).unwrap();
            }
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &["archive"],
    }
    .run_on_real();
    let restores = windlass_model_disk::Case {
        what: "a restore",
        prepare: &|_| (),
        act: &|dir| {
            let to = dir.join("data");
            // A start, which would do no more of it.
            if is_data_dir(&to) {
                finish_restore(&to).map_err(|error| error.to_string())
            } else {
                read_archive(&file, &to).map_err(words)
            }
        },
        judge: &|dir, done, what| {
            let to = dir.join("data");
            assert!(is_data_dir(&to) || !done, "{what}: there is no cluster");
            assert!(!to.join(RESTORE_DIR).exists() || !done, "{what}: there are copies of secrets");
            if is_data_dir(&to) {
                assert_eq!(fs::read_to_string(to.join("pki/ca.key")).unwrap(), "a key", "{what}");
                drop(Log::open(&to.join("store")).unwrap_or_else(|e| panic!("{what}: {e}")));
            }
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &["data"],
    }
    .run_on_real();
    println!("backups: {backups} pairs; restores: {restores} pairs");
    assert!(backups > 20 && restores > 60, "{backups} {restores}");
}
