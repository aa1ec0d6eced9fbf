//! `windlass status`: the node and its pods, as the API sees them.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use kube::api::{Api, ListParams};
use windlass_agent::images::PullProgress;

use super::{read_only_client, runtime, say};
use crate::{
    config::{Settings, connect},
    exit,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Credentials for the API [default: the administrator's kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    let kubeconfig = args.kubeconfig.as_ref().unwrap_or(&settings.admin_kubeconfig);
    runtime()?.block_on(async {
        let client = connect::client_of(kubeconfig).await?;
        let nodes = Api::<Node>::all(client.clone())
            .list(&ListParams::default())
            .await
            .with_context(|| format!("the request to the API of {} failed; is windlass up?", kubeconfig.display()))?;
        let pods = Api::<Pod>::all(client).list(&ListParams::default()).await.context("pods could not be listed")?;
        let mut healthy = true;
        for node in &nodes.items {
            let (line, ok) = node_line(node);
            healthy &= ok;
            say(line);
        }
        say(pods_line(&pods.items));
        for line in unhealthy_pods(&pods.items) {
            say(line);
        }
        for line in pulls(settings).iter().map(pull_line) {
            say(line);
        }
        Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::from(exit::DIFFERS) })
    })
}

/// The image pulls of this machine's node; none if its read-only port is off or does not answer.
fn pulls(settings: &Settings) -> Vec<PullProgress> {
    read_only_client::address(settings)
        .and_then(|address| read_only_client::get_json(address, "/windlass/pulls"))
        .unwrap_or_default()
}

fn pull_line(pull: &PullProgress) -> String {
    format!("  pulling {}: {}", pull.image, pull.summary())
}

/// The status line of a node, and whether it is healthy.
fn node_line(node: &Node) -> (String, bool) {
    let name = node.metadata.name.as_deref().unwrap_or("?");
    let empty = Vec::new();
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref()).unwrap_or(&empty);
    let wrong: Vec<&NodeCondition> =
        conditions.iter().filter(|c| (c.status == "True") != (c.type_ == "Ready")).collect();
    if conditions.is_empty() {
        return (format!("node {name}: nothing reported yet"), false);
    }
    if wrong.is_empty() {
        return (format!("node {name}: Ready"), true);
    }
    let words: Vec<String> = wrong
        .iter()
        .map(|c| {
            format!(
                "{}={} {}: {}",
                c.type_,
                c.status,
                c.reason.as_deref().unwrap_or(""),
                c.message.as_deref().unwrap_or("")
            )
        })
        .collect();
    (format!("node {name}: {}", words.join("; ")), false)
}

fn phase_of(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Unknown")
}

fn pods_line(pods: &[Pod]) -> String {
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in pods {
        *phases.entry(phase_of(pod)).or_default() += 1;
    }
    let words: Vec<String> = phases.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    if words.is_empty() { "pods: none".to_owned() } else { format!("pods: {}", words.join(", ")) }
}

/// A line per waiting container with a failure reason.
fn unhealthy_pods(pods: &[Pod]) -> Vec<String> {
    let mut lines = Vec::new();
    for pod in pods {
        let (namespace, name) =
            (pod.metadata.namespace.as_deref().unwrap_or(""), pod.metadata.name.as_deref().unwrap_or(""));
        for container in pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten()) {
            let Some(waiting) = container.state.as_ref().and_then(|s| s.waiting.as_ref()) else { continue };
            let reason = waiting.reason.as_deref().unwrap_or("");
            if matches!(reason, "" | "ContainerCreating" | "PodInitializing") {
                continue;
            }
            let message = waiting.message.as_deref().unwrap_or("");
            lines.push(format!("  {namespace}/{name} {}: {reason} {message}", container.name));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(conditions: &str) -> Node {
        serde_json::from_str(&format!(r#"{{"metadata":{{"name":"n"}},"status":{{"conditions":{conditions}}}}}"#))
            .unwrap()
    }

    #[test]
    fn a_node_is_well_when_ready_and_under_no_pressure() {
        let well = r#"[{"type":"Ready","status":"True"},{"type":"DiskPressure","status":"False"}]"#;
        assert_eq!(node_line(&node(well)), ("node n: Ready".to_owned(), true));
        let ill = r#"[{"type":"Ready","status":"False","reason":"KubeletNotReady","message":"no Docker"}]"#;
        let (line, ok) = node_line(&node(ill));
        assert!(!ok && line.contains("KubeletNotReady") && line.contains("no Docker"), "{line}");
        assert!(!node_line(&node("[]")).1);
    }

    #[test]
    fn pulls_are_shown_with_their_progress() {
        let pull = r#"{"image":"nginx","since":"2026-01-01T00:00:00Z","waiting":false,"bytes":1048576,"ofBytes":3145728,
            "layers":1,"ofLayers":4}"#;
        let line = pull_line(&serde_json::from_str(pull).unwrap());
        assert_eq!(line, "  pulling nginx: 1.0 MiB of 3.0 MiB, 1 of 4 layers in place");
    }

    #[test]
    fn waiting_containers_are_named() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"namespace":"d","name":"p"},"status":{"phase":"Pending","containerStatuses":[{"name":"c","image":"i","imageID":"",
                "ready":false,"restartCount":0,"state":{"waiting":{"reason":"ImagePullBackOff","message":"m"}}}]}}"#,
        )
        .unwrap();
        assert_eq!(unhealthy_pods(std::slice::from_ref(&pod)), ["  d/p c: ImagePullBackOff m"]);
        assert_eq!(pods_line(&[pod.clone(), pod]), "pods: 2 Pending");
        assert_eq!(pods_line(&[]), "pods: none");
    }
}
