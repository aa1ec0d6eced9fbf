//! Processes of containers. Docker names them by ids, which are reused, and may count in another PID namespace: no id
//! leaves this module, and what was opened by one counts only if the process is the container's behind that.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{exec_attach::is_in_container, inspect::User};

/// The first process of a container, as Docker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerProcess {
    pid: i32,
    container: String,
}

impl ContainerProcess {
    pub(super) fn new(pid: i32, container: &str) -> Self {
        Self { pid, container: container.to_owned() }
    }

    /// Any process.
    #[cfg(test)]
    pub(crate) fn of(pid: i32, container: &str) -> Self {
        Self::new(pid, container)
    }

    pub(crate) fn container(&self) -> &str {
        &self.container
    }

    /// Reads or opens something below the process's directory in `/proc`.
    ///
    /// # Errors
    /// What `read` says, or that the process is not the container's any more.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let found = read(&PathBuf::from(format!("/proc/{}", self.pid)))?;
        self.still(found)
    }

    /// A descriptor of the process, for its end.
    ///
    /// # Errors
    /// When there is no such process, or it is not the container's any more.
    pub(crate) fn pidfd(&self) -> io::Result<OwnedFd> {
        // A negative number would panic.
        let pid = Pid::from_raw(self.pid.max(0)).ok_or(io::ErrorKind::NotFound)?;
        let opened = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        self.still(opened)
    }

    /// Its user and groups; `None` when it has exited.
    pub(crate) fn user(&self) -> Option<User> {
        let status = self.read(|process| std::fs::read_to_string(process.join("status"))).ok()?;
        user(&status)
    }

    /// Asked behind what was found: the process was the container's all the time if it still is.
    fn still<T>(&self, found: T) -> io::Result<T> {
        if is_in_container(self.pid, &self.container) {
            return Ok(found);
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "the process has exited, and its id is another one's"))
    }
}

fn user(status: &str) -> Option<User> {
    let numbers = |key: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().map(|n| n.parse().ok()).collect()
    };
    let mut groups = numbers("Groups:")?;
    groups.sort_unstable();
    Some(User { uid: *numbers("Uid:")?.first()?, gid: *numbers("Gid:")?.first()?, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_groups_are_read_from_status() {
        let status = "Name:\tsh\nUid:\t1000\t1000\t1000\t1000\nGid:\t7\t7\t7\t7\nGroups:\t50 7 \n";
        assert_eq!(user(status), Some(User { uid: 1000, gid: 7, groups: vec![7, 50] }));
        assert_eq!(user("Name:\tsh\n"), None);
    }

    #[test]
    fn nothing_of_a_process_that_is_another_ones_is_read() {
        let own = i32::try_from(std::process::id()).unwrap();
        let foreign = ContainerProcess::of(own, "0123456789abcdef");
        assert!(foreign.user().is_none() && foreign.pidfd().is_err());
        let read = foreign.read(|process| std::fs::read_to_string(process.join("stat")));
        assert!(read.unwrap_err().to_string().contains("another one's"));
        for none in [0, -1, i32::MAX] {
            let none = ContainerProcess::of(none, "");
            assert!(none.user().is_none() && none.pidfd().is_err());
        }
    }
}
