//! Interactive processes: commands that run in a container (exec) and a container's own process (attach).

use std::{collections::HashMap, time::Duration};

use bollard::{
    Docker,
    models::{ExecConfig, ExecInspectResponse},
    query_parameters::{ListContainersOptions, ResizeContainerTTYOptions, ResizeExecOptions},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    Cause, Engine, EngineError,
    containers::short,
    docker_api::{EXEC, EXEC_INSPECT, RESIZE},
    hijack::Attached,
    names,
};

/// Docker detaches from a process when these keys are typed in a row, and detaching cannot be turned off. The default
/// (ctrl-p ctrl-q) is used in shells, so this is a sequence that no user types.
const DETACH_KEYS: &str = "ctrl-@,ctrl-@,ctrl-@,ctrl-@,ctrl-@,ctrl-@,ctrl-@,ctrl-@";

/// Which streams of a process are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) tty: bool,
}

/// A process to attach to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Process {
    /// An exec instance, by its id, and the container that it belongs to.
    Command { exec: String, container: String },
    /// A container's init process.
    Main { container: String },
}

/// The first and the longest interval between polls for an exit code: Docker learns of an exit a moment after the
/// streams have ended.
const EXIT_POLL_MIN: Duration = Duration::from_millis(2);
const EXIT_POLL_MAX: Duration = Duration::from_millis(200);

impl Engine {
    /// The running container of this name in a pod; with [`names::SANDBOX_NAME`] its sandbox.
    pub(crate) async fn running(&self, pod_uid: &str, container: &str) -> Result<Option<String>, EngineError> {
        let labels = [(names::POD_UID, pod_uid), (names::CONTAINER_NAME, container)];
        let filters = HashMap::from([
            ("label".to_owned(), labels.iter().map(|(key, value)| format!("{key}={value}")).collect()),
            ("status".to_owned(), vec!["running".to_owned()]),
        ]);
        let options = ListContainersOptions { filters: Some(filters), ..ListContainersOptions::default() };
        let found = self.listed("the container could not be looked up", Some(options)).await?;
        let of_pods = found.into_iter().filter(|c| c.names.iter().flatten().any(|name| names::is_pods_name(name)));
        // The newest comes first.
        Ok(of_pods.filter_map(|c| c.id).next())
    }

    /// Creates an exec instance in a running container.
    pub(crate) async fn create_exec(
        &self,
        container: &str,
        command: &[String],
        streams: Streams,
    ) -> Result<Process, EngineError> {
        let config = ExecConfig {
            cmd: Some(command.to_vec()),
            attach_stdin: Some(streams.stdin),
            attach_stdout: Some(streams.stdout),
            attach_stderr: Some(streams.stderr && !streams.tty),
            tty: Some(streams.tty),
            detach_keys: Some(DETACH_KEYS.to_owned()),
            ..ExecConfig::default()
        };
        let attempt = || format!("a command could not be run in container {}", short(container));
        let made = self.get(&EXEC, attempt, async |docker: Docker| docker.create_exec(container, config).await).await?;
        Ok(Process::Command { exec: made.id, container: container.to_owned() })
    }

    /// Starts a command, or attaches to a container's process, and returns the streams.
    pub(crate) async fn attach(&self, process: &Process, streams: Streams) -> Result<Attached, EngineError> {
        match process {
            Process::Command { exec, container } => {
                let body = serde_json::json!({"Detach": false, "Tty": streams.tty}).to_string();
                let attempt = format!("a command could not be run in container {}", short(container));
                self.hijack(&format!("/exec/{exec}/start"), body, streams.tty, &attempt).await
            }
            Process::Main { container } => {
                let path = format!(
                    "/containers/{container}/attach?stream=1&logs=0&stdin={}&stdout={}&stderr={}&detachKeys={DETACH_KEYS}",
                    u8::from(streams.stdin),
                    u8::from(streams.stdout),
                    u8::from(streams.stderr),
                );
                let attempt = format!("container {} could not be attached to", short(container));
                self.hijack(&path, String::new(), streams.tty, &attempt).await
            }
        }
    }

