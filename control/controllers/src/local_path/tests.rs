use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    plan::{claim_step, orphans, path_and_parents, volume_step},
    *,
};
use crate::runtime::CachedNode;

const DIR: &str = "/data/storage";

fn place() -> Place {
    Place { node: "n1".to_owned(), dir: DIR.into() }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn claim(annotations: Value, spec: Value) -> PersistentVolumeClaim {
    let mut whole = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "local-path"});
    spec.as_object().into_iter().flatten().for_each(|(field, value)| whole[field] = value.clone());
    from(
        json!({"metadata": {"name": "data", "namespace": "shop", "uid": "7", "annotations": annotations}, "spec": whole}),
    )
}

fn asked(node: &str) -> Value {
    json!({"volume.kubernetes.io/storage-provisioner": LOCAL_PATH_PROVISIONER, SELECTED_NODE: node})
}

fn class(mode: &str) -> StorageClass {
    from(json!({"metadata": {"name": "local-path"}, "provisioner": LOCAL_PATH_PROVISIONER, "reclaimPolicy": "Delete",
        "volumeBindingMode": mode, "mountOptions": []}))
}

fn node(name: &str, label: &str) -> CachedNode {
    from(json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": label}}}))
}

/// A released volume that is being deleted and whose data may go.
fn volume(name: &str, path: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": LOCAL_PATH_PROVISIONER},
            "finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"local": {"path": path}, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "shop", "name": "data", "uid": "7"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]}}},
        "status": {"phase": "Released"}})
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("kubernetes.io/hostname".to_owned(), "n1".to_owned())])
}

fn step(volume: &Value, sharing: &[&PersistentVolume]) -> VolumeStep {
    volume_step(&place(), &from(volume.clone()), &labels(), sharing)
}

#[test]
fn a_claim_gets_a_directory_and_a_volume_of_its_node() {
    let made = claim_step(
        &place(),
        &claim(asked("n1"), json!({"accessModes": ["ReadWriteMany"]})),
        Some(&class("WaitForFirstConsumer")),
        None,
        Some(&node("n1", "host-1")),
    );
    let ClaimStep::Provision { directory, volume } = made else { panic!("{made:?}") };
    assert_eq!(directory, "pvc-7_shop_data");
    let wanted = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "pvc-7", "annotations": {"pv.kubernetes.io/provisioned-by": "windlass.io/local-path"},
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": "7"},
            "local": {"path": "/data/storage/pvc-7_shop_data"}, "storageClassName": "local-path",
            "persistentVolumeReclaimPolicy": "Delete",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-1"]}]}]}}}});
    assert_eq!(serde_json::to_value(&volume).unwrap(), wanted);

    let mut long = claim(asked("n1"), json!({}));
    long.metadata.name = Some("x".repeat(253));
    let made = claim_step(&place(), &long, Some(&class("WaitForFirstConsumer")), None, Some(&node("n1", "n1")));
    assert!(matches!(&made, ClaimStep::Provision { directory, .. } if directory.len() == 255), "{made:?}");
}

