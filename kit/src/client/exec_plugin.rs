//! Credential plugins: programs that a kubeconfig names (`users[].user.exec`), which print credentials. The contract is
//! client-go's (`plugin/pkg/client/auth/exec`), with two limits that it has not: on the time that a plugin may take, and on
//! what it may print. A node asks without anybody watching, and what hangs there hangs for good.

use std::time::Duration;

use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;

use crate::external_program::{Program, ProgramError};

/// How long a plugin may take: a call of a token service over the network takes seconds.
const DEADLINE: Duration = Duration::from_secs(60);
/// The most of its complaints that are repeated.
const MAX_COMPLAINT: usize = 1024;
/// The variable that passes the ExecCredential request to a plugin.
const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
const KIND: &str = "ExecCredential";

/// Why a plugin gives no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// The kubeconfig's `exec` cannot be used.
    #[error("the credential plugin of the kubeconfig cannot be used: {0}")]
    Config(String),
    /// It could not be started.
    #[error("exec: executable {command} could not be started: {reason}{hint}")]
    Start {
        /// What the kubeconfig names.
        command: String,
        /// Why not.
        reason: String,
        /// The kubeconfig's `installHint`, if any.
        hint: String,
    },
    /// It ended with an error.
    #[error("exec: executable {command} failed with {status}{complaint}")]
    Failed {
        /// What the kubeconfig names.
        command: String,
        /// How it ended.
        status: String,
        /// What it said of that, if anything.
        complaint: String,
    },
    /// It took too long.
    #[error("exec: executable {command} gave no answer within {limit:?} and was ended")]
    Deadline {
        /// What the kubeconfig names.
        command: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// What it printed is no credential.
    #[error("exec: executable {command} printed no credentials: {reason}")]
    Answer {
        /// What the kubeconfig names.
        command: String,
        /// What is wrong.
        reason: String,
    },
}

/// A program and how it is asked.
#[derive(Debug, Clone)]
pub(super) struct Plugin {
    command: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    version: &'static str,
    /// The value of [`EXEC_INFO`] passed to the plugin.
    info: String,
    hint: Option<String>,
    deadline: Duration,
}

