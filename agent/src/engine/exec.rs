//! Runs a command in a running container to its end: for exec probes and lifecycle hooks.

use std::time::Duration;

use bollard::{
    Docker,
    container::LogOutput,
    exec::{StartExecOptions, StartExecResults},
    models::ExecConfig,
};
use futures::StreamExt as _;

use super::{
    Engine, EngineError,
    containers::short,
    docker_api::{ATTACH, EXEC},
    exec_attach,
};

/// The output and exit code of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecResult {
    pub(crate) code: i64,
    /// Both streams as they came, cut to `max_bytes`.
    pub(crate) output: String,
}

/// The same with both streams apart, which are cut to `max_bytes` together.
#[cfg(feature = "cri")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ExecStreams {
    pub(crate) code: i64,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// How often Docker is asked for the process id of a command that is to be killed, and the first delay between
/// attempts, which doubles: Docker may only just be starting it.
const KILL_ATTEMPTS: u32 = 7;
const KILL_RETRY_DELAY: Duration = Duration::from_millis(100);

impl Engine {
    /// Runs a command to its end and keeps the first `max_bytes` of its output. When the future is dropped the
    /// command's processes are killed.
    pub(crate) async fn exec(&self, id: &str, command: &[String], max_bytes: usize) -> Result<ExecResult, EngineError> {
        let mut bytes = Vec::new();
        let code = self.exec_with(id, command, |chunk| append(&mut bytes, chunk.as_ref(), max_bytes)).await?;
        Ok(ExecResult { code, output: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// The same, with its streams apart.
    #[cfg(feature = "cri")]
    pub(crate) async fn exec_apart(
        &self,
        id: &str,
        command: &[String],
        max_bytes: usize,
    ) -> Result<ExecStreams, EngineError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let keep = |chunk: LogOutput| {
            let left = max_bytes - stdout.len() - stderr.len();
            let of = if matches!(chunk, LogOutput::StdErr { .. }) { &mut stderr } else { &mut stdout };
            append(of, chunk.as_ref(), of.len() + left);
        };
        let code = self.exec_with(id, command, keep).await?;
        Ok(ExecStreams { code, stdout, stderr })
    }

    /// Runs a command to its end, hands its output on, and gives its exit code.
    async fn exec_with(
        &self,
        id: &str,
        command: &[String],
        mut keep: impl FnMut(LogOutput) + Send,
    ) -> Result<i64, EngineError> {
        let config = ExecConfig {
            cmd: Some(command.to_vec()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..ExecConfig::default()
        };
        let attempt = || format!("a command could not be run in container {}", short(id));
        let failed = |e: &bollard::errors::Error| EngineError::new(attempt(), e);
        let exec = self.get(&EXEC, attempt, async |docker: Docker| docker.create_exec(id, config).await).await?.id;
        let mut guard = KillOnDrop::new(self, &exec, id);
        let options = StartExecOptions { detach: false, ..StartExecOptions::default() };
        let started = match self.patient(ATTACH.limit).start_exec(&exec, Some(options)).await {
            Ok(started) => started,
            Err(error) => {
                let error = failed(&error);
                if error.status().is_some() {
                    guard.disarm();
                }
                return Err(error);
            }
        };
        if let StartExecResults::Attached { mut output, .. } = started {
            while let Some(chunk) = output.next().await {
                keep(chunk.map_err(|e| failed(&e))?);
            }
        }
        // Where Docker could not start the command, the output says why.
        let code = self.exit_code(&exec).await?;
        guard.disarm();
        Ok(code)
    }

    /// Kills a command with all its descendants. Docker's API has no call for it.
    pub(crate) async fn kill_command(&self, exec: &str, container: &str) {
        let mut wait = KILL_RETRY_DELAY;
        for _ in 0..KILL_ATTEMPTS {
            match self.command_state(exec, "an abandoned command could not be inspected").await {
                Ok(None) => return,
                Ok(Some(exec_state)) => {
                    let pid = exec_state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1);
                    match (exec_state.running, pid) {
                        (Some(true), Some(pid)) => return exec_attach::kill_tree(pid, container),
                        _ if exec_state.exit_code.is_some() => return,
                        // Still starting.
                        _ => {}
                    }
                }
                Err(error) => {
                    tracing::debug!(container, %error, "failed to inspect abandoned exec; retrying");
                }
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }
}

/// Appends what there is room for.
fn append(kept: &mut Vec<u8>, chunk: &[u8], max_bytes: usize) {
    let room = max_bytes.saturating_sub(kept.len()).min(chunk.len());
    kept.extend_from_slice(&chunk[..room]);
}

/// Kills a command when dropped, unless disarmed.
struct KillOnDrop(Option<(Engine, String, String)>);

impl KillOnDrop {
    fn new(engine: &Engine, exec: &str, container: &str) -> Self {
        Self(Some((engine.clone(), exec.to_owned(), container.to_owned())))
    }

    /// The command has exited, or never started.
    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some((engine, exec, container)) = self.0.take() else { return };
        // Without a runtime the whole process is exiting.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(async move { engine.kill_command(&exec, &container).await }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::engine::fake;

    /// Docker may learn of the exit only after the streams have ended.
    #[tokio::test]
    async fn a_command_that_docker_still_calls_running_has_no_exit_code_yet() {
        let dir = tempfile::tempdir().unwrap();
        let asked = AtomicU32::new(0);
        let engine = fake::scripted(dir.path(), move |line| {
            let json = |body: &str| {
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )
            };
            if line.contains("/start") {
                return "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nEnds: true\r\n\r\n".to_owned();
            }
            if line.starts_with("POST") {
                return json(r#"{"Id":"0e"}"#);
            }
            match asked.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => json(r#"{"ID":"0e","Running":true}"#),
                _ => json(r#"{"ID":"0e","Running":false,"ExitCode":0}"#),
            }
        });
        let result = engine.exec("c", &["true".to_owned()], 100).await.unwrap();
        assert_eq!(result.code, 0);
    }
}
