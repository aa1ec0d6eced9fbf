//! The provisioner of directories, with the binder and real directories.

use std::{fs, path::Path};

use http::Method;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Bed, events, put};
use crate::{Config, LocalPath};

fn config(dir: &Path) -> Config {
    Config { local_path: Some(LocalPath { node: "n1".to_owned(), dir: dir.to_owned() }), ..Config::default() }
}

async fn bed(dir: &Path) -> Bed {
    let bed = Bed::new(config(dir)).await;
    let labels = json!({"kubernetes.io/hostname": "n1"});
    put(&Api::<Node>::all(bed.client.clone()), json!({"metadata": {"name": "n1", "labels": labels}})).await;
    bed.server.until("storageclasses", "the class", |c| c.len() == 1).await;
    bed
}

fn claim(name: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"volume.kubernetes.io/selected-node": "n1"}},
        "spec": {"storageClassName": "local-path", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
}

fn in_phase(phase: &'static str) -> impl Fn(&[Value]) -> bool {
    move |all| all.first().is_some_and(|object| object["status"]["phase"] == phase)
}

#[tokio::test]
async fn a_directory_lives_from_the_claim_to_the_end_of_the_volume() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("storage");
    let bed = bed(&dir).await;
    let claims: Api<PersistentVolumeClaim> = bed.api();
    let made = put(&claims, claim("data")).await;
    let bound = bed.server.until("persistentvolumeclaims", "bound", in_phase("Bound")).await;
    let name = format!("pvc-{}", made.metadata.uid.unwrap());
    assert_eq!(bound[0]["spec"]["volumeName"], name.as_str());
    assert_eq!(
        bound[0]["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-provisioner"],
        "windlass.io/local-path"
    );
    let path = dir.join(format!("{name}_default_data"));
    fs::write(path.join("file"), "kept").unwrap();
    let grown = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    claims.patch("data", &PatchParams::default(), &grown).await.unwrap();
    bed.server.until("persistentvolumeclaims", "grown", |c| c[0]["status"]["capacity"]["storage"] == "2Gi").await;
    assert_eq!(bed.server.all("persistentvolumes")[0]["spec"]["capacity"]["storage"], "2Gi");

    // Somebody deletes the volume first: it stays until its claim is gone, and then its data goes with it.
    let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
    volumes.delete(&name, &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "kept");
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    bed.server.until("persistentvolumes", "gone", <[Value]>::is_empty).await;
    assert!(dir.exists() && !path.exists());
    for (reason, message) in [
        (
            "ExternalProvisioning",
            "Waiting for a volume to be created either by the external provisioner 'windlass.io/local-path' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.",
        ),
        ("Provisioning", "External provisioner is provisioning volume for claim \"default/data\""),
        ("ProvisioningSucceeded", &format!("Successfully provisioned volume {name}")),
        ("VolumeResizeSuccessful", "Resize volume succeeded"),
    ] {
        bed.server
            .until("events", reason, |e| e.iter().any(|e| e["reason"] == reason && e["message"] == message))
            .await;
    }
    bed.end().await;
}

