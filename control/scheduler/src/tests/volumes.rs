//! VolumeBinding, VolumeRestrictions and VolumeZone, by upstream's cases.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};

use super::*;
use crate::volumes::{ClaimWrite, VolumeWrite};

fn class(name: &str, mode: &str, provisioner: &str) -> StorageClass {
    serde_json::from_value(json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}))
        .unwrap()
}

fn claim(name: &str, class: &str, size: &str) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

fn volume(name: &str, class: &str, size: &str, node: Option<&str>) -> PersistentVolume {
    let affinity = node.map(|node| {
        json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "host", "operator": "In", "values": [node]}]}]}})
    });
    serde_json::from_value(json!({
        "metadata": {"name": name, "resourceVersion": "1"},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
            "nodeAffinity": affinity},
        "status": {"phase": "Available"},
    }))
    .unwrap()
}

fn bound(claim: &PersistentVolumeClaim, volume: &str) -> PersistentVolumeClaim {
    let claim = with(claim, "/spec/volumeName", json!(volume));
    let claim = with(&claim, "/metadata/annotations/pv.kubernetes.io~1bind-completed", json!("yes"));
    with(&claim, "/metadata/resourceVersion", json!("9"))
}

fn using(claims: &[&str]) -> Pod {
    let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    with(&pod("p", "10m"), "/spec/volumes", claims.iter().map(volume).collect())
}

fn nodes() -> Vec<Node> {
    ["n1", "n2"].map(|name| node_with(name, &[("host", name), ("topology.kubernetes.io/zone", "z1")])).into()
}

struct Stock {
    classes: Vec<StorageClass>,
    claims: Vec<PersistentVolumeClaim>,
    volumes: Vec<PersistentVolume>,
}

impl Stock {
    fn state(&self) -> State {
        let (mut state, now) = (state_of(&nodes(), &[]), Instant::now());
        self.classes.iter().for_each(|class| storage(&mut state, class, now));
        self.claims.iter().for_each(|claim| storage(&mut state, claim, now));
        self.volumes.iter().for_each(|volume| storage(&mut state, volume, now));
        state
    }
}

fn decide(state: &mut State, pod: &Pod) -> Decision {
    state.pod_applied(PodInfo::of(pod), true, Instant::now());
    next(state, Instant::now()).unwrap().1
}

/// The node, the volumes with their claims, and the claims for which volumes are made.
fn writes(decision: &Decision) -> (&str, Vec<(&str, &str)>, Vec<&str>) {
    let Decision::BindVolumes { node, volumes, claims } = decision else { panic!("{decision:?}") };
    let bound = volumes.iter().map(|VolumeWrite { volume, claim, .. }| (volume.as_str(), claim.1.as_str()));
    let made = claims.iter().map(|ClaimWrite { claim, node: at, .. }| {
        assert_eq!(at, node);
        claim.1.as_str()
    });
    (node, bound.collect(), made.collect())
}

