//! Whichever single call of a controller fails, in whichever way, the end is the same as if none had. Time is tokio's, so that
//! nobody waits for a retry.

use std::{collections::BTreeSet, future::Future, pin::Pin};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::{CronJob, Job},
    certificates::v1::CertificateSigningRequest,
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    policy::v1::PodDisruptionBudget,
    resource::v1::ResourceClaimTemplate,
};

use super::*;
use crate::controllers::fake_api::Fault;

/// What users and nodes do, up to the state that they want.
type Scenario = for<'a> fn(&'a Bed) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The state of everything but events, without what differs from run to run.
fn state(fake: &FakeApi, plurals: &[&str]) -> BTreeSet<String> {
    fn reduce(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|key, _| {
                    let is_time = key.ends_with("Time") || key.ends_with("Timestamp") || key.ends_with("-time");
                    let is_version = key.ends_with("esourceVersion") || key == "uid" || key == "observedGeneration";
                    let is_version = is_version || ["request", "managedFields", "timeAdded"].contains(&key.as_str());
                    !(is_time || is_version)
                });
                fields.values_mut().for_each(reduce);
            }
            Value::Array(items) => {
                items.iter_mut().for_each(reduce);
                // Those of whatever came first: the order is a matter of chance.
                items.sort_by_key(Value::to_string);
            }
            Value::String(text) => {
                // Ends of generated names: the fake counts.
                if let Some((start, end)) = text.rsplit_once('-')
                    && end.len() == 5
                    && end.bytes().all(|b| b.is_ascii_digit())
                {
                    *text = format!("{start}-*");
                }
            }
            _ => {}
        }
    }
    let mut seen = BTreeSet::new();
    for plural in plurals {
        let mut all: Vec<String> = fake
            .all(plural)
            .into_iter()
            .map(|mut object| {
                reduce(&mut object);
                format!("{plural} {object}")
            })
            .collect();
        all.sort();
        // Objects that differ in nothing are told apart by their number.
        seen.extend(all.iter().enumerate().map(|(at, text)| {
            let same = all[..at].iter().filter(|other| *other == text).count();
            format!("{text} #{same}")
        }));
    }
    seen
}

/// Waits until `check` holds for the objects of a kind: minutes pass in no time.
async fn until(bed: &Bed, plural: &str, what: &str, check: impl Fn(&[Value]) -> bool) {
    let mut changes = bed.fake.changes();
    while !check(&bed.fake.all(plural)) {
        let change = tokio::time::timeout(Duration::from_secs(600), changes.recv()).await;
        assert!(
            change.is_ok(),
            "never came: {what}, after {:?} failed; there is {:#?}",
            bed.fake.calls().last,
            bed.fake.all(plural)
        );
    }
}

/// Waits until controllers ask for nothing any more.
async fn rest(fake: &FakeApi) {
    let (mut before, mut quiet) = (usize::MAX, 0);
    while quiet < 3 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let now = fake.calls().made.len();
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
    }
}

