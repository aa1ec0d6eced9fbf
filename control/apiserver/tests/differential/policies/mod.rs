//! Admission policies: the same requests with the same policies are answered alike, and so are policies that cannot be written.

mod cases;

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    Report,
    api_server::{JSON, Step},
    scenario::{MERGE, pod, step, within},
    with_both_servers,
};

/// How long the real server may take to compile a policy, which it does once a second, and to know a kind of parameters.
const PAUSE: Duration = Duration::from_secs(3);
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

/// Some policies with their bindings, and requests with them.
struct Case {
    name: &'static str,
    /// `mutating` or `validating`, and what differs from the usual policy and binding.
    policies: Vec<(&'static str, Value, Value)>,
    steps: Vec<Step>,
}

fn ask(name: &str, method: &'static str, path: &str, kind: &'static str, body: Value) -> Step {
    step(&format!("policy: {name}"), "admin", method, path, kind, body)
}

fn merged(one: &Value, other: &Value) -> Value {
    let mut merged = one.clone();
    json_patch::merge(&mut merged, other);
    merged
}

fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!({"operations": ["CREATE", "UPDATE"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]})
}

fn of(group: &str, version: &str, resource: &str) -> Value {
    json!({"matchConstraints": {"resourceRules": [rule(group, version, resource)]}})
}

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": value}})
}

fn creates(name: &str, value: &str) -> Step {
    ask(&format!("create {name}"), "POST", &within("configmaps"), JSON, map(name, value))
}

fn validation(validation: &Value) -> Value {
    json!({"validations": [validation]})
}

fn mutations(expressions: &[(&str, &str)]) -> Value {
    let all: Vec<Value> = expressions
        .iter()
        .map(|(kind, expression)| {
            let field = if *kind == "JSONPatch" { "jsonPatch" } else { "applyConfiguration" };
            json!({"patchType": kind, field: {"expression": expression}})
        })
        .collect();
    json!({"mutations": all})
}

fn usual(kind: &str) -> Value {
    if kind == "mutating" {
        merged(&of("", "v1", "configmaps"), &json!({"reinvocationPolicy": "Never"}))
    } else {
        of("", "v1", "configmaps")
    }
}

