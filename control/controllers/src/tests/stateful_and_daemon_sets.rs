//! StatefulSets and DaemonSets.

use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    core::v1::{Node, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Bed, put};
use crate::Config;

const REVISION: &str = "controller-revision-hash";

async fn phase(bed: &Bed, pod: &str, phase: &str) {
    let ready = if phase == "Running" { "True" } else { "False" };
    let conditions = json!([{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let patch = Patch::Merge(json!({"status": {"phase": phase, "conditions": conditions}}));
    bed.api::<Pod>().patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
}

fn names(all: &[Value]) -> Vec<&str> {
    all.iter().map(|one| one["metadata"]["name"].as_str().unwrap()).collect()
}

fn revision<'a>(pods: &'a [Value], pod: &str) -> Option<&'a str> {
    pods.iter().find(|one| one["metadata"]["name"] == pod)?["metadata"]["labels"][REVISION].as_str()
}

async fn stateful_set(bed: &Bed) -> StatefulSet {
    put(
        &bed.api(),
        json!({"metadata": {"name": "web"}, "spec": {"replicas": 2, "serviceName": "nginx",
            // The API takes it, and it means no limit.
            "revisionHistoryLimit": -1, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "a"}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "www"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}]}}),
    )
    .await
}

async fn image(bed: &Bed, image: &str) {
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    bed.api::<StatefulSet>().patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test]
async fn a_stateful_set_keeps_order_claims_and_history() {
    let bed = Bed::new(Config::default()).await;
    stateful_set(&bed).await;
    let first = bed.server.until("pods", "the first pod", |p| p.len() == 1).await;
    assert_eq!(names(&first), ["web-0"]);
    assert_eq!(first[0]["spec"]["hostname"], "web-0");
    assert_eq!(names(&bed.server.all("persistentvolumeclaims")), ["www-web-0"]);
    phase(&bed, "web-0", "Running").await;
    bed.server.until("pods", "the second pod", |p| names(p) == ["web-0", "web-1"]).await;
    phase(&bed, "web-1", "Running").await;
    let ready = |s: &[Value]| s[0]["status"]["readyReplicas"] == 2 && s[0]["status"]["currentReplicas"] == 2;
    let sets = bed.server.until("statefulsets", "both ready", ready).await;
    let old = sets[0]["status"]["currentRevision"].as_str().unwrap().to_owned();
    for text in [
        "Create Pod web-0 in StatefulSet web successful",
        "Create Claim www-web-0 Pod web-0 in StatefulSet web success",
        "Create Pod web-1 in StatefulSet web successful",
    ] {
        bed.server.until("events", text, |e| e.iter().any(|e| e["message"] == text)).await;
    }

    // Another template: from the highest down, and history has both.
    image(&bed, "b").await;
    let replaced = |pod: &'static str, old: String| move |p: &[Value]| revision(p, pod).is_some_and(|new| new != old);
    let pods = bed.server.until("pods", "a new web-1", replaced("web-1", old.clone())).await;
    assert_eq!(revision(&pods, "web-0"), Some(old.as_str()), "it waits for web-1");
    phase(&bed, "web-1", "Running").await;
    bed.server.until("pods", "a new web-0", replaced("web-0", old.clone())).await;
    phase(&bed, "web-0", "Running").await;
    let complete = |s: &[Value]| s[0]["status"]["currentRevision"] != old && s[0]["status"]["updatedReplicas"] == 2;
    bed.server.until("statefulsets", "the end of the update", complete).await;
    let numbers = |r: &[Value]| {
        let mut numbers: Vec<_> = r.iter().map(|r| r["revision"].as_i64().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&bed.server.all("controllerrevisions")), [1, 2]);

    // Back again: the old revision is the newest.
    image(&bed, "a").await;
    bed.server.until("controllerrevisions", "a new number", |r| numbers(r) == [2, 3]).await;
    for pod in ["web-1", "web-0"] {
        bed.server.until("pods", "the old template", |p| revision(p, pod) == Some(&old)).await;
        phase(&bed, pod, "Running").await;
    }
    bed.server.until("statefulsets", "the old revision", |s| s[0]["status"]["currentRevision"] == old).await;

    // Fewer pods: their claims stay, as they do when the set goes.
    let api = bed.api::<StatefulSet>();
    let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    bed.server.until("pods", "one pod", |p| names(p) == ["web-0"]).await;
    api.delete("web", &DeleteParams::background()).await.unwrap();
    bed.server.until("pods", "the pods go", <[Value]>::is_empty).await;
    bed.server.until("controllerrevisions", "the history goes", <[Value]>::is_empty).await;
    assert_eq!(names(&bed.server.all("persistentvolumeclaims")), ["www-web-0", "www-web-1"]);
    bed.end().await;
}

