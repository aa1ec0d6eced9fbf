//! A FUSE file system that stops answering on request, like a mount of a dead server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    mount::{MntFlags, umount2},
    sys::signal::Signal,
};

use crate::{DEFAULT_TIMEOUT, Daemon, eventually};

/// A directory mounted at another place by a FUSE server (`bindfs`). Unmounted when dropped.
#[derive(Debug)]
pub struct HangingMount {
    server: Daemon,
    at: PathBuf,
}

impl HangingMount {
    /// Mounts `directory` at `at`; both are created if missing.
    ///
    /// # Panics
    /// When it cannot be mounted. `make test` installs what it needs.
    #[must_use]
    pub fn new(folder: &Path, at: &Path) -> Self {
        for dir in [folder, at] {
            fs::create_dir_all(dir).expect("a directory can be created");
        }
        // The kernel caches nothing, so that every access is a request to the server.
        let mut command = Command::new("bindfs");
        command.args(["-f", "-o", "allow_other,attr_timeout=0,entry_timeout=0,negative_timeout=0"]);
        command.args([folder, at]);
        let server = Daemon::start("bindfs", &mut command, &at.with_extension("log")).expect("bindfs");
        let mirror = Self { server, at: at.to_owned() };
        let wanted = format!(" {} ", at.display());
        eventually(DEFAULT_TIMEOUT, "the mirror is mounted", || {
            let table = fs::read_to_string("/proc/self/mountinfo")?;
            anyhow::ensure!(table.contains(&wanted), "{}", mirror.server.log());
            Ok(())
        });
        mirror
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Stops the server: requests are no longer answered.
    pub fn hang(&self) {
        self.server.signal(Signal::SIGSTOP);
    }

    /// Lets the server continue: waiting requests are answered.
    pub fn answer(&self) {
        self.server.signal(Signal::SIGCONT);
    }
}

impl Drop for HangingMount {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
        // A stopped process handles only SIGKILL. When the server is gone the kernel fails all waiting requests.
        self.server.signal(Signal::SIGKILL);
    }
}
