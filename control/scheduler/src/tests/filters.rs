//! Filters, each with upstream's reasons.

use k8s_openapi::api::core::v1::{
    Affinity, ContainerPort, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint,
};

use super::*;
use crate::messages::{self, Histogram};

#[test]
fn messages_are_upstreams() {
    let full = spec(pod("full", "900m"), on("n1"));
    assert_eq!(
        refused(&[node("n1", "1", "110")], &[full], &pod("p", "500m")),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
    assert_eq!(refused(&[], &[], &pod("p", "1")), "no nodes available to schedule pods");
    assert!(
        refused(&[node("n1", "1", "110")], &[], &pod("p", "2"))
            .ends_with("0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
    );
    let mut reasons = Histogram::default();
    for (reason, nodes) in [("Too many pods", 2), ("Insufficient memory", 1), ("node(s) were unschedulable", 1)] {
        reasons.add(reason, nodes);
    }
    let mut tried = Histogram::default();
    tried.add(messages::NO_VICTIMS, 2);
    let text = messages::fit_error(3, &reasons, false, Some(&messages::no_candidates(3, 2, tried)));
    assert_eq!(
        text,
        "0/3 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable, 2 Too many pods. no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
    );
}

/// As kube-scheduler says where no driver offers a device.
#[test]
fn a_pod_that_claims_devices_waits() {
    let claims = json!([{"name": "gpu", "resourceClaimName": "mine"}]);
    let claiming = with(&with(&pod("p", "1"), "/spec/resourceClaims", claims), "/spec/nodeSelector", json!({}));
    assert_eq!(
        refused(&[node("n1", "4", "110")], &[], &claiming),
        "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    );
    // It keeps no other pod of the same demands from its node.
    let (mut state, now) = (state_of(&[node("n1", "4", "110")], &[]), Instant::now());
    state.pod_applied(PodInfo::of(&claiming), true, now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable(_)))));
    state.pod_applied(PodInfo::of(&pod("q", "1")), true, now);
    assert_eq!(next(&mut state, now), Some(("q".to_owned(), Decision::Bind { node: "n1".to_owned() })));
}

#[test]
fn what_a_pod_needs_of_the_node_agent_must_be_declared() {
    let needs = |containers: &str| {
        let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
        let named = json!([{"name": "c", "restartPolicyRules": rules}]);
        with(&with(&pod("p", "1"), &format!("/spec/{containers}"), named), "/spec/nodeSelector", json!({}))
    };
    let declares =
        |name: &str, features: &[&str]| with(&node(name, "4", "110"), "/status/declaredFeatures", json!(features));
    let nodes = [
        node("old", "4", "110"),
        declares("other", &["ExtendWebSocketsToKubelet"]),
        declares("new", &["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"]),
    ];
    assert_eq!(feasible(&nodes, &[], &pod("p", "1")), ["old", "other", "new"]);
    for containers in ["containers", "initContainers"] {
        assert_eq!(feasible(&nodes, &[], &needs(containers)), ["new"], "{containers}");
    }
    let text = refused(&nodes[..2], &[], &needs("containers"));
    assert!(text.starts_with("0/2 nodes are available: 2 node(s) didn't match Pod's required features."), "{text}");
    // A node that learns it gets the pod.
    let (mut state, now) = (state_of(&nodes[..1], &[]), Instant::now());
    state.pod_applied(PodInfo::of(&needs("containers")), true, now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable(_)))));
    state.node_applied(&declares("old", &["RestartAllContainersOnContainerExits"]), now);
    assert_eq!(next(&mut state, now), Some(("p".to_owned(), Decision::Bind { node: "old".to_owned() })));
}

