use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::rules::{allows, of_role, uncovered};
use crate::apiserver::{Attributes, Rules};

fn rules(all: Value) -> Rules {
    of_role(&json!({"rules": all}))
}

fn resource(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names})
}

#[test]
fn what_rules_allow() {
    let pods = resource(&["get", "list"], &[""], &["pods"], &[]);
    let table = [
        (pods.clone(), "get", "", "pods", "", "a", true),
        (pods.clone(), "get", "", "pods", "", "", true),
        (pods.clone(), "delete", "", "pods", "", "a", false),
        (pods.clone(), "get", "apps", "pods", "", "a", false),
        (pods.clone(), "get", "", "pods", "log", "a", false),
        (pods, "get", "", "services", "", "a", false),
        (resource(&["get"], &[""], &["pods/log"], &[]), "get", "", "pods", "log", "a", true),
        (resource(&["get"], &[""], &["pods/log"], &[]), "get", "", "pods", "", "a", false),
        (resource(&["get"], &[""], &["*/scale"], &[]), "get", "", "pods", "scale", "a", true),
        (resource(&["get"], &[""], &["*/scale"], &[]), "get", "", "pods", "", "a", false),
        // As the prometheus-operator asks what it may do; nothing is taken apart.
        (resource(&["get"], &[""], &["pods/log"], &[]), "get", "", "pods/log", "", "", true),
        (resource(&["get"], &[""], &["*/log"], &[]), "get", "", "pods/log", "", "", false),
        (resource(&["get"], &[""], &["pods"], &[]), "get", "", "pods/log", "", "", false),
        (resource(&["get"], &[""], &["podsets"], &[]), "get", "", "pods", "ets", "", false),
        (resource(&["*"], &["*"], &["*"], &[]), "patch", "apps", "deployments", "status", "a", true),
        (resource(&["get"], &[""], &["pods"], &["a"]), "get", "", "pods", "", "a", true),
        (resource(&["get"], &[""], &["pods"], &["a"]), "get", "", "pods", "", "b", false),
        // A list has no name.
        (resource(&["list"], &[""], &["pods"], &["a"]), "list", "", "pods", "", "", false),
    ];
    for (rule, verb, group, resource, subresource, name, allowed) in table {
        let what = Attributes { verb, is_resource: true, group, resource, subresource, name, ..Attributes::default() };
        assert_eq!(allows(&rules(json!([rule])), &what), allowed, "{rule} {what:?}");
    }
}

#[test]
fn what_rules_allow_of_paths() {
    for (path, asked, allowed) in [
        ("/healthz", "/healthz", true),
        ("/healthz", "/healthz/", false),
        ("/api/*", "/api/v1", true),
        ("/api/*", "/api", false),
        ("*", "/anything", true),
    ] {
        let rule = json!([{"verbs": ["get"], "nonResourceURLs": [path]}]);
        let what = |verb| Attributes { verb, path: asked, ..Attributes::default() };
        assert_eq!(allows(&rules(rule.clone()), &what("get")), allowed, "{path} {asked}");
        assert!(!allows(&rules(rule), &what("post")));
    }
    // Rules of resources allow no paths.
    let what = Attributes { verb: "get", path: "/healthz", ..Attributes::default() };
    assert!(!allows(&rules(json!([resource(&["*"], &["*"], &["*"], &[])])), &what));
}

#[test]
fn what_is_not_covered_is_told_as_by_upstream() {
    for (held, wanted, missing) in [
        (
            json!([]),
            json!([resource(&["get", "list"], &[""], &["pods"], &[])]),
            vec![r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#],
        ),
        (
            json!([resource(&["get"], &[""], &["pods"], &[])]),
            json!([resource(&["get", "list"], &[""], &["pods"], &[])]),
            vec![r#"{APIGroups:[""], Resources:["pods"], Verbs:["list"]}"#],
        ),
        (
            json!([resource(&["get"], &[""], &["*"], &[])]),
            json!([resource(&["get"], &[""], &["pods/log"], &[])]),
            vec![],
        ),
        (
            json!([resource(&["get"], &[""], &["*/log"], &[])]),
            json!([resource(&["get"], &[""], &["pods/log", "pods"], &[])]),
            vec![r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#],
        ),
        (
            json!([resource(&["get"], &[""], &["pods"], &["a"])]),
            json!([resource(&["get"], &[""], &["pods"], &["a", "b"])]),
            vec![r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}"#],
        ),
        (
            json!([resource(&["get"], &[""], &["pods"], &["a"])]),
            json!([resource(&["get"], &[""], &["pods"], &[])]),
            vec![r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#],
        ),
        (
            json!([{"verbs": ["get"], "nonResourceURLs": ["/a/*"]}]),
            json!([{"verbs": ["get", "post"], "nonResourceURLs": ["/a/b", "/c"]}]),
            vec![r#"{NonResourceURLs:["/a/b"], Verbs:["post"]}"#, r#"{NonResourceURLs:["/c"], Verbs:["get" "post"]}"#],
        ),
    ] {
        let (held, wanted) = (rules(held), rules(wanted));
        let told: Vec<String> = uncovered(&held, &wanted).iter().map(ToString::to_string).collect();
        assert_eq!(told, missing, "{held:?} {wanted:?}");
    }
}

fn words(all: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop::sample::select(all).prop_map(str::to_owned), 1..3)
}

fn any_rule() -> impl Strategy<Value = Value> {
    let names = prop::collection::vec(prop::sample::select(&["a", "b"][..]), 0..2);
    let parts = (words(&["get", "list", "*"]), words(&["", "apps", "*"]), words(&["x", "x/s", "*/s", "*"]), names);
    parts.prop_map(|(verbs, groups, resources, names)| {
        json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names})
    })
}

proptest! {
    /// A user whose rules cover others may do all that these allow.
    #[test]
    fn covered_rules_allow_no_more(
        held in prop::collection::vec(any_rule(), 0..3),
        wanted in prop::collection::vec(any_rule(), 1..3),
        verb in prop::sample::select(&["get", "list", "watch"][..]),
        group in prop::sample::select(&["", "apps", "z"][..]),
        (resource, subresource) in prop::sample::select(&[("x", ""), ("x", "s"), ("y", "s"), ("y", "")][..]),
        name in prop::sample::select(&["", "a", "b", "c"][..]),
    ) {
        let (held, wanted) = (rules(json!(held)), rules(json!(wanted)));
        let what = Attributes { verb, is_resource: true, group, resource, subresource, name, ..Attributes::default() };
        if uncovered(&held, &wanted).is_empty() && allows(&wanted, &what) {
            prop_assert!(allows(&held, &what), "{what:?}");
        }
    }
}
