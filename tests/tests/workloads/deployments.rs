//! Deployments: rolled out, paused, undone.

use std::time::Duration;

use serde_json::Value;

use crate::{
    Case,
    case::{has, is_observed},
    cases,
};

cases![
    a_deployment_is_rolled_out_and_undone,
    an_image_that_does_not_start_takes_few_pods,
    a_deployment_is_scaled_in_proportion,
    a_deployment_is_recreated,
];

fn deployment(image: &str, replicas: u32, rest: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: nginx-deploy}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: nginx}}}}\n  \
         {rest}\n  template:\n    metadata: {{labels: {{app: nginx}}}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      containers: \
         [{{name: nginx, image: '{image}', imagePullPolicy: IfNotPresent, ports: [{{containerPort: 80}}]}}]\n"
    )
}

const ALL: &[&str] = &["deployment", "rs", "pods"];

fn is_complete(deployment: &Value) -> bool {
    let (status, replicas) = (&deployment["status"], &deployment["spec"]["replicas"]);
    is_observed(deployment)
        && ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|field| status[field] == *replicas)
        && status["terminatingReplicas"].as_u64().unwrap_or(0) == 0
}

fn a_deployment_is_rolled_out_and_undone(case: &mut Case<'_>) {
    let first = deployment("nginx", 3, "");
    case.applied(&first);
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.recording.show(ALL);
    case.applied(&first);
    case.typed("rollout status deployment/nginx-deploy");
    case.typed("scale deployment nginx-deploy --replicas=4");
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.typed("scale deployment nginx-deploy --replicas=3");
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    // One pod more than wanted, never one less.
    let _ = case.kubectl.run(&["annotate", "deployment/nginx-deploy", "kubernetes.io/change-cause=second image"]);
    case.typed("set image deployment/nginx-deploy nginx=nginx:1.7.9");
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.recording.show(ALL);
    case.recording.events(&["Deployment", "ReplicaSet", "Pod"]);
    // Paused: changes are taken together.
    case.typed("rollout pause deployment/nginx-deploy");
    case.typed("set env deployment/nginx-deploy A=1");
    case.typed("set env deployment/nginx-deploy B=2");
    case.until("is seen", "deployment/nginx-deploy", is_observed);
    case.recording.show(&["deployment", "rs"]);
    case.typed("rollout resume deployment/nginx-deploy");
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.typed("rollout history deployment/nginx-deploy");
    case.typed("rollout undo deployment/nginx-deploy --to-revision=1");
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.typed("rollout history deployment/nginx-deploy");
    case.recording.show(ALL);
    case.typed("rollout undo deployment/nginx-deploy --to-revision=9");
    case.typed("rollout restart deployment/nginx-deploy");
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.recording.show(&["deployment", "rs"]);
    // Fewer old revisions are kept.
    let _ = case.kubectl.run(&["patch", "deployment/nginx-deploy", "-p", r#"{"spec":{"revisionHistoryLimit":1}}"#]);
    case.until("is seen", "deployment/nginx-deploy", is_observed);
    case.recording.show(&["rs"]);
    case.typed("delete deployment nginx-deploy");
    case.gone("rs,pods");
}

/// With one pod less allowed than wanted, two of three stay.
fn an_image_that_does_not_start_takes_few_pods(case: &mut Case<'_>) {
    let strategy = "minReadySeconds: 1\n  progressDeadlineSeconds: 6\n  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 1}}";
    case.applied(&deployment("nginx", 3, strategy));
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.applied(&deployment("nginx:no-such-version", 3, strategy));
    case.until("is late", "deployment/nginx-deploy", |deployment| {
        deployment["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|c| c["reason"] == "ProgressDeadlineExceeded")
    });
    case.recording.show(ALL);
    case.typed("rollout status deployment/nginx-deploy");
    case.typed("rollout undo deployment/nginx-deploy");
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.recording.show(&["deployment", "rs"]);
    case.recording.events(&["Deployment"]);
}

fn a_deployment_is_scaled_in_proportion(case: &mut Case<'_>) {
    let strategy = "strategy: {rollingUpdate: {maxSurge: 3, maxUnavailable: 2}}";
    case.applied(&deployment("nginx", 10, strategy));
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    let _ = case.kubectl.run(&["set", "image", "deployment/nginx-deploy", "nginx=nginx:no-such-version"]);
    case.until("is rolled as far as it goes", "deployment/nginx-deploy", |deployment| {
        is_observed(deployment)
            && deployment["status"]["updatedReplicas"] == 5
            && deployment["status"]["replicas"] == 13
    });
    case.recording.show(&["deployment", "rs"]);
    let _ = case.kubectl.run(&["scale", "deployment/nginx-deploy", "--replicas=15"]);
    case.until("is larger", "deployment/nginx-deploy", |deployment| {
        is_observed(deployment)
            && deployment["status"]["replicas"] == 18
            && deployment["status"]["availableReplicas"] == 11
    });
    case.recording.show(&["deployment", "rs"]);
}

fn a_deployment_is_recreated(case: &mut Case<'_>) {
    let strategy = "strategy: {type: Recreate}";
    case.applied(&deployment("nginx", 2, strategy));
    case.until("is complete", "deployment/nginx-deploy", is_complete);
    case.applied(&deployment("nginx:1.7.9", 2, strategy));
    case.until_within(Duration::from_secs(90), "is complete", "deployment/nginx-deploy", is_complete);
    case.recording.show(ALL);
    case.recording.events(&["Deployment"]);
    case.until("is available", "deployment/nginx-deploy", |deployment| has(deployment, "Available"));
}
