use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{
        Affinity, Container, ContainerPort, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement,
        NodeSelectorTerm, NodeSpec, NodeStatus, Pod, PodSpec, ResourceRequirements, Taint,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use tokio::time::Instant;

mod queue;

use super::{
    messages::{self, FilterFailure},
    model::*,
    state::*,
};

fn amounts(list: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    list.iter().map(|(k, v)| ((*k).to_owned(), Quantity((*v).to_owned()))).collect()
}

fn node(name: &str, cpu: &str, pods: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.into());
    node.spec = Some(NodeSpec::default());
    let allocatable = amounts(&[("cpu", cpu), ("memory", "8Gi"), ("pods", pods)]);
    node.status = Some(NodeStatus { allocatable: Some(allocatable), ..NodeStatus::default() });
    node
}

fn container(cpu: &str) -> Container {
    let resources =
        ResourceRequirements { requests: Some(amounts(&[("cpu", cpu)])), ..ResourceRequirements::default() };
    Container { resources: Some(resources), ..Container::default() }
}

fn pod(name: &str, cpu: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod.spec = Some(PodSpec { containers: vec![container(cpu)], ..PodSpec::default() });
    pod
}

fn spec(mut pod: Pod, change: impl FnOnce(&mut PodSpec)) -> Pod {
    change(pod.spec.as_mut().unwrap());
    pod
}

fn next(state: &mut State, now: Instant) -> Option<(String, Decision)> {
    state.next(now).map(|(pod, _, decision)| (pod.name, decision))
}

fn place(nodes: &[Node], running: &[Pod], pod: &Pod) -> Decision {
    let (mut state, now) = (State::default(), Instant::now());
    nodes.iter().for_each(|n| state.node_applied(n, now));
    running.iter().for_each(|p| state.pod_applied(PodInfo::of(p), true, now));
    state.pod_applied(PodInfo::of(pod), true, now);
    next(&mut state, now).unwrap().1
}

fn refused(nodes: &[Node], running: &[Pod], pod: &Pod) -> String {
    match place(nodes, running, pod) {
        Decision::Unschedulable { message } => message,
        Decision::Bind { node } => panic!("bound to {node}"),
    }
}

fn on(name: &str) -> impl FnOnce(&mut PodSpec) {
    let name = name.to_owned();
    |spec| spec.node_name = Some(name)
}

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
    let failure = |reasons: &[&str], preemptible| FilterFailure {
        reasons: reasons.iter().map(|r| (*r).to_owned()).collect(),
        preemptible,
    };
    let text = messages::fit_error(&[
        failure(&["Too many pods", "Insufficient memory"], true),
        failure(&["Too many pods"], true),
        failure(&["node(s) were unschedulable"], false),
    ]);
    assert_eq!(
        text,
        "0/3 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable, 2 Too many pods. no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
    );
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
        (plain.clone(), vec![], required("metadata.name", "In", &["n2"]), "didn't match Pod's node affinity/selector."),
        (
            plain.clone(),
            vec![neighbour],
            spec(pod("p", "1"), host_port("127.0.0.1")),
            "1 node(s) didn't have free ports for the requested pod ports.",
        ),
        (self::node("n1", "4", "1"), vec![spec(self::pod("x", "1"), on("n1"))], pod("p", "1"), "1 Too many pods."),
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

#[test]
fn requests_are_the_peak_of_a_pods_life() {
    let pod = spec(pod("p", "300m"), |s| {
        let sidecar = Container { restart_policy: Some("Always".into()), ..container("100m") };
        s.init_containers = Some(vec![container("50m"), sidecar, container("700m")]);
        s.overhead = Some(amounts(&[("cpu", "10m")]));
    });
    assert_eq!(PodInfo::of(&pod).requests.milli_cpu, 810);
}

#[test]
fn the_emptier_node_wins_and_priority_goes_first() {
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "2", "110"), now);
    state.node_applied(&node("n2", "4", "110"), now);
    state.pod_applied(PodInfo::of(&pod("low", "1")), true, now);
    state.pod_applied(PodInfo::of(&spec(pod("high", "1"), |s| s.priority = Some(5))), true, now);
    state.pod_applied(PodInfo::of(&pod("foreign", "1")), false, now);
    state.pod_applied(
        PodInfo::of(&spec(pod("gated", "1"), |s| s.scheduling_gates = Some(vec![Default::default()]))),
        true,
        now,
    );
    assert_eq!(next(&mut state, now), Some(("high".into(), Decision::Bind { node: "n2".into() })));
    assert_eq!(next(&mut state, now).unwrap().0, "low");
    assert_eq!(next(&mut state, now), None);
}