#[test]
fn a_claim_that_cannot_have_a_volume_is_told_why() {
    let (wait, now) = (class("WaitForFirstConsumer"), class("Immediate"));
    let (here, other) = (node("n1", "n1"), node("n2", "n2"));
    let failed =
        |why: &str| ClaimStep::Fail(format!("failed to provision volume with StorageClass \"local-path\": {why}"));
    let again = |why: &str| {
        ClaimStep::Reschedule(format!("failed to provision volume with StorageClass \"local-path\": {why}"))
    };
    let unselected = json!({"volume.kubernetes.io/storage-provisioner": LOCAL_PATH_PROVISIONER});
    let foreign = json!({"volume.kubernetes.io/storage-provisioner": "a.b/c", SELECTED_NODE: "n1"});
    for (claim, class, node, wanted) in [
        (claim(unselected.clone(), json!({})), Some(&wait), None, ClaimStep::Nothing),
        (claim(unselected, json!({})), Some(&now), None, failed("configuration error, no node was specified")),
        (claim(foreign, json!({})), Some(&wait), Some(&here), ClaimStep::Nothing),
        (claim(asked("n1"), json!({})), None, Some(&here), ClaimStep::Nothing),
        (claim(asked("n1"), json!({"volumeName": "v"})), Some(&wait), Some(&here), ClaimStep::Nothing),
        (
            claim(asked("n1"), json!({"volumeMode": "Block"})),
            Some(&wait),
            Some(&here),
            ClaimStep::Fail("windlass.io/local-path does not support block volume provisioning".to_owned()),
        ),
        (
            claim(asked("n1"), json!({"selector": {"matchLabels": {"a": "b"}}})),
            Some(&wait),
            Some(&here),
            failed("claim.Spec.Selector is not supported"),
        ),
        (claim(asked("n3"), json!({})), Some(&wait), None, again("failed to get target node: nodes \"n3\" not found")),
        (
            claim(asked("n2"), json!({})),
            Some(&wait),
            Some(&other),
            again("volumes are provisioned on node \"n1\" only, and the pod was scheduled to \"n2\""),
        ),
    ] {
        assert_eq!(claim_step(&place(), &claim, class, None, node), wanted, "{:?}", claim.metadata.annotations);
    }
    let step = |volume: Value| {
        claim_step(&place(), &claim(asked("n1"), json!({})), Some(&wait), Some(&from(volume)), Some(&here))
    };
    assert_eq!(step(volume("pvc-7", "/data/storage/pvc-7_shop_data")), ClaimStep::Nothing, "it is made");
    let taken = json!({"metadata": {"name": "pvc-7"}, "spec": {}});
    assert_eq!(step(taken), failed("persistentvolumes \"pvc-7\" already exists and is not of this claim"));
}

#[test]
fn a_bound_claim_grows_by_saying_so() {
    let bound = |asks: &str, has: &str| {
        let mut claim = claim(
            json!({"pv.kubernetes.io/bind-completed": "yes"}),
            json!({"volumeName": "pvc-7",
            "resources": {"requests": {"storage": asks}}}),
        );
        claim.status = from(json!({"phase": "Bound", "capacity": {"storage": has}}));
        claim
    };
    let holding = |size: &str| {
        let mut made = volume("pvc-7", "/data/storage/pvc-7_shop_data");
        made["spec"]["capacity"] = json!({"storage": size});
        from::<PersistentVolume>(made)
    };
    let size = |text: &str| k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.to_owned());
    for (claim, volume, wanted) in [
        (bound("1Gi", "1Gi"), holding("1Gi"), ClaimStep::Nothing),
        (bound("2Gi", "1Gi"), holding("1Gi"), ClaimStep::GrowVolume(size("2Gi"))),
        (bound("2Gi", "1Gi"), holding("2Gi"), ClaimStep::ShowCapacity(size("2Gi"))),
        (bound("2048Mi", "2Gi"), holding("2Gi"), ClaimStep::Nothing),
        (bound("1Gi", "2Gi"), holding("2Gi"), ClaimStep::Nothing),
    ] {
        assert_eq!(claim_step(&place(), &claim, None, Some(&volume), None), wanted, "{claim:?}");
    }
    let mut foreign = holding("1Gi");
    foreign.metadata.annotations = None;
    assert_eq!(claim_step(&place(), &bound("2Gi", "1Gi"), None, Some(&foreign), None), ClaimStep::Nothing);
}

