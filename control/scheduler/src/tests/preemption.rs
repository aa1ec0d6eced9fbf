//! DefaultPreemption, by upstream's cases.

use super::*;
use crate::cache::Budget;

fn prioritised(name: &str, cpu: &str, priority: i32) -> Pod {
    with(&pod(name, cpu), "/spec/priority", json!(priority))
}

/// A pod on a node, started at an hour.
fn there(name: &str, node: &str, cpu: &str, priority: i32, hour: u8) -> Pod {
    let pod = spec(prioritised(name, cpu, priority), on(node));
    with(&pod, "/status/startTime", json!(format!("2026-01-01T{hour:02}:00:00Z")))
}

fn decide(state: &mut State, pod: &Pod) -> Refusal {
    state.pod_applied(PodInfo::of(pod), true, Instant::now());
    match state.next(Instant::now()).unwrap().2 {
        Decision::Unschedulable(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// The node and the victims of a preemption, sorted.
fn outcome(refusal: &Refusal) -> Option<(String, Vec<String>)> {
    let preemption = refusal.preemption.as_ref()?;
    let mut names: Vec<String> = preemption.victims.iter().map(|victim| victim.name.clone()).collect();
    names.sort();
    Some((preemption.node.clone(), names))
}

fn budget(state: &mut State, app: &str, allowed: i32) {
    let selector = Selector::of_labels(BTreeMap::from([("app".to_owned(), app.to_owned())]));
    let namespace = "default".to_owned();
    let budget = Budget { namespace, selector, disruptions_allowed: allowed, disrupted: Default::default() };
    state.budget(("default".to_owned(), app.to_owned()), Some(budget));
}

/// Upstream's `TestPickOneNodeForPreemption` and `TestSelectBestCandidate`: what decides between nodes, in order.
#[test]
fn the_best_node_is_chosen() {
    let nodes: Vec<Node> = ["n1", "n2", "n3"].map(|name| node(name, "4", "110")).into();
    let p = |name: &str, node: &str, cpu: &str, priority, hour| there(name, node, cpu, priority, hour);
    for (what, running, expected) in [
        (
            "the least important top victim",
            vec![p("a", "n1", "4", 100, 1), p("b", "n2", "4", 50, 1), p("c", "n3", "4", 100, 1)],
            "n2",
        ),
        (
            "the smallest sum of priorities",
            vec![
                p("a1", "n1", "2", 100, 1),
                p("a2", "n1", "2", 100, 1),
                p("b1", "n2", "2", 100, 1),
                p("b2", "n2", "2", 50, 1),
                p("c1", "n3", "2", 100, 1),
                p("c2", "n3", "2", 60, 1),
            ],
            "n2",
        ),
        (
            "fewer victims, though their priorities are negative",
            vec![
                p("a1", "n1", "2", -10, 1),
                p("a2", "n1", "2", -10, 1),
                p("b1", "n2", "4", -10, 1),
                p("c1", "n3", "2", -10, 1),
                p("c2", "n3", "1", -20, 1),
                p("c3", "n3", "1", -20, 1),
            ],
            "n2",
        ),
        (
            "the latest start of top victims",
            vec![
                p("a1", "n1", "2", 100, 3),
                p("a2", "n1", "2", 100, 5),
                p("b1", "n2", "2", 100, 4),
                p("b2", "n2", "2", 100, 4),
                p("c1", "n3", "2", 100, 2),
                p("c2", "n3", "2", 100, 9),
            ],
            "n2",
        ),
        (
            "a node with enough less important pods",
            vec![p("a", "n1", "4", 1000, 1), p("b", "n2", "4", 5, 1), p("c", "n3", "4", 1000, 1)],
            "n2",
        ),
    ] {
        let refusal = decide(&mut state_of(&nodes, &running), &prioritised("p", "4", 500));
        assert_eq!(outcome(&refusal).map(|(node, _)| node).as_deref(), Some(expected), "{what}");
        assert_eq!(refusal.nomination, Nomination::Set(expected.to_owned()), "{what}");
    }
}

/// Upstream's `TestDryRunPreemption`: who of a node goes.
#[test]
fn as_many_as_possible_stay() {
    let p = |name: &str, cpu: &str, priority| there(name, "n1", cpu, priority, 1);
    for (what, running, cpu, expected) in [
        ("one is enough", vec![p("a", "2", 10), p("b", "2", 20)], "2", &["a"][..]),
        ("the more important one stays", vec![p("a", "1", 30), p("b", "1", 20), p("c", "2", 10)], "2", &["c"]),
        ("a large one instead of small ones", vec![p("a", "3", 10), p("b", "1", 5)], "3", &["a"]),
        (
            "small ones go with the large one's room",
            vec![p("a", "1", 30), p("b", "2", 20), p("c", "1", 10)],
            "3",
            &["b", "c"],
        ),
        ("all of them", vec![p("a", "1", 10), p("b", "3", 20)], "4", &["a", "b"]),
        ("equals stay", vec![p("a", "2", 100), p("b", "2", 10)], "2", &["b"]),
    ] {
        let mut state = state_of(&[node("n1", "4", "110")], &running);
        let refusal = decide(&mut state, &prioritised("p", cpu, 100));
        let expected = expected.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(outcome(&refusal), Some(("n1".to_owned(), expected)), "{what}");
        assert_eq!(refusal.message, "0/1 nodes are available: 1 Insufficient cpu.", "{what}");
    }
    // Of equally important ones that which runs for the longest time stays.
    let running = [there("old", "n1", "2", 10, 1), there("new", "n1", "2", 10, 5)];
    let refusal = decide(&mut state_of(&[node("n1", "4", "110")], &running), &prioritised("p", "2", 100));
    assert_eq!(outcome(&refusal).unwrap().1, ["new"]);
}

#[test]
fn budgets_are_kept_where_that_is_possible() {
    let app = |pod: Pod, app: &str| with(&pod, "/metadata/labels", json!({"app": app}));
    let nodes = [node("n1", "2", "110"), node("n2", "2", "110")];
    let running = [app(there("a", "n1", "2", 1, 1), "kept"), app(there("b", "n2", "2", 50, 1), "free")];
    let mut state = state_of(&nodes, &running);
    budget(&mut state, "kept", 0);
    budget(&mut state, "free", 1);
    let refusal = decide(&mut state, &prioritised("p", "2", 100));
    assert_eq!(outcome(&refusal), Some(("n2".to_owned(), vec!["b".to_owned()])), "though b is more important");

    // No other node: the budget is violated.
    let mut state = state_of(&nodes[..1], &running[..1]);
    budget(&mut state, "kept", 0);
    assert_eq!(outcome(&decide(&mut state, &prioritised("p", "2", 100))).unwrap().1, ["a"]);

    // On one node the pods of the budget stay, the less important ones of them, too.
    let running = [app(there("a", "n1", "1", 1, 1), "kept"), app(there("b", "n1", "1", 50, 1), "free")];
    let mut state = state_of(&nodes[..1], &running);
    budget(&mut state, "kept", 0);
    assert_eq!(outcome(&decide(&mut state, &prioritised("p", "1", 100))).unwrap().1, ["b"]);
}

#[test]
fn who_does_not_preempt_is_told_why() {
    let running = [there("a", "n1", "4", 10, 1)];
    let one = [node("n1", "4", "110")];
    let never = with(&prioritised("p", "2", 100), "/spec/preemptionPolicy", json!("Never"));
    let before = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: ";
    for (what, pod, expected) in [
        ("its policy", never.clone(), "not eligible due to preemptionPolicy=Never."),
        (
            "others are as important",
            prioritised("p", "2", 10),
            "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        ),
        (
            "no node is large enough",
            prioritised("p", "8", 100),
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
        ),
    ] {
        let refusal = decide(&mut state_of(&one, &running), &pod);
        assert_eq!(refusal.message, format!("{before}{expected}"), "{what}");
        assert_eq!((refusal.preemption, refusal.nomination), (None, Nomination::Keep), "{what}");
    }
    // The victims are not enough: the filters say what is missing all the same.
    let running = [there("a", "n1", "1", 10, 1), there("b", "n1", "3", 1000, 1)];
    let refusal = decide(&mut state_of(&one, &running), &prioritised("p", "2", 100));
    assert_eq!(refusal.message, format!("{before}0/1 nodes are available: 1 Insufficient cpu."));
}

#[test]
fn a_preemptor_waits_for_its_victims() {
    let now = Instant::now();
    let running = [there("a", "n1", "4", 10, 1), there("b", "n2", "4", 10, 1)];
    let mut state = state_of(&[node("n1", "4", "110"), node("n2", "4", "110")], &running);
    let preemptor = prioritised("p", "4", 100);
    let first = decide(&mut state, &preemptor);
    let (node, victims) = outcome(&first).unwrap();
    assert_eq!(victims.len(), 1);

    // Its status comes back, and the victim terminates: no second preemption.
    let nominated = with(&preemptor, "/status/nominatedNodeName", json!(node));
    let victim = running.iter().find(|pod| pod.metadata.name.as_ref() == Some(&victims[0])).unwrap();
    let condition = json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
    let ending = with(victim, "/status/conditions", condition);
    let ending = with(&ending, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    state.pod_applied(PodInfo::of(&ending), true, now);
    state.pod_applied(PodInfo::of(&with(&nominated, "/metadata/labels", json!({"a": "b"}))), true, now);
    let Decision::Unschedulable(second) = state.next(now).unwrap().2 else { panic!("bound") };
    assert_eq!((second.preemption, second.nomination), (None, Nomination::Keep));
    assert!(second.message.ends_with("preemption: not eligible due to a terminating pod on the nominated node."));

    // Nobody else gets the room, unless it is more important; the preemptor does.
    state.pod_deleted(&("default".to_owned(), victims[0].clone()), now);
    let mut others = state_of(&[], &[]);
    std::mem::swap(&mut others, &mut state);
    let equal = prioritised("equal", "4", 100);
    others.pod_applied(PodInfo::of(&prioritised("other", "4", 0)), true, now);
    let Decision::Unschedulable(refusal) = others.next(now).unwrap().2 else { panic!("bound") };
    assert!(refusal.message.starts_with("0/2 nodes are available: 2 Insufficient cpu. "), "{}", refusal.message);
    others.pod_applied(PodInfo::of(&equal), true, now);
    assert!(others.why_not(&PodInfo::of(&equal).key(), &node).is_some());
    others.pod_applied(PodInfo::of(&prioritised("higher", "4", 200)), true, now);
    assert_eq!(next(&mut others, now), Some(("higher".to_owned(), Decision::Bind { node })));
}

#[test]
fn a_less_important_nominee_goes_elsewhere() {
    let now = Instant::now();
    let running = [there("a", "n1", "2", 1, 1)];
    let mut state = state_of(&[node("n1", "4", "110")], &running);
    let nominee = with(&prioritised("nominee", "4", 10), "/status/nominatedNodeName", json!("n1"));
    state.pod_applied(PodInfo::of(&nominee), true, now);
    assert!(matches!(next(&mut state, now), Some((_, Decision::Unschedulable(_)))));
    let refusal = decide(&mut state, &prioritised("p", "3", 100));
    let preemption = refusal.preemption.unwrap();
    assert_eq!(preemption.nominees.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["nominee"]);
    assert!(preemption.victims.is_empty(), "a is going already");
    assert_eq!(state.cluster().nominator.node(&PodInfo::of(&nominee).key()), None);
}

#[test]
fn affinity_and_spread_are_seen_without_the_victims() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let selector = json!({"matchLabels": {"app": "x"}});
    let labels = |pod: Pod| with(&pod, "/metadata/labels", json!({"app": "x"}));
    let nodes = [node_with("n1", &[("zone", "a")]), node_with("n2", &[("zone", "b")])];
    let anti = json!({"podAntiAffinity": {required: [{"labelSelector": selector, "topologyKey": "zone"}]}});
    // Each zone has a pod that the new one must not be with; both may be preempted, one does.
    let running = [labels(there("a", "n1", "1", 10, 1)), labels(there("b", "n2", "1", 5, 1))];
    let preemptor = with(&prioritised("p", "1", 100), "/spec/affinity", anti.clone());
    let refusal = decide(&mut state_of(&nodes, &running), &preemptor);
    assert_eq!(outcome(&refusal), Some(("n2".to_owned(), vec!["b".to_owned()])));
    // The other way round: those that are there do not want it.
    let running = running.map(|pod| with(&pod, "/spec/affinity", anti.clone()));
    let refusal = decide(&mut state_of(&nodes, &running), &labels(prioritised("p", "1", 100)));
    assert_eq!(outcome(&refusal), Some(("n2".to_owned(), vec!["b".to_owned()])));
    // A skew that goes with a victim.
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector}]);
    let running = [labels(there("a", "n1", "1", 10, 1)), there("full", "n2", "64", 1000, 1)];
    let preemptor = labels(with(&prioritised("p", "1", 100), "/spec/topologySpreadConstraints", spread));
    let refusal = decide(&mut state_of(&nodes, &running), &preemptor);
    assert_eq!(outcome(&refusal), Some(("n1".to_owned(), vec!["a".to_owned()])));
}

/// The conformance test PreemptionExecutionPath: of ReplicaSets with the priorities p1, p2 and p3 the pods of the first
/// two go, once, and those that replace them wait.
#[test]
fn preemption_execution_path() {
    let now = Instant::now();
    let fake = |name: &str, amount: u32, priority: i32| {
        let requests = json!({"requests": {"example.com/fakecpu": amount.to_string()}});
        with(&prioritised(name, "0", priority), "/spec/containers/0/resources", requests)
    };
    let mut node = node("n1", "4", "110");
    let allocatable = node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
    allocatable.insert("example.com/fakecpu".to_owned(), Quantity("1000".to_owned()));
    let sets = [("rs1", 200, 1), ("rs2", 300, 2), ("rs3", 450, 3)];
    let mut state = state_of(&[node], &[]);
    let mut seen = BTreeMap::new();
    for (name, amount, priority) in sets {
        state.pod_applied(PodInfo::of(&fake(name, amount, priority)), true, now);
        assert!(matches!(next(&mut state, now), Some((_, Decision::Bind { .. }))));
        state.pod_applied(PodInfo::of(&spec(fake(name, amount, priority), on("n1"))), true, now);
        seen.insert(name, 1);
    }
    let preemptor = fake("p4", 500, 4);
    let refusal = decide(&mut state, &preemptor);
    assert_eq!(outcome(&refusal), Some(("n1".to_owned(), vec!["rs1".to_owned(), "rs2".to_owned()])));
    state.pod_applied(PodInfo::of(&with(&preemptor, "/status/nominatedNodeName", json!("n1"))), true, now);
    // The victims go one after the other, and each is replaced at once.
    let mut time = now;
    for name in ["rs1", "rs2"] {
        state.pod_deleted(&("default".to_owned(), name.to_owned()), time);
        let (_, amount, priority) = sets.into_iter().find(|set| set.0 == name).unwrap();
        state.pod_applied(PodInfo::of(&fake(&format!("{name}-again"), amount, priority)), true, time);
        *seen.get_mut(name).unwrap() += 1;
        let mut decisions = Vec::new();
        for _ in 0..5 {
            decisions.extend(std::iter::from_fn(|| next(&mut state, time)));
            time += std::time::Duration::from_secs(10);
            state.advance(time);
        }
        for (pod, decision) in decisions {
            match decision {
                Decision::Bind { .. } => assert_eq!((pod.as_str(), name), ("p4", "rs2")),
                Decision::Unschedulable(refusal) => assert_eq!(refusal.preemption, None, "{pod}"),
                Decision::BindVolumes { .. } => panic!("no volumes"),
            }
        }
    }
    assert_eq!(seen, BTreeMap::from([("rs1", 2), ("rs2", 2), ("rs3", 1)]));
    let placed = state.cluster().pods_of("n1").map(|pod| pod.name.clone()).collect::<Vec<_>>();
    assert_eq!(placed, ["p4", "rs3"]);
}