#[test]
fn an_unschedulable_pod_is_retried_when_resources_are_freed() {
    let (mut state, now) = (State::default(), Instant::now());
    let full = spec(pod("full", "1"), on("n1"));
    state.node_applied(&node("n1", "1", "110"), now);
    state.pod_applied(PodInfo::of(&full), true, now);
    let waiting = pod("p", "1");
    state.pod_applied(PodInfo::of(&waiting), true, now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable { .. }))));

    // The condition that we wrote comes back through the watch.
    state.pod_applied(PodInfo::of(&waiting), true, now);
    assert_eq!(next(&mut state, now), None);
    assert_eq!(state.advance(now), Some(now + Duration::from_secs(300)));

    // Room: as soon as the back-off of a second is over.
    state.pod_deleted(&("default".into(), "full".into()), now);
    assert_eq!(next(&mut state, now), None);
    let later = now + Duration::from_secs(1);
    assert_eq!(state.advance(now), Some(later));
    state.advance(later);
    assert_eq!(next(&mut state, later), Some(("p".into(), Decision::Bind { node: "n1".into() })));
}

#[test]
fn a_failed_binding_gives_the_room_back() {
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "1", "110"), now);
    state.pod_applied(PodInfo::of(&pod("a", "1")), true, now);
    let (bound, constraints, _) = state.next(now).unwrap();
    // A change of the pod that does not show the binding yet keeps the room taken.
    state.pod_applied(PodInfo::of(&pod("a", "1")), true, now);
    state.pod_applied(PodInfo::of(&pod("b", "1")), true, now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable { .. }))));
    state.bind_failed(&bound, constraints, now);
    let later = now + Duration::from_secs(1);
    state.advance(later);
    let first = next(&mut state, later).unwrap();
    assert!(matches!(first.1, Decision::Bind { .. }));
    assert!(matches!(next(&mut state, later), Some((_, Decision::Unschedulable { .. }))));
}

#[test]
fn two_hundred_pods_are_placed_at_once() {
    let (mut state, now) = (State::default(), Instant::now());
    state.node_applied(&node("n1", "64", "250"), now);
    for i in 0..200 {
        state.pod_applied(PodInfo::of(&pod(&format!("p{i}"), "10m")), true, now);
    }
    let bound =
        std::iter::from_fn(|| next(&mut state, now)).filter(|(_, d)| matches!(d, Decision::Bind { .. })).count();
    assert_eq!(bound, 200);
    assert!(now.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn pods_are_bound_or_reported_unschedulable() {
    let fake = crate::controllers::fake_api::FakeApi::new();
    let (client, stop) = (fake.client(), tokio_util::sync::CancellationToken::new());
    let create = kube::api::PostParams::default();
    let namespace = serde_json::from_value(serde_json::json!({"metadata": {"name": "default"}})).unwrap();
    kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone()).create(&create, &namespace).await.unwrap();
    let running = tokio::spawn(super::run(client.clone(), stop.clone()));
    let pods: kube::Api<Pod> = kube::Api::namespaced(client.clone(), "default");
    pods.create(&create, &pod("early", "10m")).await.unwrap();
    fake.until("pods", "the condition", |p| p[0]["status"]["conditions"][0]["message"] == messages::NO_NODES).await;

    kube::Api::<Node>::all(client).create(&create, &node("n1", "64", "250")).await.unwrap();
    for i in 0..200 {
        pods.create(&create, &pod(&format!("p{i}"), "10m")).await.unwrap();
    }
    let start = Instant::now();
    fake.until("pods", "all bound", |p| p.iter().all(|p| p["spec"]["nodeName"] == "n1")).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    fake.until("events", "the event", |e| {
        e.iter().any(|e| {
            e["message"] == "Successfully assigned default/p7 to n1" && e["source"]["component"] == "default-scheduler"
        })
    })
    .await;
    stop.cancel();
    running.await.unwrap().unwrap();
}