/// Upstream's cases of `isVolumeConflict`.
#[test]
fn a_disk_is_written_by_one_pod_of_a_node() {
    let gce = |name: &str, reads: bool| json!({"gcePersistentDisk": {"pdName": name, "readOnly": reads}});
    let aws = |id: &str, reads: bool| json!({"awsElasticBlockStore": {"volumeID": id, "readOnly": reads}});
    let iscsi = |iqn: &str, reads: bool| json!({"iscsi": {"targetPortal": "127.0.0.1:3260", "iqn": iqn, "lun": 0, "readOnly": reads}});
    let rbd = |monitors: &[&str], pool: &str, image: &str, reads: bool| json!({"rbd": {"monitors": monitors, "pool": pool, "image": image, "readOnly": reads}});
    for (there, new, fits) in [
        (gce("foo", false), gce("foo", false), false),
        (gce("foo", true), gce("foo", false), false),
        (gce("foo", true), gce("foo", true), true),
        (gce("foo", false), gce("bar", false), true),
        (aws("foo", false), aws("foo", false), false),
        (aws("foo", true), aws("foo", true), false),
        (aws("foo", false), aws("bar", false), true),
        (iscsi("iqn.1", false), iscsi("iqn.1", false), false),
        (iscsi("iqn.1", true), iscsi("iqn.1", true), true),
        (iscsi("iqn.1", false), iscsi("iqn.2", false), true),
        (rbd(&["a", "b"], "p", "i", false), rbd(&["c", "b"], "p", "i", true), false),
        (rbd(&["a", "b"], "p", "i", true), rbd(&["c", "b"], "p", "i", true), true),
        (rbd(&["a"], "p", "i", false), rbd(&["c"], "p", "i", false), true),
        (rbd(&["a"], "p", "i", false), rbd(&["a"], "p", "other", false), true),
        (gce("foo", false), aws("foo", false), true),
    ] {
        let of = |name: &str, mut volume: Value| {
            volume["name"] = json!("v");
            with(&pod(name, "1"), "/spec/volumes", json!([volume]))
        };
        let running = [spec(of("x", there.clone()), on("n1"))];
        let found = feasible(&[node("n1", "4", "110"), node("n2", "4", "110")], &running, &of("p", new.clone()));
        let expected: &[&str] = if fits { &["n1", "n2"] } else { &["n2"] };
        assert_eq!(found, expected, "{there} {new}");
        if !fits {
            let text = refused(&[node("n1", "4", "110")], &running, &of("p", new));
            assert!(text.starts_with("0/1 nodes are available: 1 node(s) had no available disk."), "{text}");
        }
    }
}

#[test]
fn each_filter_speaks() {
    let plain = node("n1", "4", "110");
    let change = |f: fn(&mut NodeSpec)| {
        let mut node = plain.clone();
        f(node.spec.as_mut().unwrap());
        node
    };
    let host_port = |ip: &'static str| {
        move |spec: &mut PodSpec| {
            let port = ContainerPort { host_port: Some(80), host_ip: Some(ip.into()), ..ContainerPort::default() };
            spec.containers[0].ports = Some(vec![port]);
        }
    };
    let taint = || Taint { key: "a".into(), effect: "NoExecute".into(), ..Taint::default() };
    let required = |key: &str, operator: &str, values: &[&str]| {
        let requirement = NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
        };
        let term = if key.starts_with("metadata") {
            NodeSelectorTerm { match_fields: Some(vec![requirement]), ..NodeSelectorTerm::default() }
        } else {
            NodeSelectorTerm { match_expressions: Some(vec![requirement]), ..NodeSelectorTerm::default() }
        };
        let affinity = NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms: vec![term] }),
            ..NodeAffinity::default()
        };
        spec(pod("p", "1"), |s| s.affinity = Some(Affinity { node_affinity: Some(affinity), ..Affinity::default() }))
    };
    let neighbour = spec(spec(pod("x", "1"), host_port("0.0.0.0")), on("n1"));
    for (node, running, pod, reason) in [
        (change(|s| s.unschedulable = Some(true)), vec![], pod("p", "1"), "1 node(s) were unschedulable."),
        (
            {
                let mut node = plain.clone();
                node.spec.as_mut().unwrap().taints = Some(vec![taint()]);
                node
            },
            vec![],
            pod("p", "1"),
            "1 node(s) had untolerated taint(s).",
        ),
        (
            plain.clone(),
            vec![],
            spec(pod("p", "1"), |s| s.node_selector = Some(BTreeMap::from([("disk".into(), "ssd".into())]))),
            "1 node(s) didn't match Pod's node affinity/selector.",
        ),
        (plain.clone(), vec![], required("zone", "In", &["a"]), "didn't match Pod's node affinity/selector."),
        (
            plain.clone(),
            vec![],
            required("metadata.name", "In", &["n2"]),
            "1 node(s) didn't satisfy plugin(s) [NodeAffinity].",
        ),
        (
            plain.clone(),
            vec![neighbour],
            spec(pod("p", "1"), host_port("127.0.0.1")),
            "1 node(s) didn't have free ports for the requested pod ports.",
        ),
        (super::node("n1", "4", "1"), vec![spec(super::pod("x", "1"), on("n1"))], pod("p", "1"), "1 Too many pods."),
    ] {
        let text = refused(&[node], &running, &pod);
        assert!(text.contains(reason), "{text} lacks {reason}");
    }
    for pod in [
        required("zone", "NotIn", &["a"]),
        required("zone", "DoesNotExist", &[]),
        required("metadata.name", "In", &["n1"]),
    ] {
        assert_eq!(place(std::slice::from_ref(&plain), &[], &pod), Decision::Bind { node: "n1".into() });
    }
}
