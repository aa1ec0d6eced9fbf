//! That the model is as harsh as it says, and what the kit writes through it.

use std::collections::BTreeSet;

use windlass_kit::{
    atomic_file,
    disk::{self, Open},
};

use super::*;

/// All that cuts of the power leave of what a function does.
fn left_by(act: impl Fn(&Path)) -> BTreeSet<Vec<(String, Vec<u8>)>> {
    let left = (0..200).map(|seed| {
        let mut platter = Platter::new();
        disk::write_all_at(&*disk::open(&platter.root().join("old"), Open::New(0o600)).unwrap(), 0, &[b'o'; 1024])
            .unwrap();
        platter.settle();
        platter.set_seed(seed * 7919);
        act(platter.root());
        platter.cut_power();
        platter.tree().into_iter().collect()
    });
    left.collect()
}

fn contents(all: &BTreeSet<Vec<(String, Vec<u8>)>>, name: &str) -> BTreeSet<Option<Vec<u8>>> {
    all.iter().map(|files| files.iter().find(|(other, _)| other == name).map(|(_, bytes)| bytes.clone())).collect()
}

#[test]
fn what_was_not_synced_is_lost_in_any_part() {
    let all = left_by(|root| {
        let file = disk::open(&root.join("old"), Open::Update).unwrap();
        disk::write_all_at(&*file, 0, &[b'n'; 2048]).unwrap();
    });
    let contents = contents(&all, "old");
    let has = |wanted: &[(u8, usize)]| {
        let wanted: Vec<u8> = wanted.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect();
        assert!(contents.contains(&Some(wanted.clone())), "{wanted:?}");
    };
    // None, all, one sector of both, and zeros where it grew.
    has(&[(b'o', 1024)]);
    has(&[(b'n', 2048)]);
    has(&[(b'n', 512), (b'o', 512)]);
    has(&[(b'o', 512), (b'n', 512), (0, 1024)]);
}

#[test]
fn names_become_durable_one_without_the_other() {
    let all = left_by(|root| {
        for name in ["a", "b"] {
            disk::open(&root.join(name), Open::New(0o600)).unwrap();
        }
        disk::of(root).rename(&root.join("old"), &root.join("new")).unwrap();
    });
    let names: BTreeSet<Vec<&str>> =
        all.iter().map(|files| files.iter().map(|(name, _)| name.as_str()).collect()).collect();
    for wanted in [&["old"][..], &["a", "old"], &["b", "old"], &["a", "b", "new"], &["new"], &["new", "old"]] {
        assert!(names.contains(wanted), "{wanted:?}: {names:?}");
    }
    assert!(names.iter().all(|names| names.contains(&"old") || names.contains(&"new")), "a rename loses no file");
}

/// As ext4 and xfs do it: part of it has reached the disk, and the next sync has nothing to do.
#[test]
fn a_sync_that_fails_is_told_once_and_has_written_some() {
    let all = left_by(|root| {
        let file = disk::open(&root.join("old"), Open::Update).unwrap();
        disk::write_all_at(&*file, 0, &[b'n'; 1024]).unwrap();
        assert_eq!(disk::read(&root.join("old")).unwrap(), [b'n'; 1024], "the kernel shows it");
    });
    assert_eq!(contents(&all, "old").len(), 4);
    let mut left = BTreeSet::new();
    for seed in 0..50 {
        let mut platter = Platter::new();
        let path = platter.root().join("f");
        let file = disk::open(&path, Open::New(0o600)).unwrap();
        platter.settle();
        platter.set_seed(seed);
        disk::write_all_at(&*file, 0, &[b'n'; 1024]).unwrap();
        platter.fail_syncs(1);
        file.sync().unwrap_err();
        assert_eq!(disk::read(&path).unwrap(), [b'n'; 1024], "the kernel shows it");
        file.sync().unwrap();
        platter.cut_power();
        left.insert(disk::read(&path).unwrap());
    }
    assert!(left.len() > 2 && left.iter().any(|bytes| *bytes != [b'n'; 1024]), "{left:?}");
}

#[test]
fn each_call_of_an_atomic_write_may_fail() {
    let read = |dir: &Path| atomic_file::read(&dir.join("deep/er/file")).unwrap();
    let prepare = |dir: &Path| {
        disk::make_dir(&dir.join("deep/er"), 0o700).unwrap();
        atomic_file::write_durable(&dir.join("deep/er/file"), &[b'1'; 1500], 0o600).unwrap();
    };
    let (old, new) = ("1".repeat(1500), "2".repeat(2500));
    let judge = |dir: &Path, done: bool, what: &str| {
        let found = read(dir);
        assert!(found.as_ref() == Some(&new) || (!done && found.as_ref() == Some(&old)), "{what}: {found:?}");
    };
    let mut pairs = 0;
    for lasts in [Lasts::Power, Lasts::Process] {
        let write = if lasts == Lasts::Power { atomic_file::write_durable } else { atomic_file::write };
        pairs += Case {
            what: "an atomic write",
            prepare: &prepare,
            act: &|dir| write(&dir.join("deep/er/file"), new.as_bytes(), 0o600).map_err(|e| e.to_string()),
            judge: &judge,
            lasts,
            says: &[],
        }
        .run();
    }
    pairs += Case {
        what: "an atomic write of a first file",
        prepare: &|_| (),
        act: &|dir| {
            let made = disk::make_dir(&dir.join("deep/er"), 0o700);
            let written =
                made.and_then(|()| atomic_file::write_durable(&dir.join("deep/er/file"), new.as_bytes(), 0o600));
            written.map_err(|e| e.to_string())
        },
        judge: &|dir, done, what| {
            let found = read(dir);
            assert!(found.as_ref() == Some(&new) || (!done && found.is_none()), "{what}: {found:?}");
        },
        lasts: Lasts::Power,
        says: &[],
    }
    .run();
    pairs += Case {
        what: "a removal",
        prepare: &prepare,
        act: &|dir| atomic_file::remove(&dir.join("deep/er/file")).map_err(|e| e.to_string()),
        judge: &|dir, done, what| {
            let found = read(dir);
            assert!(found.is_none() || (!done && found.as_ref() == Some(&old)), "{what}: {found:?}");
        },
        lasts: Lasts::Power,
        says: &[],
    }
    .run();
    println!("atomic files: {pairs} pairs");
    assert!(pairs > 80, "{pairs}");
}

/// What has filled the disk makes room again.
#[test]
fn a_write_that_fails_leaves_nothing_beside_the_file() {
    for at in 0..6 {
        let platter = Platter::new();
        let path = platter.root().join("file");
        atomic_file::write_durable(&path, b"old", 0o600).unwrap();
        platter.fail(at, Fault::NoSpaceOnce);
        if atomic_file::write_durable(&path, &[b'n'; 4096], 0o600).is_err() {
            assert_eq!(platter.tree().into_iter().collect::<Vec<_>>(), [("file".to_owned(), b"old".to_vec())], "{at}");
        }
    }
}
