//! A guard process that outlives a killed test and cleans up behind it.

use std::{
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
};

/// A process that removes a testbed if the test's process dies without doing so.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    /// Starts the guard of a testbed with this name and directory.
    pub(crate) fn new(name: &str, dir: &Path) -> Self {
        // In a session of its own, so that a signal to the terminal's process group does not end it.
        let child = Command::new("setsid")
            .args(["sh", "-c", include_str!("guard.sh"), "guard", name])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("setsid starts"))
    }

    /// Ends the guard without a cleanup.
    pub(crate) fn disarm(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = input.write_all(b"over\n");
        }
        let _ = self.0.wait();
    }
}
