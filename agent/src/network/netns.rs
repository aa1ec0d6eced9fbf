//! Network namespaces of containers. This is the only place that finds one by a process id, which Docker reports: ids are
//! reused, and Docker may count in another PID namespace, so nothing is opened, entered or connected on an id alone.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd as _, RawFd},
    sync::Arc,
};

use nix::sched::{CloneFlags, setns};

use super::NetworkError;
use crate::engine::exec_attach;

/// A container's network namespace by an open descriptor: it stays the same whatever becomes of the process it was found
/// by. Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct NetworkNamespace(Arc<File>);

impl NetworkNamespace {
    /// The namespace of a process of a container.
    ///
    /// # Errors
    /// When there is no such process, or it does not belong to the container.
    pub fn of_container(pid: i32, container: &str) -> Result<Self, NetworkError> {
        let attempt = || format!("the network namespace of process {pid} of container {container} could not be opened");
        let opened = open(pid).map_err(|e| NetworkError::new(attempt(), e))?;
        // Asked once it is open: the process was the container's when its namespace was opened if it still is.
        if exec_attach::is_in_container(pid, container) {
            Ok(opened)
        } else {
            Err(NetworkError::new(attempt(), "the process has exited, and its id is another one's"))
        }
    }

    /// That of a process that is no container's.
    #[cfg(test)]
    pub(super) fn of_process(pid: u32) -> Self {
        open(i32::try_from(pid).unwrap()).unwrap()
    }

    /// The open descriptor, for calls to the kernel that name a namespace by it.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Runs `work` on a thread inside. A thread cannot reliably leave a namespace again, so a fresh one is used and ends.
    pub(super) fn run<F, T>(&self, work: F) -> impl Future<Output = io::Result<T>> + use<F, T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let namespace = Arc::clone(&self.0);
        let (done, received) = tokio::sync::oneshot::channel();
        let spawned = std::thread::Builder::new().name("pod-network".to_owned()).spawn(move || {
            let entered = setns(&*namespace, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
            let _ = done.send(entered.map(|()| work()));
        });
        async move {
            spawned?;
            received.await.map_err(|_| io::Error::other("the thread ended early"))?
        }
    }
}

fn open(pid: i32) -> io::Result<NetworkNamespace> {
    File::open(format!("/proc/{pid}/ns/net")).map(|file| NetworkNamespace(Arc::new(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_another_process_s_is_refused() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let foreign = "4f2c6a0d9be7c1583f2e6a0d9be7c1583f2e6a0d9be7c1583f2e6a0d9be7c158";
        let refused = NetworkNamespace::of_container(pid, foreign).unwrap_err().to_string();
        assert!(refused.contains("another one's") && refused.contains(foreign), "{refused}");
        let none = NetworkNamespace::of_container(i32::MAX, foreign).unwrap_err().to_string();
        assert!(none.contains("could not be opened"), "{none}");
    }
}
