//! The folder of the judges, and the node that they share.

use std::{
    fs,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use windlass_tests::{Daemon, Kubectl, Testbed, Windlass};

/// Names the folder.
pub(crate) const JUDGES: &str = "JUDGES";

/// The folder, if there is one.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(JUDGES).filter(|name| !name.is_empty())?);
    assert!(folder.is_dir(), "{} is no folder, and {JUDGES} names it", folder.display());
    Some(folder.canonicalize().expect("a folder that is there"))
}

/// What lies in the folder under this name.
pub(crate) fn part(name: &str) -> PathBuf {
    let part = folder().expect("the test is ignored without it").join(name);
    assert!(part.exists(), "{} is missing, and {JUDGES} names its folder", part.display());
    part
}

/// The files of a part of the folder, in the order of their names.
pub(crate) fn files(name: &str, extension: &str) -> Vec<PathBuf> {
    let folder = part(name);
    let entries = fs::read_dir(&folder).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file of it").path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    assert!(!files.is_empty(), "{} has no file of the kind {extension}", folder.display());
    files.sort();
    files
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A running node with the images of the judges. Fields are dropped in this order: the node before its testbed.
pub(crate) struct Node {
    _daemon: Mutex<Daemon>,
    pub(crate) testbed: Testbed,
}

impl Node {
    pub(crate) fn start() -> Self {
        let testbed = Testbed::new();
        for image in files("images", "tar") {
            testbed.docker(&["load", "-q", "-i", text(&image)]);
        }
        let mut windlass: Windlass<'_> = testbed.windlass();
        let _ = windlass.up();
        let daemon = Mutex::new(windlass.into_daemon());
        Self { _daemon: daemon, testbed }
    }

    pub(crate) fn kubectl(&self) -> Kubectl<'_> {
        self.testbed.windlass().kubectl()
    }
}
