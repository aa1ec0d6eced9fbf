//! Claims, volumes, the default class and the provisioner of directories, with the embedded API.

use std::{fs, path::Path};

use k8s_openapi::{
    ClusterResourceScope,
    api::{
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
};
use kube::{
    Api as KubeApi, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use windlass_controllers::{Config, LocalPath};

use super::cluster::Cluster;

async fn put<K>(cluster: &Cluster, object: Value) -> K
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Serialize + DeserializeOwned + Clone,
    K: std::fmt::Debug,
{
    let api: KubeApi<K> = KubeApi::all(cluster.client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

fn claim(name: &str, more: Value) -> Value {
    let mut claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    more.as_object().into_iter().flatten().for_each(|(field, value)| claim["spec"][field] = value.clone());
    claim
}

fn is(name: &str, check: impl Fn(&Value) -> bool) -> impl Fn(&[Value]) -> bool {
    move |all: &[Value]| all.iter().any(|object| object["metadata"]["name"] == name && check(object))
}

async fn with_local_path(dir: &Path) -> Cluster {
    let place = LocalPath { node: "n1".to_owned(), dir: dir.to_owned() };
    let cluster = Cluster::with(Config { local_path: Some(place), ..Config::default() }).await;
    let labels = json!({"kubernetes.io/hostname": "n1"});
    put::<Node>(&cluster, json!({"metadata": {"name": "n1", "labels": labels}})).await;
    let classes: KubeApi<StorageClass> = KubeApi::all(cluster.client.clone());
    for _ in 0..500 {
        if classes.get_opt("local-path").await.unwrap().is_some() {
            return cluster;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the class local-path was never made");
}

#[tokio::test]
async fn a_claim_without_class_prefers_a_classless_volume() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = with_local_path(folder.path()).await;
    let volume = json!({"metadata": {"name": "pv001"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"}}});
    put::<PersistentVolume>(&cluster, volume).await;
    cluster.create::<PersistentVolumeClaim>(claim("first", json!({}))).await;
    let bound = |c: &Value| c["spec"]["volumeName"] == "pv001" && c["status"]["phase"] == "Bound";
    cluster.until::<PersistentVolumeClaim>("the volume", is("first", bound)).await;
    // There is no other.
    cluster.create::<PersistentVolumeClaim>(claim("second", json!({}))).await;
    cluster.create::<PersistentVolumeClaim>(claim("never", json!({"storageClassName": ""}))).await;
    let given = |c: &Value| c["spec"]["storageClassName"] == "local-path";
    let all = cluster.until::<PersistentVolumeClaim>("the default class", is("second", given)).await;
    let told = |reason: &'static str| move |e: &Value| e["reason"] == reason;
    for (name, reason) in [("second", "WaitForFirstConsumer"), ("never", "FailedBinding")] {
        cluster
            .until::<k8s_openapi::api::core::v1::Event>(reason, |events| {
                events.iter().any(|e| e["involvedObject"]["name"] == name && told(reason)(e))
            })
            .await;
    }
    let class =
        |name: &str| all.iter().find(|c| c["metadata"]["name"] == name).unwrap()["spec"]["storageClassName"].clone();
    assert_eq!((class("first"), class("never")), (Value::Null, json!("")));
    cluster.end().await;
}

#[tokio::test]
async fn a_directory_is_provisioned_grows_and_goes_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = with_local_path(folder.path()).await;
    let claims: KubeApi<PersistentVolumeClaim> = cluster.api();
    cluster.create::<PersistentVolumeClaim>(claim("data", json!({}))).await;
    let given = |c: &Value| c["spec"]["storageClassName"] == "local-path";
    cluster.until::<PersistentVolumeClaim>("the default class", is("data", given)).await;
    let selected = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}});
    claims.patch("data", &PatchParams::default(), &Patch::Merge(selected)).await.unwrap();
    cluster.restart();
    let bound = |c: &Value| c["status"]["phase"] == "Bound" && c["status"]["capacity"]["storage"] == "1Gi";
    let all = cluster.until::<PersistentVolumeClaim>("bound", is("data", bound)).await;
    let name = all[0]["spec"]["volumeName"].as_str().unwrap().to_owned();
    let path = folder.path().join(format!("{name}_default_data"));
    fs::write(path.join("file"), "data").unwrap();

    let more = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
    claims.patch("data", &PatchParams::default(), &Patch::Merge(more)).await.unwrap();
    cluster.restart();
    cluster.until::<PersistentVolumeClaim>("grown", is("data", |c| c["status"]["capacity"]["storage"] == "3Gi")).await;
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "data");

    claims.delete("data", &DeleteParams::default()).await.unwrap();
    cluster.restart();
    let volumes: KubeApi<PersistentVolume> = KubeApi::all(cluster.client.clone());
    for _ in 0..500 {
        if volumes.get_opt(&name).await.unwrap().is_none() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(volumes.get_opt(&name).await.unwrap().is_none() && !path.exists());
    cluster.end().await;
}
