//! End-to-end tests of a node: real kubectl, real Docker Engine, real iptables. Each test has a machine of its own made
//! of network namespaces.

mod abuse;
mod bundle;
mod check;
mod churn;
mod crash;
mod cri;
mod custom_resources;
mod dashboard;
mod dns;
mod docker_faults;
mod engine_settings;
mod eviction;
mod faults;
mod host_failures;
mod idle;
mod in_cluster;
mod joined_node;
mod kubectl;
mod lifecycle;
mod logs;
mod metrics;
mod metrics_api;
mod monitoring;
mod network;
mod network_policies;
mod node_api;
mod proxy;
mod proxy_crash;
mod purge;
mod quickstart;
mod reference_manifests;
mod repairs;
mod resources;
mod restart;
mod secrets;
mod shutdown;
mod static_pods;
mod storage;
mod storm;
mod streams;
mod systemd;
mod termination_messages;
mod top;
mod unreachable_nodes;
mod usage;
mod volumes;

use serde_json::Value;
use windlass_tests::shared_dir;

/// The example that the README starts with.
const WEB: &str = include_str!("../../../docs/examples/web.yaml");

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// A pod with one container that runs a shell line.
fn shell_pod(name: &str, policy: &str, line: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{test: {name}}}\nspec:\n  restartPolicy: {policy}\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    image: windlass/busybox:1\n    \
         command: [sh, -c, {line:?}]\n"
    )
}

/// The Docker id of a pod's container, without its scheme.
fn container_id(pod: &Value) -> String {
    pod["status"]["containerStatuses"][0]["containerID"]
        .as_str()
        .unwrap_or_default()
        .trim_start_matches("docker://")
        .to_owned()
}