#[tokio::test]
async fn a_claim_waits_for_its_class() {
    let folder = tempfile::tempdir().unwrap();
    let bed = bed(folder.path()).await;
    let claims: Api<PersistentVolumeClaim> = bed.api();
    let mut early = claim("early");
    early["spec"]["storageClassName"] = json!("late");
    early["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = json!("windlass.io/local-path");
    put(&claims, early).await;
    // One that came after it was looked at, and so was that one.
    put(&claims, claim("other")).await;
    bed.server.until("persistentvolumes", "a volume for the other", |v| v.len() == 1).await;
    let class = json!({"metadata": {"name": "late"}, "provisioner": "windlass.io/local-path",
        "volumeBindingMode": "WaitForFirstConsumer"});
    put(&Api::<StorageClass>::all(bed.client.clone()), class).await;
    bed.server.until("persistentvolumes", "a volume for each", |v| v.len() == 2).await;
    bed.end().await;
}

#[tokio::test]
async fn the_class_is_made_once_in_the_life_of_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let mut bed = bed(folder.path()).await;
    bed.restart(config(folder.path())).await;
    let made = bed.server.until("storageclasses", "the class", |c| c.len() == 1).await;
    assert_eq!(made[0]["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"], "true");
    bed.server
        .until("configmaps", "the record", |c| c.iter().any(|c| c["metadata"]["name"] == "windlass-local-path"))
        .await;
    let allows = |node: &str| {
        let only = json!([{"matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": [node]}]}]);
        move |classes: &[Value]| classes[0]["allowedTopologies"] == only
    };
    assert!(allows("n1")(&made), "{made:?}");
    // The node has got another name.
    let moved = LocalPath { node: "n2".to_owned(), dir: folder.path().to_owned() };
    bed.restart(Config { local_path: Some(moved), ..Config::default() }).await;
    bed.server.until("storageclasses", "the class of the other node", allows("n2")).await;
    bed.restart(config(folder.path())).await;
    bed.server.until("storageclasses", "the class of the first node again", allows("n1")).await;
    // The controllers ended between the change of the class and that of the record, and the node has its old name again.
    let intent = Patch::Merge(json!({"data": {"node": "n2", "nextNode": "n1"}}));
    let records: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "kube-system");
    let remembers = |node: &str| {
        let data = json!({"storageClass": "local-path", "node": node});
        move |maps: &[Value]| {
            maps.iter().any(|map| map["metadata"]["name"] == "windlass-local-path" && map["data"] == data)
        }
    };
    bed.server.until("configmaps", "the end of the change", remembers("n1")).await;
    records.patch("windlass-local-path", &PatchParams::default(), &intent).await.unwrap();
    let moved = LocalPath { node: "n2".to_owned(), dir: folder.path().to_owned() };
    bed.restart(Config { local_path: Some(moved), ..Config::default() }).await;
    bed.server.until("storageclasses", "the class goes back", allows("n2")).await;
    bed.server.until("configmaps", "the record of it", remembers("n2")).await;
    let classes: Api<k8s_openapi::api::storage::v1::StorageClass> = Api::all(bed.client.clone());
    classes.delete("local-path", &DeleteParams::default()).await.unwrap();
    let looked = bed.server.requests(Method::GET, "configmaps");
    bed.restart(config(folder.path())).await;
    while bed.server.requests(Method::GET, "configmaps") <= looked {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(bed.server.all("storageclasses").is_empty());
    bed.end().await;
}

/// The controllers ended between the class and the record of it, and the node has another name since.
#[tokio::test]
async fn a_class_without_its_record_is_known_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut bed = Bed::stopped().await;
    let allows = |node: &str| json!([{"matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": [node]}]}]);
    let class = json!({"metadata": {"name": "local-path"}, "provisioner": "windlass.io/local-path",
        "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": allows("before")});
    put(&Api::<StorageClass>::all(bed.client.clone()), class).await;
    bed.start(config(folder.path()));
    bed.server.until("storageclasses", "the class goes along", |c| c[0]["allowedTopologies"] == allows("n1")).await;
    let data = json!({"storageClass": "local-path", "node": "n1"});
    bed.server.until("configmaps", "the record of it", |maps| maps.iter().any(|map| map["data"] == data)).await;
    bed.end().await;
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_told_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("storage");
    fs::write(&dir, "no directory").unwrap();
    let bed = bed(&dir).await;
    put(&bed.api::<PersistentVolumeClaim>(), claim("data")).await;
    bed.server.until("events", "the failure", |e| e.iter().any(|e| e["reason"] == "ProvisioningFailed")).await;
    assert!(events(&bed.server, "ProvisioningFailed")[0]["message"].as_str().unwrap().contains("could not be made"));
    assert!(bed.server.all("persistentvolumes").is_empty());
    fs::remove_file(&dir).unwrap();
    bed.server.until("persistentvolumeclaims", "bound", in_phase("Bound")).await;
    bed.end().await;
}

/// What happens to a claim and its volume.
#[derive(Debug, Clone, Copy)]
enum Happening {
    DeleteClaim,
    DeleteVolume,
    Retain,
    /// The administrator makes the volume free again.
    Free,
    /// The administrator makes another volume of the same directory.
    Share,
    /// The controllers end wherever they are, and others start.
    Restart,
    Pause,
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::{DeleteClaim, DeleteVolume, Free, Pause, Restart, Retain, Share};
    prop_oneof![
        3 => Just(DeleteClaim), 2 => Just(DeleteVolume), 1 => Just(Retain), 1 => Just(Free), 1 => Just(Share),
        3 => Just(Restart), 3 => Just(Pause)
    ]
}

