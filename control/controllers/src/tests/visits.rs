//! A change costs what it concerns: the objects that controllers look at, counted.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{
        Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Secret, Service, ServiceAccount,
    },
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use windlass_identity::service_account_tokens::TokenIssuer;
use windlass_kit::{metrics::Registry, prometheus::Format};

use super::{Bed, put};
use crate::Config;

/// Numbers of objects of each type that have nothing to do with the changes. A walk over one type looks at as many.
const UNRELATED: [usize; 2] = [20, 200];

/// The objects that all controllers have looked up so far.
fn reads(metrics: &Registry) -> u64 {
    let page = metrics.page(Format::Plain);
    let samples = page.lines().filter(|line| line.starts_with("windlass_informer_objects_read_total{"));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Whether no key waits for a worker, nor is worked on.
fn is_idle(metrics: &Registry) -> bool {
    let page = metrics.page(Format::Plain);
    let busy = ["workqueue_depth{", "workqueue_unfinished_work_seconds{"];
    let mut of_queues = page.lines().filter(|line| busy.iter().any(|name| line.starts_with(name)));
    of_queues.all(|line| line.ends_with(" 0"))
}

/// Waits until controllers look at nothing any more, on a busy machine too.
async fn rest(metrics: &Registry) -> u64 {
    let (mut before, mut quiet) = (reads(metrics), 0);
    while quiet < 2 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        let now = reads(metrics);
        quiet = if now == before && is_idle(metrics) { quiet + 1 } else { 0 };
        before = now;
    }
    before
}

fn pod(name: &str, app: &str, node: &str, ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "v1"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": status}]}})
}

fn node(ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({"status": {"conditions": [{"type": "Ready", "status": status}]}})
}

fn volume(name: &str, class: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp/v"}}})
}

fn deployment(name: &str, replicas: i32) -> Value {
    let labels = json!({"app": name});
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "v1"}]}}}})
}

/// A workload of the name, whose pods have its name as their label.
fn workload(name: &str, spec: Value) -> Value {
    let labels = json!({"app": name});
    let mut all = json!({"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "v1"}]}}});
    json_patch::merge(&mut all, &spec);
    json!({"metadata": {"name": name}, "spec": all})
}

/// A Job, which the API gives a selector.
fn job(name: &str, spec: Value) -> Value {
    let mut all = job_spec();
    all["template"]["metadata"] = json!({"labels": {"app": name}});
    json_patch::merge(&mut all, &spec);
    json!({"metadata": {"name": name}, "spec": all})
}

fn job_spec() -> Value {
    json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "v1"}]}}})
}

fn claim(name: &str, class: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}})
}

fn cron_job(name: &str) -> Value {
    let job = json!({"spec": job_spec()});
    json!({"metadata": {"name": name}, "spec": {"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": job}})
}

/// The secret of an account, which gets a token.
fn token_of(account: &str) -> Value {
    let named = json!({"kubernetes.io/service-account.name": account});
    json!({"metadata": {"name": account, "annotations": named}, "type": "kubernetes.io/service-account-token"})
}

fn budget(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}}})
}

/// Makes the one pod of a workload ready, or ends it.
async fn set_phase(bed: &Bed, app: &str, phase: &str) {
    let of_app = |pods: &[Value]| {
        let mut pods = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == app);
        pods.next().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
    };
    let pods = bed.server.until("pods", app, |pods| of_app(pods).is_some()).await;
    let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let patch = Patch::Merge(json!({"status": {"phase": phase, "conditions": ready}}));
    bed.api::<Pod>().patch_status(&of_app(&pods).unwrap(), &PatchParams::default(), &patch).await.unwrap();
}

