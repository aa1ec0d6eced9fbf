//! `metrics.k8s.io` as used by autoscalers and `kubectl top`.

use std::{path::Path, process::Command};

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

use crate::shell_pod;

/// Two containers and labels; the first keeps a fifth of a core busy, which even a busy machine can give all the time.
const BUSY: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: busy
  namespace: work
  labels: {app: busy}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: burns
    image: windlass/busybox:1
    command: [sh, -c, "while :; do :; done"]
    resources: {limits: {cpu: 200m, memory: 64Mi}}
  - name: holds
    image: windlass/busybox:1
    # A variable of 20 MB that stays in memory.
    command: [sh, -c, "x=$(head -c 20000000 /dev/zero | tr '\\0' x); while :; do sleep 1000; done; echo $x"]
"#;

/// The API's response to the official client, as JSON.
const READS: &str = r#"
import json, sys
from kubernetes import client, config
config.load_kube_config(sys.argv[1])
metrics = client.CustomObjectsApi()
group = ("metrics.k8s.io", "v1beta1")
selected = metrics.list_namespaced_custom_object(*group, "work", "pods", label_selector="app=busy")
print(json.dumps({
    "nodes": metrics.list_cluster_custom_object(*group, "nodes"),
    "node": metrics.get_cluster_custom_object(*group, "nodes", "node"),
    "pods": metrics.list_cluster_custom_object(*group, "pods"),
    "selected": selected,
    "busy": metrics.get_namespaced_custom_object(*group, "work", "pods", "busy"),
    "groups": [g.name for g in client.ApisApi().get_api_versions().groups],
}))
"#;

/// The rows of a table without its heading, as cells.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

fn milli(cell: &str) -> i64 {
    cell.strip_suffix('m').and_then(|n| n.parse().ok()).unwrap_or(-1)
}

fn mebibytes(cell: &str) -> i64 {
    cell.strip_suffix("Mi").and_then(|n| n.parse().ok()).unwrap_or(-1)
}

#[test]
fn kubectl_top_and_the_official_python_client_read_usage() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let _ = kubectl.run(&["create", "namespace", "work"]);
    kubectl.apply(BUSY);
    kubectl.apply(&shell_pod("idle", "Always", "exec sleep 100000"));

    // A new pod appears after two rounds, and is measured over ten seconds from the third on.
    let table = eventually(2 * DEFAULT_TIMEOUT, "a fifth of a core and 20 MB show", || {
        let table = kubectl.try_run(&["top", "pod", "-n", "work", "busy", "--containers"])?;
        let rows = rows(&table);
        anyhow::ensure!(rows.len() == 2, "{table}");
        anyhow::ensure!((180..=220).contains(&milli(rows[0][2])), "{table}");
        // The first rate still contains the creation of the variable.
        anyhow::ensure!(milli(rows[1][2]) < 50 && mebibytes(rows[1][3]) >= 19, "{table}");
        Ok(table)
    });
    let of_containers = rows(&table);
    assert_eq!((of_containers[0][0], of_containers[0][1]), ("busy", "burns"), "{table}");
    assert_eq!(of_containers[1][1], "holds", "{table}");

    let everywhere = kubectl.run(&["top", "pod", "-A"]);
    let all: Vec<(&str, &str)> = rows(&everywhere).iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(
        all.iter().filter(|pod| [("default", "idle"), ("work", "busy")].contains(pod)).count(),
        2,
        "{everywhere}"
    );
    let selected = kubectl.run(&["top", "pod", "-A", "-l", "app=busy"]);
    assert_eq!(rows(&selected).len(), 1, "{selected}");
    let sorted = kubectl.run(&["top", "pod", "-A", "--sort-by=cpu", "--no-headers"]);
    assert!(sorted.starts_with("work"), "{sorted}");
    let node = kubectl.run(&["top", "node"]);
    let node = rows(&node);
    assert!(node.len() == 1 && node[0][0] == "node" && milli(node[0][1]) >= 180, "{node:?}");
    assert!(node[0][2].ends_with('%') && mebibytes(node[0][3]) > 50 && node[0][4].ends_with('%'), "{node:?}");
    // The computed types besides stored ones with the same name.
    let shown = kubectl.run(&["get", "pods.metrics.k8s.io", "-n", "work"]);
    assert!(shown.lines().next().is_some_and(|l| l.contains("CPU") && l.contains("WINDOW")), "{shown}");
    assert!(kubectl.run(&["get", "pods", "-n", "work"]).contains("STATUS"));
    assert!(kubectl.run(&["explain", "pods", "--api-version=metrics.k8s.io/v1beta1"]).contains("containers"));
    let deleted = kubectl.output(&["delete", "pods.metrics.k8s.io", "busy", "-n", "work"], "");
    assert!(!deleted.ok && deleted.err.contains("does not allow this method"), "{deleted:?}");

    let printed = read_with_python(&testbed, &windlass.kubeconfig());
    assert_eq!(printed["nodes"]["items"].as_array().map(Vec::len), Some(1), "{printed}");
    assert_eq!(printed["node"]["kind"], "NodeMetrics");
    assert!(printed["groups"].as_array().is_some_and(|all| all.contains(&"metrics.k8s.io".into())), "{printed}");
    assert_eq!(printed["selected"]["items"][0]["metadata"]["name"], "busy", "{printed}");
    let busy = &printed["busy"];
    assert_eq!(busy["metadata"]["labels"]["app"], "busy", "{busy}");
    let window: f64 = busy["window"].as_str().and_then(|w| w.strip_suffix('s')?.parse().ok()).unwrap_or_default();
    assert!((1.0..=30.0).contains(&window), "{busy}");
    // The client's start may take CPU time from the container for one window.
    eventually(DEFAULT_TIMEOUT, "a fifth of a core in the client", || {
        let burns = read_with_python(&testbed, &windlass.kubeconfig())["busy"]["containers"][0].clone();
        let nano = burns["usage"]["cpu"].as_str().and_then(nano_cores).unwrap_or_default();
        anyhow::ensure!((180_000_000..=220_000_000).contains(&nano), "{burns}");
        Ok(())
    });
}

/// Parses a CPU quantity: cores, m, u or n.
fn nano_cores(text: &str) -> Option<i64> {
    let scales = [("n", 1), ("u", 1_000), ("m", 1_000_000)];
    let (number, scale) = scales
        .iter()
        .find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, *scale)))
        .unwrap_or((text, 1_000_000_000));
    number.parse::<i64>().ok().map(|n| n * scale)
}

fn read_with_python(testbed: &Testbed, kubeconfig: &Path) -> Value {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/python");
    assert!(packages.join("kubernetes").is_dir(), "{} is missing: run scripts/python.sh", packages.display());
    let mut command: Command = testbed.command("python3");
    command.args(["-c", READS]).arg(kubeconfig).env("PYTHONPATH", packages);
    let output = command.output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the script prints JSON")
}
