//! Scores, with upstream's figures.

use super::*;
use crate::{cycle::Cycle, scores};

/// The weighted sums of all plugins for each node.
fn totals(state: &mut State, pod: &Pod) -> Vec<i64> {
    let info = std::sync::Arc::new(PodInfo::of(pod));
    let names: Vec<String> = state.cluster().nodes.keys().cloned().collect();
    let cluster = state.cluster_mut();
    let cycle = Cycle::new(cluster, &info, info.constraints.as_ref().unwrap()).unwrap();
    scores::totals(cluster, &cycle, &names)
}

/// How much better the first node is than each of the others.
fn lead(nodes: &[Node], running: &[Pod], pod: &Pod) -> Vec<i64> {
    let totals = totals(&mut state_of(nodes, running), pod);
    totals[1..].iter().map(|other| totals[0] - other).collect()
}

fn sized(name: &str, cpu: &str, memory: &str) -> Node {
    let mut node = node(name, cpu, "110");
    node.status
        .as_mut()
        .unwrap()
        .allocatable
        .as_mut()
        .unwrap()
        .insert("memory".to_owned(), Quantity(memory.to_owned()));
    node
}

fn requesting(pod: &Pod, cpu: &str, memory: &str) -> Pod {
    with(pod, "/spec/containers/0/resources", json!({"requests": {"cpu": cpu, "memory": memory}}))
}

#[test]
fn resources_are_left_over_and_balanced() {
    let p = pod("p", "0");
    for (what, nodes, running, pod, expected) in [
        // Upstream's "nothing scheduled, resources requested, differently sized nodes": 37 and 50; balances 87 and 100 against 100 before,
        // by (4-3)*100/4 = 25, (10-5)*100/10 = 50, and (6-3)*100/6 = 50, 50.
        (
            "differently sized",
            vec![sized("n1", "4", "10000"), sized("n2", "6", "10000")],
            vec![],
            requesting(&p, "3", "5000"),
            (37 + 68) - (50 + 75),
        ),
        (
            "used ones",
            vec![sized("n1", "10", "20000"), sized("n2", "10", "20000")],
            vec![
                spec(requesting(&pod("a", "0"), "3", "0"), on("n1")),
                spec(requesting(&pod("b", "0"), "3", "5000"), on("n2")),
            ],
            requesting(&p, "3", "5000"),
            // Least allocated: (40 + 75) / 2 and (40 + 50) / 2; balances 82 against 85 before, and 95 against 97.
            (57 + 73) - (45 + 74),
        ),
        (
            "more than there is",
            vec![sized("n1", "4", "10000"), sized("n2", "10", "10000")],
            vec![],
            requesting(&p, "5", "1000"),
            // The first has no CPU left: (0 + 90) / 2 against (50 + 90) / 2, and balances 55 and 80.
            (45 + 52) - (70 + 65),
        ),
    ] {
        assert_eq!(lead(&nodes, &running, &pod), [expected], "{what}");
    }
    // Unset requests count as 100m and 200 MB for what is left, and not at all for the balance.
    let unset = with(&pod("p", "0"), "/spec/containers/0/resources", json!({}));
    let nodes = [sized("n1", "1", "1000Mi"), sized("n2", "2", "1000Mi")];
    // (90 + 80) / 2 against (95 + 80) / 2.
    assert_eq!(lead(&nodes, &[], &unset), [85 - 87]);
}

#[test]
fn preferences_have_their_weights() {
    let nodes = [node_with("n1", &[("disk", "ssd")]), node_with("n2", &[("disk", "hdd")]), node_with("n3", &[])];
    let term = |weight: i32, value: &str| {
        json!({"weight": weight, "preference":
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": [value]}]}})
    };
    let pod = with(
        &pod("p", "10m"),
        "/spec/affinity/nodeAffinity",
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [term(8, "ssd"), term(2, "hdd")]}),
    );
    assert_eq!(lead(&nodes, &[], &pod), [2 * (100 - 25), 2 * 100]);
    let taint = |count: usize| {
        let taints: Vec<Value> =
            (0..count).map(|i| json!({"key": format!("k{i}"), "effect": "PreferNoSchedule"})).collect();
        json!(taints)
    };
    let nodes = [
        node("n1", "64", "110"),
        with(&node("n2", "64", "110"), "/spec/taints", taint(1)),
        with(&node("n3", "64", "110"), "/spec/taints", taint(2)),
    ];
    assert_eq!(lead(&nodes, &[], &super::pod("p", "10m")), [3 * 50, 3 * 100]);
}