/// Marks pods as running and ready, and ends those that are deleted, until it is dropped.
struct Kubelet(JoinHandle<()>);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubelet {
    fn run(bed: &Bed, phase: &'static str) -> Self {
        let (client, mut changes) = (bed.client.clone(), bed.fake.changes());
        let ready = if phase == "Running" { "True" } else { "False" };
        let status = json!({"status": {"phase": phase, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        Self(tokio::spawn(async move {
            while let Ok((_, plural, event)) = changes.recv().await {
                if plural != "pods" || event["type"] == "DELETED" {
                    continue;
                }
                let pod = &event["object"];
                let part = |name: &str| pod["metadata"][name].as_str().unwrap();
                let pods: Api<Pod> = Api::namespaced(client.clone(), part("namespace"));
                if !pod["metadata"]["deletionTimestamp"].is_null() {
                    let _ = pods.delete(part("name"), &DeleteParams::default().grace_period(0)).await;
                } else if pod["status"]["phase"].is_null() {
                    let _ = pods.patch_status(part("name"), &PatchParams::default(), &Patch::Merge(&status)).await;
                }
            }
        }))
    }
}

/// How a scenario went: the calls that were made, and the state in the end.
struct Went {
    calls: Vec<Method>,
    state: BTreeSet<String>,
}

async fn run_once(
    plurals: &[&str],
    phase: &'static str,
    scenario: Scenario,
    fault: Option<(usize, Fault)>,
    expected: Option<&BTreeSet<String>>,
) -> Went {
    // Nobody renews a node's lease.
    let grace = Duration::from_secs(1_000_000);
    let bed = Bed::new(Config { node_grace: grace, node_startup_grace: grace, ..Config::default() }).await;
    until(&bed, "serviceaccounts", "they run", |accounts| !accounts.is_empty()).await;
    rest(&bed.fake).await;
    bed.fake.fail_call(fault);
    let kubelet = Kubelet::run(&bed, phase);
    scenario(&bed).await;
    rest(&bed.fake).await;
    let calls = bed.fake.calls();
    let mut last = state(&bed.fake, plurals);
    // What fails may be tried again after a while.
    for _ in 0..100 {
        if expected.is_none_or(|expected| *expected == last) {
            break;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        last = state(&bed.fake, plurals);
    }
    if let Some(expected) = expected {
        let missing: Vec<_> = expected.difference(&last).collect();
        let other: Vec<_> = last.difference(expected).collect();
        let why = calls.last;
        assert!(
            missing.is_empty() && other.is_empty(),
            "{fault:?}, {why:?}: missing {missing:#?}, there is {other:#?}"
        );
    }
    drop(kubelet);
    bed.end().await;
    Went { calls: calls.made, state: last }
}

/// The ways in which a request can fail. Who only reads has nothing to be faster than, and an answer that is lost is one that
/// fails; what is new cannot be written by others before.
fn ways(method: &Method) -> &'static [Fault] {
    match *method {
        Method::GET => &[Fault::Fails],
        Method::POST => &[Fault::Fails, Fault::IsLost],
        _ => &[Fault::Fails, Fault::ComesSecond, Fault::IsLost],
    }
}

/// Runs a scenario without a fault, and then once for each call, which fails in one way after the other; with `ALL_FAULTS` in
/// each way.
async fn survives(plurals: &[&str], phase: &'static str, scenario: Scenario) {
    let all = std::env::var_os("ALL_FAULTS").is_some();
    let Went { calls, state } = run_once(plurals, phase, scenario, None, None).await;
    assert!(!calls.is_empty());
    for (number, method) in calls.iter().enumerate() {
        let ways = ways(method);
        let taken = if all { ways } else { std::slice::from_ref(&ways[number % ways.len()]) };
        for way in taken {
            run_once(plurals, phase, scenario, Some((number, *way)), Some(&state)).await;
        }
    }
}

fn workload(name: &str, spec: Value) -> Value {
    let labels = json!({"app": name});
    let mut all = json!({"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "v1"}]}}});
    json_patch::merge(&mut all, &spec);
    json!({"metadata": {"name": name}, "spec": all})
}

fn image(image: &str) -> Patch<Value> {
    Patch::Merge(json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}))
}

async fn node(bed: &Bed, name: &str) {
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    put(
        &Api::<Node>::all(bed.client.clone()),
        json!({"metadata": {"name": name}, "status": {"conditions": conditions}}),
    )
    .await;
}

/// Whether there are so many pods of an image, all of them ready, and no others.
fn run_image(image: &'static str, count: usize) -> impl Fn(&[Value]) -> bool {
    move |pods| {
        pods.len() == count
            && pods
                .iter()
                .all(|pod| pod["spec"]["containers"][0]["image"] == image && pod["status"]["phase"] == "Running")
    }
}

#[tokio::test(start_paused = true)]
async fn rollouts() {
    survives(&["deployments", "replicasets", "pods"], "Running", |bed| {
        Box::pin(async move {
            let api: Api<Deployment> = bed.api();
            let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
            put(&api, workload("web", json!({"replicas": 2, "strategy": strategy}))).await;
            until(bed, "pods", "the first", run_image("v1", 2)).await;
            api.patch("web", &PatchParams::default(), &image("v2")).await.unwrap();
            until(bed, "pods", "the second", run_image("v2", 2)).await;
            let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
            api.patch("web", &PatchParams::default(), &scale).await.unwrap();
            until(bed, "pods", "one less", run_image("v2", 1)).await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn stateful_sets_with_claims() {
    let plurals = ["statefulsets", "controllerrevisions", "pods", "persistentvolumeclaims"];
    survives(&plurals, "Running", |bed| {
        Box::pin(async move {
            let api: Api<StatefulSet> = bed.api();
            let claims = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
            let retention = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
            let spec = json!({"replicas": 2, "serviceName": "db", "volumeClaimTemplates": claims,
                "persistentVolumeClaimRetentionPolicy": retention});
            put(&api, workload("db", spec)).await;
            until(bed, "pods", "both", run_image("v1", 2)).await;
            api.patch("db", &PatchParams::default(), &image("v2")).await.unwrap();
            until(bed, "pods", "both anew", run_image("v2", 2)).await;
            let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
            api.patch("db", &PatchParams::default(), &scale).await.unwrap();
            until(bed, "pods", "one less", run_image("v2", 1)).await;
            until(bed, "persistentvolumeclaims", "its claim goes", |claims| claims.len() == 1).await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn daemon_sets() {
    survives(&["daemonsets", "controllerrevisions", "pods"], "Running", |bed| {
        Box::pin(async move {
            node(bed, "n1").await;
            node(bed, "n2").await;
            let api: Api<DaemonSet> = bed.api();
            let update = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}});
            put(&api, workload("log", json!({"updateStrategy": update, "template": {"spec": {"nodeName": null}}})))
                .await;
            until(bed, "pods", "both", run_image("v1", 2)).await;
            api.patch("log", &PatchParams::default(), &image("v2")).await.unwrap();
            until(bed, "pods", "both anew", run_image("v2", 2)).await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn jobs() {
    survives(&["jobs", "pods"], "Succeeded", |bed| {
        Box::pin(async move {
            let spec = json!({"parallelism": 1, "completions": 2, "backoffLimit": 6});
            put(&bed.api::<Job>(), workload("j", spec)).await;
            let complete = |jobs: &[Value]| jobs[0]["status"]["succeeded"] == 2;
            until(bed, "jobs", "complete", complete).await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cron_jobs() {
    survives(&["cronjobs", "jobs", "pods"], "Succeeded", |bed| {
        Box::pin(async move {
            let template = workload("j", json!({"parallelism": 1, "completions": 1, "backoffLimit": 6}));
            // Once a year, and due.
            let spec = json!({"schedule": "0 0 1 2 *", "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1,
                "concurrencyPolicy": "Allow", "jobTemplate": {"spec": template["spec"]}});
            put(&bed.api::<CronJob>(), json!({"metadata": {"name": "c"}, "spec": spec})).await;
            until(bed, "cronjobs", "one has run", |c| !c[0]["status"]["lastSuccessfulTime"].is_null()).await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn services() {
    survives(&["services", "endpointslices", "endpoints", "pods"], "Running", |bed| {
        Box::pin(async move {
            node(bed, "n").await;
            for name in ["web", "gone"] {
                let spec = json!({"clusterIP": "10.96.0.9", "selector": {"app": "web"}, "ports": [{"port": 80}]});
                put(&bed.api::<Service>(), json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            bed.rc(2).await;
            until(bed, "pods", "both", |pods| {
                pods.len() == 2 && pods.iter().all(|pod| pod["status"]["phase"] == "Running")
            })
            .await;
            let patch = Patch::Merge(json!({"spec": {"template": {"spec": {"nodeName": "n"}}}}));
            bed.api::<ReplicationController>().patch("web", &PatchParams::default(), &patch).await.unwrap();
            let name = bed.fake.all("pods")[0]["metadata"]["name"].as_str().unwrap().to_owned();
            bed.api::<Pod>().delete(&name, &DeleteParams::default()).await.unwrap();
            let has = |slices: &[Value]| {
                slices.iter().any(|slice| slice["endpoints"].as_array().is_some_and(|e| !e.is_empty()))
            };
            until(bed, "endpointslices", "an endpoint", has).await;
            bed.api::<Service>().delete("gone", &DeleteParams::default()).await.unwrap();
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn volumes_are_bound_and_released() {
    survives(&["persistentvolumes", "persistentvolumeclaims"], "Running", |bed| {
        Box::pin(async move {
            let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
            for name in ["a", "b"] {
                let spec = json!({"capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain"});
                put(&volumes, json!({"metadata": {"name": name}, "spec": spec})).await;
                put(
                    &bed.api::<PersistentVolumeClaim>(),
                    json!({"metadata": {"name": name}, "spec": {"volumeName": name}}),
                )
                .await;
            }
            let bound = |claims: &[Value]| claims.iter().all(|claim| claim["status"]["phase"] == "Bound");
            until(bed, "persistentvolumeclaims", "both are bound", bound).await;
            bed.api::<PersistentVolumeClaim>().delete("a", &DeleteParams::default()).await.unwrap();
            until(bed, "persistentvolumes", "one is released", |v| v[0]["status"]["phase"] == "Released").await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn claims_for_pods() {
    let plurals = ["persistentvolumeclaims", "resourceclaims", "pods"];
    survives(&plurals, "Running", |bed| {
        Box::pin(async move {
            let template = json!({"metadata": {"name": "t"}, "spec": {"spec": {}}});
            put(&bed.api::<ResourceClaimTemplate>(), template).await;
            for name in ["stays", "goes"] {
                let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
                let device = json!({"name": "gpu", "resourceClaimTemplateName": "t"});
                let spec = json!({"containers": [], "volumes": [volume], "resourceClaims": [device]});
                put(&bed.api::<Pod>(), json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            for plural in ["persistentvolumeclaims", "resourceclaims"] {
                until(bed, plural, "one for each", |claims| claims.len() == 2).await;
            }
            bed.api::<Pod>().delete("goes", &DeleteParams::default().grace_period(0)).await.unwrap();
            for plural in ["persistentvolumeclaims", "resourceclaims"] {
                until(bed, plural, "one goes", |claims| claims.len() == 1).await;
            }
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_and_what_is_in_them() {
    let plurals = ["namespaces", "configmaps", "serviceaccounts", "pods", "services"];
    survives(&plurals, "Running", |bed| {
        Box::pin(async move {
            let namespaces: Api<Namespace> = Api::all(bed.client.clone());
            put(&namespaces, json!({"metadata": {"name": "shop"}})).await;
            until(bed, "serviceaccounts", "its account", |accounts| accounts.len() == 2).await;
            let pods: Api<Pod> = Api::namespaced(bed.client.clone(), "shop");
            put(&pods, json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": []}})).await;
            let maps: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "shop");
            put(&maps, json!({"metadata": {"name": "m"}})).await;
            namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
            until(bed, "namespaces", "it goes", |namespaces| namespaces.len() == 1).await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn garbage() {
    survives(&["replicationcontrollers", "pods"], "Running", |bed| {
        Box::pin(async move {
            let api: Api<ReplicationController> = bed.api();
            let are = |count: usize| move |pods: &[Value]| pods.len() == count;
            for (params, left) in
                [(DeleteParams::background(), 0), (DeleteParams::foreground(), 0), (DeleteParams::orphan(), 2)]
            {
                bed.rc(2).await;
                until(bed, "pods", "its pods", are(2)).await;
                api.delete("web", &params).await.unwrap();
                until(bed, "replicationcontrollers", "it goes", <[Value]>::is_empty).await;
                until(bed, "pods", "what is left", are(left)).await;
            }
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn certificates() {
    survives(&["certificatesigningrequests"], "Running", |bed| {
        Box::pin(async move {
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
                "spec": {}, "status": {"allowed": true}});
            bed.fake.answer("/apis/authorization.k8s.io/v1/subjectaccessreviews", Some(review));
            let requests: Api<CertificateSigningRequest> = Api::all(bed.client.clone());
            put(&requests, steps::node_request()).await;
            let approved = |r: &[Value]| r[0]["status"]["conditions"][0]["type"] == "Approved";
            until(bed, "certificatesigningrequests", "the approval", approved).await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn autoscalers_and_budgets() {
    let plurals = ["deployments", "horizontalpodautoscalers", "poddisruptionbudgets", "pods"];
    survives(&plurals, "Running", |bed| {
        Box::pin(async move {
            put(&bed.api::<Deployment>(), workload("web", json!({"replicas": 1}))).await;
            until(bed, "pods", "a pod", run_image("v1", 1)).await;
            let budget = json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}});
            put(&bed.api::<PodDisruptionBudget>(), json!({"metadata": {"name": "web"}, "spec": budget})).await;
            let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
            // Without a metric: at least three.
            let spec = json!({"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 3});
            put(&bed.api::<HorizontalPodAutoscaler>(), json!({"metadata": {"name": "web"}, "spec": spec})).await;
            until(bed, "pods", "three", run_image("v1", 3)).await;
            let counted = |b: &[Value]| b[0]["status"]["currentHealthy"] == 3;
            until(bed, "poddisruptionbudgets", "all count", counted).await;
            let rests = |a: &[Value]| a[0]["status"]["conditions"][0]["reason"] == "ReadyForNewScale";
            until(bed, "horizontalpodautoscalers", "nothing left to do", rests).await;
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodes() {
    survives(&["nodes", "pods"], "Running", |bed| {
        Box::pin(async move {
            node(bed, "n").await;
            let spec = json!({"nodeName": "n", "containers": []});
            put(&bed.api::<Pod>(), json!({"metadata": {"name": "p"}, "spec": spec})).await;
            until(bed, "nodes", "its range", |nodes| !nodes[0]["spec"]["podCIDR"].is_null()).await;
            let taint = json!([{"key": "k", "effect": "NoExecute"}]);
            let nodes: Api<Node> = Api::all(bed.client.clone());
            let patch = Patch::Merge(json!({"spec": {"taints": taint}}));
            nodes.patch("n", &PatchParams::default(), &patch).await.unwrap();
            until(bed, "pods", "it is driven out", <[Value]>::is_empty).await;
            let bound = json!({"nodeName": "gone", "containers": []});
            put(&bed.api::<Pod>(), json!({"metadata": {"name": "q", "finalizers": ["x/y"]}, "spec": bound})).await;
            until(bed, "pods", "its node is gone", |pods| !pods[0]["metadata"]["deletionTimestamp"].is_null()).await;
        })
    })
    .await;
}
