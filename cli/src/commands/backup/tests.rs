use std::os::unix::fs::PermissionsExt as _;

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
    assert!(!target.join(PKI).exists() && !target.join(UNPACKED).exists());
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
        unpack(&file, &target.join(UNPACKED)).unwrap();
        if has_moved_keys {
            fs::rename(target.join(UNPACKED).join(PKI), target.join(PKI)).unwrap();
        }
        read_archive(&file, &target).unwrap();
        assert!(is_data_dir(&target) && target.join("pki/ca.key").exists() && !target.join(UNPACKED).exists());
    }
}
