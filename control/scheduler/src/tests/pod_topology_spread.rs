//! PodTopologySpread, by upstream's cases.

use super::*;

fn constraint(max_skew: i64, key: &str, more: Value) -> Value {
    let mut made = json!({"maxSkew": max_skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}});
    made.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    made
}

fn spread(pod: &Pod, constraints: Value) -> Pod {
    with(pod, "/spec/topologySpreadConstraints", constraints)
}

fn web() -> Pod {
    labelled("web", &[("app", "web")])
}

/// Pods of the same label on nodes.
fn running(places: &[&str]) -> Vec<Pod> {
    let make = |(i, node): (usize, &&str)| spec(labelled(&format!("r{i}"), &[("app", "web")]), on(node));
    places.iter().enumerate().map(make).collect()
}

fn nodes() -> Vec<Node> {
    vec![
        node_with("a1", &[("zone", "a"), ("host", "a1")]),
        node_with("a2", &[("zone", "a"), ("host", "a2")]),
        node_with("b1", &[("zone", "b"), ("host", "b1")]),
        node_with("b2", &[("zone", "b"), ("host", "b2")]),
    ]
}

#[test]
fn skew_decides_where_a_pod_fits() {
    let all = &["a1", "a2", "b1", "b2"][..];
    let zone = |skew: i64, more: Value| json!([constraint(skew, "zone", more)]);
    let none = || json!({});
    for (what, there, pod, expected) in [
        ("no pods", &[][..], spread(&web(), zone(1, none())), all),
        ("one zone has one more", &["a1"], spread(&web(), zone(1, none())), &["b1", "b2"]),
        ("a skew of two", &["a1"], spread(&web(), zone(2, none())), all),
        ("balanced zones", &["a1", "b1"], spread(&web(), zone(1, none())), all),
        ("the pod itself does not count", &["a1"], spread(&labelled("x", &[]), zone(1, none())), all),
        (
            "it does not count, but two are too many",
            &["a1", "a2"],
            spread(&labelled("x", &[]), zone(1, none())),
            &["b1", "b2"],
        ),
        ("hosts", &["a1", "a2", "b1"], spread(&web(), json!([constraint(1, "host", none())])), &["b2"]),
        (
            "zones and hosts",
            &["a1", "a2", "b1"],
            spread(&web(), json!([constraint(1, "zone", none()), constraint(1, "host", none())])),
            &["b2"],
        ),
        (
            "zones against hosts",
            &["a1", "a1", "b1", "b2"],
            spread(&web(), json!([constraint(1, "zone", none()), constraint(1, "host", none())])),
            &["a2"],
        ),
        (
            "no place satisfies both",
            &["a1", "b1", "b2"],
            spread(
                &web(),
                json!([
                    constraint(1, "zone", none()),
                    constraint(
                        1,
                        "host",
                        json!({"labelSelector":
                {"matchLabels": {"app": "web"}}, "minDomains": 5})
                    )
                ]),
            ),
            &["a2"],
        ),
        ("a key that no node has", &[], spread(&web(), json!([constraint(1, "rack", none())])), &[]),
        ("fewer domains than wanted", &["a1", "b1"], spread(&web(), zone(1, json!({"minDomains": 3}))), &[]),
        ("enough domains", &["a1", "b1"], spread(&web(), zone(1, json!({"minDomains": 2}))), all),
        (
            "a soft constraint keeps nobody away",
            &["a1", "a2"],
            spread(
                &web(),
                zone(
                    1,
                    json!({
            "whenUnsatisfiable": "ScheduleAnyway"}),
                ),
            ),
            all,
        ),
        ("an empty selector counts no pods", &["a1"], spread(&web(), zone(1, json!({"labelSelector": {}}))), all),
        (
            "the values of label keys",
            &["a1"],
            spread(
                &labelled("web", &[("app", "web"), ("version", "2")]),
                zone(1, json!({"matchLabelKeys": ["version"]})),
            ),
            all,
        ),
    ] {
        assert_eq!(feasible(&nodes(), &running(there), &pod), expected, "{what}");
    }
}

#[test]
fn pods_that_end_and_pods_elsewhere_do_not_count() {
    let pod = spread(&web(), json!([constraint(1, "zone", json!({}))]));
    let mut there = running(&["a1", "a1"]);
    there[0] = with(&there[0], "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    there[1] = with(&there[1], "/metadata/namespace", json!("other"));
    assert_eq!(feasible(&nodes(), &there, &pod), ["a1", "a2", "b1", "b2"]);
}

#[test]
fn policies_decide_which_nodes_count() {
    // Zone b has no pods, but is not for this pod: by its selector, or by a taint.
    let mut nodes = nodes();
    for node in &mut nodes[..2] {
        node.metadata.labels.as_mut().unwrap().insert("disk".to_owned(), "ssd".to_owned());
    }
    let selecting = |pod: Pod| with(&pod, "/spec/nodeSelector", json!({"disk": "ssd"}));
    let of = |policy: Value| selecting(spread(&web(), json!([constraint(1, "zone", policy)])));
    assert_eq!(feasible(&nodes, &running(&["a1"]), &of(json!({}))), ["a1", "a2"]);
    assert!(feasible(&nodes, &running(&["a1"]), &of(json!({"nodeAffinityPolicy": "Ignore"}))).is_empty());
    let mut nodes = self::nodes();
    for node in &mut nodes[2..] {
        node.spec.as_mut().unwrap().taints =
            Some(serde_json::from_value(json!([{"key": "k", "effect": "NoSchedule"}])).unwrap());
    }
    let of = |policy: Value| spread(&web(), json!([constraint(1, "zone", policy)]));
    assert!(feasible(&nodes, &running(&["a1"]), &of(json!({}))).is_empty());
    assert_eq!(feasible(&nodes, &running(&["a1"]), &of(json!({"nodeTaintsPolicy": "Honor"}))), ["a1", "a2"]);
}

#[test]
fn each_rule_has_its_reason() {
    let pod = spread(&web(), json!([constraint(1, "zone", json!({}))]));
    let with_bare = [nodes(), vec![node_with("bare", &[])]].concat();
    let mut state = state_of(&with_bare, &running(&["a1"]));
    state.pod_applied(PodInfo::of(&pod), true, Instant::now());
    let key = PodInfo::of(&pod).key();
    let skew = state.why_not(&key, "a1").unwrap();
    assert_eq!(
        (skew.reasons[0].as_ref(), skew.preemptible),
        ("node(s) didn't match pod topology spread constraints", true)
    );
    let bare = state.why_not(&key, "bare").unwrap();
    let text = "node(s) didn't match pod topology spread constraints (missing required label)";
    assert_eq!((bare.reasons[0].as_ref(), bare.preemptible), (text, false));
}