async fn fill(bed: &Bed, unrelated: usize) {
    let nodes: Api<Node> = Api::all(bed.client.clone());
    let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
    for i in 0..unrelated {
        let app = format!("other-{i}");
        let mut other = node(true);
        other["metadata"] = json!({"name": app});
        put(&nodes, other).await;
        put(&bed.api::<Pod>(), pod(&app, &app, &app, true)).await;
        let selector = json!({"app": app});
        put(
            &bed.api::<Service>(),
            json!({"metadata": {"name": app}, "spec": {"selector": selector, "ports": [{"port": 80}]}}),
        )
        .await;
        put(
            &bed.api::<ReplicationController>(),
            json!({"metadata": {"name": app}, "spec": {"replicas": 1,
            "selector": selector, "template": {"metadata": {"labels": selector}, "spec": {"containers": [{"name": "c", "image": "v1"}]}}}}),
        )
        .await;
        put(&bed.api::<Deployment>(), deployment(&app, 0)).await;
        put(&bed.api::<StatefulSet>(), workload(&app, json!({"replicas": 0, "serviceName": "db"}))).await;
        put(&bed.api::<Job>(), job(&app, json!({"suspend": true, "parallelism": 1, "completions": 1}))).await;
        put(&bed.api::<CronJob>(), cron_job(&app)).await;
        put(&bed.api::<PodDisruptionBudget>(), budget(&app)).await;
        put(&bed.api::<ServiceAccount>(), json!({"metadata": {"name": app}})).await;
        put(&bed.api::<Secret>(), token_of(&app)).await;
        put(&volumes, volume(&app, "unused")).await;
        put(&bed.api::<PersistentVolumeClaim>(), claim(&app, "wanted")).await;
    }
}

