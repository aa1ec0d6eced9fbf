//! HorizontalPodAutoscalers under real load. Only the embedded API serves `metrics.k8s.io` by itself, so nothing here is recorded.

use std::{process::Stdio, time::Duration};

use serde_json::Value;
use windlass_tests::{Daemon, eventually, shared_dir};

use crate::{Case, cases};

cases![load_scales_a_deployment_up_and_its_end_down, memory_scales_a_deployment];

/// The slowest step: new pods count when they have been measured twice.
const PATIENCE: Duration = Duration::from_secs(240);

fn deployment(requests: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: hpa-demo}}\nspec:\n  selector: {{matchLabels: {{app: nginx}}}}\n  template:\n    \
         metadata: {{labels: {{app: nginx}}}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      volumes: [{{name: memory, emptyDir: {{medium: Memory}}}}]\n      containers:\n      \
         - {{name: nginx, image: nginx, imagePullPolicy: IfNotPresent, ports: [{{containerPort: 80}}], {requests}\
         volumeMounts: [{{name: memory, mountPath: /memory}}]}}\n---\napiVersion: v1\nkind: Service\nmetadata: {{name: hpa-demo}}\nspec: {{selector: {{app: nginx}}, ports: [{{port: 80}}]}}\n"
    )
}

/// So little that a busy machine has it to spare for ten pods: a tenth of it, which is the target, is a thousandth of a core.
const REQUESTS: &str = "resources: {requests: {memory: 50Mi, cpu: 10m}}, ";

/// The status and reason of a condition.
fn condition(hpa: &Value, kind: &str) -> String {
    let found = shared_dir::condition(hpa, kind);
    ["status", "reason"].map(|field| found[field].as_str().unwrap_or_default()).join(" ")
}

fn events(case: &Case<'_>) -> String {
    let columns = "custom-columns=R:.reason,M:.message";
    case.kubectl.run(&[
        "get",
        "events",
        "--field-selector",
        "involvedObject.kind=HorizontalPodAutoscaler",
        "-o",
        columns,
    ])
}

/// Requests to the Service until it is ended, each with a connection of its own, so that all pods get some.
fn load(case: &Case<'_>, address: &str) -> Daemon {
    let mut command = case.testbed.command("curl");
    command.args(["-s", "-o", "/dev/null", "-H", "Connection: close", &format!("http://{address}/?[1-100000000]")]);
    command.stdout(Stdio::null());
    Daemon::start("curl", &mut command, &case.directory().join("curl.log")).expect("curl starts")
}

fn load_scales_a_deployment_up_and_its_end_down(case: &mut Case<'_>) {
    case.kubectl.apply(&deployment(""));
    let printed = case.kubectl.run(&["autoscale", "deployment", "hpa-demo", "--cpu-percent=10", "--min=1", "--max=10"]);
    assert!(printed.contains("horizontalpodautoscaler.autoscaling/hpa-demo autoscaled"), "{printed}");
    // Without a request there is nothing to compare with.
    case.until_within(PATIENCE, "cannot compute", "hpa/hpa-demo", |hpa| {
        condition(hpa, "ScalingActive") == "False FailedGetResourceMetric"
    });
    eventually(PATIENCE, "it says why", || {
        let events = events(case);
        anyhow::ensure!(events.contains("missing request for cpu in container nginx of Pod hpa-demo-"), "{events}");
        Ok(())
    });
    let table = case.kubectl.run(&["get", "hpa", "hpa-demo"]);
    assert!(table.contains("Deployment/hpa-demo   cpu: <unknown>/10%   1         10"), "{table}");
    case.kubectl.apply(&deployment(REQUESTS));
    case.until_within(PATIENCE, "computes", "hpa/hpa-demo", |hpa| {
        condition(hpa, "ScalingActive") == "True ValidMetricFound"
    });
    case.ready("app=nginx", 1);
    let address = case.kubectl.run(&["get", "service", "hpa-demo", "-o", "jsonpath={.spec.clusterIP}"]);
    let curl = load(case, address.trim());
    case.until_within(PATIENCE, "has ten", "deployment/hpa-demo", |deployment| {
        deployment["status"]["readyReplicas"] == 10
    });
    let loaded =
        case.until_within(PATIENCE, "is at its limit", "hpa/hpa-demo", |hpa| hpa["status"]["currentReplicas"] == 10);
    assert_eq!(condition(&loaded, "AbleToScale").split(' ').next(), Some("True"));
    let told = events(case);
    // At most four from one, then at most twice as many at once; how many of them depends on how busy the machine is.
    let sizes: Vec<u32> =
        told.lines().filter_map(|line| line.split_once("New size: ")?.1.split(';').next()?.parse().ok()).collect();
    assert!(sizes.first().is_some_and(|first| *first <= 4) && sizes.ends_with(&[10]), "{told}");
    assert!(sizes.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= (2 * pair[0]).max(4)), "{told}");
    assert!(told.contains("reason: cpu resource utilization (percentage of request) above target"), "{told}");
    let described = case.kubectl.run(&["describe", "hpa", "hpa-demo"]);
    assert!(described.contains("resource cpu on pods  (as a percentage of request):"), "{described}");
    // The load ends; sooner than after five minutes, since the window is shorter.
    drop(curl);
    let window = r#"{"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":5}}}}"#;
    let _ = case.kubectl.run(&["patch", "hpa.v2.autoscaling", "hpa-demo", "--type=merge", "-p", window]);
    case.until_within(PATIENCE, "has one again", "deployment/hpa-demo", |deployment| {
        deployment["spec"]["replicas"] == 1
    });
    let told = events(case);
    assert!(told.contains("New size: 1; reason: All metrics below target"), "{told}");
}

fn memory_scales_a_deployment(case: &mut Case<'_>) {
    case.kubectl.apply(&deployment(REQUESTS));
    case.kubectl.apply(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: hpa-mem-demo}\nspec:\n  minReplicas: 1\n  maxReplicas: 5\n  \
         scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: hpa-demo}\n  behavior: {scaleDown: {stabilizationWindowSeconds: 5}}\n  \
         metrics: [{type: Resource, resource: {name: memory, target: {type: Utilization, averageUtilization: 60}}}]\n",
    );
    case.until_within(PATIENCE, "computes", "hpa/hpa-mem-demo", |hpa| {
        condition(hpa, "ScalingActive") == "True ValidMetricFound"
    });
    let pods = case.ready("app=nginx", 1);
    let pod = pods[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let _ = case.kubectl.run(&["exec", &pod, "--", "dd", "if=/dev/zero", "of=/memory/block", "bs=1M", "count=60"]);
    case.until_within(PATIENCE, "is larger", "deployment/hpa-demo", |deployment| {
        deployment["status"]["readyReplicas"].as_i64() > Some(1)
    });
    let told = events(case);
    assert!(told.contains("reason: memory resource utilization (percentage of request) above target"), "{told}");
    let _ = case.kubectl.run(&["exec", &pod, "--", "rm", "/memory/block"]);
    case.until_within(PATIENCE, "is one again", "deployment/hpa-demo", |deployment| {
        deployment["spec"]["replicas"] == 1
    });
}
