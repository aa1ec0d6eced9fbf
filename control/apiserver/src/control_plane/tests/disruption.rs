//! Budgets and evictions, with the controller that counts and the embedded API.

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{Event, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::api::{EvictParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::Cluster;

async fn ready(cluster: &Cluster, pods: &[Value]) {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    for pod in pods.iter().filter(|pod| pod["status"]["phase"] == "Pending") {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let api = cluster.api::<Pod>();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }
}

fn alive(pods: &[Value]) -> Vec<&str> {
    let alive = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    alive.map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect()
}

/// Waits until the whole status of the budget, in its present generation, is this; `disruptedPods` that are not named are
/// none. Its parts are written one after the other (an eviction's transaction, then the controller's count), so that a
/// caller that waited for two of them would find a third still as it was.
async fn counted(cluster: &Cluster, wanted: Value) {
    let is_so = |all: &[Value]| {
        let Some(budget) = all.first() else { return false };
        let (status, condition) = (&budget["status"], &budget["status"]["conditions"][0]);
        status["observedGeneration"] == budget["metadata"]["generation"]
            && condition["observedGeneration"] == budget["metadata"]["generation"]
            && status["disruptedPods"] == wanted["disruptedPods"]
            && condition["reason"] == wanted["reason"]
            && ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"]
                .iter()
                .all(|count| status[count] == wanted[count])
    };
    cluster.until::<PodDisruptionBudget>(&format!("the budget is counted: {wanted}"), is_so).await;
}

/// A status without disrupted pods: `currentHealthy`, `desiredHealthy`, `expectedPods`.
fn status(healthy: i32, desired: i32, expected: i32) -> Value {
    let allowed = (healthy - desired).max(0);
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    json!({"currentHealthy": healthy, "desiredHealthy": desired, "disruptionsAllowed": allowed,
        "expectedPods": expected, "reason": reason})
}

/// The code and the first cause's message of an eviction.
async fn evict(cluster: &Cluster, pod: &str) -> (u16, String) {
    match cluster.api::<Pod>().evict(pod, &EvictParams::default()).await {
        Ok(_) => (201, String::new()),
        Err(kube::Error::Api(status)) => {
            let cause = status.details.iter().flat_map(|details| &details.causes).next();
            (status.code, cause.map(|cause| cause.message.clone()).unwrap_or_default())
        }
        Err(other) => panic!("{other}"),
    }
}

async fn three_of(cluster: &Cluster) -> Vec<Value> {
    let pods = cluster.until::<Pod>("three pods", |pods| alive(pods).len() == 3).await;
    ready(cluster, &pods).await;
    pods
}

/// Upstream's conformance test "should block an eviction until the PDB is updated to allow it".
#[tokio::test]
async fn an_eviction_is_blocked_until_the_budget_allows_it() {
    let cluster = Cluster::new().await;
    let labels = json!({"app": "web"});
    let container = json!({"name": "c", "image": "i"});
    cluster
        .create::<ReplicaSet>(json!({"metadata": {"name": "web"}, "spec": {"replicas": 3,
            "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"nodeName": "node", "automountServiceAccountToken": false, "containers": [container]}}}}))
        .await;
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 3, "selector": {"matchLabels": labels}}});
    cluster.create::<PodDisruptionBudget>(budget).await;
    three_of(&cluster).await;
    counted(&cluster, status(3, 3, 3)).await;
    let pods = cluster.until::<Pod>("three pods", |pods| alive(pods).len() == 3).await;
    let first = alive(&pods)[0].to_owned();
    let why = "The disruption budget b needs 3 healthy pods and has 3 currently".to_owned();
    assert_eq!(evict(&cluster, &first).await, (429, why));

    let budgets = cluster.api::<PodDisruptionBudget>();
    let patch = async |spec: Value| {
        budgets.patch("b", &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await.unwrap();
    };
    patch(json!({"minAvailable": 2})).await;
    counted(&cluster, status(3, 2, 3)).await;
    assert_eq!(evict(&cluster, &first).await.0, 201);
    // It is not counted as healthy any more, and no longer announced once it is being deleted; it waits with its
    // successor for a node that would end it.
    counted(&cluster, status(2, 2, 4)).await;

    three_of(&cluster).await;
    counted(&cluster, status(3, 2, 4)).await;
    patch(json!({"minAvailable": null, "maxUnavailable": 0})).await;
    counted(&cluster, status(3, 3, 3)).await;
    let pods = three_of(&cluster).await;
    let next = alive(&pods)[0].to_owned();
    assert_eq!(evict(&cluster, &next).await.0, 429);
    budgets.delete("b", &kube::api::DeleteParams::default()).await.unwrap();
    assert_eq!(evict(&cluster, &next).await.0, 201);
    cluster.end().await;
}

#[tokio::test]
async fn what_cannot_be_counted_is_told() {
    let cluster = Cluster::new().await;
    let budget = |name: &str| json!({"metadata": {"name": name}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}}});
    for name in ["naked", "job"] {
        cluster.create::<PodDisruptionBudget>(budget(name)).await;
        let mut pod = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": "node", "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}});
        if name == "job" {
            let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true});
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        cluster.create::<Pod>(pod).await;
    }
    let why = "jobs.batch does not implement the scale subresource";
    let failed = |all: &[Value]| {
        let of_job = all.iter().find(|one| one["metadata"]["name"] == "job");
        of_job.is_some_and(|one| {
            let condition = &one["status"]["conditions"][0];
            condition["reason"] == "SyncFailed" && condition["message"] == why
        })
    };
    cluster.until::<PodDisruptionBudget>("a failed budget", failed).await;
    for text in [
        format!("Failed to calculate the number of expected pods: {why}"),
        "Pods selected by this PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map[string]string{app: naked,},MatchExpressions:[]LabelSelectorRequirement{},}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.".to_owned(),
    ] {
        let told = |events: &[Value]| events.iter().any(|event| event["message"] == text.as_str() && event["source"]["component"] == "controllermanager");
        cluster.until::<Event>(&text, told).await;
    }
    cluster.end().await;
}
