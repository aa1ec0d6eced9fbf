//! The one running instance: its lock, its process id, and what it tells other commands.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const LOCK: &str = "windlass.lock";
const READY: &str = "ready";

/// How long a killed process may take to be gone.
const ENDING: Duration = Duration::from_millis(500);
/// Between two tries of a lock that is held.
const RETRY: Duration = Duration::from_millis(20);

/// The lock that a running instance holds; released when dropped or when the process dies.
#[derive(Debug)]
pub(crate) struct Instance {
    _lock: Flock<File>,
    ready: PathBuf,
}

/// What taking the lock came to.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Nobody else runs.
    Ours(Instance),
    /// Another process runs, with this id if it could be read.
    Theirs(Option<i32>),
}

impl Instance {
    /// Takes the lock in `run_dir`, making the folder if need be.
    ///
    /// # Errors
    /// When the folder or the lock file cannot be made.
    pub(crate) fn take(run_dir: &Path) -> anyhow::Result<Taken> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(run_dir)
            .with_context(|| format!("the folder {} could not be made", run_dir.display()))?;
        let path = run_dir.join(LOCK);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path)
            .with_context(|| format!("the lock {} could not be opened", path.display()))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                return Ok(Taken::Theirs(text.trim().parse().ok()));
            }
            Err((_, errno)) => {
                return Err(errno).with_context(|| format!("the lock {} could not be taken", path.display()));
            }
        };
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()))?;
        let ready = run_dir.join(READY);
        let _ = fs::remove_file(&ready);
        Ok(Taken::Ours(Self { _lock: lock, ready }))
    }

    /// As [`Instance::take`], for one that is to start: a lock that is held is tried again for half a second, since a process
    /// that was killed holds its own until the kernel has put it away.
    ///
    /// # Errors
    /// As for [`Instance::take`].
    pub(crate) fn take_to_start(run_dir: &Path) -> anyhow::Result<Taken> {
        let deadline = Instant::now() + ENDING;
        loop {
            match Self::take(run_dir)? {
                Taken::Theirs(_) if Instant::now() < deadline => std::thread::sleep(RETRY),
                taken => return Ok(taken),
            }
        }
    }

    /// Tells `windlass up --detach` that the node is Ready.
    pub(crate) fn tell_ready(&self) -> std::io::Result<()> {
        fs::write(&self.ready, format!("{}\n", std::process::id()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.ready);
    }
}

/// Whether the process `pid` has said that its node is Ready.
pub(crate) fn is_ready(run_dir: &Path, pid: u32) -> bool {
    fs::read_to_string(run_dir.join(READY)).is_ok_and(|text| text.trim() == pid.to_string())
}

/// Asks the running instance to end and waits for its lock, at most `patience`.
///
/// # Errors
/// When it cannot be signalled or does not end in time.
pub(crate) fn stop_running(run_dir: &Path, patience: Duration) -> anyhow::Result<Instance> {
    let deadline = Instant::now() + patience;
    let mut told = None;
    loop {
        match Instance::take(run_dir)? {
            Taken::Ours(instance) => return Ok(instance),
            Taken::Theirs(None) => {}
            Taken::Theirs(Some(pid)) if told != Some(pid) => {
                kill(Pid::from_raw(pid), Signal::SIGTERM)
                    .or_else(|e| if e == nix::errno::Errno::ESRCH { Ok(()) } else { Err(e) })
                    .with_context(|| format!("the running windlass (process {pid}) could not be told to end"))?;
                told = Some(pid);
            }
            Taken::Theirs(Some(_)) => {}
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "the running windlass (process {}) did not end within {} s; look at its log, or end it with kill -9 (pods go on running) and try again",
            told.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            patience.as_secs()
        );
        std::thread::sleep(RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_instance_at_a_time() {
        let dir = std::env::temp_dir().join(format!("windlass-instance-{}", std::process::id()));
        let Taken::Ours(first) = Instance::take(&dir).unwrap() else { panic!("the lock was free") };
        // flock belongs to the open file, so a second open in the same process meets it too.
        let Taken::Theirs(pid) = Instance::take(&dir).unwrap() else { panic!("the lock was taken") };
        assert_eq!(pid.map(i32::unsigned_abs), Some(std::process::id()));
        assert!(!is_ready(&dir, std::process::id()));
        first.tell_ready().unwrap();
        assert!(is_ready(&dir, std::process::id()));
        // One that is about to end is waited for, one that stays is not.
        assert!(matches!(Instance::take_to_start(&dir).unwrap(), Taken::Theirs(_)));
        let ending = std::thread::spawn(move || {
            std::thread::sleep(3 * RETRY);
            drop(first);
        });
        let Taken::Ours(second) = Instance::take_to_start(&dir).unwrap() else { panic!("the first one ended") };
        ending.join().unwrap();
        drop(second);
        assert!(!is_ready(&dir, std::process::id()));
        assert!(matches!(Instance::take(&dir).unwrap(), Taken::Ours(_)));
        fs::remove_dir_all(dir).unwrap();
    }
}
