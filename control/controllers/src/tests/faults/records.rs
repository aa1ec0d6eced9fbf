//! Controllers that act in one place and remember it in another: directories and volumes, a class and the ConfigMap that
//! remembers it, a volume and its claim, accounts and their tokens, addresses and their services.

use std::{fs, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim, Secret, ServiceAccount},
        networking::v1::ServiceCIDR,
        storage::v1::StorageClass,
    },
};
use windlass_identity::service_account_tokens::TokenIssuer;

use super::*;
use crate::LocalPath;

const CLASS: &[&str] = &["storageclasses", "configmaps"];
const VOLUMES: &[&str] = &["persistentvolumes", "persistentvolumeclaims", "storageclasses", "configmaps"];

fn directories_below(folder: &Path) -> Config {
    let place = LocalPath { node: "n".to_owned(), dir: folder.join("storage") };
    Config { local_path: Some(place), ..Config::default() }
}

async fn label_node(bed: &Bed) {
    let labels = Patch::Merge(json!({"metadata": {"labels": {"kubernetes.io/hostname": "n"}}}));
    Api::<Node>::all(bed.client.clone()).patch("n", &PatchParams::default(), &labels).await.unwrap();
}

fn claim(name: &str, class: &str, annotations: &Value) -> Value {
    let spec = json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}});
    json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec})
}

fn are_bound(count: usize) -> impl Fn(&[Value]) -> bool {
    move |claims| claims.len() == count && claims.iter().all(|claim| claim["status"]["phase"] == "Bound")
}

/// The class of the node's name, and the record of it.
async fn class_is_made(bed: &Bed) {
    let expression = json!({"key": "kubernetes.io/hostname", "values": ["n"]});
    let only = json!([{"matchLabelExpressions": [expression]}]);
    let allows = |classes: &[Value]| classes.first().is_some_and(|class| class["allowedTopologies"] == only);
    bed.server.until("storageclasses", "the class of this node", allows).await;
    let data = json!({"storageClass": "local-path", "node": "n"});
    let remembers = |maps: &[Value]| maps.iter().any(|map| map["data"] == data);
    bed.server.until("configmaps", "the record of it", remembers).await;
}

#[tokio::test(start_paused = true)]
async fn the_class_of_directories() {
    let scenario = Scenario::new(CLASS, |bed| Box::pin(class_is_made(bed)));
    let before: Act = |_| Box::pin(async {});
    each_request_may_fail(Scenario { before: Some(before), config: directories_below, ..scenario }).await;
}

#[tokio::test(start_paused = true)]
async fn the_class_of_directories_where_the_node_had_another_name() {
    let before: Act = |bed| {
        Box::pin(async move {
            let expression = json!({"key": "kubernetes.io/hostname", "values": ["before"]});
            let class = json!({"metadata": {"name": "local-path"}, "provisioner": "windlass.io/local-path",
                "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": [{"matchLabelExpressions": [expression]}]});
            put(&Api::<StorageClass>::all(bed.client.clone()), class).await;
            let data = json!({"storageClass": "local-path", "node": "before"});
            let record = json!({"metadata": {"name": "windlass-local-path"}, "data": data});
            put(&Api::<ConfigMap>::namespaced(bed.client.clone(), "kube-system"), record).await;
        })
    };
    let scenario = Scenario::new(CLASS, |bed| Box::pin(class_is_made(bed)));
    each_request_may_fail(Scenario { before: Some(before), config: directories_below, ..scenario }).await;
}

#[tokio::test(start_paused = true)]
async fn directories() {
    let act: Act = |bed| {
        Box::pin(async move {
            label_node(bed).await;
            let claims = bed.api::<PersistentVolumeClaim>();
            let selected = json!({"volume.kubernetes.io/selected-node": "n"});
            for name in ["kept", "gone"] {
                put(&claims, claim(name, "local-path", &selected)).await;
            }
            bed.server.until("persistentvolumeclaims", "both are bound", are_bound(2)).await;
            for volume in bed.server.all("persistentvolumes") {
                let path = volume["spec"]["local"]["path"].as_str().unwrap();
                fs::write(Path::new(path).join("file"), "data").unwrap();
            }
            let grown = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
            claims.patch("kept", &PatchParams::default(), &grown).await.unwrap();
            let has_grown = |all: &[Value]| {
                all.iter()
                    .any(|claim| claim["metadata"]["name"] == "kept" && claim["status"]["capacity"]["storage"] == "2Gi")
            };
            bed.server.until("persistentvolumeclaims", "one has grown", has_grown).await;
            claims.delete("gone", &DeleteParams::default()).await.unwrap();
            bed.server.until("persistentvolumes", "the other goes with its directory", |all| all.len() == 1).await;
        })
    };
    each_request_may_fail(Scenario { config: directories_below, ..Scenario::new(VOLUMES, act) }).await;
}

