//! The default objects, and how a start reconciles them.

use serde_json::json;

use super::*;

#[test]
fn the_defaults_are_those_of_upstream() {
    let all: Vec<Value> = objects(true).collect();
    let of = |kind: &str| all.iter().filter(|object| object["kind"] == kind).count();
    let counts = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"].map(of);
    assert_eq!(counts.iter().sum::<usize>(), all.len());
    // And one of ours.
    assert_eq!(counts[0], 70 + 1);
    for object in &all {
        assert!(object["metadata"]["name"].is_string() && !object["metadata"]["name"].as_str().unwrap().is_empty());
        assert_eq!(object["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
    }
    // Each binding refers to an existing role.
    for binding in all.iter().filter(|object| object["roleRef"].is_object()) {
        let reference = &binding["roleRef"];
        let is_it = |role: &&Value| {
            role["kind"] == reference["kind"]
                && role["metadata"]["name"] == reference["name"]
                && (reference["kind"] == "ClusterRole"
                    || role["metadata"]["namespace"] == binding["metadata"]["namespace"])
        };
        assert!(all.iter().any(|role| is_it(&role)), "{binding}");
    }
}

#[test]
fn what_is_missing_is_added_unless_the_object_says_otherwise() {
    let rule = |verb: &str| json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]});
    let role = |rules: Value, update: &str| json!({"metadata": {"annotations": {AUTOUPDATE: update}}, "rules": rules});
    let wanted = role(json!([rule("get"), rule("list")]), "true");
    for (stored, becomes) in [
        (role(json!([rule("get")]), "true"), Some(json!([rule("get"), rule("list")]))),
        (role(json!([rule("*")]), "true"), None),
        (role(json!([rule("x"), rule("get"), rule("list")]), "true"), None),
        (role(json!([]), "false"), None),
        (role(Value::Null, "true"), Some(json!([rule("get"), rule("list")]))),
    ] {
        assert_eq!(reconciled(&stored, &wanted).map(|object| object["rules"].clone()), becomes, "{stored}");
    }
    let binding = |subjects: Value| json!({"roleRef": {"name": "r"}, "subjects": subjects});
    let (a, b) = (json!({"kind": "User", "name": "a"}), json!({"kind": "User", "name": "b"}));
    let becomes = reconciled(&binding(json!([b])), &binding(json!([a]))).map(|object| object["subjects"].clone());
    assert_eq!(becomes, Some(json!([b, a])));
    assert_eq!(reconciled(&binding(json!([a, b])), &binding(json!([a]))), None);
}
