//! The stats endpoint follows the load of a container.

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, LentNode, Testbed, eventually};

use crate::shell_pod;

fn summary(testbed: &Testbed) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&testbed.try_sh("curl -fsS --max-time 5 http://127.0.0.1:10255/stats/summary")?)?)
}

fn pod<'a>(summary: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    summary["pods"]
        .as_array()
        .and_then(|pods| pods.iter().find(|p| p["podRef"]["name"] == name))
        .ok_or_else(|| anyhow::anyhow!("{name} is missing in {summary}"))
}

#[test]
fn the_summary_shows_node_pods_and_containers_and_moves_with_load() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    kubectl.apply(&shell_pod("idle", "Always", "exec sleep 100000"));
    kubectl.apply(&shell_pod("busy", "Always", "while :; do :; done"));
    eventually(DEFAULT_TIMEOUT, "the busy pod's figures are there", || {
        let summary = summary(testbed)?;
        anyhow::ensure!(summary["node"]["nodeName"] == "node");
        for path in [
            &["cpu", "usageNanoCores"][..],
            &["memory", "workingSetBytes"],
            &["network", "rxBytes"],
            &["fs", "capacityBytes"],
        ] {
            let value = path.iter().fold(&summary["node"], |v, key| &v[*key]);
            anyhow::ensure!(value.as_u64().is_some_and(|v| v > 0), "node {path:?} is {value}");
        }
        let cores = pod(&summary, "busy")?["containers"][0]["cpu"]["usageNanoCores"].as_u64().unwrap_or(0);
        anyhow::ensure!(cores > 200_000_000, "busy uses {cores} nanocores");
        let idle = pod(&summary, "idle")?["containers"][0]["cpu"]["usageNanoCores"].as_u64();
        anyhow::ensure!(idle.is_some_and(|c| c < 50_000_000), "idle uses {idle:?} nanocores");
        anyhow::ensure!(
            pod(&summary, "idle")?["containers"][0]["memory"]["workingSetBytes"].as_u64().is_some_and(|m| m > 0)
        );
        Ok(())
    });
    // Traffic appears in the pod's network statistics.
    let address = kubectl.run(&["get", "pod", "idle", "-o", "jsonpath={.status.podIP}"]);
    let bytes = |testbed: &Testbed| -> anyhow::Result<u64> {
        Ok(pod(&summary(testbed)?, "idle")?["network"]["rxBytes"].as_u64().unwrap_or(0))
    };
    let before = bytes(testbed).unwrap();
    testbed.sh(&format!(
        "busybox ping -c 50 -i 0.01 -s 1000 {address} >/dev/null || ping -q -c 50 -i 0.01 -s 1000 {address} >/dev/null"
    ));
    eventually(DEFAULT_TIMEOUT, "the traffic is counted", || {
        let now = bytes(testbed)?;
        anyhow::ensure!(now >= before + 50_000, "{now} bytes after {before}");
        Ok(())
    });
    // The same values as metrics, and no authenticated endpoint on that port.
    let metrics = testbed.sh("curl -fsS http://127.0.0.1:10255/metrics/resource");
    assert!(metrics.contains("container_cpu_usage_seconds_total{container=\"main\""), "{metrics}");
    assert!(testbed.try_sh("curl -fsS http://127.0.0.1:10255/containerLogs/default/idle/main").is_err());
    assert!(testbed.try_sh("curl -fsSk https://127.0.0.1:10250/pods").is_err(), "the node's API answers strangers");
}
