//! Deployments and ReplicaSets, with pods that become ready by themselves.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::*;

/// Marks pods as ready, and ends those that are deleted, until it is dropped.
struct Kubelet(JoinHandle<()>);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubelet {
    fn run(bed: &Bed) -> Self {
        let (server, pods): (_, Api<Pod>) = (bed.server.clone(), bed.api());
        Self(tokio::spawn(async move {
            let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            loop {
                for pod in server.all("pods") {
                    let name = pod["metadata"]["name"].as_str().unwrap();
                    if !pod["metadata"]["deletionTimestamp"].is_null() {
                        let _ = pods.delete(name, &DeleteParams::default().grace_period(0)).await;
                    } else if pod["status"]["phase"] == "Pending" {
                        let _ = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&ready)).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }))
    }
}

fn web(image: &str, replicas: i32) -> Value {
    json!({"metadata": {"name": "web", "annotations": {"kubernetes.io/change-cause": image}},
        "spec": {"replicas": replicas, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}}})
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    object["status"]["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|c| c["type"] == kind))
        .unwrap_or(&Value::Null)
}

/// Waits until the Deployment is rolled out with an image, and nothing else runs.
async fn rolled_out(bed: &Bed, image: &str, replicas: usize) -> Value {
    let done = |all: &[Value]| {
        all.len() == 1
            && condition(&all[0], "Progressing")["reason"] == "NewReplicaSetAvailable"
            && all[0]["status"]["updatedReplicas"] == replicas
            && all[0]["status"]["availableReplicas"] == replicas
            && all[0]["status"]["replicas"] == replicas
    };
    bed.server.until("deployments", "rolled out", done).await;
    let pods = |pods: &[Value]| {
        pods.len() == replicas && pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == image)
    };
    bed.server.until("pods", "its pods", pods).await;
    bed.server.all("deployments").remove(0)
}

