//! Claims and volumes together.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Bed, put};
use crate::Config;

fn claim_spec(size: &str) -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": size}}})
}

fn volume_spec(size: &str) -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "hostPath": {"path": "/tmp/v"},
        "persistentVolumeReclaimPolicy": "Retain"})
}

#[tokio::test]
async fn a_claim_is_lost_and_bound_again_with_its_volume() {
    let bed = Bed::new(Config::default()).await;
    let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
    let volume = json!({"metadata": {"name": "v"}, "spec": volume_spec("1Gi")});
    put(&volumes, volume.clone()).await;
    put(&bed.api::<PersistentVolumeClaim>(), json!({"metadata": {"name": "c"}, "spec": claim_spec("1Gi")})).await;
    let claim_is = |phase: &'static str| move |c: &[Value]| c[0]["status"]["phase"] == phase;
    let bound = |v: &[Value]| v.first().is_some_and(|v| v["status"]["phase"] == "Bound");
    bed.server.until("persistentvolumeclaims", "bound", claim_is("Bound")).await;
    bed.server.until("persistentvolumes", "bound", bound).await;

    // A volume that is being deleted exists as long as it is protected.
    volumes.delete("v", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(claim_is("Bound")(&bed.server.all("persistentvolumeclaims")));
    let unprotected = Patch::Merge(json!({"metadata": {"finalizers": []}}));
    volumes.patch("v", &PatchParams::default(), &unprotected).await.unwrap();
    bed.server.until("persistentvolumeclaims", "lost", claim_is("Lost")).await;
    bed.server.until("events", "the loss", |e| e.iter().any(|e| e["reason"] == "ClaimLost")).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(claim_is("Lost")(&bed.server.all("persistentvolumeclaims")), "and stays so");

    put(&volumes, volume).await;
    bed.server.until("persistentvolumeclaims", "bound again", claim_is("Bound")).await;
    bed.server.until("persistentvolumes", "bound again", bound).await;
    bed.end().await;
}

#[tokio::test]
async fn a_class_of_attributes_stays_while_a_claim_names_it() {
    let bed = Bed::new(Config::default()).await;
    let classes: Api<VolumeAttributesClass> = Api::all(bed.client.clone());
    put(&classes, json!({"metadata": {"name": "fast"}, "driverName": "d", "parameters": {"a": "b"}})).await;
    let held = |c: &[Value]| c[0]["metadata"]["finalizers"] == json!(["kubernetes.io/vac-protection"]);
    bed.server.until("volumeattributesclasses", "held", held).await;
    let mut claim = json!({"metadata": {"name": "c"}, "spec": claim_spec("1Gi")});
    claim["spec"]["volumeAttributesClassName"] = json!("fast");
    put(&bed.api::<PersistentVolumeClaim>(), claim).await;
    bed.server.until("persistentvolumeclaims", "seen", |c| c[0]["status"]["phase"] == "Pending").await;
    classes.delete("fast", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(bed.server.all("volumeattributesclasses").len(), 1);
    bed.api::<PersistentVolumeClaim>().delete("c", &DeleteParams::default()).await.unwrap();
    bed.server.until("volumeattributesclasses", "gone", <[Value]>::is_empty).await;
    bed.end().await;
}

/// What happens to the claim or the volume of a number.
#[derive(Debug, Clone, Copy)]
enum Happening {
    MakeClaim,
    /// A claim that names the volume of that number.
    MakeNamingClaim,
    MakeVolume,
    /// A volume that is reserved for the claim of that number.
    MakeReservedVolume,
    DeleteClaim,
    DeleteVolume,
    /// The administrator makes the volume free again.
    Free,
    /// The controllers end wherever they are, and others start.
    Restart,
    Pause,
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::{
        DeleteClaim, DeleteVolume, Free, MakeClaim, MakeNamingClaim, MakeReservedVolume, MakeVolume, Pause, Restart,
    };
    prop_oneof![
        4 => Just(MakeClaim), 1 => Just(MakeNamingClaim), 4 => Just(MakeVolume), 1 => Just(MakeReservedVolume),
        2 => Just(DeleteClaim), 1 => Just(DeleteVolume), 1 => Just(Free), 2 => Just(Restart), 4 => Just(Pause)
    ]
}

/// Numbers of claims and of volumes.
const NUMBERS: usize = 3;

async fn happen(bed: &mut Bed, serial: usize, number: usize, happening: Happening) {
    let (claims, volumes) = (bed.api::<PersistentVolumeClaim>(), Api::<PersistentVolume>::all(bed.client.clone()));
    let size = format!("{}Gi", 1 + serial % 3);
    // A volume that is made again is another one.
    let named = |prefix: &str, all: &[Value]| {
        let prefix = format!("{prefix}{number}-");
        let found = all.iter().filter_map(|o| o["metadata"]["name"].as_str()).find(|name| name.starts_with(&prefix));
        found.map(str::to_owned)
    };
    let volume = named("v", &bed.server.all("persistentvolumes"));
    let claim = format!("c{number}");
    let make_claim = async |spec: Value| {
        let mut all = claim_spec(&size);
        json_patch::merge(&mut all, &spec);
        let claim = json!({"metadata": {"name": claim}, "spec": all});
        let _ = claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await;
    };
    let make_volume = async |spec: Value| {
        let mut all = volume_spec(&size);
        json_patch::merge(&mut all, &spec);
        let made = json!({"metadata": {"name": format!("v{number}-{serial}")}, "spec": all});
        if volume.is_none() {
            put(&volumes, made).await;
        }
    };
    match happening {
        Happening::MakeClaim => make_claim(json!({})).await,
        Happening::MakeNamingClaim => make_claim(json!({"volumeName": volume})).await,
        Happening::MakeVolume => make_volume(json!({})).await,
        Happening::MakeReservedVolume => {
            make_volume(json!({"claimRef": {"namespace": "default", "name": claim}})).await;
        }
        Happening::DeleteClaim => drop(claims.delete(&claim, &DeleteParams::default()).await),
        Happening::DeleteVolume => {
            drop(volumes.delete(&volume.unwrap_or_default(), &DeleteParams::default()).await);
        }
        Happening::Free => {
            let patch = Patch::Merge(json!({"spec": {"claimRef": null}}));
            drop(volumes.patch(&volume.unwrap_or_default(), &PatchParams::default(), &patch).await);
        }
        Happening::Restart => bed.restart(Config::default()).await,
        Happening::Pause => tokio::time::sleep(std::time::Duration::from_millis(3)).await,
    }
}

/// Whether each change, and what was between them, was right.
fn assert_history(history: &[(String, Value)]) {
    let (mut claims, mut volumes) = (BTreeMap::<String, Value>::new(), BTreeMap::<String, Value>::new());
    // A volume that is freed while a claim has it may be bound to another one before that claim is updated.
    let mut freed = BTreeSet::new();
    for (plural, event) in history {
        let object = &event["object"];
        let now = match plural.as_str() {
            "persistentvolumeclaims" => &mut claims,
            "persistentvolumes" => &mut volumes,
            _ => continue,
        };
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        let before = now.get(&uid).cloned().unwrap_or_default();
        for field in [&["volumeName"][..], &["claimRef", "uid"]] {
            let of = |object: &Value| field.iter().fold(object["spec"].clone(), |value, name| value[*name].clone());
            let (was, is) = (of(&before), of(object));
            assert!(was.is_null() || is.is_null() || was == is, "{field:?} from {was} to {is}: {object:#}");
            if !was.is_null() && is.is_null() {
                freed.insert(uid.clone());
            }
        }
        if event["type"] == "DELETED" {
            now.remove(&uid);
        } else {
            now.insert(uid, object.clone());
        }
        for claim in claims.values() {
            let mine = |v: &&Value| {
                v["status"]["phase"] == "Bound" && v["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
            };
            assert!(volumes.values().filter(mine).count() <= 1, "a claim of two volumes: {claim:#} {volumes:#?}");
        }
        for (_, volume) in volumes.iter().filter(|(uid, _)| !freed.contains(*uid)) {
            let its =
                |c: &&Value| c["status"]["phase"] == "Bound" && c["spec"]["volumeName"] == volume["metadata"]["name"];
            assert!(claims.values().filter(its).count() <= 1, "a volume of two claims: {volume:#} {claims:#?}");
        }
    }
}

/// What is still unfinished in the end, if anything.
fn unfinished(claims: &[Value], volumes: &[Value]) -> Option<String> {
    let gib = |size: &Value| size.as_str().and_then(|s| s.strip_suffix("Gi")).and_then(|s| s.parse::<u32>().ok());
    let is_going = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    for claim in claims.iter().filter(|c| !is_going(c)) {
        let name = &claim["spec"]["volumeName"];
        let volume = volumes.iter().find(|v| v["metadata"]["name"] == *name);
        let is_mine = volume.is_some_and(|v| v["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]);
        let right = match claim["status"]["phase"].as_str() {
            Some("Bound") => is_mine && volume.is_some_and(|v| v["status"]["phase"] == "Bound"),
            Some("Lost") => !is_mine,
            Some("Pending") => !volumes.iter().any(|v| {
                let is_free = v["spec"]["claimRef"].is_null() && v["status"]["phase"] == "Available" && !is_going(v);
                let fits =
                    gib(&v["spec"]["capacity"]["storage"]) >= gib(&claim["spec"]["resources"]["requests"]["storage"]);
                is_free && fits && (name.is_null() || v["metadata"]["name"] == *name)
            }),
            _ => false,
        };
        if !right {
            return Some(format!("{claim:#}"));
        }
    }
    let unfinished = volumes.iter().find(|volume| {
        let holder = &volume["spec"]["claimRef"]["uid"];
        let claim = claims.iter().find(|c| c["metadata"]["uid"] == *holder);
        let wanted = match (holder.is_null(), claim) {
            (true, _) => "Available",
            (false, None) => "Released",
            (false, Some(_)) => "Bound",
        };
        volume["status"]["phase"] != wanted || (is_going(volume) && claim.is_none())
    });
    unfinished.map(|volume| format!("{volume:#}"))
}

async fn run(happenings: Vec<(usize, Happening)>) {
    let mut bed = Bed::new(Config::default()).await;
    for (serial, (number, happening)) in happenings.into_iter().enumerate() {
        happen(&mut bed, serial, number, happening).await;
    }
    let mut left = None;
    for _ in 0..400 {
        left = unfinished(&bed.server.all("persistentvolumeclaims"), &bed.server.all("persistentvolumes"));
        if left.is_none() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_history(&bed.server.history(&["persistentvolumeclaims", "persistentvolumes"]).await);
    assert_eq!(left, None, "{:#?}", bed.server.all("persistentvolumes"));
    bed.end().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In any order of changes, over any restart, no claim has two volumes and no volume two claims, and in the end
    /// every claim that can have a volume has one.
    #[test]
    fn claims_and_volumes_are_bound_one_to_one(
        happenings in prop::collection::vec((0..NUMBERS, happening()), 1..24),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(happenings));
    }
}
