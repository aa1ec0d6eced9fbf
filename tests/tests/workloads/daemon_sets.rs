//! DaemonSets on one node.

use serde_json::Value;

use crate::{
    Case,
    case::{is_observed, name_of},
    cases,
};

cases![a_daemon_set_has_a_pod_on_each_node];

fn is_complete(set: &Value) -> bool {
    let status = &set["status"];
    is_observed(set)
        && ["currentNumberScheduled", "numberReady", "numberAvailable", "updatedNumberScheduled"]
            .iter()
            .all(|field| status[field] == status["desiredNumberScheduled"])
        && status["desiredNumberScheduled"] == 1
}

fn a_daemon_set_has_a_pod_on_each_node(case: &mut Case<'_>) {
    case.applied(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: nginx-ds}\nspec:\n  selector: {matchLabels: {k8s-app: nginx}}\n  template:\n    \
         metadata: {labels: {k8s-app: nginx}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      containers: [{name: nginx, image: 'nginx:1.7.9', \
         imagePullPolicy: IfNotPresent, ports: [{name: http, containerPort: 80}]}]\n",
    );
    case.until("is complete", "ds/nginx-ds", is_complete);
    case.recording.show(&["ds", "pods"]);
    let pods = case.ready("k8s-app=nginx", 1);
    let _ = case.kubectl.run(&["delete", "pod", &name_of(&pods[0])]);
    case.ready("k8s-app=nginx", 1);
    case.typed("rollout restart ds/nginx-ds");
    case.until("is complete", "ds/nginx-ds", is_complete);
    case.typed("rollout status ds/nginx-ds");
    case.recording.show(&["ds", "controllerrevisions"]);
    // On deletion only.
    let patch = r#"{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null},"template":{"metadata":{"annotations":{"version":"2"}}}}}"#;
    let _ = case.kubectl.run(&["patch", "ds/nginx-ds", "-p", patch]);
    case.until("is seen", "ds/nginx-ds", |set| is_observed(set) && set["status"]["updatedNumberScheduled"].is_null());
    case.recording.show(&["ds"]);
    let pods = case.ready("k8s-app=nginx", 1);
    let _ = case.kubectl.run(&["delete", "pod", &name_of(&pods[0])]);
    case.until("is complete", "ds/nginx-ds", is_complete);
    case.typed("rollout undo ds/nginx-ds --to-revision=1");
    case.until("is seen", "ds/nginx-ds", is_observed);
    case.recording.show(&["controllerrevisions"]);
    // A selector that the node does not match.
    let _ = case.kubectl.run(&[
        "patch",
        "ds/nginx-ds",
        "-p",
        r#"{"spec":{"template":{"spec":{"nodeSelector":{"disk":"ssd"}}}}}"#,
    ]);
    case.gone("pods");
    case.recording.show(&["ds"]);
    case.recording.events(&["DaemonSet"]);
    case.typed("delete ds nginx-ds");
    case.gone("controllerrevisions");
}