/// What a plugin gave.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) token: Option<String>,
    /// A certificate chain and its key, in PEM.
    pub(super) pair: Option<(String, String)>,
    pub(super) until: Option<Timestamp>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the credentials.
        f.debug_struct("Answer").field("until", &self.until).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ExecCredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Plugin {
    /// Of a kubeconfig.
    pub(super) fn new(config: &ExecConfig) -> Result<Self, PluginError> {
        let unusable = |reason: String| PluginError::Config(reason);
        let command = config.command.clone().filter(|command| !command.is_empty());
        let command = command
            .ok_or_else(|| unusable("command must be specified to use exec authentication plugin".to_owned()))?;
        let asked = config.api_version.as_deref().unwrap_or_default();
        let version = VERSIONS.into_iter().find(|version| *version == asked);
        let version = version.ok_or_else(|| unusable(format!("exec plugin: invalid apiVersion {asked:?}")))?;
        match config.interactive_mode {
            // A node is not interactive.
            Some(ExecInteractiveMode::Always) => {
                let reason = "exec plugin cannot support interactive mode: standard input is unavailable";
                return Err(unusable(reason.to_owned()));
            }
            None if version == VERSIONS[0] => {
                let reason = "interactiveMode must be specified to use exec authentication plugin";
                return Err(unusable(reason.to_owned()));
            }
            _ => {}
        }
        let mut info = json!({"kind": KIND, "apiVersion": version, "spec": {"interactive": false}});
        if config.provide_cluster_info
            && let Some(cluster) = &config.cluster
        {
            info["spec"]["cluster"] = serde_json::to_value(cluster).map_err(|e| unusable(e.to_string()))?;
        }
        let variable = |one: &std::collections::HashMap<String, String>| {
            let name = one.get("name").filter(|name| !name.is_empty() && !name.contains(['=', '\0']))?;
            Some((name.clone(), one.get("value").cloned().unwrap_or_default()))
        };
        let env: Option<Vec<_>> = config.env.iter().flatten().map(variable).collect();
        let env = env.ok_or_else(|| {
            unusable("env variable name must be specified to use exec authentication plugin".to_owned())
        })?;
        Ok(Self {
            command,
            args: config.args.clone().unwrap_or_default(),
            env,
            version,
            info: info.to_string(),
            hint: config.install_hint.clone().filter(|hint| !hint.is_empty()),
            deadline: DEADLINE,
        })
    }

    /// What the kubeconfig names.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    #[cfg(test)]
    pub(super) fn within(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs it. What it has started itself is ended with it, unless it ends by itself.
    pub(super) async fn run(&self) -> Result<Answer, PluginError> {
        let env = self.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let program = Program::new(&self.command, self.deadline).args(&self.args);
        let output = program.envs(env.chain([(EXEC_INFO, self.info.as_str())])).run().await;
        let command = || self.command.clone();
        let output = output.map_err(|error| match error {
            ProgramError::Start(reason) => PluginError::Start {
                command: command(),
                reason,
                hint: self.hint.as_ref().map(|hint| format!("\n\n{hint}")).unwrap_or_default(),
            },
            ProgramError::Deadline(limit) => PluginError::Deadline { command: command(), limit },
            ProgramError::Output(reason) => self.answer(reason),
        })?;
        if !output.status.success() {
            let text = output.stderr();
            let text = &text[..text.floor_char_boundary(MAX_COMPLAINT)];
            let complaint = if text.is_empty() { String::new() } else { format!(": {text}") };
            return Err(PluginError::Failed { command: command(), status: output.status.to_string(), complaint });
        }
        parse(self.version, &output.stdout).map_err(|reason| self.answer(reason))
    }

    fn answer(&self, reason: String) -> PluginError {
        PluginError::Answer { command: self.command.clone(), reason }
    }
}

/// What was printed as credentials. Pure.
fn parse(version: &str, output: &[u8]) -> Result<Answer, String> {
    let read: ExecCredential = serde_json::from_slice(output).map_err(|e| format!("decoding stdout: {e}"))?;
    if read.kind != KIND {
        return Err(format!("decoding stdout: its kind is {:?}, not {KIND}", read.kind));
    }
    if read.api_version != version {
        return Err(format!(
            "exec plugin is configured to use API version {version}, plugin returned version {}",
            read.api_version
        ));
    }
    let status = read.status.ok_or("exec plugin didn't return a status field")?;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let token = given(status.token);
    let pair = match (given(status.client_certificate_data), given(status.client_key_data)) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) if token.is_none() => return Err("exec plugin didn't return a token or cert/key pair".to_owned()),
        (None, None) => None,
        _ => return Err("exec plugin returned only certificate or key, not both".to_owned()),
    };
    let until = status
        .expiration_timestamp
        .map(|text| text.parse().map_err(|e| format!("decoding stdout: expirationTimestamp {text:?} is no time: {e}")));
    Ok(Answer { token, pair, until: until.transpose()? })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const V1: &str = VERSIONS[0];

    /// A plugin that is this shell script.
    fn script(text: &str) -> ExecConfig {
        ExecConfig {
            api_version: Some(V1.to_owned()),
            command: Some("/bin/sh".to_owned()),
            args: Some(vec!["-c".to_owned(), text.to_owned()]),
            interactive_mode: Some(ExecInteractiveMode::Never),
            ..ExecConfig::default()
        }
    }

    async fn run(text: &str) -> Result<Answer, PluginError> {
        Plugin::new(&script(text)).unwrap().run().await
    }

    fn credential(status: &str) -> String {
        format!(r#"{{"kind":"ExecCredential","apiVersion":"{V1}","status":{status}}}"#)
    }

    #[tokio::test]
    async fn a_plugin_gives_a_token_or_a_certificate() {
        let answer =
            run(&format!("echo '{}'", credential(r#"{"token":"t","expirationTimestamp":"2030-01-02T03:04:05Z"}"#)))
                .await;
        let until = "2030-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(answer, Ok(Answer { token: Some("t".to_owned()), pair: None, until: Some(until) }));
        let both = credential(r#"{"clientCertificateData":"c","clientKeyData":"k"}"#);
        let pair = Some(("c".to_owned(), "k".to_owned()));
        assert_eq!(run(&format!("echo '{both}'")).await, Ok(Answer { token: None, pair, until: None }));
    }

    /// What is wanted of it and its own variables are in its environment, besides ours; its input is empty.
    #[tokio::test]
    async fn a_plugin_is_told_what_is_wanted() {
        let text = r#"[ -n "$PATH" ] && [ "$OWN" = value ] && [ -z "$(cat)" ] || exit 3
            token=$(printf %s "$KUBERNETES_EXEC_INFO" | base64 -w0)
            printf '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"%s"}}' "$token""#;
        let mut config = script(text);
        config.env =
            Some(vec![HashMap::from([("name", "OWN"), ("value", "value")].map(|(a, b)| (a.to_owned(), b.to_owned())))]);
        let answer = Plugin::new(&config).unwrap().run().await.unwrap();
        let info = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, answer.token.unwrap()).unwrap();
        let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
        assert_eq!(info, json!({"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": false}}));
    }

    #[tokio::test]
    async fn a_plugin_that_lies_or_fails_is_named_with_what_it_did() {
        let wrong_kind = credential("{}").replace("ExecCredential", "Status");
        let beta = credential(r#"{"token":"t"}"#).replace("/v1\"", "/v1beta1\"");
        for (text, expected) in [
            ("echo 'Please log in first'".to_owned(), "decoding stdout"),
            (String::new(), "decoding stdout"),
            (format!("echo '{wrong_kind}'"), "its kind is \"Status\""),
            (format!("echo '{beta}'"), "plugin returned version client.authentication.k8s.io/v1beta1"),
            (format!("echo '{}'", credential("null")), "didn't return a status field"),
            (format!("echo '{}'", credential("{}")), "didn't return a token or cert/key pair"),
            (format!("echo '{}'", credential(r#"{"clientKeyData":"k"}"#)), "only certificate or key, not both"),
            (
                format!("echo '{}'", credential(r#"{"token":"t","expirationTimestamp":"tomorrow"}"#)),
                "expirationTimestamp \"tomorrow\" is no time",
            ),
            ("echo expired session >&2; exit 7".to_owned(), "exit status: 7: expired session"),
            ("kill -9 $$".to_owned(), "signal: 9"),
            ("yes | head -c 3000000".to_owned(), "more than 1048576 bytes"),
            ("yes".to_owned(), "more than 1048576 bytes"),
            ("yes >&2 & yes >&2".to_owned(), "gave no answer within"),
        ] {
            let plugin = Plugin::new(&script(&text)).unwrap();
            let plugin = if text.contains(">&2 &") { plugin.within(Duration::from_millis(300)) } else { plugin };
            let why = plugin.run().await.unwrap_err().to_string();
            assert!(why.contains(expected), "{text}: {why}");
        }
        let mut missing = script("");
        missing.command = Some("/nowhere/plugin".to_owned());
        missing.install_hint = Some("get it at the shop".to_owned());
        let why = Plugin::new(&missing).unwrap().run().await.unwrap_err().to_string();
        assert!(why.contains("/nowhere/plugin could not be started") && why.contains("at the shop"), "{why}");
    }

    #[test]
    fn what_a_kubeconfig_asks_for_is_checked_as_in_client_go() {
        let refused = |change: &dyn Fn(&mut ExecConfig)| {
            let mut config = script("");
            change(&mut config);
            Plugin::new(&config).map(drop).map_err(|why| why.to_string())
        };
        for (change, expected) in [
            (&(|c: &mut ExecConfig| c.command = None) as &dyn Fn(&mut ExecConfig), "command must be specified"),
            (&|c| c.api_version = Some("client.authentication.k8s.io/v1alpha1".to_owned()), "invalid apiVersion"),
            (&|c| c.api_version = None, "invalid apiVersion \"\""),
            (&|c| c.interactive_mode = None, "interactiveMode must be specified"),
            (&|c| c.interactive_mode = Some(ExecInteractiveMode::Always), "standard input is unavailable"),
            (&|c| c.env = Some(vec![HashMap::new()]), "env variable name must be specified"),
        ] {
            let why = refused(change).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        let beta = |c: &mut ExecConfig| {
            c.api_version = Some(VERSIONS[1].to_owned());
            c.interactive_mode = None;
        };
        assert_eq!(refused(&beta), Ok(()));
        assert_eq!(refused(&|c| c.interactive_mode = Some(ExecInteractiveMode::IfAvailable)), Ok(()));
    }
}
