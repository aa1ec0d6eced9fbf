//! Runs a command inside a running container: for probes and hooks.

use std::time::Duration;

use bollard::{
    exec::{StartExecOptions, StartExecResults},
    models::ExecConfig,
};
use futures::StreamExt as _;

use super::{Engine, EngineError, calls::short, process};

/// What a command printed and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i64,
    /// Both streams, as they came, cut to the asked length.
    pub(crate) output: String,
}

/// How often Docker is asked for the process of a command that is to be killed, and how long is waited at first: it may
/// only just be starting it.
const ASKED: u32 = 7;
const ASK_FIRST: Duration = Duration::from_millis(100);

impl Engine {
    /// Runs a command to its end and keeps the first `most` bytes of what it prints. When nobody waits for it any more
    /// its processes are killed.
    pub(crate) async fn exec(&self, id: &str, command: &[String], most: usize) -> Result<Ended, EngineError> {
        let failed = |e: &bollard::errors::Error| {
            EngineError::new(format!("a command could not be run in container {}", short(id)), e)
        };
        let config = ExecConfig {
            cmd: Some(command.to_vec()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..ExecConfig::default()
        };
        let exec = self.counted("exec", self.docker().create_exec(id, config)).await.map_err(|e| failed(&e))?.id;
        let mut unfinished = Unfinished::new(self, &exec, id);
        let options = StartExecOptions { detach: false, ..StartExecOptions::default() };
        let started = match self.docker().start_exec(&exec, Some(options)).await {
            Ok(started) => started,
            Err(error) => {
                let error = failed(&error);
                if error.status().is_some() {
                    unfinished.over();
                }
                return Err(error);
            }
        };
        let mut bytes = Vec::new();
        if let StartExecResults::Attached { mut output, .. } = started {
            while let Some(chunk) = output.next().await {
                let chunk = chunk.map_err(|e| failed(&e))?.into_bytes();
                let room = most.saturating_sub(bytes.len()).min(chunk.len());
                bytes.extend_from_slice(&chunk[..room]);
            }
        }
        let seen = self.docker().inspect_exec(&exec).await.map_err(|e| failed(&e))?;
        unfinished.over();
        // Docker tells no code of what it could not start, but why.
        let code = seen.exit_code.unwrap_or(126);
        Ok(Ended { code, output: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Kills a command with all that it has started. Docker has no call for it.
    async fn kill_command(&self, exec: &str, container: &str) {
        let mut wait = ASK_FIRST;
        for _ in 0..ASKED {
            match self.docker().inspect_exec(exec).await {
                Ok(seen) => {
                    let pid = seen.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
                    match (seen.running, pid) {
                        (Some(true), Some(pid)) => return process::kill_tree(pid, container),
                        _ if seen.exit_code.is_some() => return,
                        // It is being started.
                        _ => {}
                    }
                }
                Err(error) => {
                    let error = EngineError::new("a command that nobody waits for could not be looked up", &error);
                    if error.is_not_found() {
                        return;
                    }
                    tracing::debug!(container, %error, "it is tried again");
                }
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }
}

/// A command whose end was not seen: killed when this is dropped.
struct Unfinished(Option<(Engine, String, String)>);

impl Unfinished {
    fn new(engine: &Engine, exec: &str, container: &str) -> Self {
        Self(Some((engine.clone(), exec.to_owned(), container.to_owned())))
    }

    /// The command has ended, or never began.
    fn over(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some((engine, exec, container)) = self.0.take() else { return };
        // Without a runtime the whole program is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(async move { engine.kill_command(&exec, &container).await }));
        }
    }
}
