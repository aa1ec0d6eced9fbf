//! The measured objects: pods of 4 KB as they are stored, and the nodes that they are on.

use serde_json::{Value, json};

use windlass_bench::client::{Connection, request};

pub(crate) const PODS: usize = 10_000;
/// Nodes, each with a watcher of its own pods, as kubelets are.
pub(crate) const NODES: usize = 1_000;
/// The length of a stored pod.
const POD_BYTES: usize = 4096;
pub(crate) const NAMESPACE: &str = "bench";
const ROUND: &str = "bench/round";

pub(crate) fn pods_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

pub(crate) fn node_name(number: usize) -> String {
    format!("node-{:03}", number % NODES)
}

/// A node with a range of its own, so that no controller has to give it one.
pub(crate) fn node(number: usize) -> Value {
    let range = format!("10.{}.{}.0/24", 128 + number / 250, number % 250);
    json!({"metadata": {"name": node_name(number)}, "spec": {"podCIDR": range, "podCIDRs": [range]}})
}

fn pod(name: &str, node: &str, padding: usize) -> Value {
    let env: Vec<Value> =
        (0..12).map(|n| json!({"name": format!("SETTING_{n}"), "value": "a value of some length"})).collect();
    json!({
        "metadata": {"name": name, "labels": {"app": "bench", "tier": "backend"},
                     "annotations": {ROUND: "00000000", "bench/padding": "x".repeat(padding)}},
        "spec": {
            // Nothing evicts it from nodes that do not report.
            "nodeName": node, "tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "registry.example/team/application:1.2.3", "env": env,
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    })
}

/// Pods that become [`POD_BYTES`] long with all that the server adds.
pub(crate) struct Template {
    padding: usize,
}

impl Template {
    /// Asks the server how long such a pod becomes.
    pub(crate) async fn measured(connection: &mut Connection) -> anyhow::Result<Self> {
        let body = pod("pod-probe", &node_name(0), 0).to_string();
        let stored = connection.text(&request("POST", &pods_path(), &body), 201).await?;
        let path = format!("{}/pod-probe", pods_path());
        connection.text(&request("DELETE", &path, r#"{"gracePeriodSeconds":0}"#), 200).await?;
        Ok(Self { padding: POD_BYTES.saturating_sub(stored.len()) })
    }

    /// The body of a new pod.
    pub(crate) fn body(&self, name: &str, number: usize) -> String {
        pod(name, &node_name(number), self.padding).to_string()
    }
}

/// A stored pod as a request that replaces it, with a number that can be changed in place.
pub(crate) struct Replacement {
    request: Vec<u8>,
    /// Where the number is.
    round: usize,
}

impl Replacement {
    /// Of the text with which the server answered a creation. The resource version is left out: the write is unconditional.
    pub(crate) fn of(stored: &str) -> anyhow::Result<Self> {
        let mut object: Value = serde_json::from_str(stored)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
        }
        let request = request("PUT", &format!("{}/{name}", pods_path()), &object.to_string());
        let mark = format!("{ROUND}\":\"");
        let at = memchr::memmem::find(&request, mark.as_bytes());
        let round = at.ok_or_else(|| anyhow::anyhow!("no annotation {ROUND} in {stored}"))? + mark.len();
        Ok(Self { request, round })
    }

    /// The request that writes this number.
    pub(crate) fn numbered(&mut self, number: u32) -> &[u8] {
        let digits = format!("{:08}", number % 100_000_000);
        self.request[self.round..self.round + 8].copy_from_slice(digits.as_bytes());
        &self.request
    }
}
