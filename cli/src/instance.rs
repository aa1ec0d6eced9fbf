//! The lock that ensures one running instance, its pid, and its readiness file for other commands.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
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

/// How long a killed process may keep its lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// The interval between attempts to take the lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A held lock; released when dropped or when the process dies.
#[derive(Debug)]
pub(crate) struct Instance {
    _lock: Flock<File>,
    ready: PathBuf,
}

/// The result of an attempt to lock.
#[derive(Debug)]
pub(crate) enum Lock {
    /// No other process runs.
    Acquired(Instance),
    /// Another process runs, with this pid if it could be read.
    Held(Option<i32>),
}

impl Instance {
    /// Tries to take the lock in `run_dir`, creating the directory if needed.
    ///
    /// # Errors
    /// When the directory or the lock file cannot be created.
    pub(crate) fn try_lock(run_dir: &Path) -> anyhow::Result<Lock> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(run_dir)
            .with_context(|| format!("the directory {} could not be created", run_dir.display()))?;
        let path = run_dir.join(LOCK);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("the lock {} could not be opened", path.display()))?;
        // Whoever can open it can hold it, and an earlier version has let everybody.
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .with_context(|| format!("the lock {} could not be kept from others", path.display()))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                return Ok(Lock::Held(text.trim().parse().ok()));
            }
            Err((_, errno)) => {
                return Err(errno).with_context(|| format!("the lock {} could not be taken", path.display()));
            }
        };
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()))?;
        let ready = run_dir.join(READY);
        let _ = fs::remove_file(&ready);
        Ok(Lock::Acquired(Self { _lock: lock, ready }))
    }

    /// As [`Instance::try_lock`], for a start: retries for half a second, since a killed process keeps its lock until
    /// the kernel has cleaned it up.
    ///
    /// # Errors
    /// As for [`Instance::try_lock`].
    pub(crate) fn lock(run_dir: &Path) -> anyhow::Result<Lock> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match Self::try_lock(run_dir)? {
                Lock::Held(_) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
                lock => return Ok(lock),
            }
        }
    }

    /// Writes the readiness file, for which `windlass up --detach` waits.
    pub(crate) fn set_ready(&self) -> std::io::Result<()> {
        windlass_kit::atomic_file::write(&self.ready, format!("{}\n", std::process::id()).as_bytes(), 0o644)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.ready);
    }
}

/// Whether process `pid` has written its readiness file.
pub(crate) fn is_ready(run_dir: &Path, pid: u32) -> bool {
    fs::read_to_string(run_dir.join(READY)).is_ok_and(|text| text.trim() == pid.to_string())
}

/// Whether a process has the lock's file open, as the one that holds it has: the pid in the file may be that of one that has
/// ended, and now another's.
fn has_open(pid: i32, lock: &Path) -> bool {
    let Ok(lock) = fs::metadata(lock) else { return false };
    let is_lock = |open: fs::Metadata| (open.dev(), open.ino()) == (lock.dev(), lock.ino());
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::metadata(entry.path()).ok()).any(is_lock)
}

/// Terminates the running instance and waits for its lock, at most `timeout`.
pub(crate) fn stop_running(run_dir: &Path, timeout: Duration) -> anyhow::Result<Instance> {
    let deadline = Instant::now() + timeout;
    let mut signalled = None;
    loop {
        match Instance::try_lock(run_dir)? {
            Lock::Acquired(instance) => return Ok(instance),
            Lock::Held(None) => {}
            // It may be ending, or another process has taken the lock.
            Lock::Held(Some(pid)) if !has_open(pid, &run_dir.join(LOCK)) => {}
            Lock::Held(Some(pid)) if signalled != Some(pid) => {
                kill(Pid::from_raw(pid), Signal::SIGTERM)
                    .or_else(|e| if e == nix::errno::Errno::ESRCH { Ok(()) } else { Err(e) })
                    .with_context(|| format!("the running windlass (process {pid}) could not be signalled"))?;
                signalled = Some(pid);
            }
            Lock::Held(Some(_)) => {}
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "the running windlass (process {}) did not exit within {} s; see its log, or kill it with kill -9 (pods keep running) and retry",
            signalled.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            timeout.as_secs()
        );
        std::thread::sleep(RETRY_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_instance_at_a_time() {
        let dir = std::env::temp_dir().join(format!("windlass-instance-{}", std::process::id()));
        let Lock::Acquired(first) = Instance::try_lock(&dir).unwrap() else { panic!("the lock was free") };
        // flock belongs to the open file, so a second open in the same process meets it too.
        let Lock::Held(pid) = Instance::try_lock(&dir).unwrap() else { panic!("the lock was taken") };
        assert_eq!(pid.map(i32::unsigned_abs), Some(std::process::id()));
        assert!(!is_ready(&dir, std::process::id()));
        first.set_ready().unwrap();
        assert!(is_ready(&dir, std::process::id()));
        // An exiting one is waited for, a running one is not.
        assert!(matches!(Instance::lock(&dir).unwrap(), Lock::Held(_)));
        let ending = std::thread::spawn(move || {
            std::thread::sleep(3 * RETRY_INTERVAL);
            drop(first);
        });
        let Lock::Acquired(second) = Instance::lock(&dir).unwrap() else { panic!("the first one ended") };
        ending.join().unwrap();
        drop(second);
        assert!(!is_ready(&dir, std::process::id()));
        assert!(matches!(Instance::try_lock(&dir).unwrap(), Lock::Acquired(_)));
        fs::remove_dir_all(dir).unwrap();
    }

    /// The lock's file names a process that has ended long ago, and another one has its pid now.
    #[test]
    fn only_the_process_that_holds_the_lock_is_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let Lock::Acquired(held) = Instance::try_lock(dir.path()).unwrap() else { panic!("the lock was free") };
        let lock = dir.path().join(LOCK);
        assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(has_open(own, &lock));
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(other.id()).unwrap();
        assert!(!has_open(pid, &lock));
        fs::write(&lock, format!("{pid}\n")).unwrap();
        assert!(stop_running(dir.path(), Duration::ZERO).is_err());
        assert!(other.try_wait().unwrap().is_none(), "it was not meant");
        other.kill().unwrap();
        other.wait().unwrap();
        drop(held);
    }
}