/// The volumes that are not being deleted, by name.
fn living(bed: &Bed) -> Vec<String> {
    let all = bed.server.all("persistentvolumes");
    let living = all.iter().filter(|v| v["metadata"]["deletionTimestamp"].is_null());
    living.filter_map(|v| v["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

async fn run(happenings: Vec<(usize, Happening)>) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("storage");
    let mut bed = bed(&dir).await;
    let claims: Api<PersistentVolumeClaim> = bed.api();
    let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
    let mut names = Vec::new();
    for i in 0..2 {
        let made = put(&claims, claim(&format!("c{i}"))).await;
        names.push(format!("pvc-{}", made.metadata.uid.unwrap()));
    }
    let all_bound = |c: &[Value]| c.len() == 2 && c.iter().all(|c| c["status"]["phase"] == "Bound");
    bed.server.until("persistentvolumeclaims", "bound", all_bound).await;
    let path = |i: usize| dir.join(format!("{}_default_c{i}", names[i]));
    for i in 0..2 {
        fs::write(path(i).join("file"), "data").unwrap();
    }
    let params = PatchParams::default();
    // Whose data must stay, whatever comes.
    let mut kept = [false; 2];
    for (i, happening) in happenings {
        match happening {
            Happening::DeleteClaim => drop(claims.delete(&format!("c{i}"), &DeleteParams::default()).await),
            Happening::DeleteVolume => drop(volumes.delete(&names[i], &DeleteParams::default()).await),
            Happening::Retain => {
                let patch = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
                // The patch may come after the deletion, and so too late.
                let patched = volumes.patch(&names[i], &params, &patch).await;
                kept[i] |= patched.is_ok_and(|volume| volume.metadata.deletion_timestamp.is_none());
            }
            Happening::Free => {
                let patch = Patch::Merge(json!({"spec": {"claimRef": null}}));
                let _ = volumes.patch(&names[i], &params, &patch).await;
            }
            Happening::Share => {
                let here = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]);
                let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}});
                let spec = json!({"local": {"path": path(i)}, "nodeAffinity": affinity, "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand"});
                let other = json!({"metadata": {"name": format!("other-{i}")}, "spec": spec});
                match volumes.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await {
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    made => drop(made.unwrap()),
                }
                // Until then the provisioner knows it.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                kept[i] |= path(i).join("file").exists();
            }
            Happening::Restart => bed.restart(config(&dir)).await,
            Happening::Pause => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
        // A directory that is missing now was so before the volumes are looked at.
        let has: Vec<bool> = (0..2).map(|i| path(i).join("file").exists()).collect();
        let living = living(&bed);
        for i in 0..2 {
            assert!(has[i] || !(kept[i] || living.contains(&names[i])), "the data of a volume that stays");
        }
    }
    // In the end, what is to be deleted is gone and the rest exists.
    let settled = |all: &[Value]| {
        all.iter().all(|v| {
            let is_shared = all
                .iter()
                .any(|o| o["metadata"]["name"] != v["metadata"]["name"] && o["spec"]["local"] == v["spec"]["local"]);
            let is_used = v["status"]["phase"] == "Bound";
            let ends = v["status"]["phase"] == "Released" && v["spec"]["persistentVolumeReclaimPolicy"] == "Delete";
            let is_ending = !v["metadata"]["deletionTimestamp"].is_null();
            is_shared || is_used || (!ends && !is_ending)
        })
    };
    bed.server.until("persistentvolumes", "at rest", settled).await;
    let has: Vec<bool> = (0..2).map(|i| path(i).join("file").exists()).collect();
    let living = living(&bed);
    for i in 0..2 {
        assert!(has[i] || !(kept[i] || living.contains(&names[i])), "{living:?}");
    }
    bed.end().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_directory_of_a_volume_that_exists_is_ever_removed(
        happenings in prop::collection::vec((0..2_usize, happening()), 1..14),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(happenings));
    }
}
