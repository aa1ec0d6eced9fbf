//! What users and nodes want of each family of controllers, and of the scheduler.

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::{CronJob, Job},
    certificates::v1::CertificateSigningRequest,
    core::v1::{Endpoints, PersistentVolume, PersistentVolumeClaim, ResourceQuota},
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
    resource::v1::ResourceClaimTemplate,
    scheduling::v1::PriorityClass,
};
use kube::api::EvictParams;

use super::*;

fn pod_spec(image: &str) -> Value {
    json!({"nodeName": "n", "containers": [{"name": "c", "image": image}]})
}

fn workload(name: &str, spec: Value) -> Value {
    let labels = json!({"app": name});
    let mut all = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod_spec("v1")}});
    json_patch::merge(&mut all, &spec);
    json!({"metadata": {"name": name}, "spec": all})
}

/// A Job's spec: the API gives it labels of its own.
fn job_spec(completions: i32) -> Value {
    let mut pod = pod_spec("v1");
    pod["restartPolicy"] = json!("Never");
    json!({"parallelism": 1, "completions": completions, "template": {"spec": pod}})
}

async fn rc_on_node(bed: &Bed, replicas: i32) {
    let mut rc = workload("web", json!({"replicas": replicas}));
    rc["spec"]["selector"] = json!({"app": "web"});
    put(&bed.api::<ReplicationController>(), rc).await;
}

fn image(image: &str) -> Patch<Value> {
    Patch::Merge(json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}))
}

fn replicas(replicas: i32) -> Patch<Value> {
    Patch::Merge(json!({"spec": {"replicas": replicas}}))
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

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn named<'a>(objects: &'a [Value], wanted: &str) -> Option<&'a Value> {
    objects.iter().find(|object| name(object) == wanted)
}

#[tokio::test(start_paused = true)]
async fn rollouts() {
    each_request_may_fail(Scenario::new(&["deployments", "replicasets", "pods"], |bed| {
        Box::pin(async move {
            let api: Api<Deployment> = bed.api();
            let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
            put(&api, workload("web", json!({"replicas": 2, "strategy": strategy}))).await;
            bed.server.until("pods", "the first", run_image("v1", 2)).await;
            api.patch("web", &PatchParams::default(), &image("v2")).await.unwrap();
            bed.server.until("pods", "the second", run_image("v2", 2)).await;
            api.patch("web", &PatchParams::default(), &replicas(1)).await.unwrap();
            bed.server.until("pods", "one less", run_image("v2", 1)).await;
        })
    }))
    .await;
}

/// What was there before is taken over by controllers that start, whatever fails at their start.
#[tokio::test(start_paused = true)]
async fn a_start() {
    let before: Act = |bed| {
        Box::pin(async move {
            put(&bed.api::<Deployment>(), workload("web", json!({"replicas": 2}))).await;
            put(&bed.api::<StatefulSet>(), workload("db", json!({"replicas": 1, "serviceName": "db"}))).await;
            put(&bed.api::<Job>(), json!({"metadata": {"name": "j"}, "spec": job_spec(1)})).await;
            let spec = json!({"clusterIP": "10.96.0.9", "selector": {"app": "web"}, "ports": [{"port": 80}]});
            put(&bed.api::<Service>(), json!({"metadata": {"name": "web"}, "spec": spec})).await;
            let mut owned = json!({"metadata": {"name": "owned", "ownerReferences": [{"apiVersion": "v1",
                "kind": "ConfigMap", "name": "gone", "uid": "00000000-0000-4000-8000-000000000001"}]}});
            put(&bed.api::<ConfigMap>(), owned.clone()).await;
            // One whose owner exists stays.
            let owner: ConfigMap = put(&bed.api(), json!({"metadata": {"name": "owner"}})).await;
            owned["metadata"]["name"] = json!("kept");
            owned["metadata"]["ownerReferences"][0]["name"] = json!("owner");
            owned["metadata"]["ownerReferences"][0]["uid"] = json!(owner.metadata.uid);
            put(&bed.api::<ConfigMap>(), owned).await;
        })
    };
    let act: Act = |bed| {
        Box::pin(async move {
            let ready = |pods: &[Value]| pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count() == 4;
            bed.server.until("pods", "all pods", ready).await;
            bed.server.until("configmaps", "garbage goes", |maps| named(maps, "owned").is_none()).await;
        })
    };
    let plurals = &["deployments", "replicasets", "statefulsets", "jobs", "pods", "endpointslices", "configmaps"];
    each_request_may_fail(Scenario { before: Some(before), ..Scenario::new(plurals, act) }).await;
}