/// The objects that controllers look at for each of some changes.
async fn costs(unrelated: usize) -> Vec<(&'static str, u64)> {
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let tokens = Some(Arc::new(TokenIssuer::from_pem(&key).unwrap()));
    let config = Config { tokens, ..Config::default() };
    let metrics = config.metrics.clone();
    let bed = Bed::new(config).await;
    fill(&bed, unrelated).await;
    let (nodes, pods) = (Api::<Node>::all(bed.client.clone()), bed.api::<Pod>());
    let mut own = node(true);
    own["metadata"] = json!({"name": "n1", "labels": {"agent": "yes"}});
    put(&nodes, own).await;
    for i in 0..3 {
        put(&pods, pod(&format!("web-{i}"), "web", "n1", true)).await;
    }
    let selector = json!({"app": "web"});
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": selector, "ports": [{"port": 80}]}});
    put(&bed.api::<Service>(), service).await;
    bed.rc(3).await;
    put(&bed.api::<StatefulSet>(), workload("db", json!({"replicas": 1, "serviceName": "db"}))).await;
    let on_one = json!({"nodeSelector": {"agent": "yes"}});
    put(&bed.api::<DaemonSet>(), workload("agent", json!({"template": {"spec": on_one}}))).await;
    put(&bed.api::<Job>(), job("batch", json!({"parallelism": 1, "completions": 1, "backoffLimit": 6}))).await;
    put(&bed.api::<CronJob>(), cron_job("cron")).await;
    put(&bed.api::<PodDisruptionBudget>(), budget("web")).await;
    for app in ["db", "agent", "batch"] {
        set_phase(&bed, app, "Pending").await;
    }
    let mut before = rest(&metrics).await;
    let mut costs = Vec::new();
    let mut cost = async |change: &'static str| {
        let now = rest(&metrics).await;
        costs.push((change, now - before));
        before = now;
    };
    let patch = |value: Value| Patch::Merge(value);
    let params = PatchParams::default();

    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    pods.patch_status("web-0", &params, &patch(unready)).await.unwrap();
    cost("a pod becomes unready").await;
    put(&pods, pod("orphan", "web", "n1", true)).await;
    cost("a pod is adopted, and one too many deleted").await;
    pods.delete("other-3", &DeleteParams::default().grace_period(0)).await.unwrap();
    cost("a pod is replaced").await;
    set_phase(&bed, "db", "Running").await;
    cost("a pod of a StatefulSet becomes ready").await;
    set_phase(&bed, "agent", "Running").await;
    cost("a pod of a DaemonSet becomes ready").await;
    set_phase(&bed, "batch", "Succeeded").await;
    let ended = |jobs: &[Value]| jobs.iter().any(|job| job["status"]["succeeded"] == 1);
    bed.server.until("jobs", "the end of the Job", ended).await;
    cost("a pod of a Job ends").await;
    let schedule = json!({"spec": {"schedule": "0 0 2 1 *"}});
    bed.api::<CronJob>().patch("cron", &params, &patch(schedule)).await.unwrap();
    cost("a CronJob gets another schedule").await;
    let most = json!({"spec": {"maxUnavailable": 2}});
    bed.api::<PodDisruptionBudget>().patch("web", &params, &patch(most)).await.unwrap();
    let counted = |all: &[Value]| {
        all.iter().any(|one| one["spec"]["maxUnavailable"] == 2 && one["status"]["disruptionsAllowed"] == 1)
    };
    bed.server.until("poddisruptionbudgets", "the budget is counted", counted).await;
    cost("a budget changes").await;
    let params_of = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}});
    nodes.patch("n1", &params, &patch(params_of)).await.unwrap();
    cost("a node moves to another zone").await;
    nodes.patch_status("n1", &params, &patch(node(false))).await.unwrap();
    cost("a node becomes unready").await;
    put(&Api::<PersistentVolume>::all(bed.client.clone()), volume("mine", "mine")).await;
    cost("a volume that nobody wants").await;
    put(&bed.api::<PersistentVolumeClaim>(), claim("mine", "mine")).await;
    bed.server.until("persistentvolumeclaims", "bound", |c| c.iter().any(|c| c["status"]["phase"] == "Bound")).await;
    cost("a claim is bound").await;
    bed.api::<ReplicationController>().delete("web", &DeleteParams::background()).await.unwrap();
    bed.server.until("replicationcontrollers", "it goes", |r| r.len() == unrelated).await;
    cost("an owner is deleted").await;
    put(&bed.api::<ServiceAccount>(), json!({"metadata": {"name": "mine"}})).await;
    put(&bed.api::<Secret>(), token_of("mine")).await;
    let has_token = |secrets: &[Value]| secrets.iter().any(|s| s["metadata"]["name"] == "mine" && !s["data"].is_null());
    bed.server.until("secrets", "its token", has_token).await;
    cost("an account comes, and its secret gets a token").await;
    bed.api::<ServiceAccount>().delete("mine", &DeleteParams::default()).await.unwrap();
    bed.server.until("secrets", "its secret goes", |secrets| secrets.len() == unrelated).await;
    cost("an account goes with its secret").await;
    put(&bed.api::<Deployment>(), deployment("roll", 3)).await;
    bed.server.until("replicasets", "its ReplicaSet", |sets| sets.len() == unrelated + 1).await;
    cost("a Deployment comes").await;
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "v2"}]}}}});
    bed.api::<Deployment>().patch("roll", &params, &patch(image)).await.unwrap();
    bed.server.until("replicasets", "another ReplicaSet", |sets| sets.len() == unrelated + 2).await;
    cost("a Deployment gets another template").await;
    nodes.delete("other-7", &DeleteParams::default()).await.unwrap();
    cost("a node is deleted").await;

    bed.end().await;
    costs
}

#[tokio::test]
async fn the_work_for_a_change_is_independent_of_unrelated_objects() {
    let [few, many] = UNRELATED;
    let (with_few, mut with_many) = (costs(few).await, costs(many).await);
    let margin = u64::try_from((many - few) / 2).unwrap();
    assert!(with_few.iter().map(|(_, visited)| visited).sum::<u64>() > 50, "nothing was counted: {with_few:?}");
    let is_within = |small: u64, large: u64| large < small + margin;
    let pairs = |with_many: &[(&'static str, u64)]| {
        let pairs = with_few.iter().zip(with_many);
        pairs.map(|((change, small), (_, large))| (*change, *small, *large)).collect::<Vec<_>>()
    };
    // What was tried again by time, of a change before, is counted with the next one. It is never less than what there is to do.
    if !pairs(&with_many).iter().all(|(_, small, large)| is_within(*small, *large)) {
        for ((_, first), (_, second)) in with_many.iter_mut().zip(costs(many).await) {
            *first = second.min(*first);
        }
    }
    for (change, small, large) in pairs(&with_many) {
        assert!(is_within(small, large), "{change}: {small} objects among {few}, {large} among {many}");
    }
}