#[test]
fn data_goes_only_with_a_volume_that_is_to_be_deleted() {
    let path = "/data/storage/pvc-7_shop_data";
    let changed = |pointer: &str, value: Value| {
        let mut changed = volume("pvc-7", path);
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[field] = value;
        changed
    };
    let alive = |pointer: &str, value: Value| {
        let mut alive = changed(pointer, value);
        alive["metadata"]["deletionTimestamp"] = Value::Null;
        alive
    };
    for (volume, wanted) in [
        (volume("pvc-7", path), VolumeStep::Erase("pvc-7_shop_data".to_owned())),
        (changed("/status/phase", json!("Failed")), VolumeStep::Erase("pvc-7_shop_data".to_owned())),
        (alive("/status/phase", json!("Released")), VolumeStep::Delete),
        (alive("/metadata/finalizers", json!([])), VolumeStep::Finalizer(true)),
        (changed("/metadata/finalizers", json!([])), VolumeStep::Nothing),
        (changed("/status/phase", json!("Bound")), VolumeStep::Nothing),
        (alive("/status/phase", json!("Bound")), VolumeStep::Nothing),
        (alive("/spec/persistentVolumeReclaimPolicy", json!("Retain")), VolumeStep::Finalizer(false)),
        (changed("/spec/persistentVolumeReclaimPolicy", json!("Retain")), VolumeStep::Finalizer(false)),
        (changed("/metadata/annotations", json!({"pv.kubernetes.io/provisioned-by": "a.b/c"})), VolumeStep::Nothing),
        (changed("/spec/nodeAffinity", Value::Null), VolumeStep::Nothing),
    ] {
        assert_eq!(step(&volume, &[]), wanted, "{volume}");
    }
    let mut unclaimed = changed("/status/phase", json!("Available"));
    unclaimed["spec"]["claimRef"] = Value::Null;
    assert_eq!(step(&unclaimed, &[]), VolumeStep::Finalizer(false), "nobody's volume goes without its data");

    let other = from::<PersistentVolume>(volume("kept", path));
    let own = from::<PersistentVolume>(volume("pvc-7", path));
    assert_eq!(step(&volume("pvc-7", path), &[&own]), VolumeStep::Erase("pvc-7_shop_data".to_owned()));
    assert!(matches!(step(&volume("pvc-7", path), &[&own, &other]), VolumeStep::Refuse(why) if why.contains("kept")));
}

#[test]
fn a_volume_is_found_by_its_path_and_all_above() {
    assert_eq!(path_and_parents("/a/b/c"), ["/a/b/c", "/a/b", "/a"]);
    assert_eq!(path_and_parents("/a//./b/"), ["/a/b", "/a"]);
    assert_eq!(path_and_parents(""), Vec::<String>::new());
}

#[test]
fn only_directories_of_volumes_that_are_gone_are_orphans() {
    let found = ["pvc-1_n_a", "pvc-2_n_b", "lost+found", "pvc-3"].map(str::to_owned);
    assert_eq!(orphans(&found, |volume| volume == "pvc-1"), [&found[1]]);
}

proptest! {
    /// Whatever a volume specifies, the only directory that may be removed is directly below that of all volumes, has
    /// the volume's name, and belongs to no other volume.
    #[test]
    fn nothing_else_is_ever_removed(
        name in "(pvc-7|pvc-71|pvc-|_|\\.\\.|)",
        path in "(/data/storage|/data/storage/|/data//storage/|/data|)(/|)(pvc-7|pvc-71|\\.\\.|\\.|)(_a|_a/\\.\\.|_|/_|_\\.\\.|/etc|)",
        phase in "(Bound|Released|Failed|Available|Pending)",
        policy in "(Delete|Retain|Recycle)",
        ending: bool,
        held: bool,
        host_path: bool,
        sharing: bool,
    ) {
        let mut object = volume(&name, &path);
        object["status"]["phase"] = json!(phase);
        object["spec"]["persistentVolumeReclaimPolicy"] = json!(policy);
        if host_path {
            object["spec"]["hostPath"] = object["spec"]["local"].take();
        }
        if !ending {
            object["metadata"]["deletionTimestamp"] = Value::Null;
        }
        if !held {
            object["metadata"]["finalizers"] = json!([]);
        }
        let other = from::<PersistentVolume>(volume("other", &path));
        let all: &[&PersistentVolume] = if sharing { &[&other] } else { &[] };
        if let VolumeStep::Erase(directory) = step(&object, all) {
            prop_assert!(ending && held && !sharing && policy == "Delete");
            prop_assert!(matches!(phase.as_str(), "Released" | "Failed"));
            prop_assert!(directory.strip_prefix(&name).unwrap().starts_with('_'), "{directory}");
            prop_assert!(!directory.contains('/') && directory != ".." && directory != ".");
            prop_assert_eq!(format!("{DIR}/{directory}"), path);
        }
    }
}
