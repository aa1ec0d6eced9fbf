//! Directories of configMap, secret and projected volumes with any content: the node writes its files, and changes
//! nothing outside. The bytes are instructions for a process that may write to the volume: directories, files, links
//! that lead out of it, removals; the node writes its files in between.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use windlass_agent::volumes::atomic_writer::{self, VolumeFile, VolumeFiles};

const NAMES: [&str; 16] = [
    "a",
    "b",
    "c",
    "d",
    "..data",
    "..data_tmp",
    "..1",
    "..2",
    "..99",
    "..x",
    "kept",
    "below",
    "...",
    "..parked-1",
    "e",
    "f",
];
const TARGETS: [&str; 16] = [
    "../victim",
    "../../victim",
    "../../../victim",
    "VICTIM",
    "VICTIM/below",
    "..",
    "../..",
    "/",
    ".",
    "..1",
    "..data",
    "..1/../../victim",
    "a",
    "b/c",
    "..99/..",
    "none",
];
const FILES: [&str; 8] = ["a", "b/c", "b/d", "c/d/e", "d", "kept", "below/a", "e/f"];

/// The bytes in order, then zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn of<'t>(&mut self, table: &[&'t str]) -> &'t str {
        table[usize::from(self.next()) % table.len()]
    }

    /// A path in the volume whose parents are directories, and not links that lead out of it.
    fn path(&mut self, volume: &Path) -> PathBuf {
        let mut path = volume.to_owned();
        for _ in 0..self.next() % 3 {
            let below = path.join(self.of(&NAMES));
            if fs::symlink_metadata(&below).is_ok_and(|about| about.is_dir()) {
                path = below;
            }
        }
        path.join(self.of(&NAMES))
    }

    fn payload(&mut self) -> VolumeFiles {
        (0..self.next() % 5)
            .map(|_| {
                let (path, length) = (self.of(&FILES), self.next() % 8);
                let bytes = (0..length).map(|_| self.next()).collect();
                (path.to_owned(), VolumeFile { bytes, mode: 0o640, owner: None })
            })
            .collect()
    }
}

/// Everything below a directory, without following links: files with their content, and names of all others.
fn all(dir: &Path, prefix: &str, out: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(dir).expect("it is there").flatten() {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().expect("it is there");
        let shown = if kind.is_file() { fs::read(entry.path()).expect("it can be read") } else { Vec::new() };
        out.insert(path.clone(), shown);
        if kind.is_dir() {
            all(&entry.path(), &format!("{path}/"), out);
        }
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let world = tempfile::tempdir().expect("a directory");
    let (volume, victim) = (world.path().join("volume"), world.path().join("victim"));
    fs::create_dir_all(victim.join("below")).expect("a directory");
    fs::create_dir(&volume).expect("a directory");
    for (name, text) in [("kept", "kept"), ("below/a", "1")] {
        fs::write(victim.join(name), text).expect("a file");
    }
    let outside = || {
        let mut found = BTreeMap::new();
        all(&victim, "victim/", &mut found);
        let mut names: Vec<String> = fs::read_dir(world.path())
            .expect("it is there")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        (names, found)
    };
    let before = outside();
    let mut bytes = Bytes(bytes);
    for _ in 0..64 {
        let kind = bytes.next() % 6;
        let path = bytes.path(&volume);
        let _ = match kind {
            0 => fs::create_dir(path),
            1 => fs::OpenOptions::new().write(true).create_new(true).open(path).map(drop),
            2 => symlink(bytes.of(&TARGETS).replace("VICTIM", &victim.to_string_lossy()), path),
            3 => fs::remove_file(&path).or_else(|_| fs::remove_dir(path)),
            // Moves it as it is.
            4 => fs::rename(path, bytes.path(&volume)),
            _ => {
                let payload = bytes.payload();
                atomic_writer::write(&volume, &payload, None).expect("the files are written");
                for (path, file) in &payload {
                    assert_eq!(fs::read(volume.join(path)).expect("a reader finds it"), file.bytes, "{path}");
                }
                let shown = fs::read_link(volume.join("..data")).expect("a link");
                assert!(fs::symlink_metadata(volume.join(shown)).expect("it is there").is_dir());
                Ok(())
            }
        };
        if bytes.0.is_empty() {
            break;
        }
    }
    assert_eq!(outside(), before);
}