/// The scheduler binds one claim to an existing volume, and has another one provisioned.
#[tokio::test(start_paused = true)]
async fn pods_with_claims() {
    let act: Act = |bed| {
        Box::pin(async move {
            label_node(bed).await;
            let class = json!({"metadata": {"name": "by-hand"}, "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer"});
            put(&Api::<StorageClass>::all(bed.client.clone()), class).await;
            let spec = json!({"storageClassName": "by-hand", "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": "/tmp/x"}});
            let volume = json!({"metadata": {"name": "v"}, "spec": spec});
            put(&Api::<PersistentVolume>::all(bed.client.clone()), volume).await;
            let claims = bed.api::<PersistentVolumeClaim>();
            for (name, class) in [("found", "by-hand"), ("made", "local-path")] {
                put(&claims, claim(name, class, &json!({}))).await;
            }
            let volume = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
            let spec =
                json!({"containers": [{"name": "c", "image": "v1"}], "volumes": [volume("found"), volume("made")]});
            put(&bed.api::<Pod>(), json!({"metadata": {"name": "p"}, "spec": spec})).await;
            let runs = |pods: &[Value]| pods.iter().any(|pod| pod["status"]["phase"] == "Running");
            bed.server.until("pods", "it runs", runs).await;
            bed.server.until("persistentvolumeclaims", "both are bound", are_bound(2)).await;
            bed.api::<Pod>().delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
            claims.delete("made", &DeleteParams::default()).await.unwrap();
            bed.server.until("persistentvolumes", "its volume goes", |all| all.len() == 1).await;
        })
    };
    let scenario = Scenario { schedules: true, config: directories_below, ..Scenario::new(VOLUMES, act) };
    each_request_may_fail(scenario).await;
}

fn signs_tokens(_: &Path) -> Config {
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    Config { tokens: Some(Arc::new(TokenIssuer::from_pem(&key).unwrap())), ..Config::default() }
}

#[tokio::test(start_paused = true)]
async fn tokens() {
    let act: Act = |bed| {
        Box::pin(async move {
            let (accounts, secrets) = (bed.api::<ServiceAccount>(), bed.api::<Secret>());
            for name in ["kept", "gone"] {
                put(&accounts, json!({"metadata": {"name": name}})).await;
                let annotations = json!({"kubernetes.io/service-account.name": name});
                let metadata = json!({"name": name, "annotations": annotations});
                put(&secrets, json!({"metadata": metadata, "type": "kubernetes.io/service-account-token"})).await;
            }
            let have_tokens = |all: &[Value]| all.iter().all(|secret| !secret["data"]["token"].is_null());
            bed.server.until("secrets", "both have tokens", have_tokens).await;
            accounts.delete("gone", &DeleteParams::default()).await.unwrap();
            bed.server.until("secrets", "one goes with its account", |all| all.len() == 1).await;
            let encoded = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
            let data = json!({"token-id": encoded("abcdef"), "token-secret": encoded("0123456789abcdef"),
                "usage-bootstrap-signing": encoded("true")});
            let token = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "data": data,
                "type": "bootstrap.kubernetes.io/token"});
            put(&Api::<Secret>::namespaced(bed.client.clone(), "kube-system"), token).await;
            let maps: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "kube-public");
            put(&maps, json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "x"}})).await;
            let is_signed = |all: &[Value]| all.iter().any(|map| !map["data"]["jws-kubeconfig-abcdef"].is_null());
            bed.server.until("configmaps", "the signature", is_signed).await;
        })
    };
    let plurals = &["secrets", "serviceaccounts", "configmaps"];
    each_request_may_fail(Scenario { config: signs_tokens, ..Scenario::new(plurals, act) }).await;
}

fn balances(_: &Path) -> Config {
    Config { service_load_balancer: Some(vec![6443]), ..Config::default() }
}

/// Addresses of nodes, which one service has at a time, and a range that goes and has an address yet.
#[tokio::test(start_paused = true)]
async fn addresses() {
    let act: Act = |bed| {
        Box::pin(async move {
            let addresses = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
            let status = Patch::Merge(json!({"status": {"addresses": addresses}}));
            Api::<Node>::all(bed.client.clone()).patch_status("n", &PatchParams::default(), &status).await.unwrap();
            let services = bed.api::<Service>();
            let balanced = |name: &str, ip: &str| {
                let spec = json!({"type": "LoadBalancer", "clusterIP": ip, "ports": [{"port": 80}],
                    "allocateLoadBalancerNodePorts": false});
                json!({"metadata": {"name": name}, "spec": spec})
            };
            let has = |name: &'static str| {
                move |all: &[Value]| {
                    let of =
                        |s: &Value| s["metadata"]["name"] == name && !s["status"]["loadBalancer"]["ingress"].is_null();
                    all.iter().any(of)
                }
            };
            put(&services, balanced("a", "10.96.0.21")).await;
            bed.server.until("services", "it has the address", has("a")).await;
            put(&services, balanced("b", "10.96.0.22")).await;
            let plain = Patch::Merge(json!({"spec": {"type": "ClusterIP", "allocateLoadBalancerNodePorts": null}}));
            services.patch("a", &PatchParams::default(), &plain).await.unwrap();
            bed.server.until("services", "the other one has it", has("b")).await;

            let cidrs: Api<ServiceCIDR> = Api::all(bed.client.clone());
            put(&cidrs, json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}})).await;
            let more = |all: &[Value]| all.iter().find(|cidr| cidr["metadata"]["name"] == "more").cloned();
            let is_ready = |all: &[Value]| {
                more(all).is_some_and(|cidr| {
                    cidr["status"]["conditions"][0]["status"] == "True" && !cidr["metadata"]["finalizers"].is_null()
                })
            };
            bed.server.until("servicecidrs", "it is ready", is_ready).await;
            let spec = json!({"clusterIP": "10.97.0.9", "ports": [{"port": 80}]});
            put(&services, json!({"metadata": {"name": "c"}, "spec": spec})).await;
            cidrs.delete("more", &DeleteParams::default()).await.unwrap();
            // It would go a while after its last address, by the clock of the wall.
            let waits = |all: &[Value]| {
                more(all).is_some_and(|cidr| cidr["status"]["conditions"][0]["reason"] == "Terminating")
            };
            bed.server.until("servicecidrs", "it is held by its address", waits).await;
        })
    };
    let plurals = &["services", "servicecidrs", "ipaddresses"];
    each_request_may_fail(Scenario { config: balances, ..Scenario::new(plurals, act) }).await;
}
