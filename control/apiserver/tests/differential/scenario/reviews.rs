//! Reviews of access and of tokens.

use serde_json::{Value, json};

use super::{NAMESPACE, NODE, post, step};
use crate::api_server::{JSON, Step};

pub(super) fn steps() -> Vec<Step> {
    let of = |group: &str, plural: &str| format!("/apis/{group}.k8s.io/v1/{plural}");
    let subject = of("authorization", "subjectaccessreviews");
    let own = of("authorization", "selfsubjectaccessreviews");
    let rules = of("authorization", "selfsubjectrulesreviews");
    let tokens = of("authentication", "tokenreviews");
    let local = of("authorization", &format!("namespaces/{NAMESPACE}/localsubjectaccessreviews"));
    let pods = |namespace: &str| json!({"verb": "get", "resource": "pods", "namespace": namespace});
    let path = json!({"verb": "get", "path": "/x"});
    let spec = |name: &str, path: &str, spec: Value| post(&format!("review: {name}"), path, json!({"spec": spec}));
    vec![
        spec(
            "of a node",
            &subject,
            json!({"user": "system:node:n0", "groups": ["system:nodes"],
                "resourceAttributes": {"verb": "list", "group": "discovery.k8s.io", "resource": "endpointslices"}}),
        ),
        spec("of nothing", &subject, json!({})),
        spec("of nobody", &subject, json!({"resourceAttributes": pods("")})),
        spec(
            "of two things",
            &subject,
            json!({"user": "u", "resourceAttributes": pods(""), "nonResourceAttributes": path.clone()}),
        ),
        spec(
            "of a group",
            &subject,
            json!({"groups": ["system:masters"], "resourceAttributes": pods(""), "extra": {"a": ["b"]}}),
        ),
        spec(
            "of odd selectors",
            &subject,
            json!({"user": "u", "resourceAttributes": {"fieldSelector": {}, "labelSelector": {"requirements": [
                {"key": "!", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["x"]}, {"key": "a", "operator": "New", "values": ["!"]}]}}}),
        ),
        spec("own", &own, json!({"resourceAttributes": pods(NAMESPACE)})),
        spec("own of nothing", &own, json!({})),
        step(
            "review: own of a node",
            NODE,
            "POST",
            &own,
            JSON,
            json!({"spec": {"resourceAttributes": {"verb": "create", "resource": "secrets"}}}),
        ),
        step(
            "review: own of a node, of a path",
            NODE,
            "POST",
            &own,
            JSON,
            json!({"spec": {"nonResourceAttributes": path.clone()}}),
        ),
        spec("local", &local, json!({"user": "u", "resourceAttributes": pods(NAMESPACE)})),
        spec("local of a group", &local, json!({"groups": ["system:masters"], "resourceAttributes": pods(NAMESPACE)})),
        spec("local of elsewhere", &local, json!({"user": "u", "resourceAttributes": pods("default")})),
        spec("local of a path", &local, json!({"user": "u", "nonResourceAttributes": path})),
        spec(
            "local of no namespace",
            &of("authorization", "localsubjectaccessreviews"),
            json!({"user": "u", "resourceAttributes": pods(NAMESPACE)}),
        ),
        post(
            "review: local of another namespace",
            &local,
            json!({"metadata": {"namespace": "default"}, "spec": {"user": "u", "resourceAttributes": pods(NAMESPACE)}}),
        ),
        spec("rules of no namespace", &rules, json!({})),
        spec("rules", &rules, json!({"namespace": NAMESPACE})),
        step("review: rules of a node", NODE, "POST", &rules, JSON, json!({"spec": {"namespace": NAMESPACE}})),
        spec("no token", &tokens, json!({})),
        spec("a token of nobody", &tokens, json!({"token": "nobody's", "audiences": ["a"]})),
        spec("an unknown field", &tokens, json!({"token": "nobody's", "nonsense": 1})),
        post("review: of oneself", &of("authentication", "selfsubjectreviews"), json!({"metadata": {"name": "x"}})),
    ]
}