/// Upstream's `TestImageLocalityPriority`.
#[test]
fn images_that_are_there_count() {
    const MB: i64 = 1024 * 1024;
    let images = |list: &[(&str, i64)]| -> Value {
        list.iter().map(|(name, size)| json!({"names": [name], "sizeBytes": size * MB})).collect()
    };
    let small = images(&[("gcr.io/40:latest", 40), ("gcr.io/300:latest", 300), ("gcr.io/2000:latest", 2000)]);
    let large = images(&[("gcr.io/250:latest", 250), ("gcr.io/10:latest", 10)]);
    let nodes = [
        with(&node("n1", "64", "110"), "/status/images", small),
        with(&node("n2", "64", "110"), "/status/images", large),
    ];
    let of = |names: &[&str]| {
        let containers: Value = names.iter().map(|name| json!({"name": "c", "image": name})).collect();
        with(&pod("p", "10m"), "/spec/containers", containers)
    };
    for (names, expected) in [
        // 40 MB × 1/2 is below the threshold; 250 MB × 1/2: 100 × (125 − 23) / (2000 − 23).
        (&["gcr.io/40", "gcr.io/250"][..], -5),
        // 300 MB × 1/2: 100 × (20 + 150 − 23) / (2000 − 23).
        (&["gcr.io/40", "gcr.io/300"], 7),
        // The most for one container.
        (&["gcr.io/2000"], 100),
        (&["gcr.io/10", "gcr.io/none:v1"], 0),
    ] {
        assert_eq!(lead(&nodes, &[], &of(names)), [expected], "{names:?}");
    }
}

#[test]
fn pods_of_a_kind_are_spread() {
    let zones = |names: &[(&str, &str)]| -> Vec<Node> {
        names
            .iter()
            .map(|(name, zone)| {
                node_with(name, &[("kubernetes.io/hostname", name), ("topology.kubernetes.io/zone", zone)])
            })
            .collect()
    };
    let nodes = zones(&[("n1", "a"), ("n2", "a"), ("n3", "b")]);
    let web = |name: &str| with(&labelled(name, &[("app", "web")]), "/spec/containers/0/resources", json!({}));
    let running = [spec(web("a"), on("n2")), spec(web("b"), on("n2")), spec(web("c"), on("n3"))];
    let spread = |key: &str| {
        json!([{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "web"}}}])
    };
    let spread_lead = |pod: &Pod, service: bool| -> Vec<i64> {
        let score = |spread: bool| {
            let mut state = state_of(&nodes, &running);
            if service {
                let selector = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
                state.service(&("default".to_owned(), "web".to_owned()), Some(selector).filter(|_| spread));
            }
            let pod = if spread { pod.clone() } else { with(pod, "/spec/topologySpreadConstraints", Value::Null) };
            totals(&mut state, &pod)
        };
        let (with, without) = (score(true), score(false));
        with.iter().zip(without).map(|(with, without)| with - without).collect()
    };
    // Hosts have 0, 2 and 1: scores 0, 2 ln 5 = 3.2 → 3 and 1.6 → 2.
    let hosts = with(&web("p"), "/spec/topologySpreadConstraints", spread("kubernetes.io/hostname"));
    assert_eq!(spread_lead(&hosts, false), [2 * 100, 0, 2 * (100 / 3)]);
    // Zones have 2 and 1: 2 ln 4 = 2.8 → 3 and 1.4 → 1.
    let zone = with(&web("p"), "/spec/topologySpreadConstraints", spread("topology.kubernetes.io/zone"));
    assert_eq!(spread_lead(&zone, false), [2 * 33, 2 * 33, 2 * 100]);
    // The default for pods of a service: hosts with a skew of 3, zones with one of 5.
    // 0 + 2 + 2 ln 4 + 4 = 8.8 → 9; 2 ln 5 + 2 + 2.8 + 4 = 12; 1.6 + 2 + 1.4 + 4 = 9.
    assert_eq!(spread_lead(&web("p"), true), [2 * 100, 2 * 75, 2 * 100]);
}