#[tokio::test(start_paused = true)]
async fn stateful_sets_with_claims() {
    const PLURALS: &[&str] = &["statefulsets", "controllerrevisions", "pods", "persistentvolumeclaims"];
    each_request_may_fail(Scenario::new(PLURALS, |bed| {
        Box::pin(async move {
            let api: Api<StatefulSet> = bed.api();
            let claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}}});
            let spec = json!({"replicas": 2, "serviceName": "db",
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"}});
            put(&api, workload("db", spec)).await;
            bed.server.until("pods", "both", run_image("v1", 2)).await;
            api.patch("db", &PatchParams::default(), &image("v2")).await.unwrap();
            bed.server.until("pods", "both again", run_image("v2", 2)).await;
            api.patch("db", &PatchParams::default(), &replicas(1)).await.unwrap();
            bed.server.until("pods", "one less", run_image("v2", 1)).await;
            bed.server.until("persistentvolumeclaims", "its claim goes", |claims| claims.len() == 1).await;
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn daemon_sets() {
    let act: Act = |bed| {
        Box::pin(async move {
            node(bed, "n1").await;
            let api: Api<DaemonSet> = bed.api();
            put(&api, workload("log", json!({"template": {"spec": {"nodeName": null}}}))).await;
            bed.server.until("pods", "both", run_image("v1", 2)).await;
            api.patch("log", &PatchParams::default(), &image("v2")).await.unwrap();
            bed.server.until("pods", "both again", run_image("v2", 2)).await;
        })
    };
    let plurals = &["daemonsets", "controllerrevisions", "pods"];
    each_request_may_fail(Scenario { schedules: true, ..Scenario::new(plurals, act) }).await;
}

#[tokio::test(start_paused = true)]
async fn jobs() {
    let act: Act = |bed| {
        Box::pin(async move {
            let mut kept = json!({"metadata": {"name": "kept"}, "spec": job_spec(2)});
            put(&bed.api::<Job>(), kept.clone()).await;
            kept["metadata"]["name"] = json!("brief");
            kept["spec"] = job_spec(1);
            kept["spec"]["ttlSecondsAfterFinished"] = json!(0);
            put(&bed.api::<Job>(), kept).await;
            let complete = |jobs: &[Value]| jobs.len() == 1 && jobs[0]["status"]["succeeded"] == 2;
            bed.server.until("jobs", "one is complete, one gone", complete).await;
        })
    };
    each_request_may_fail(Scenario { phase: "Succeeded", ..Scenario::new(&["jobs", "pods"], act) }).await;
}

#[tokio::test(start_paused = true)]
async fn cron_jobs() {
    let act: Act = |bed| {
        Box::pin(async move {
            // Once a year, and due, as it was last run years ago.
            let spec = json!({"schedule": "0 0 1 2 *", "suspend": true, "jobTemplate": {"spec": job_spec(1)}});
            let status = json!({"lastScheduleTime": "2020-03-01T00:00:00Z"});
            let api: Api<CronJob> = bed.api();
            put(&api, json!({"metadata": {"name": "c"}, "spec": spec, "status": status})).await;
            let resumed = Patch::Merge(json!({"spec": {"suspend": false}}));
            api.patch("c", &PatchParams::default(), &resumed).await.unwrap();
            bed.server.until("cronjobs", "one has run", |c| !c[0]["status"]["lastSuccessfulTime"].is_null()).await;
        })
    };
    let plurals = &["cronjobs", "jobs", "pods"];
    each_request_may_fail(Scenario { phase: "Succeeded", ..Scenario::new(plurals, act) }).await;
}

#[tokio::test(start_paused = true)]
async fn services() {
    each_request_may_fail(Scenario::new(&["services", "endpointslices", "endpoints", "pods"], |bed| {
        Box::pin(async move {
            for (name, address) in [("web", "10.96.0.9"), ("gone", "10.96.0.10")] {
                let spec = json!({"clusterIP": address, "selector": {"app": "web"}, "ports": [{"port": 80}]});
                put(&bed.api::<Service>(), json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            rc_on_node(bed, 2).await;
            let have = |count: usize| {
                move |slices: &[Value]| {
                    let of = |slice: &&Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web";
                    let addresses = |slice: &Value| slice["endpoints"].as_array().map_or(0, Vec::len);
                    slices.iter().filter(of).map(addresses).sum::<usize>() == count
                }
            };
            bed.server.until("endpointslices", "both", have(2)).await;
            let pod = bed.server.all("pods").iter().map(|pod| name(pod).to_owned()).next().unwrap();
            bed.api::<Pod>().delete(&pod, &DeleteParams::default()).await.unwrap();
            bed.api::<ReplicationController>().patch("web", &PatchParams::default(), &replicas(1)).await.unwrap();
            bed.server.until("endpointslices", "one", have(1)).await;
            bed.api::<Service>().delete("gone", &DeleteParams::default()).await.unwrap();
            // By hand, and mirrored.
            let spec = json!({"clusterIP": "10.96.0.11", "ports": [{"port": 80}]});
            put(&bed.api::<Service>(), json!({"metadata": {"name": "hand"}, "spec": spec})).await;
            let subsets = json!([{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]);
            put(&bed.api::<Endpoints>(), json!({"metadata": {"name": "hand"}, "subsets": subsets})).await;
            let mirrored = |slices: &[Value]| {
                let of = |slice: &Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "hand";
                slices.iter().any(of)
            };
            bed.server.until("endpointslices", "the mirror", mirrored).await;
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn volumes_are_bound_and_released() {
    each_request_may_fail(Scenario::new(&["persistentvolumes", "persistentvolumeclaims"], |bed| {
        Box::pin(async move {
            let modes = json!(["ReadWriteOnce"]);
            for name in ["a", "b"] {
                let spec = json!({"capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain",
                    "accessModes": modes, "hostPath": {"path": "/tmp/x"}});
                put(
                    &Api::<PersistentVolume>::all(bed.client.clone()),
                    json!({"metadata": {"name": name}, "spec": spec}),
                )
                .await;
                let spec = json!({"volumeName": name, "storageClassName": "", "accessModes": modes,
                    "resources": {"requests": {"storage": "1Gi"}}});
                put(&bed.api::<PersistentVolumeClaim>(), json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            let bound = |claims: &[Value]| claims.iter().all(|claim| claim["status"]["phase"] == "Bound");
            bed.server.until("persistentvolumeclaims", "both are bound", bound).await;
            bed.api::<PersistentVolumeClaim>().delete("a", &DeleteParams::default()).await.unwrap();
            let released = |volumes: &[Value]| volumes[0]["status"]["phase"] == "Released";
            bed.server.until("persistentvolumes", "one is released", released).await;
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn claims_for_pods() {
    each_request_may_fail(Scenario::new(&["persistentvolumeclaims", "resourceclaims", "pods"], |bed| {
        Box::pin(async move {
            let request = json!({"name": "one", "exactly": {"deviceClassName": "gpu"}});
            let template = json!({"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request]}}}});
            put(&bed.api::<ResourceClaimTemplate>(), template).await;
            for name in ["stays", "goes"] {
                let claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}}});
                let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}});
                let device = json!({"name": "gpu", "resourceClaimTemplateName": "t"});
                let spec = json!({"containers": [{"name": "c", "image": "v1"}], "volumes": [volume],
                    "resourceClaims": [device]});
                put(&bed.api::<Pod>(), json!({"metadata": {"name": name}, "spec": spec})).await;
            }
            for plural in ["persistentvolumeclaims", "resourceclaims"] {
                bed.server.until(plural, "one for each", |claims| claims.len() == 2).await;
            }
            bed.api::<Pod>().delete("goes", &DeleteParams::default().grace_period(0)).await.unwrap();
            for plural in ["persistentvolumeclaims", "resourceclaims"] {
                bed.server.until(plural, "one goes", |claims| claims.len() == 1).await;
            }
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_and_what_is_in_them() {
    each_request_may_fail(Scenario::new(&["namespaces", "configmaps", "serviceaccounts", "pods", "services"], |bed| {
        Box::pin(async move {
            let namespaces: Api<Namespace> = Api::all(bed.client.clone());
            put(&namespaces, json!({"metadata": {"name": "shop"}})).await;
            let is_there = |accounts: &[Value]| accounts.iter().any(|a| a["metadata"]["namespace"] == "shop");
            bed.server.until("serviceaccounts", "its account", is_there).await;
            let pods: Api<Pod> = Api::namespaced(bed.client.clone(), "shop");
            put(&pods, json!({"metadata": {"name": "p"}, "spec": pod_spec("v1")})).await;
            let maps: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "shop");
            put(&maps, json!({"metadata": {"name": "m"}})).await;
            let services: Api<Service> = Api::namespaced(bed.client.clone(), "shop");
            put(&services, json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})).await;
            namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
            bed.server.until("namespaces", "it goes", |all| named(all, "shop").is_none()).await;
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn garbage() {
    each_request_may_fail(Scenario::new(&["replicationcontrollers", "pods"], |bed| {
        Box::pin(async move {
            let api: Api<ReplicationController> = bed.api();
            let are = |count: usize| move |pods: &[Value]| pods.len() == count;
            for (params, left) in
                [(DeleteParams::background(), 0), (DeleteParams::foreground(), 0), (DeleteParams::orphan(), 2)]
            {
                bed.rc(2).await;
                bed.server.until("pods", "its pods", are(2)).await;
                api.delete("web", &params).await.unwrap();
                bed.server.until("replicationcontrollers", "it goes", <[Value]>::is_empty).await;
                bed.server.until("pods", "what is left", are(left)).await;
            }
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn certificates() {
    each_request_may_fail(Scenario::new(&["certificatesigningrequests"], |bed| {
        Box::pin(async move {
            steps::allow_to_join(bed, "join", "certificatesigningrequests/nodeclient").await;
            let joining = steps::allow_to_join(bed, "ask", "certificatesigningrequests").await;
            put(&Api::<CertificateSigningRequest>::all(joining), steps::node_request()).await;
            let approved = |r: &[Value]| r[0]["status"]["conditions"][0]["type"] == "Approved";
            bed.server.until("certificatesigningrequests", "the approval", approved).await;
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn autoscalers_and_budgets() {
    const PLURALS: &[&str] = &["deployments", "horizontalpodautoscalers", "poddisruptionbudgets", "pods"];
    each_request_may_fail(Scenario::new(PLURALS, |bed| {
        Box::pin(async move {
            put(&bed.api::<Deployment>(), workload("web", json!({"replicas": 1}))).await;
            bed.server.until("pods", "a pod", run_image("v1", 1)).await;
            let budget = json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}});
            put(&bed.api::<PodDisruptionBudget>(), json!({"metadata": {"name": "web"}, "spec": budget})).await;
            let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
            // Whatever the metrics: at least three.
            let spec = json!({"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 3});
            put(&bed.api::<HorizontalPodAutoscaler>(), json!({"metadata": {"name": "web"}, "spec": spec})).await;
            bed.server.until("pods", "three", run_image("v1", 3)).await;
            let counted = |b: &[Value]| b[0]["status"]["currentHealthy"] == 3;
            bed.server.until("poddisruptionbudgets", "all count", counted).await;
            let counted = |a: &[Value]| a[0]["status"]["currentReplicas"] == 3;
            bed.server.until("horizontalpodautoscalers", "nothing left to do", counted).await;
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn evictions() {
    each_request_may_fail(Scenario::new(&["poddisruptionbudgets", "replicationcontrollers", "pods"], |bed| {
        Box::pin(async move {
            rc_on_node(bed, 2).await;
            let budget = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}});
            put(&bed.api::<PodDisruptionBudget>(), json!({"metadata": {"name": "web"}, "spec": budget})).await;
            let pods: Api<Pod> = bed.api();
            let allowed = |count: i64| move |b: &[Value]| b[0]["status"]["disruptionsAllowed"] == count;
            bed.server.until("poddisruptionbudgets", "one may go", allowed(1)).await;
            let evicted = name(&bed.server.all("pods")[0]).to_owned();
            pods.evict(&evicted, &EvictParams::default()).await.unwrap();
            bed.server.until("pods", "another one", |pods| pods.len() == 2 && named(pods, &evicted).is_none()).await;
            bed.server.until("poddisruptionbudgets", "one may go again", allowed(1)).await;
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodes() {
    each_request_may_fail(Scenario::new(&["nodes", "pods"], |bed| {
        Box::pin(async move {
            node(bed, "n1").await;
            let mut spec = pod_spec("v1");
            spec["nodeName"] = json!("n1");
            put(&bed.api::<Pod>(), json!({"metadata": {"name": "p"}, "spec": spec})).await;
            let has_range = |nodes: &[Value]| nodes.iter().all(|node| !node["spec"]["podCIDR"].is_null());
            bed.server.until("nodes", "their ranges", has_range).await;
            let nodes: Api<Node> = Api::all(bed.client.clone());
            let patch = Patch::Merge(json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}));
            nodes.patch("n1", &PatchParams::default(), &patch).await.unwrap();
            bed.server.until("pods", "it is driven out", <[Value]>::is_empty).await;
            spec["nodeName"] = json!("gone");
            put(&bed.api::<Pod>(), json!({"metadata": {"name": "q"}, "spec": spec})).await;
            bed.server.until("pods", "its node is gone", <[Value]>::is_empty).await;
        })
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn quotas_and_aggregated_roles() {
    each_request_may_fail(Scenario::new(&["resourcequotas", "pods", "clusterroles"], |bed| {
        Box::pin(async move {
            let used = |count: &'static str| move |q: &[Value]| q[0]["status"]["used"]["pods"] == count;
            let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}}});
            put(&bed.api::<ResourceQuota>(), quota).await;
            bed.server.until("resourcequotas", "counted", used("0")).await;
            bed.rc(3).await;
            bed.server.until("resourcequotas", "all of it", used("2")).await;
            let api: Api<ReplicationController> = bed.api();
            api.patch("web", &PatchParams::default(), &replicas(1)).await.unwrap();
            bed.server.until("resourcequotas", "less", used("1")).await;
            let roles: Api<ClusterRole> = Api::all(bed.client.clone());
            let selector = json!({"matchLabels": {"part": "yes"}});
            let whole = json!({"metadata": {"name": "whole"}, "rules": null,
                "aggregationRule": {"clusterRoleSelectors": [selector]}});
            put(&roles, whole).await;
            let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
            put(&roles, json!({"metadata": {"name": "part", "labels": {"part": "yes"}}, "rules": [rule]})).await;
            let has = |roles: &[Value]| named(roles, "whole").is_some_and(|role| role["rules"] == json!([rule]));
            bed.server.until("clusterroles", "its rules", has).await;
        })
    }))
    .await;
}

/// A node that is full, one that may take the place of another, and one that has to wait.
#[tokio::test(start_paused = true)]
async fn scheduling() {
    let act: Act = |bed| {
        Box::pin(async move {
            let class = json!({"metadata": {"name": "high"}, "value": 1000});
            put(&Api::<PriorityClass>::all(bed.client.clone()), class).await;
            let pods: Api<Pod> = bed.api();
            let wants = |name: &str, cpu: &str, class: Option<&str>| {
                let container = json!({"name": "c", "image": "v1", "resources": {"requests": {"cpu": cpu}}});
                json!({"metadata": {"name": name}, "spec": {"containers": [container], "priorityClassName": class}})
            };
            put(&pods, wants("small", "1", None)).await;
            put(&pods, wants("low", "3", None)).await;
            bed.server.until("pods", "both run", run_image("v1", 2)).await;
            put(&pods, wants("high", "3", Some("high"))).await;
            let runs = |pods: &[Value]| named(pods, "high").is_some_and(|pod| pod["status"]["phase"] == "Running");
            bed.server.until("pods", "the important one runs", runs).await;
            // Before, it might take the place of the important one, whose binding failed, and be driven out.
            put(&pods, wants("waits", "3", None)).await;
            let reported = |pods: &[Value]| {
                named(pods, "waits").is_some_and(|pod| pod["status"]["conditions"][0]["reason"] == "Unschedulable")
            };
            bed.server.until("pods", "the other one waits", reported).await;
            node(bed, "n1").await;
            bed.server.until("pods", "it has a node", run_image("v1", 3)).await;
        })
    };
    each_request_may_fail(Scenario { schedules: true, ..Scenario::new(&["pods", "nodes"], act) }).await;
}
