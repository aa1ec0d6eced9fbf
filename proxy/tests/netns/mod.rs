//! Network namespaces: enters them, and runs the commands that create them.

use std::{fs::File, process::Command};

use nix::sched::{CloneFlags, setns};

/// Moves this thread into a namespace for the rest of its life.
pub(crate) fn enter(name: &str) {
    let file = File::open(format!("/var/run/netns/{name}")).expect("the namespace exists");
    setns(file, CloneFlags::CLONE_NEWNET).expect("root may enter namespaces");
}

/// Runs a command line of plain words and returns its output.
pub(crate) fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().expect("the program is installed");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