#[test]
fn the_default_selector_is_that_of_services_and_owners() {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    let mut state = State::default();
    let key = |name: &str| ("default".to_owned(), name.to_owned());
    state.service(&key("web"), Some(labels(&[("app", "web")])));
    state.service(&key("other"), Some(labels(&[("app", "other")])));
    let set = serde_json::from_value(json!({"matchLabels": {"set": "1"}, "matchExpressions":
        [{"key": "tier", "operator": "Exists"}]}))
    .unwrap();
    state.controller("ReplicaSet", &key("rs"), Some(set));
    let info = |pairs: &[(&str, &str)]| PodInfo::of(&labelled("p", pairs));
    let selects = |owner: Option<&str>, of: &[(&str, &str)], others: &[(&str, &str)]| {
        let owner = owner.map(|name| ("ReplicaSet".to_owned(), name.to_owned()));
        state.cluster().owners.default_selector(&info(of), owner.as_ref()).map(|s| s.matches(&labels(others)))
    };
    assert_eq!(selects(None, &[("app", "none")], &[]), None);
    assert_eq!(selects(None, &[("app", "web")], &[("app", "web"), ("x", "y")]), Some(true));
    assert_eq!(selects(None, &[("app", "web")], &[("app", "other")]), Some(false));
    assert_eq!(selects(Some("rs"), &[], &[("set", "1"), ("tier", "a")]), Some(true));
    assert_eq!(selects(Some("rs"), &[("app", "web")], &[("set", "1"), ("tier", "a")]), Some(false));
    assert_eq!(selects(Some("gone"), &[], &[]), None);
}

/// Upstream's cases of `TestPreferredAffinity`.
#[test]
fn preferred_affinity_works_both_ways() {
    let nodes =
        [node_with("n1", &[("zone", "a")]), node_with("n2", &[("zone", "b")]), node_with("n3", &[("zone", "a")])];
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let term = |app: &str| json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"});
    let weighted = |kind: &str, weight: i32, app: &str| {
        json!({kind: {preferred: [
        {"weight": weight, "podAffinityTerm": term(app)}]}})
    };
    let idle =
        |name: &str, app: &str| with(&labelled(name, &[("app", app)]), "/spec/containers/0/resources", json!({}));
    let extra = |affinity: Value, of_running: bool| -> Vec<i64> {
        let score = |affinity: Option<&Value>| {
            let with_affinity = |pod: Pod, wanted: bool| match affinity.filter(|_| wanted) {
                Some(affinity) => with(&pod, "/spec/affinity", affinity.clone()),
                None => pod,
            };
            let running = spec(with_affinity(idle("r", "db"), of_running), on("n1"));
            totals(&mut state_of(&nodes, &[running]), &with_affinity(idle("p", "web"), !of_running))
        };
        let (with, without) = (score(Some(&affinity)), score(None));
        with.iter().zip(without).map(|(with, without)| with - without).collect()
    };
    assert_eq!(extra(weighted("podAffinity", 5, "db"), false), [200, 0, 200]);
    assert_eq!(extra(weighted("podAntiAffinity", 5, "db"), false), [0, 200, 0]);
    assert_eq!(extra(weighted("podAffinity", 5, "web"), true), [200, 0, 200]);
    assert_eq!(extra(weighted("podAntiAffinity", 5, "web"), true), [0, 200, 0]);
    let required = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term("web")]}});
    assert_eq!(extra(required, true), [200, 0, 200], "the symmetric weight of a required term");
    assert_eq!(extra(weighted("podAffinity", 5, "x"), false), [0, 0, 0]);
}