#[test]
fn what_keeps_a_pod_from_every_node_is_told() {
    let wait = || class("wait", "WaitForFirstConsumer", "kubernetes.io/no-provisioner");
    let lost = with(&with(&claim("c", "now", "1Gi"), "/status/phase", json!("Lost")), "/spec/volumeName", json!("v"));
    let deleted = with(&claim("c", "now", "1Gi"), "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    for (claims, expected) in [
        (vec![], "persistentvolumeclaim \"c\" not found"),
        (vec![deleted], "persistentvolumeclaim \"c\" is being deleted"),
        (vec![lost], "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\""),
        (vec![claim("c", "now", "1Gi")], "pod has unbound immediate PersistentVolumeClaims"),
        (vec![claim("c", "none", "1Gi")], "pod has unbound immediate PersistentVolumeClaims"),
        (
            vec![with(&claim("c", "wait", "1Gi"), "/spec/volumeName", json!("v"))],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
    ] {
        let stock = Stock { classes: vec![wait(), class("now", "Immediate", "x")], claims, volumes: vec![] };
        let Decision::Unschedulable(refusal) = decide(&mut stock.state(), &using(&["c"])) else { panic!("{expected}") };
        assert_eq!(refusal.message, format!("0/2 nodes are available: {expected}. not found"));
    }
    let ephemeral = with(&pod("p", "10m"), "/spec/volumes", json!([{"name": "v", "ephemeral": {}}]));
    let Decision::Unschedulable(refusal) = decide(&mut state_of(&nodes(), &[]), &ephemeral) else { panic!("bound") };
    let text = "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-v\".";
    assert!(refusal.message.contains(text), "{}", refusal.message);
    // The claim is there, and somebody else's: its volume is not for this pod, and its node not this pod's choice.
    let owned = |uid: &str| {
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
        with(&claim("p-v", "wait", "1Gi"), "/metadata/ownerReferences", owner)
    };
    let made = class("wait", "WaitForFirstConsumer", "example.com/made");
    for (claim, is_own) in [(claim("p-v", "wait", "1Gi"), false), (owned("uid-other"), false), (owned("uid-p"), true)] {
        let stock = Stock { classes: vec![made.clone()], claims: vec![claim], volumes: vec![] };
        match decide(&mut stock.state(), &ephemeral) {
            Decision::Unschedulable(refusal) if !is_own => {
                let text = "PVC default/p-v was not created for pod default/p (pod is not owner)";
                assert!(refusal.message.contains(text), "{}", refusal.message);
            }
            Decision::BindVolumes { .. } if is_own => {}
            other => panic!("{is_own}: {other:?}"),
        }
    }
}

#[test]
fn a_pod_does_not_wait_for_volumes_on_a_node_that_is_gone() {
    let made = class("wait", "WaitForFirstConsumer", "example.com/made");
    let stock = Stock { classes: vec![made], claims: vec![claim("c", "wait", "1Gi")], volumes: vec![] };
    let (mut state, now) = (stock.state(), Instant::now());
    state.pod_applied(PodInfo::of(&using(&["c"])), true, now);
    let (pod, _, decision) = state.next(now).unwrap();
    let node = writes(&decision).0.to_owned();
    state.volumes_written(&pod, Ok(()), now);
    state.node_deleted(&node, now);
    let Some((_, Decision::Unschedulable(refusal))) = next(&mut state, now) else { panic!("it waits on") };
    assert!(refusal.message.contains(&format!("node \"{node}\" not found")), "{}", refusal.message);
}

#[test]
fn what_keeps_a_pod_from_a_node_is_told() {
    let zoned =
        with(&volume("v", "", "1Gi", None), "/metadata/labels", json!({"topology.kubernetes.io/zone": "z2__z3"}));
    let elsewhere = with(
        &class("wait", "WaitForFirstConsumer", "x"),
        "/allowedTopologies",
        json!([{"matchLabelExpressions": [{"key": "host", "values": ["n9"]}]}]),
    );
    let static_only = || class("wait", "WaitForFirstConsumer", "kubernetes.io/no-provisioner");
    for (class, claim, volumes, expected) in [
        (
            static_only(),
            bound(&claim("c", "", "1Gi"), "v"),
            vec![volume("v", "", "1Gi", Some("n9"))],
            "node(s) didn't match PersistentVolume's node affinity",
        ),
        (static_only(), bound(&claim("c", "", "1Gi"), "v"), vec![zoned], "node(s) had no available volume zone"),
        (static_only(), claim("c", "wait", "1Gi"), vec![], "node(s) didn't find available persistent volumes to bind"),
        (
            static_only(),
            claim("c", "wait", "2Gi"),
            vec![volume("v", "wait", "1Gi", None)],
            "node(s) didn't find available persistent volumes to bind",
        ),
        (elsewhere, claim("c", "wait", "1Gi"), vec![], "node(s) didn't find available persistent volumes to bind"),
    ] {
        let stock = Stock { classes: vec![class], claims: vec![claim], volumes };
        let Decision::Unschedulable(refusal) = decide(&mut stock.state(), &using(&["c"])) else { panic!("{expected}") };
        assert!(
            refusal.message.starts_with(&format!("0/2 nodes are available: 2 {expected}. ")),
            "{}",
            refusal.message
        );
    }
}

#[test]
fn volumes_that_are_there_are_taken_first() {
    let classes = || vec![class("wait", "WaitForFirstConsumer", "example.com/made")];
    let fast = with(&volume("raw", "wait", "1Gi", None), "/spec/volumeMode", json!("Block"));
    let reserved = with(
        &volume("kept", "wait", "9Gi", Some("n2")),
        "/spec/claimRef",
        json!({"namespace": "default", "name": "c"}),
    );
    let of_another =
        with(&volume("other", "wait", "1Gi", None), "/spec/claimRef", json!({"namespace": "default", "name": "x"}));
    for (what, claims, volumes, expected) in [
        ("none is there", vec![claim("c", "wait", "1Gi")], vec![], (None, vec![], vec!["c"])),
        (
            "the smallest one",
            vec![claim("c", "wait", "1Gi")],
            vec![volume("big", "wait", "9Gi", None), volume("small", "wait", "2Gi", None)],
            (None, vec![("small", "c")], vec![]),
        ),
        (
            "not one of another class, mode or claim",
            vec![claim("c", "wait", "1Gi")],
            vec![volume("x", "", "1Gi", None), fast, of_another],
            (None, vec![], vec!["c"]),
        ),
        (
            "the one that is reserved",
            vec![claim("c", "wait", "1Gi")],
            vec![volume("small", "wait", "2Gi", Some("n2")), reserved],
            (None, vec![("kept", "c")], vec![]),
        ),
        (
            "the small claim has the small volume",
            vec![claim("large", "wait", "5Gi"), claim("little", "wait", "1Gi")],
            vec![volume("v5", "wait", "5Gi", None), volume("v1", "wait", "1Gi", None)],
            (None, vec![("v1", "little"), ("v5", "large")], vec![]),
        ),
        (
            "one is there, one is made",
            vec![claim("large", "wait", "5Gi"), claim("little", "wait", "1Gi")],
            vec![volume("v1", "wait", "1Gi", Some("n2"))],
            (None, vec![("v1", "little")], vec!["large"]),
        ),
        (
            "a node is selected already",
            vec![with(
                &claim("c", "wait", "1Gi"),
                "/metadata/annotations/volume.kubernetes.io~1selected-node",
                json!("n2"),
            )],
            vec![volume("v1", "wait", "1Gi", Some("n1"))],
            (Some("n2"), vec![], vec![]),
        ),
    ] {
        let names: Vec<String> = claims.iter().map(|claim| claim.metadata.name.clone().unwrap()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut state = Stock { classes: classes(), claims, volumes }.state();
        let pod = using(&names);
        // Where volumes are of a node, that one is asked for.
        let wants_n2 = matches!(what, "the one that is reserved" | "one is there, one is made");
        let pod = if wants_n2 { with(&pod, "/spec/nodeSelector", json!({"host": "n2"})) } else { pod };
        let decision = decide(&mut state, &pod);
        let (node, bound, made) = writes(&decision);
        assert_eq!((&bound, &made), (&expected.1, &expected.2), "{what}");
        assert!(expected.0.is_none_or(|expected| node == expected), "{what}");
    }
}

#[test]
fn a_volume_is_not_given_twice() {
    let static_only = class("wait", "WaitForFirstConsumer", "kubernetes.io/no-provisioner");
    let stock = Stock {
        classes: vec![static_only],
        claims: vec![claim("a", "wait", "1Gi"), claim("b", "wait", "1Gi")],
        volumes: vec![volume("v", "wait", "1Gi", None)],
    };
    let mut state = stock.state();
    assert_eq!(writes(&decide(&mut state, &using(&["a"]))).1, [("v", "a")]);
    let second = with(&with(&using(&["b"]), "/metadata/name", json!("q")), "/metadata/uid", json!("uid-q"));
    assert!(matches!(decide(&mut state, &second), Decision::Unschedulable(_)));
    // The first is deleted before it was written: the volume is free again.
    state.pod_deleted(&("default".to_owned(), "p".to_owned()), Instant::now());
    let later = Instant::now() + Duration::from_secs(400);
    state.advance(later);
    assert_eq!(writes(&next(&mut state, later).unwrap().1).1, [("v", "b")]);
}

fn made_for(claim: &PersistentVolumeClaim, node: &str) -> PersistentVolumeClaim {
    let claim = with(claim, "/metadata/annotations/volume.kubernetes.io~1selected-node", json!(node));
    with(&claim, "/metadata/resourceVersion", json!("2"))
}

#[test]
fn a_pod_is_bound_when_its_volumes_are() {
    let stock = || Stock {
        classes: vec![class("wait", "WaitForFirstConsumer", "example.com/made")],
        claims: vec![claim("a", "wait", "1Gi"), claim("b", "wait", "5Gi")],
        volumes: vec![volume("v", "wait", "1Gi", Some("n1"))],
    };
    let now = Instant::now();
    let pod = with(&using(&["a", "b"]), "/spec/nodeSelector", json!({"host": "n1"}));
    let info = PodInfo::of(&pod);
    let mut state = stock().state();
    let decision = decide(&mut state, &pod);
    assert_eq!(writes(&decision), ("n1", vec![("v", "a")], vec!["b"]));
    state.volumes_written(&info, Ok(()), now);
    assert_eq!(next(&mut state, now), None, "our own writes are not shown yet");
    let holder = json!({"namespace": "default", "name": "a", "uid": "uid-a"});
    let given = with(
        &with(&volume("v", "wait", "1Gi", Some("n1")), "/spec/claimRef", holder),
        "/metadata/resourceVersion",
        json!("2"),
    );
    storage(&mut state, &given, now);
    storage(&mut state, &made_for(&claim("b", "wait", "5Gi"), "n1"), now);
    assert_eq!(next(&mut state, now), None, "nobody has bound the claims");
    storage(&mut state, &bound(&claim("a", "wait", "1Gi"), "v"), now);
    assert_eq!(next(&mut state, now), None, "one claim is not bound");
    storage(&mut state, &bound(&made_for(&claim("b", "wait", "5Gi"), "n1"), "made"), now);
    assert_eq!(next(&mut state, now), Some(("p".to_owned(), Decision::Bind { node: "n1".to_owned() })));
    assert_eq!(next(&mut state, now), None);

    // The provisioner gives up.
    for (annotated, why) in
        [(true, "provisioning failed for PVC \"b\""), (false, "selectedNode annotation reset for PVC \"b\"")]
    {
        let mut state = stock().state();
        decide(&mut state, &pod);
        storage(&mut state, &made_for(&claim("b", "wait", "5Gi"), "n1"), now);
        state.volumes_written(&info, Ok(()), now);
        let mut given_up = with(&claim("b", "wait", "5Gi"), "/metadata/resourceVersion", json!("3"));
        if annotated {
            given_up = with(&given_up, "/metadata/annotations/x", json!("y"));
        }
        storage(&mut state, &given_up, now);
        let Some((_, Decision::Unschedulable(refusal))) = next(&mut state, now) else { panic!("bound") };
        assert_eq!((refusal.reason, refusal.nomination), (Reason::SchedulerError, Nomination::Clear));
        assert_eq!(refusal.message, format!("running PreBind plugin \"VolumeBinding\": binding volumes: {why}"));
        // It is tried again, and does not occupy its node meanwhile.
        assert!(state.cluster().pods_of("n1").next().is_none());
        let later = now + Duration::from_secs(10);
        state.advance(later);
        assert!(matches!(next(&mut state, later), Some((_, Decision::BindVolumes { .. }))));
    }

    // Nothing happens for ten minutes, or the write is refused.
    for refused in [false, true] {
        let mut state = stock().state();
        decide(&mut state, &pod);
        let mut later = now;
        if refused {
            state.volumes_written(&info, Err("no".to_owned()), now);
        } else {
            state.volumes_written(&info, Ok(()), now);
            later = Instant::now() + Duration::from_secs(600);
            state.advance(later);
        }
        let Some((_, Decision::Unschedulable(refusal))) = next(&mut state, later) else { panic!("bound") };
        let why = if refused { "no" } else { "context deadline exceeded" };
        assert!(refusal.message.ends_with(&format!("binding volumes: {why}")), "{}", refusal.message);
    }
}

#[test]
fn changes_of_storage_wake_those_that_they_help() {
    let static_only = class("wait", "WaitForFirstConsumer", "kubernetes.io/no-provisioner");
    let stock = Stock { classes: vec![static_only], claims: vec![claim("c", "wait", "1Gi")], volumes: vec![] };
    let now = Instant::now();
    for help in ["volume", "class"] {
        let mut state = stock.state();
        assert!(matches!(decide(&mut state, &using(&["c"])), Decision::Unschedulable(_)));
        match help {
            "volume" => storage(&mut state, &volume("v", "wait", "1Gi", None), now),
            _ => storage(&mut state, &class("wait", "WaitForFirstConsumer", "example.com/made"), now),
        }
        let later = now + Duration::from_secs(2);
        state.advance(later);
        assert!(matches!(next(&mut state, later), Some((_, Decision::BindVolumes { .. }))), "{help}");
    }
}

#[test]
fn a_claim_of_one_pod_is_of_one_pod() {
    let now = Instant::now();
    let one = with(&bound(&claim("c", "", "1Gi"), "v"), "/spec/accessModes", json!(["ReadWriteOncePod"]));
    let mut state = Stock { classes: vec![], claims: vec![one], volumes: vec![volume("v", "", "1Gi", None)] }.state();
    let holder = spec(using(&["c"]), on("n1"));
    state.pod_applied(PodInfo::of(&holder), true, now);
    let second = with(&with(&using(&["c"]), "/metadata/name", json!("q")), "/metadata/uid", json!("uid-q"));
    let Decision::Unschedulable(refusal) = decide(&mut state, &second) else { panic!("bound") };
    let reason = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
    assert!(refusal.message.starts_with(&format!("0/2 nodes are available: 2 {reason}. ")), "{}", refusal.message);
    state.pod_deleted(&("default".to_owned(), "p".to_owned()), now);
    let later = Instant::now() + Duration::from_secs(2);
    state.advance(later);
    assert!(matches!(next(&mut state, later), Some((_, Decision::Bind { .. }))));
    // A more important pod may preempt the holder.
    state.pod_deleted(&("default".to_owned(), "q".to_owned()), now);
    state.pod_applied(PodInfo::of(&holder), true, now);
    let Decision::Unschedulable(refusal) = decide(&mut state, &with(&second, "/spec/priority", json!(9))) else {
        panic!("bound")
    };
    assert_eq!(refusal.preemption.unwrap().victims[0].name, "p");
}
