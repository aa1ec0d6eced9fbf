//! Processes that somebody at a terminal talks to: commands in a running container, and a container's own.

use std::{collections::HashMap, time::Duration};

use bollard::{
    models::ExecConfig,
    query_parameters::{ListContainersOptions, ResizeContainerTTYOptions, ResizeExecOptions},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Engine, EngineError, attached::Attached, calls::short, names};

/// Typed in a row they leave the process, says Docker, and it cannot be told that nothing does. Its own keys are
/// what shells are used with, so here are ones that nobody types.
const DETACH_KEYS: &str = "ctrl-@,ctrl-@,ctrl-@,ctrl-@,ctrl-@,ctrl-@,ctrl-@,ctrl-@";

/// What of a process is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) tty: bool,
}

/// A process that can be attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Process {
    /// A command that was made for a container, by its id among all such.
    Command { exec: String, container: String },
    /// A container's first process.
    Main { container: String },
}

/// How often an end is asked for, at first and at most: Docker learns of it a moment after the streams do.
const ASK_FIRST: Duration = Duration::from_millis(2);
const ASK_LAST: Duration = Duration::from_millis(200);

impl Engine {
    /// The running container of this name in a pod; with [`names::SANDBOX_NAME`] its sandbox.
    pub(crate) async fn running(&self, pod_uid: &str, container: &str) -> Result<Option<String>, EngineError> {
        let labels = [(names::POD_UID, pod_uid), (names::CONTAINER_NAME, container)];
        let filters = HashMap::from([
            ("label".to_owned(), labels.iter().map(|(key, value)| format!("{key}={value}")).collect()),
            ("status".to_owned(), vec!["running".to_owned()]),
        ]);
        let options = ListContainersOptions { filters: Some(filters), ..ListContainersOptions::default() };
        let found = self.docker().list_containers(Some(options)).await;
        let found = found.map_err(|e| EngineError::new("the container could not be looked up", &e))?;
        // The newest comes first.
        Ok(found.into_iter().find_map(|c| c.id))
    }

    /// Prepares a command in a running container.
    pub(crate) async fn prepare(
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
        let made = self.counted("exec", self.docker().create_exec(container, config)).await.map_err(|e| {
            EngineError::new(format!("a command could not be run in container {}", short(container)), &e)
        })?;
        Ok(Process::Command { exec: made.id, container: container.to_owned() })
    }

    /// Starts a command, or joins a container's process, and gives its streams.
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

    /// Tells a process's terminal its size, in characters.
    pub(crate) async fn resize(&self, process: &Process, width: u16, height: u16) -> Result<(), EngineError> {
        let (w, h) = (i32::from(width), i32::from(height));
        let result = match process {
            Process::Command { exec, .. } => self.docker().resize_exec(exec, ResizeExecOptions { w, h }).await,
            Process::Main { container } => {
                self.docker().resize_container_tty(container, ResizeContainerTTYOptions { w, h }).await
            }
        };
        result.map_err(|e| EngineError::new("a terminal could not be given its size", &e))
    }

    /// Waits for the exit code of a command whose streams have ended.
    pub(crate) async fn exit_code(&self, exec: &str) -> Result<i64, EngineError> {
        let mut wait = ASK_FIRST;
        loop {
            let seen = self.docker().inspect_exec(exec).await;
            let seen = seen.map_err(|e| EngineError::new("the end of a command could not be learned", &e))?;
            match (seen.running, seen.exit_code) {
                (Some(true), _) => {}
                // Docker tells no code of what it could not start.
                (_, code) => return Ok(code.unwrap_or(126)),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(ASK_LAST);
        }
    }

    /// Sends a signal to a command that still runs. Docker has no call for it.
    pub(crate) async fn signal(&self, exec: &str, container: &str, signal: Signal) -> Result<(), EngineError> {
        let seen = self.docker().inspect_exec(exec).await;
        let seen = seen.map_err(|e| EngineError::new("a command could not be looked up", &e))?;
        let pid = seen.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
        let (Some(true), Some(pid)) = (seen.running, pid) else { return Ok(()) };
        if is_of(pid, container) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
        Ok(())
    }
}

/// Whether the kernel shows a process, by the number that Docker tells, to be one of a container. Docker may count in
/// another namespace, and a number may have gone to another process: none is touched unless this says so.
pub(crate) fn is_of(pid: i32, container: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|cgroup| cgroup.contains(container))
}