    /// Resizes a process's terminal, in characters.
    pub(crate) async fn resize(&self, process: &Process, width: u16, height: u16) -> Result<(), EngineError> {
        let (w, h) = (i32::from(width), i32::from(height));
        let resize = async |docker: Docker| match process {
            Process::Command { exec, .. } => docker.resize_exec(exec, ResizeExecOptions { w, h }).await,
            Process::Main { container } => {
                docker.resize_container_tty(container, ResizeContainerTTYOptions { w, h }).await
            }
        };
        self.done(&RESIZE, || "a terminal could not be resized".to_owned(), resize).await
    }

    /// Waits for the exit code of a command whose streams have ended.
    pub(crate) async fn exit_code(&self, exec: &str) -> Result<i64, EngineError> {
        let mut wait = EXIT_POLL_MIN;
        loop {
            let attempt = "the exit code of a command could not be read";
            let exec_state = self.command_state(exec, attempt).await?.ok_or_else(|| EngineError {
                attempt: attempt.to_owned(),
                reason: "Docker does not know the command any more: it was restarted, or the container is gone"
                    .to_owned(),
                cause: Cause::Refused(404),
            })?;
            match (exec_state.running, exec_state.exit_code) {
                (Some(true), _) => {}
                // Docker has no exit code for a command that it could not start.
                (_, code) => return Ok(code.unwrap_or(126)),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(EXIT_POLL_MAX);
        }
    }

    /// What Docker knows of a command; `None` when it has forgotten it.
    pub(super) async fn command_state(
        &self,
        exec: &str,
        attempt: &str,
    ) -> Result<Option<ExecInspectResponse>, EngineError> {
        let look = async |docker: Docker| docker.inspect_exec(exec).await;
        self.ask(&EXEC_INSPECT, || attempt.to_owned(), look).await
    }

    /// Sends a signal to a running command. Docker's API has no call for it.
    pub(crate) async fn signal(&self, exec: &str, container: &str, signal: Signal) -> Result<(), EngineError> {
        let Some(exec_state) = self.command_state(exec, "a command could not be inspected").await? else {
            return Ok(());
        };
        let pid = exec_state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
        let (Some(true), Some(pid)) = (exec_state.running, pid) else { return Ok(()) };
        signal_process(pid, container, signal);
        Ok(())
    }
}

/// Sends a signal to a process if it belongs to the container.
fn signal_process(pid: i32, container: &str, signal: Signal) {
    if is_in_container(pid, container) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Kills a process of a container and all its descendants.
pub(super) fn kill_tree(pid: i32, container: &str) {
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(&pid) = tree.get(next) {
        // A stopped process cannot fork while its children are listed.
        signal_process(pid, container, Signal::SIGSTOP);
        tree.extend(children(pid));
        next += 1;
    }
    for pid in tree {
        signal_process(pid, container, Signal::SIGKILL);
    }
}

/// The child processes of a process; none where the kernel does not list them.
fn children(pid: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

/// Whether a process id that Docker reports belongs to a container, by its cgroup. Docker may count in another PID
/// namespace, and ids are reused: no process is touched unless this says so.
pub(super) fn is_in_container(pid: i32, container: &str) -> bool {
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
    // An empty id would match every cgroup.
    !container.is_empty() && cgroup.is_ok_and(|cgroup| cgroup.contains(container))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn is_there(pid: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie waits to be reaped by its parent.
        status.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z') && !rest.is_empty())
    }

    fn spawn_tree() -> (Child, Vec<i32>) {
        let child = Command::new("sh").args(["-c", "sh -c 'sleep 300 & sleep 300' & sleep 300"]).spawn().unwrap();
        let first = i32::try_from(child.id()).unwrap();
        let all =
            || children(first).into_iter().flat_map(|pid| [vec![pid], children(pid)].concat()).collect::<Vec<_>>();
        for _ in 0..500 {
            if all().len() == 4 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(all().len(), 4);
        (child, all())
    }

    #[test]
    fn a_command_is_killed_with_its_descendants() {
        let (mut child, others) = spawn_tree();
        kill_tree(i32::try_from(child.id()).unwrap(), "of another container");
        assert!(others.iter().all(|pid| is_there(*pid)));
        kill_tree(i32::try_from(child.id()).unwrap(), "");
        assert!(others.iter().all(|pid| is_there(*pid)), "no id is nobody's");
        let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        kill_tree(i32::try_from(child.id()).unwrap(), cgroups.lines().next().unwrap());
        assert!(!child.wait().unwrap().success());
        for _ in 0..500 {
            if !others.iter().any(|pid| is_there(*pid)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("some of {others:?} run yet");
    }
}
