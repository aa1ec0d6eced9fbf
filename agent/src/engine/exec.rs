//! Runs a command inside a running container: for probes and hooks.

use bollard::{
    exec::{StartExecOptions, StartExecResults},
    models::ExecConfig,
};
use futures::StreamExt as _;

use super::{Engine, EngineError, calls::short};

/// What a command printed and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i64,
    /// Both streams, as they came, cut to the asked length.
    pub(crate) output: String,
}

impl Engine {
    /// Runs a command to its end and keeps the first `most` bytes of what it prints. Whoever gives up waiting leaves
    /// it running: Docker cannot end it.
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
        let options = StartExecOptions { detach: false, ..StartExecOptions::default() };
        let started = self.docker().start_exec(&exec, Some(options)).await.map_err(|e| failed(&e))?;
        let mut bytes = Vec::new();
        if let StartExecResults::Attached { mut output, .. } = started {
            while let Some(chunk) = output.next().await {
                let chunk = chunk.map_err(|e| failed(&e))?.into_bytes();
                let room = most.saturating_sub(bytes.len()).min(chunk.len());
                bytes.extend_from_slice(&chunk[..room]);
            }
        }
        let seen = self.docker().inspect_exec(&exec).await.map_err(|e| failed(&e))?;
        // Docker tells no code of what it could not start, but why.
        let code = seen.exit_code.unwrap_or(126);
        Ok(Ended { code, output: String::from_utf8_lossy(&bytes).into_owned() })
    }
}
