//! The exit of a container's processes, as the kernel reports it through a pidfd. Docker reports it some 20 ms later,
//! when it has cleaned up.

use std::{fs, os::fd::OwnedFd};

use tokio::io::unix::AsyncFd;
use windlass_kit::repairs::MainPath;

use crate::{async_fd::readable, engine::process::ContainerProcess};

/// The init process of a container's own process namespace: no process in it outlives it.
pub(crate) struct InitProcess(AsyncFd<OwnedFd>);

impl InitProcess {
    /// Opens the process that Docker reports as the container's first; `None` where the kernel does not show it to be
    /// the init process of a namespace: it has exited, the container shares its process namespace, or Docker itself
    /// runs in another.
    ///
    /// Must be called within the runtime.
    pub(crate) fn of(process: &ContainerProcess) -> Option<Self> {
        if MainPath::ContainerEnds.is_off() {
            return None;
        }
        let pidfd = process.pidfd().ok()?;
        // Read after the pidfd was opened: the process is the same one.
        let status = process.read(|dir| fs::read_to_string(dir.join("status"))).ok()?;
        if is_init(&status) { readable(pidfd).ok().map(Self) } else { None }
    }

    /// Waits until it has exited, and with it all others.
    pub(crate) async fn exited(self) {
        if self.0.readable().await.is_err() {
            // The runtime shuts down.
            std::future::pending().await
        }
    }
}

/// Whether `/proc/PID/status` is that of the init process of a namespace below the reader's.
fn is_init(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_ascii_whitespace().skip(1).last() == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_processes_by_their_pids() {
        for (status, first) in [
            ("Name:\tsleep\nNSpid:\t4242\t1\nVmRSS:\t1 kB\n", true),
            ("NSpid:\t4242\t17\t1\n", true),
            ("NSpid:\t4242\t7\n", false),
            ("NSpid:\t1\n", false),
            ("Name:\tsleep\n", false),
            ("", false),
        ] {
            assert_eq!(is_init(status), first, "{status:?}");
        }
    }

    #[tokio::test]
    async fn a_process_of_no_container_is_not_waited_for() {
        let own = i32::try_from(std::process::id()).unwrap();
        for pid in [own, 0, -1] {
            assert!(InitProcess::of(&ContainerProcess::of(pid, "0123456789abcdef")).is_none(), "{pid}");
        }
    }
}
