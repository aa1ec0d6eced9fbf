//! InterPodAffinity, by upstream's cases.

use super::*;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

fn term(selector: Value, key: &str) -> Value {
    json!({"labelSelector": selector, "topologyKey": key})
}

fn near(pod: &Pod, terms: Value) -> Pod {
    with(pod, "/spec/affinity/podAffinity", json!({REQUIRED: terms}))
}

fn apart(pod: &Pod, terms: Value) -> Pod {
    with(pod, "/spec/affinity/podAntiAffinity", json!({REQUIRED: terms}))
}

fn app(value: &str) -> Value {
    json!({"matchLabels": {"app": value}})
}

fn at(pod: Pod, node: &str) -> Pod {
    spec(pod, on(node))
}

/// Two nodes of zone a, one of zone b, one without labels.
fn nodes() -> Vec<Node> {
    vec![
        node_with("a1", &[("zone", "a"), ("host", "a1")]),
        node_with("a2", &[("zone", "a"), ("host", "a2")]),
        node_with("b1", &[("zone", "b"), ("host", "b1")]),
        node_with("bare", &[]),
    ]
}

#[test]
fn required_terms_decide_where_a_pod_fits() {
    let web = || labelled("web", &[("app", "web")]);
    let db = |node: &str| at(labelled(&format!("db-{node}"), &[("app", "db")]), node);
    let all = &["a1", "a2", "b1", "bare"][..];
    let expression = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
    for (what, running, pod, expected) in [
        ("nothing is wanted", vec![], web(), all),
        ("a zone with its pod", vec![db("a1")], near(&web(), json!([term(app("db"), "zone")])), &["a1", "a2"]),
        ("a host with its pod", vec![db("a1")], near(&web(), json!([term(app("db"), "host")])), &["a1"]),
        ("nobody is there", vec![], near(&web(), json!([term(app("db"), "zone")])), &[]),
        ("the first of its kind", vec![], near(&web(), json!([term(app("web"), "zone")])), &["a1", "a2", "b1"]),
        (
            "the first of its kind, beside others of other terms",
            vec![db("b1")],
            near(&web(), json!([term(app("web"), "zone"), term(app("db"), "zone")])),
            &[],
        ),
        (
            "its kind is there already",
            vec![at(labelled("w", &[("app", "web")]), "b1")],
            near(&web(), json!([term(app("web"), "zone")])),
            &["b1"],
        ),
        (
            "all terms by one pod",
            vec![db("a1"), at(labelled("c", &[("app", "cache")]), "a2")],
            near(&web(), json!([term(app("db"), "zone"), term(app("cache"), "zone")])),
            &[],
        ),
        ("operator In", vec![db("b1")], near(&web(), json!([term(expression("In", &["db", "x"]), "zone")])), &["b1"]),
        (
            "operator NotIn",
            vec![db("b1")],
            near(&web(), json!([term(expression("NotIn", &["db"]), "zone")])),
            &["a1", "a2", "b1"],
        ),
        ("apart from a zone", vec![db("a1")], apart(&web(), json!([term(app("db"), "zone")])), &["b1", "bare"]),
        ("apart from a host", vec![db("a1")], apart(&web(), json!([term(app("db"), "host")])), &["a2", "b1", "bare"]),
        (
            "one of two anti-affinity terms is enough",
            vec![db("a1"), at(labelled("c", &[("app", "cache")]), "b1")],
            apart(&web(), json!([term(app("db"), "host"), term(app("cache"), "zone")])),
            &["a2", "bare"],
        ),
        ("others want to be apart", vec![apart(&db("a1"), json!([term(app("web"), "zone")]))], web(), &["b1", "bare"]),
        ("others want to be apart from others", vec![apart(&db("a1"), json!([term(app("x"), "zone")]))], web(), all),
        (
            "near and apart",
            vec![db("a1"), db("b1"), at(labelled("c", &[("app", "cache")]), "b1")],
            apart(&near(&web(), json!([term(app("db"), "zone")])), json!([term(app("cache"), "zone")])),
            &["a1", "a2"],
        ),
        (
            "a pod that ends still counts",
            vec![with(&db("a1"), "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))],
            apart(&web(), json!([term(app("db"), "zone")])),
            &["b1", "bare"],
        ),
        (
            "a pod that has ended does not",
            vec![with(&db("a1"), "/status/phase", json!("Succeeded"))],
            apart(&web(), json!([term(app("db"), "zone")])),
            all,
        ),
        ("no selector selects nothing", vec![db("a1")], apart(&web(), json!([{"topologyKey": "zone"}])), all),
    ] {
        assert_eq!(feasible(&nodes(), &running, &pod), expected, "{what}");
    }
}

#[test]
fn namespaces_are_named_or_selected() {
    let now = Instant::now();
    let running = |namespace: &str| {
        let pod = at(labelled("db", &[("app", "db")]), "a1");
        with(&pod, "/metadata/namespace", json!(namespace))
    };
    for (what, more, there, expected) in [
        ("its own namespace", json!({}), "default", true),
        ("not another one", json!({}), "other", false),
        ("a named one", json!({"namespaces": ["other"]}), "other", true),
        ("only a named one", json!({"namespaces": ["other"]}), "default", false),
        ("a selected one", json!({"namespaceSelector": {"matchLabels": {"team": "x"}}}), "other", true),
        ("not its own then", json!({"namespaceSelector": {"matchLabels": {"team": "x"}}}), "default", false),
        ("all", json!({"namespaceSelector": {}}), "other", true),
        (
            "named and selected",
            json!({"namespaces": ["default"], "namespaceSelector": {"matchLabels": {"team": "x"}}}),
            "default",
            true,
        ),
    ] {
        let mut wanted = term(app("db"), "zone");
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let terms = json!([wanted]);
        for symmetric in [false, true] {
            let web = labelled("web", &[("app", "db")]);
            // The running pod's term is seen from its own namespace.
            let (there_pod, pod) = if symmetric {
                let owner = apart(&with(&running("default"), "/metadata/name", json!("owner")), terms.clone());
                (owner, with(&web, "/metadata/namespace", json!(there)))
            } else {
                (running(there), apart(&web, terms.clone()))
            };
            let mut state = state_of(&nodes(), &[]);
            state.namespace_applied("default", BTreeMap::new(), now);
            state.namespace_applied("other", BTreeMap::from([("team".to_owned(), "x".to_owned())]), now);
            state.pod_applied(PodInfo::of(&there_pod), true, now);
            state.pod_applied(PodInfo::of(&pod), true, now);
            let rejected = state.why_not(&PodInfo::of(&pod).key(), "a2").is_some();
            assert_eq!(rejected, expected, "{what}, symmetric: {symmetric}");
        }
    }
}

#[test]
fn each_rule_has_its_reason() {
    let web = labelled("web", &[("app", "web")]);
    let db = at(labelled("db", &[("app", "db")]), "a1");
    let one = &nodes()[..1];
    for (running, pod, reason, preemptible) in [
        (vec![], near(&web, json!([term(app("db"), "zone")])), "node(s) didn't match pod affinity rules", false),
        (
            vec![db.clone()],
            apart(&web, json!([term(app("db"), "zone")])),
            "node(s) didn't match pod anti-affinity rules",
            true,
        ),
        (
            vec![apart(&db, json!([term(app("web"), "zone")]))],
            web.clone(),
            "node(s) didn't satisfy existing pods anti-affinity rules",
            true,
        ),
    ] {
        let text = refused(one, &running, &pod);
        assert!(text.starts_with(&format!("0/1 nodes are available: 1 {reason}. ")), "{text}");
        let last = if preemptible {
            "No preemption victims found for incoming pod."
        } else {
            "Preemption is not helpful for scheduling."
        };
        assert!(text.ends_with(last), "{text}");
    }
}