async fn set_image(api: &Api<Deployment>, image: &str) {
    let patch = json!({"metadata": {"annotations": {"kubernetes.io/change-cause": image}},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn revisions(server: &TestApi) -> Vec<(String, String)> {
    let text = |set: &Value, name: &str| set["metadata"]["annotations"][name].as_str().unwrap_or_default().to_owned();
    let mut all: Vec<(String, String)> = server
        .all("replicasets")
        .iter()
        .map(|set| (text(set, "deployment.kubernetes.io/revision"), text(set, "kubernetes.io/change-cause")))
        .collect();
    all.sort();
    all
}

#[tokio::test]
async fn a_deployment_is_rolled_out_and_back_and_collected() {
    let bed = Bed::new(Config::default()).await;
    let kubelet = Kubelet::run(&bed);
    let api: Api<Deployment> = bed.api();
    put(&api, web("v1", 3)).await;
    let first = rolled_out(&bed, "v1", 3).await;
    assert_eq!(first["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(condition(&first, "Available")["reason"], "MinimumReplicasAvailable");
    assert_eq!(bed.server.requests(Method::POST, "pods"), 3);
    let pod = &bed.server.all("pods")[0];
    let set = &bed.server.all("replicasets")[0];
    assert_eq!(pod["metadata"]["labels"]["pod-template-hash"], set["metadata"]["labels"]["pod-template-hash"]);
    assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "ReplicaSet");
    assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], set["metadata"]["name"]);
    assert_eq!(set["status"]["terminatingReplicas"], 0);

    set_image(&api, "v2").await;
    rolled_out(&bed, "v2", 3).await;
    let named = |revision: &str, cause: &str| (revision.to_owned(), cause.to_owned());
    assert_eq!(revisions(&bed.server), [named("1", "v1"), named("2", "v2")]);

    // Back to the first template: its ReplicaSet becomes the newest.
    set_image(&api, "v1").await;
    let back = rolled_out(&bed, "v1", 3).await;
    assert_eq!(revisions(&bed.server), [named("2", "v2"), named("3", "v1")]);
    assert_eq!(back["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");

    api.patch("web", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 5}}))).await.unwrap();
    rolled_out(&bed, "v1", 5).await;
    let name = set["metadata"]["name"].as_str().unwrap();
    let texts =
        [format!("Scaled up replica set {name} from 0 to 3"), format!("Scaled up replica set {name} from 3 to 5")];
    // There were many before the last one.
    let is = |event: &Value, text: &str| event["message"].as_str().is_some_and(|message| message.ends_with(text));
    let told = |events: &[Value]| texts.iter().all(|text| events.iter().any(|event| is(event, text)));
    let told = bed.server.until("events", "the scalings", told).await;
    let scaled = told.iter().find(|event| event["reason"] == "ScalingReplicaSet").unwrap();
    assert_eq!(scaled["source"]["component"], "deployment-controller");
    let created = told.iter().find(|event| event["reason"] == "SuccessfulCreate").unwrap();
    assert_eq!(
        (&created["source"]["component"], &created["involvedObject"]["kind"]),
        (&json!("replicaset-controller"), &json!("ReplicaSet"))
    );

    // At rest, nothing is written.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let writes = |plural: &str| bed.server.requests(Method::PATCH, plural);
    let before = (writes("deploymentsstatus"), writes("replicasets"), writes("replicasetsstatus"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(before, (writes("deploymentsstatus"), writes("replicasets"), writes("replicasetsstatus")));

    api.delete("web", &DeleteParams::background()).await.unwrap();
    bed.server.until("replicasets", "the ReplicaSets go", <[Value]>::is_empty).await;
    bed.server.until("pods", "the pods go", <[Value]>::is_empty).await;
    drop(kubelet);
    bed.end().await;
}

#[tokio::test]
async fn recreate_ends_all_old_pods_first() {
    let bed = Bed::new(Config::default()).await;
    let kubelet = Kubelet::run(&bed);
    let api: Api<Deployment> = bed.api();
    let mut object = web("v1", 3);
    object["spec"]["strategy"] = json!({"type": "Recreate"});
    // One that has no node fails at once when it is deleted.
    object["spec"]["template"]["spec"]["nodeName"] = json!("n");
    put(&api, object).await;
    rolled_out(&bed, "v1", 3).await;
    // One pod is slow to end.
    let pods: Api<Pod> = bed.api();
    let slow = bed.server.all("pods")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let held = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/held"]}}));
    pods.patch(&slow, &PatchParams::default(), &held).await.unwrap();
    set_image(&api, "v2").await;
    bed.server.until("pods", "only the held pod is left", |p| p.len() == 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(bed.server.all("pods").len(), 1, "no new pod yet");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch(&slow, &PatchParams::default(), &free).await.unwrap();
    rolled_out(&bed, "v2", 3).await;
    drop(kubelet);
    bed.end().await;
}

#[tokio::test]
async fn a_replica_set_without_owner_is_adopted_and_a_foreign_name_is_avoided() {
    let bed = Bed::new(Config::default()).await;
    let kubelet = Kubelet::run(&bed);
    let (api, sets): (Api<Deployment>, Api<ReplicaSet>) = (bed.api(), bed.api());
    put(&api, web("v1", 2)).await;
    rolled_out(&bed, "v1", 2).await;
    let name = bed.server.all("replicasets")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    api.delete("web", &DeleteParams::orphan()).await.unwrap();
    bed.server.until("deployments", "it goes", <[Value]>::is_empty).await;
    assert_eq!((bed.server.all("replicasets").len(), bed.server.all("pods").len()), (1, 2));
    put(&api, web("v1", 2)).await;
    rolled_out(&bed, "v1", 2).await;
    assert_eq!(bed.server.all("replicasets").len(), 1, "adopted");
    assert_eq!(bed.server.requests(Method::POST, "pods"), 2);
    api.delete("web", &DeleteParams::background()).await.unwrap();
    bed.server.until("pods", "the pods go", <[Value]>::is_empty).await;
    bed.server.until("replicasets", "the ReplicaSet goes", <[Value]>::is_empty).await;

    put(
        &sets,
        json!({"metadata": {"name": name}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "other"}},
            "template": {"metadata": {"labels": {"app": "other"}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}}}}),
    )
    .await;
    put(&api, web("v1", 2)).await;
    let web = rolled_out(&bed, "v1", 2).await;
    assert_eq!(web["status"]["collisionCount"], 1);
    assert_eq!(bed.server.all("replicasets").len(), 2);
    drop(kubelet);
    bed.end().await;
}