fn cases() -> Vec<Case> {
    let nothing = json!({});
    let warns = json!({"validationActions": ["Warn", "Audit"]});
    vec![
        Case {
            name: "violations",
            policies: vec![
                (
                    "validating",
                    validation(&json!({
                        "expression": "object.data.a != 'reason'", "reason": "Forbidden", "message": " because ",
                    })),
                    nothing.clone(),
                ),
                (
                    "validating",
                    validation(&json!({
                        "expression": "object.data.a != 'message'",
                        "messageExpression": "'not ' + object.data.a + ' of ' + request.name",
                    })),
                    nothing.clone(),
                ),
                ("validating", validation(&json!({"expression": "object.data.a != 'warned'"})), warns),
                (
                    "validating",
                    validation(&json!({"expression": "!has(object.data.b) || object.data.c == 'd'"})),
                    nothing.clone(),
                ),
                (
                    "validating",
                    json!({
                        "failurePolicy": "Ignore", "matchConditions": [{"name": "c", "expression": "object.data.a == 'ignored'"}],
                        "validations": [{"expression": "object.data.none == 'a'"}, {"expression": "object.data.a == 'x'"}],
                    }),
                    nothing.clone(),
                ),
            ],
            steps: ["fine", "reason", "message", "warned", "ignored"]
                .map(|value| creates(&format!("v-{value}"), value))
                .into_iter()
                .chain([
                    ask(
                        "without a value",
                        "POST",
                        &within("configmaps"),
                        JSON,
                        json!({"metadata": {"name": "v-b"}, "data": {"a": "x", "b": "c"}}),
                    ),
                    ask(
                        "change",
                        "PATCH",
                        &format!("{}/v-fine", within("configmaps")),
                        MERGE,
                        json!({"data": {"a": "message"}}),
                    ),
                    ask("deletion", "DELETE", &format!("{}/v-fine", within("configmaps")), JSON, Value::Null),
                ])
                .collect(),
        },
        Case {
            name: "parameters",
            policies: vec![
                (
                    "validating",
                    json!({
                        "paramKind": {"apiVersion": "v1", "kind": "Secret"},
                        "validations": [{"expression": "object.data.a != params.metadata.labels.forbidden"}],
                    }),
                    json!({"paramRef": {"selector": {"matchLabels": {"limits": "yes"}}, "parameterNotFoundAction": "Deny"}}),
                ),
                (
                    "validating",
                    json!({
                        "paramKind": {"apiVersion": "rules.example/v1", "kind": "None"},
                        "matchConstraints": {"resourceRules": [rule("", "v1", "services")]},
                        "validations": [{"expression": "true"}],
                    }),
                    json!({"paramRef": {"name": "a", "parameterNotFoundAction": "Allow"}}),
                ),
            ],
            steps: vec![
                creates("p-before", "x"),
                ask(
                    "parameter",
                    "POST",
                    &within("secrets"),
                    JSON,
                    json!({"metadata": {"name": "limit", "labels": {"limits": "yes", "forbidden": "bad"}}}),
                ),
                creates("p-good", "good"),
                creates("p-bad", "bad"),
                ask(
                    "unknown kind",
                    "POST",
                    &within("services"),
                    JSON,
                    json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}),
                ),
            ],
        },
        Case {
            name: "mutations",
            policies: vec![
                (
                    "mutating",
                    mutations(&[
                        ("ApplyConfiguration", "Object{data: {'applied': object.data.a}}"),
                        (
                            "JSONPatch",
                            "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}, JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('a/b'), value: 'yes'}]",
                        ),
                    ]),
                    nothing.clone(),
                ),
                (
                    "mutating",
                    merged(
                        &of("", "v1", "pods"),
                        &mutations(&[(
                            "ApplyConfiguration",
                            "Object{spec: Object.spec{initContainers: [Object.spec.initContainers{name: 'i', image: 'j'}]}}",
                        )]),
                    ),
                    nothing.clone(),
                ),
                (
                    "mutating",
                    merged(
                        &json!({"reinvocationPolicy": "IfNeeded"}),
                        &mutations(&[(
                            "JSONPatch",
                            "[JSONPatch{op: 'add', path: '/data/again', value: has(object.data.again) ? object.data.again + 'x' : 'x'}]",
                        )]),
                    ),
                    nothing.clone(),
                ),
            ],
            steps: vec![
                creates("m-one", "1"),
                ask("pod", "POST", &within("pods"), JSON, pod("m-pod", json!({}))),
                ask("change", "PATCH", &format!("{}/m-one", within("configmaps")), MERGE, json!({"data": {"a": "2"}})),
            ],
        },
        Case {
            name: "mutations that fail",
            policies: [
                ("atomic", "ApplyConfiguration", "Object{spec: Object.spec{selector: {'a': 'c'}}}"),
                ("type", "ApplyConfiguration", "Object{spec: Object.wrong{}}"),
                ("field", "ApplyConfiguration", "Object{spec: Object.spec{colour: 'red'}}"),
                ("value", "ApplyConfiguration", "Object{spec: Object.spec{type: object.spec.none}}"),
                ("unknown", "JSONPatch", "[JSONPatch{op: 'add', path: '/spec/colour', value: 'red'}]"),
                ("tested", "JSONPatch", "[JSONPatch{op: 'test', path: '/spec/clusterIP', value: 'x'}]"),
            ]
            .map(|(name, kind, expression)| {
                let condition = json!([{"name": "c", "expression": format!("object.metadata.name == 'f-{name}'")}]);
                let spec = merged(&of("", "v1", "services"), &json!({"matchConditions": condition}));
                ("mutating", merged(&spec, &mutations(&[(kind, expression)])), nothing.clone())
            })
            .into_iter()
            .collect(),
            steps: ["atomic", "type", "field", "value", "unknown", "tested"]
                .map(|name| {
                    let spec = json!({"clusterIP": "None", "selector": {"a": "b"}});
                    let service = json!({"metadata": {"name": format!("f-{name}")}, "spec": spec});
                    ask(&format!("fails: {name}"), "POST", &within("services"), JSON, service)
                })
                .into_iter()
                .collect(),
        },
        cases::evaluation(),
        cases::matching(),
        cases::metadata(),
        cases::subresources(),
        cases::custom_resources(),
        Case { name: "policies that cannot be written", policies: Vec::new(), steps: cases::refused() },
    ]
}

pub(crate) fn policies_are_judged_alike() {
    with_both_servers(async |real, ours| {
        let mut report = Report::default();
        for side in [real, ours] {
            let definition = cases::definition();
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let answer = side.ask(&ask("definition", "POST", path, JSON, definition)).await?;
            anyhow::ensure!(answer["code"] == 201, "{}: {answer}", side.name);
        }
        for case in cases() {
            let mut made = Vec::new();
            for (at, (kind, spec, binding)) in case.policies.iter().enumerate() {
                let name = format!("p{at}");
                let all = |what: &str| format!("{POLICIES}/{kind}{what}");
                let policy = json!({"metadata": {"name": name}, "spec": merged(&usual(kind), spec)});
                let mut bound = json!({"policyName": name});
                if *kind == "validating" {
                    bound["validationActions"] = json!(["Deny"]);
                }
                let bound = json!({"metadata": {"name": name}, "spec": merged(&bound, binding)});
                for (path, body) in [(all("admissionpolicies"), policy), (all("admissionpolicybindings"), bound)] {
                    for side in [real, ours] {
                        let answer = side.ask(&ask("configuration", "POST", &path, JSON, body.clone())).await?;
                        anyhow::ensure!(answer["code"] == 201, "{}: {answer}", side.name);
                    }
                    made.push(format!("{path}/{name}"));
                }
            }
            tokio::time::sleep(PAUSE).await;
            for step in &case.steps {
                report.request = format!("{}: {} {} {}", case.name, step.method, step.path, step.body);
                let (theirs, own) = (real.ask(step).await?, ours.ask(step).await?);
                report.compare(&step.name, &theirs, &own);
            }
            for path in &made {
                for side in [real, ours] {
                    side.ask(&ask("configuration goes", "DELETE", path, JSON, Value::Null)).await?;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        report.print();
        report.assert_all_seen(|row| row.step.starts_with("policy: "));
        Ok(())
    });
}
