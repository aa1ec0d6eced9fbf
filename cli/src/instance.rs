//! The lock that ensures one running instance, its pid, and its readiness file for other commands. The lock's file is
//! never removed: a new file would be a separate lock.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};

const LOCK: &str = "windlass.lock";
const READY: &str = "ready";

/// How long a killed process may keep its lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a process that was killed, and waits for the kernel, is waited for.
const ENDING_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between attempts to take the lock.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(20);

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
        // Any user who can open it can hold it, and an earlier version let everyone.
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
    /// the kernel has cleaned it up, and as long as it takes to clean up one that has been killed.
    ///
    /// # Errors
    /// As for [`Instance::try_lock`], and when a killed process keeps the lock.
    pub(crate) fn lock(run_dir: &Path) -> anyhow::Result<Lock> {
        let began = Instant::now();
        loop {
            match Self::try_lock(run_dir)? {
                Lock::Held(_) if began.elapsed() < LOCK_TIMEOUT => {}
                Lock::Held(Some(pid)) if is_ending(pid) => anyhow::ensure!(
                    began.elapsed() < ENDING_TIMEOUT,
                    "process {pid} was killed and has not ended within {} s: it waits for the kernel, such as for a disk that does not answer",
                    ENDING_TIMEOUT.as_secs()
                ),
                lock => return Ok(lock),
            }
            std::thread::sleep(RETRY_INTERVAL);
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

/// Empties the run-time directory, but for the lock, which its holder keeps.
///
/// # Errors
/// The first that could not be removed.
pub(crate) fn clear_run_dir(run_dir: &Path, _held: &Instance) -> std::io::Result<()> {
    for entry in fs::read_dir(run_dir)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        let path = entry.path();
        if entry.file_type()?.is_dir() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
    }
    Ok(())
}

/// Whether process `pid` has written its readiness file.
pub(crate) fn is_ready(run_dir: &Path, pid: u32) -> bool {
    fs::read_to_string(run_dir.join(READY)).is_ok_and(|text| text.trim() == pid.to_string())
}

/// Whether a process has ended but for what the kernel does for it, or waits for a SIGKILL to be seen.
fn is_ending(pid: i32) -> bool {
    const SIGKILL_PENDING: u64 = 1 << (9 - 1);
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let pending = |name| u64::from_str_radix(of(name), 16).unwrap_or_default() & SIGKILL_PENDING != 0;
    of("State:").starts_with(['Z', 'X']) || pending("SigPnd:") || pending("ShdPnd:")
}

/// Whether a process has the lock's file open, as the one that holds it has: the pid in the file may be that of one that has
/// ended, and now another's.
pub(crate) fn holds_lock(pid: i32, run_dir: &Path) -> bool {
    let lock = run_dir.join(LOCK);
    let Ok(lock) = fs::metadata(lock) else { return false };
    let is_lock = |open: fs::Metadata| (open.dev(), open.ino()) == (lock.dev(), lock.ino());
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::metadata(entry.path()).ok()).any(is_lock)
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
    fn only_the_process_that_has_the_lock_open_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let Lock::Acquired(held) = Instance::try_lock(dir.path()).unwrap() else { panic!("the lock was free") };
        let lock = dir.path().join(LOCK);
        assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(holds_lock(own, dir.path()) && !is_ending(own));
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(other.id()).unwrap();
        assert!(!holds_lock(pid, dir.path()));
        other.kill().unwrap();
        // Not waited for yet.
        while !is_ending(pid) {
            std::thread::sleep(RETRY_INTERVAL);
        }
        other.wait().unwrap();
        drop(held);
    }

    /// A process waiting for the lock has its file open: a new file would be a separate lock.
    #[test]
    fn the_lock_outlives_what_is_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let Lock::Acquired(held) = Instance::try_lock(dir.path()).unwrap() else { panic!("the lock was free") };
        held.set_ready().unwrap();
        fs::create_dir(dir.path().join("tables")).unwrap();
        fs::write(dir.path().join("tables/nat"), "x").unwrap();
        let before = fs::metadata(dir.path().join(LOCK)).unwrap().ino();
        clear_run_dir(dir.path(), &held).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [LOCK]);
        assert_eq!(fs::metadata(dir.path().join(LOCK)).unwrap().ino(), before);
        assert!(matches!(Instance::try_lock(dir.path()).unwrap(), Lock::Held(_)));
    }
}
