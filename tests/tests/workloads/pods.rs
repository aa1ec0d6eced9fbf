//! Where pods are scheduled, and what is reported for those that are not.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, eventually};

use crate::{Case, cases};

cases![an_important_pod_takes_the_room_of_another, pods_that_fit_nowhere_are_told_why];

fn pod(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  {spec}\n---\n"
    )
}

const ONE: &str = "containers: [{name: c, image: nginx, imagePullPolicy: IfNotPresent}]";

fn is_unschedulable(pod: &Value) -> bool {
    pod["status"]["conditions"].as_array().into_iter().flatten().any(|c| c["reason"] == "Unschedulable")
}

/// What the scheduler's events say of a pod. Whether a pod is tried again while its victim ends depends on what else happens
/// on the node.
fn told_by_the_scheduler(case: &Case<'_>, pod: &str) -> BTreeSet<String> {
    let of_pod = format!("involvedObject.name={pod}");
    let events = case.kubectl.json(&["events", "--field-selector", &of_pod]).expect("events can be listed");
    let events = events["items"].as_array().cloned().unwrap_or_default().into_iter();
    let of_scheduler = events.filter(|event| {
        event["reportingComponent"] == "default-scheduler" || event["source"]["component"] == "default-scheduler"
    });
    let text =
        |event: Value| ["type", "reason", "message"].map(|part| event[part].as_str().unwrap_or_default().to_owned());
    of_scheduler.map(|event| text(event).join(" ")).filter(|text| !text.contains("a terminating pod")).collect()
}

/// The room is a port of the node, since pods of other tests take no part in that.
fn an_important_pod_takes_the_room_of_another(case: &mut Case<'_>) {
    let class = |name: &str, more: &str| {
        format!(
            "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: 1000\n{more}---\n"
        )
    };
    let at_port = |more: &str| {
        ONE.replace("IfNotPresent", &format!("IfNotPresent, ports: [{{containerPort: 80, hostPort: 6382}}]{more}"))
    };
    case.applied(&(class("pushing", "") + &class("polite", "preemptionPolicy: Never\n")));
    // So that it is seen to wait for the end of the other.
    case.applied(
        &pod("minor", &at_port(", lifecycle: {preStop: {sleep: {seconds: 30}}}")).replace("Seconds: 1", "Seconds: 40"),
    );
    case.until("runs", "pod/minor", |pod| pod["status"]["phase"] == "Running");
    case.applied(&pod("polite", &format!("priorityClassName: polite\n  {}", at_port(""))));
    case.until("is unschedulable", "pod/polite", is_unschedulable);
    case.applied(&pod("important", &format!("priorityClassName: pushing\n  {}", at_port(""))));
    case.until("is nominated", "pod/important", |pod| pod["status"]["nominatedNodeName"].is_string());
    case.until("is told", "pod/minor", |pod| {
        pod["status"]["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == "DisruptionTarget")
    });
    case.recording.show(&["pods --field-selector=metadata.name=minor"]);
    case.until("runs", "pod/important", |pod| pod["status"]["phase"] == "Running");
    case.recording.show(&["pods"]);
    for pod in ["minor", "polite", "important"] {
        for message in told_by_the_scheduler(case, pod) {
            case.recording.fact(&format!("{pod}: {message}"));
        }
    }
    let _ = case.kubectl.run(&["delete", "priorityclass", "pushing", "polite"]);
}

fn pods_that_fit_nowhere_are_told_why(case: &mut Case<'_>) {
    let big = |resource: &str| format!("containers: [{{name: c, image: nginx, resources: {{requests: {resource}}}}}]");
    case.applied(&pod("host-port", "containers: [{name: c, image: nginx, imagePullPolicy: IfNotPresent, ports: [{containerPort: 80, hostPort: 6381}]}]"));
    case.until("runs", "pod/host-port", |pod| pod["status"]["phase"] == "Running");
    let waiting = [
        ("cpu", big("{cpu: 1000}")),
        ("cpu-and-memory", big("{cpu: 1000, memory: 100Ti}")),
        ("gpu", big("{vendor.example/gpu: 1}").replace("requests", "limits")),
        ("selector", format!("nodeSelector: {{disk: ssd}}\n  {ONE}")),
        ("port-taken", ONE.replace("IfNotPresent}", "IfNotPresent, ports: [{containerPort: 80, hostPort: 6381}]}")),
        ("no-claim", format!("{ONE}\n  volumes: [{{name: v, persistentVolumeClaim: {{claimName: nowhere}}}}]")),
        (
            "affinity",
            format!(
                "{ONE}\n  affinity: {{podAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{{topologyKey: kubernetes.io/hostname, \
                 labelSelector: {{matchLabels: {{app: none}}}}}}]}}}}"
            ),
        ),
        (
            "anti-affinity",
            format!(
                "{ONE}\n  affinity: {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{{topologyKey: kubernetes.io/hostname, \
                 labelSelector: {{matchLabels: {{app: host-port}}}}}}]}}}}"
            ),
        ),
        (
            "spread",
            format!(
                "{ONE}\n  topologySpreadConstraints: [{{maxSkew: 1, topologyKey: no-such-label, whenUnsatisfiable: DoNotSchedule, \
                 labelSelector: {{matchLabels: {{app: spread}}}}}}]"
            ),
        ),
    ];
    for (name, spec) in &waiting {
        case.applied(&pod(name, spec));
        case.until("is unschedulable", &format!("pod/{name}"), is_unschedulable);
    }
    case.applied(&pod("gated", &format!("schedulingGates: [{{name: example.com/later}}]\n  {ONE}")));
    case.recording.show(&["pods"]);
    case.recording.events(&["Pod"]);
    for (name, _) in &waiting {
        let found = case.kubectl.json(&[&format!("pod/{name}")]).expect("the pod is there");
        case.recording
            .fact(&format!("{name}: {}", found["status"]["conditions"][0]["message"].as_str().unwrap_or_default()));
    }
    let gated = case.kubectl.json(&["pod/gated"]).expect("the pod is there");
    case.recording.fact(&format!("gated: {}", gated["status"]["conditions"][0]));
    let _ = case.kubectl.run(&["patch", "pod/gated", "-p", r#"{"spec":{"schedulingGates":null}}"#]);
    case.until("runs", "pod/gated", |pod| pod["status"]["phase"] == "Running");
    // Room is made, and the one that waited for it comes.
    let _ = case.kubectl.run(&["delete", "pod", "host-port"]);
    eventually(DEFAULT_TIMEOUT, "the pod that waited runs", || {
        let pod = case.kubectl.json(&["pod/port-taken"])?;
        anyhow::ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
        Ok(())
    });
}
