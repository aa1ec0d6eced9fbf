//! The end of a container's processes, as the kernel tells it: Docker does so some 20 ms later, when it has put the
//! container away.

use std::{fs, os::fd::OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use windlass_kit::readable::readable;

use crate::engine::process;

/// The first process of a container's own process namespace: all others in it end before it does.
pub(crate) struct FirstProcess(AsyncFd<OwnedFd>);

impl FirstProcess {
    /// Takes hold of the process that Docker calls the container's first; `None` when the kernel does not show it to be
    /// that: it has ended, the container shares its processes with others, or Docker counts in another namespace.
    ///
    /// To be called within the runtime.
    pub(crate) fn of(pid: i32, container: &str) -> Option<Self> {
        // A negative number would panic.
        let held = pidfd_open(Pid::from_raw(pid.max(0))?, PidfdFlags::NONBLOCK).ok()?;
        // Read after it was taken hold of: the number cannot have gone to another one since.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        if !process::is_of(pid, container) || !is_first(&status) {
            return None;
        }
        readable(held).ok().map(Self)
    }

    /// Waits until it has ended, and with it all others.
    pub(crate) async fn end(self) {
        if self.0.readable().await.is_err() {
            // The runtime ends.
            std::future::pending().await
        }
    }
}

/// Whether `/proc/PID/status` is that of the first process of a namespace below the reader's.
fn is_first(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_ascii_whitespace().skip(1).last() == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_namespace_is_told_by_its_numbers() {
        for (status, first) in [
            ("Name:\tsleep\nNSpid:\t4242\t1\nVmRSS:\t1 kB\n", true),
            ("NSpid:\t4242\t17\t1\n", true),
            ("NSpid:\t4242\t7\n", false),
            ("NSpid:\t1\n", false),
            ("Name:\tsleep\n", false),
            ("", false),
        ] {
            assert_eq!(is_first(status), first, "{status:?}");
        }
    }

    #[tokio::test]
    async fn a_process_of_no_container_is_not_waited_for() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(FirstProcess::of(own, "0123456789abcdef").is_none());
        assert!(FirstProcess::of(0, "").is_none() && FirstProcess::of(-1, "").is_none());
    }
}
