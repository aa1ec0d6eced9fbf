//! Network namespaces of containers. This is the only place that opens one, of a process that is known to be the
//! container's; nothing is entered or connected on an id alone.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd as _, RawFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
    sync::Arc,
};

use nix::sched::{CloneFlags, setns};

use super::NetworkError;
use crate::engine::process::ContainerProcess;

/// A container's network namespace by an open descriptor: it stays the same whatever becomes of the process it was found
/// by. Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct NetworkNamespace(Arc<File>);

impl NetworkNamespace {
    /// The namespace of a container's process.
    ///
    /// # Errors
    /// When there is no such process, or it does not belong to the container, or the namespace is the host's.
    pub(crate) fn of_container(process: &ContainerProcess) -> Result<Self, NetworkError> {
        let attempt = || format!("the network namespace of container {} could not be opened", process.container());
        let opened = process.read(open).map_err(|e| NetworkError::new(attempt(), e))?;
        match opened.is_the_hosts() {
            Ok(false) => Ok(opened),
            // It would be configured as a pod's.
            Ok(true) => Err(NetworkError::new(attempt(), "it is that of the host")),
            Err(error) => Err(NetworkError::new(attempt(), error)),
        }
    }

    /// Whether it is the one that this process is in.
    fn is_the_hosts(&self) -> io::Result<bool> {
        let (this, own) = (self.0.metadata()?, std::fs::metadata("/proc/thread-self/ns/net")?);
        Ok((this.dev(), this.ino()) == (own.dev(), own.ino()))
    }

    /// That of a process that is no container's.
    #[cfg(test)]
    pub(super) fn of_process(pid: u32) -> Self {
        open(Path::new(&format!("/proc/{pid}"))).unwrap()
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

fn open(process: &Path) -> io::Result<NetworkNamespace> {
    File::open(process.join("ns/net")).map(|file| NetworkNamespace(Arc::new(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_another_process_s_is_refused() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let foreign = "4f2c6a0d9be7c1583f2e6a0d9be7c1583f2e6a0d9be7c1583f2e6a0d9be7c158";
        let refused = NetworkNamespace::of_container(&ContainerProcess::of(pid, foreign)).unwrap_err().to_string();
        assert!(refused.contains("another one's") && refused.contains(foreign), "{refused}");
        let none = NetworkNamespace::of_container(&ContainerProcess::of(i32::MAX, foreign)).unwrap_err().to_string();
        assert!(none.contains("could not be opened"), "{none}");
    }

    #[test]
    fn the_namespace_of_the_host_is_known() {
        assert!(NetworkNamespace::of_process(std::process::id()).is_the_hosts().unwrap());
        let mut sleeper = std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
        while NetworkNamespace::of_process(sleeper.id()).is_the_hosts().unwrap() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
