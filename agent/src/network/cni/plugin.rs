//! One call of a plugin, as libcni makes it.

use std::{path::Path, time::Duration};

use serde_json::{Map, Value, json};
use windlass_kit::external_program::Program;

use super::{super::NetworkError, CniConfig, config};

/// Timeout of one call of a plugin; upstream's.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(220);

/// What a call is about; without an attachment, all of it is empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) sandbox: &'a str,
    pub(super) arguments: &'a str,
    pub(super) namespace: &'a Path,
    pub(super) interface: &'a str,
}

impl Default for Target<'_> {
    fn default() -> Self {
        Self { sandbox: "", arguments: "", namespace: Path::new(""), interface: "" }
    }
}

impl CniConfig {
    /// Which versions of the specification a plugin supports.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub(super) async fn versions(&self, plugin: &Map<String, Value>) -> Result<Vec<String>, NetworkError> {
        let name = config::type_of(plugin).unwrap_or("");
        // What old plugins want whatever they are asked.
        let nobody = Target { sandbox: "", arguments: "", namespace: Path::new("dummy"), interface: "dummy" };
        let input = json!({"cniVersion": config::NEWEST_VERSION_TEXT});
        match self.call("VERSION", plugin, &input, nobody).await {
            Ok(answer) => config::supported_versions(&answer)
                .map_err(|why| NetworkError::new(format!("the network plugin {name:?} failed at VERSION"), why)),
            // One that is older than the question.
            Err(error) if error.to_string().contains("unknown CNI_COMMAND: VERSION") => Ok(vec!["0.1.0".to_owned()]),
            Err(error) => Err(error),
        }
    }

    /// Calls a plugin; gives what it answers.
    pub(super) async fn call(
        &self,
        command: &str,
        plugin: &Map<String, Value>,
        input: &Value,
        target: Target<'_>,
    ) -> Result<Vec<u8>, NetworkError> {
        let name = config::type_of(plugin).unwrap_or("");
        let failed = |why: String| NetworkError::new(format!("the network plugin {name:?} failed at {command}"), why);
        let bin_dirs = self.bin_dir_names();
        let program = self.program(name).ok_or_else(|| failed(format!("it is not in {}", bin_dirs.join(" or "))))?;
        let call = Program::new(program, PLUGIN_TIMEOUT)
            .envs([
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", target.sandbox),
                ("CNI_NETNS", &target.namespace.to_string_lossy()),
                ("CNI_IFNAME", target.interface),
                ("CNI_ARGS", target.arguments),
                ("CNI_PATH", &bin_dirs.join(":")),
            ])
            .input(input.to_string().into_bytes());
        let output = call.run().await.map_err(|why| failed(why.to_string()))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let silent = || format!("it ended with {}", output.status);
        let said = config::error(&output.stdout).or_else(|| Some(output.stderr()).filter(|text| !text.is_empty()));
        Err(failed(said.unwrap_or_else(silent)))
    }
}