#[tokio::test]
async fn a_replica_set_that_is_refused_is_reported_and_tried_again() {
    let bed = Bed::new(Config::default()).await;
    let kubelet = Kubelet::run(&bed);
    bed.server.refuse("replicasets", Some("exceeded quota"));
    put(&bed.api::<Deployment>(), web("v1", 2)).await;
    let failed = |all: &[Value]| condition(&all[0], "Progressing")["reason"] == "ReplicaSetCreateError";
    bed.server.until("deployments", "the condition", failed).await;
    bed.server.until("events", "the event", |e| e.iter().any(|e| e["reason"] == "ReplicaSetCreateError")).await;
    bed.server.refuse("replicasets", None);
    rolled_out(&bed, "v1", 2).await;
    drop(kubelet);
    bed.end().await;
}

#[tokio::test]
async fn a_replica_set_takes_pods_by_its_expressions() {
    let bed = Bed::new(Config::default()).await;
    let expression = json!({"key": "app", "operator": "In", "values": ["web", "shop"]});
    let selector = json!({"matchExpressions": [expression, {"key": "canary", "operator": "DoesNotExist"}]});
    put(
        &bed.api::<ReplicaSet>(),
        json!({"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": selector,
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}}}}),
    )
    .await;
    bed.server.until("pods", "2 pods", |p| p.len() == 2).await;
    // An orphan that matches is one too many; one that does not is let alone.
    let (pods, containers): (Api<Pod>, _) = (bed.api(), json!([{"name": "c", "image": "v1"}]));
    put(&pods, json!({"metadata": {"name": "canary", "labels": {"app": "shop", "canary": "true"}}, "spec": {"containers": containers}})).await;
    put(&pods, json!({"metadata": {"name": "orphan", "labels": {"app": "shop"}}, "spec": {"containers": containers}}))
        .await;
    bed.server.until("events", "a deletion", |e| e.iter().any(|e| e["reason"] == "SuccessfulDelete")).await;
    let left = bed.server.until("pods", "2 pods and the canary", |p| p.len() == 3).await;
    let canary = left.iter().find(|p| p["metadata"]["name"] == "canary").unwrap();
    assert!(canary["metadata"]["ownerReferences"].is_null());
    // A pod that leaves the selector is released and replaced.
    let owned = left.iter().find(|p| p["metadata"]["name"] != "canary").unwrap()["metadata"]["name"].as_str().unwrap();
    let patch = Patch::Merge(json!({"metadata": {"labels": {"canary": "true"}}}));
    pods.patch(owned, &PatchParams::default(), &patch).await.unwrap();
    let released = |p: &[Value]| {
        p.len() == 4 && p.iter().any(|p| p["metadata"]["name"] == owned && p["metadata"]["ownerReferences"].is_null())
    };
    bed.server.until("pods", "a release", released).await;
    bed.end().await;
}

#[tokio::test]
async fn a_deployment_is_rolled_back_by_its_annotation() {
    let bed = Bed::new(Config::default()).await;
    let _kubelet = Kubelet::run(&bed);
    let api: Api<Deployment> = bed.api();
    put(&api, web("v1", 2)).await;
    rolled_out(&bed, "v1", 2).await;
    set_image(&api, "v2").await;
    rolled_out(&bed, "v2", 2).await;
    let ask = async |revision: &str| {
        let patch = json!({"metadata": {"annotations": {"deprecated.deployment.rollback.to": revision}}});
        api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    let told = async |text: &str| {
        bed.server.until("events", text, |all| all.iter().any(|event| event["message"] == text)).await;
    };
    ask("0").await;
    told("Rolled back deployment \"web\" to revision 1").await;
    let back = rolled_out(&bed, "v1", 2).await;
    let annotations = &back["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/change-cause"], "v1");
    assert_eq!(annotations["deprecated.deployment.rollback.to"], json!(null));
    ask("9").await;
    told("Unable to find the revision to rollback to.").await;
    bed.server
        .until("deployments", "the request is gone", |all| {
            all[0]["metadata"]["annotations"]["deprecated.deployment.rollback.to"].is_null()
        })
        .await;
    bed.end().await;
}
