//! The exit of a container's processes, as the kernel reports it through a pidfd. Docker reports it some 20 ms later,
//! when it has cleaned up.

use std::{fs, os::fd::OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use windlass_kit::async_fd::readable;

use crate::engine::exec_attach;

/// The init process of a container's own process namespace: no process in it outlives it.
pub(crate) struct InitProcess(AsyncFd<OwnedFd>);

impl InitProcess {
    /// Opens the process that Docker reports as the container's first; `None` where the kernel does not show it to be
    /// the init process of a namespace: it has exited, the container shares its process namespace, or Docker itself
    /// runs in another.
    ///
    /// Must be called within the runtime.
    pub(crate) fn of(pid: i32, container: &str) -> Option<Self> {
        // A negative number would panic.
        let pidfd = pidfd_open(Pid::from_raw(pid.max(0))?, PidfdFlags::NONBLOCK).ok()?;
        // Read after the pidfd was opened: the pid cannot have been reused since.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        if !exec_attach::is_in_container(pid, container) || !is_init(&status) {
            return None;
        }
        readable(pidfd).ok().map(Self)
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
        assert!(InitProcess::of(own, "0123456789abcdef").is_none());
        assert!(InitProcess::of(0, "").is_none() && InitProcess::of(-1, "").is_none());
    }
}