/// A second template before the cache shows the revision of the first.
#[tokio::test]
async fn revisions_have_numbers_of_their_own() {
    let bed = Bed::new(Config::default()).await;
    bed.server.until("serviceaccounts", "they run", |accounts| !accounts.is_empty()).await;
    bed.server.faults.hold("controllerrevisions", true);
    stateful_set(&bed).await;
    bed.server.until("pods", "a pod", |p| p.len() == 1).await;
    image(&bed, "b").await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    bed.server.faults.hold("controllerrevisions", false);
    let revisions = bed.server.until("controllerrevisions", "both", |r| r.len() == 2).await;
    let mut numbers: Vec<i64> = revisions.iter().map(|r| r["revision"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    bed.end().await;
}

#[tokio::test]
async fn claims_go_with_pods_that_are_scaled_away_if_the_set_says_so() {
    let bed = Bed::new(Config::default()).await;
    stateful_set(&bed).await;
    let api = bed.api::<StatefulSet>();
    let policy = json!({"whenDeleted": "Retain", "whenScaled": "Delete"});
    let patch = Patch::Merge(json!({"spec": {"persistentVolumeClaimRetentionPolicy": policy}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    for pod in ["web-0", "web-1"] {
        bed.server.until("pods", pod, |p| names(p).contains(&pod)).await;
        phase(&bed, pod, "Running").await;
    }
    bed.server.until("persistentvolumeclaims", "both claims", |c| c.len() == 2).await;
    let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
    api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    bed.server.until("pods", "one pod", |p| names(p) == ["web-0"]).await;
    bed.server
        .until("persistentvolumeclaims", "its claim goes", |c| {
            c.iter().all(|c| c["metadata"]["name"] != "www-web-1" || !c["metadata"]["deletionTimestamp"].is_null())
        })
        .await;
    let kept = bed.server.all("persistentvolumeclaims");
    assert!(kept.iter().any(|c| c["metadata"]["name"] == "www-web-0" && c["metadata"]["deletionTimestamp"].is_null()));
    bed.end().await;
}

#[tokio::test]
async fn a_refused_pod_of_a_stateful_set_is_reported() {
    let bed = Bed::new(Config::default()).await;
    bed.server.refuse("pods", Some("exceeded quota"));
    stateful_set(&bed).await;
    let text = "Create Pod web-0 in StatefulSet web failed error: exceeded quota";
    bed.server.until("events", text, |e| e.iter().any(|e| e["reason"] == "FailedCreate" && e["message"] == text)).await;
    bed.server.refuse("pods", None);
    bed.server.until("pods", "it is tried again", |p| names(p) == ["web-0"]).await;
    bed.end().await;
}

#[tokio::test]
async fn a_daemon_set_has_a_pod_on_each_node_that_fits() {
    let bed = Bed::new(Config::default()).await;
    let nodes: Api<Node> = Api::all(bed.client.clone());
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    for (name, disk) in [("n1", "ssd"), ("n2", "hdd")] {
        let labels = json!({"disk": disk});
        put(&nodes, json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": conditions}})).await;
    }
    let _: DaemonSet = put(
        &bed.api(),
        json!({"metadata": {"name": "log"}, "spec": {"selector": {"matchLabels": {"app": "log"}},
            "template": {"metadata": {"labels": {"app": "log"}},
                "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "c", "image": "a"}]}}}}),
    )
    .await;
    let target = |pod: &Value| {
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            [0]["matchFields"][0]["values"][0]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let pods = bed.server.until("pods", "a pod", |p| p.len() == 1).await;
    assert_eq!(target(&pods[0]), "n1");
    bed.server
        .until("events", "the event", |e| {
            e.iter().any(|e| e["reason"] == "SuccessfulCreate" && e["source"]["component"] == "daemonset-controller")
        })
        .await;

    // A node begins to fit.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"disk": "ssd"}}}));
    nodes.patch("n2", &PatchParams::default(), &patch).await.unwrap();
    let pods = bed.server.until("pods", "two pods", |p| p.len() == 2).await;
    let mut targets: Vec<String> = pods.iter().map(target).collect();
    targets.sort();
    assert_eq!(targets, ["n1", "n2"]);
    for name in names(&pods) {
        phase(&bed, name, "Running").await;
    }
    let status = |n: i32| {
        move |s: &[Value]| s[0]["status"]["numberAvailable"] == n && s[0]["status"]["desiredNumberScheduled"] == n
    };
    bed.server.until("daemonsets", "two available", status(2)).await;

    // A failed pod is replaced.
    let failed = names(&pods)[0].to_owned();
    phase(&bed, &failed, "Failed").await;
    bed.server.until("events", "the event", |e| e.iter().any(|e| e["reason"] == "FailedDaemonPod")).await;
    let other = |p: &[Value]| p.len() == 2 && p.iter().all(|p| p["metadata"]["name"] != failed);
    let pods = bed.server.until("pods", "another pod", other).await;
    for name in names(&pods) {
        phase(&bed, name, "Running").await;
    }
    bed.server.until("daemonsets", "two available", status(2)).await;

    // Another template: one pod at a time.
    let old = revision(&pods, names(&pods)[0]).unwrap().to_owned();
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "b"}]}}}});
    let api = bed.api::<DaemonSet>();
    api.patch("log", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    for count in 1..=2 {
        let new = |p: &[Value]| {
            p.len() == 2 && p.iter().filter(|p| p["metadata"]["labels"][REVISION] != old).count() == count
        };
        let pods = bed.server.until("pods", "new pods", new).await;
        // The old one may be deleted as soon as a new one is ready.
        for name in names(&pods).into_iter().filter(|name| revision(&pods, name).is_some_and(|new| new != old)) {
            phase(&bed, name, "Running").await;
        }
    }
    bed.server.until("daemonsets", "both new", |s| s[0]["status"]["updatedNumberScheduled"] == 2).await;
    assert_eq!(bed.server.all("controllerrevisions").len(), 2);

    // A node fits no more.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"disk": "hdd"}}}));
    nodes.patch("n1", &PatchParams::default(), &patch).await.unwrap();
    let left = bed.server.until("pods", "one pod", |p| p.len() == 1).await;
    assert_eq!(target(&left[0]), "n2");
    api.delete("log", &DeleteParams::background()).await.unwrap();
    bed.server.until("pods", "none", <[Value]>::is_empty).await;
    bed.end().await;
}
