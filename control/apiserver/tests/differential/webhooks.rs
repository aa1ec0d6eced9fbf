//! Admission webhooks: the same requests with the same webhooks. What the clients are answered agrees, and what the webhooks
//! were asked, in the same order.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use windlass_tests::NODE_IP;

use crate::{
    Report,
    api_server::{ApiServer, JSON, Step},
    scenario::{APPLY, MERGE, pod, step, within},
    webhook_server::{Act, WebhookServer},
    with_both_servers,
};

/// How long the real server may take to see a configuration.
const PAUSE: Duration = Duration::from_secs(2);
const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1";

/// What webhooks do with a call: its path and its review.
type Decide = fn(&str, &Value) -> Act;

/// Some webhooks, and requests with them.
struct Case {
    name: &'static str,
    /// `mutating` or `validating`, the path of the webhook, and what differs from the usual one.
    hooks: Vec<(&'static str, &'static str, Value)>,
    decide: Decide,
    steps: Vec<Step>,
}

fn ask(name: &str, method: &'static str, path: &str, kind: &'static str, body: Value) -> Step {
    step(&format!("webhook: {name}"), "admin", method, path, kind, body)
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

fn adds(key: &str, value: &str) -> Act {
    Act::patch(&json!([{"op": "add", "path": format!("/data/{key}"), "value": value}]))
}

fn rules(group: &str, version: &str, resource: &str) -> Value {
    json!({"rules": [{"operations": ["*"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]}]})
}

fn merged(one: &Value, other: &Value) -> Value {
    let mut merged = one.clone();
    json_patch::merge(&mut merged, other);
    merged
}

fn cases() -> Vec<Case> {
    let maps = within("configmaps");
    let of_maps = rules("", "v1", "configmaps");
    vec![
        Case {
            name: "what they are asked",
            hooks: vec![("mutating", "/m", of_maps.clone()), ("validating", "/v", of_maps.clone())],
            decide: |_, _| Act::allow(),
            steps: vec![
                ask("create", "POST", &format!("{maps}?fieldManager=me&fieldValidation=Strict"), JSON, map("asked")),
                ask("create, dry", "POST", &format!("{maps}?dryRun=All"), JSON, map("dry")),
                ask(
                    "replace",
                    "PUT",
                    &format!("{maps}/asked"),
                    JSON,
                    json!({"metadata": {"name": "asked"}, "data": {"a": "c"}}),
                ),
                ask("merge", "PATCH", &format!("{maps}/asked?fieldManager=you"), MERGE, json!({"data": {"d": "e"}})),
                ask(
                    "apply",
                    "PATCH",
                    &format!("{maps}/asked?fieldManager=they&force=true"),
                    APPLY,
                    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "asked"}, "data": {"f": "g"}}),
                ),
                ask(
                    "apply what is new",
                    "PATCH",
                    &format!("{maps}/applied?fieldManager=they"),
                    APPLY,
                    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"f": "g"}}),
                ),
                ask(
                    "delete",
                    "DELETE",
                    &format!("{maps}/asked"),
                    JSON,
                    json!({"propagationPolicy": "Background", "gracePeriodSeconds": 0}),
                ),
                ask("delete without options", "DELETE", &format!("{maps}/applied"), JSON, Value::Null),
            ],
        },
        Case {
            name: "refusals",
            hooks: vec![("validating", "/v", of_maps.clone())],
            decide: |_, review| match review["request"]["name"].as_str().unwrap_or("") {
                "message" => Act::deny("because"),
                "reason" => Act::Answer(json!({"allowed": false, "status": {"reason": "Teapot", "code": 418}})),
                "low" => Act::Answer(
                    json!({"allowed": false, "status": {"message": "low", "code": 200, "status": "Success"}}),
                ),
                "details" => {
                    Act::Answer(json!({"allowed": false, "status": {"message": "m", "code": 409, "reason": "Conflict",
                    "details": {"name": "n", "kind": "k", "causes": [{"reason": "r", "message": "m", "field": "f"}]}}}))
                }
                "warned" => {
                    Act::Answer(json!({"allowed": true, "warnings": ["one", "two"], "auditAnnotations": {"a": "b"}}))
                }
                _ => Act::Answer(json!({"allowed": false})),
            },
            steps: ["message", "reason", "low", "details", "warned", "mute"]
                .map(|name| ask(&format!("refused: {name}"), "POST", &maps, JSON, map(name)))
                .into_iter()
                .collect(),
        },
        Case {
            name: "answers that are none",
            hooks: vec![("mutating", "/m", merged(&of_maps, &json!({"timeoutSeconds": 1})))],
            decide: |_, review| {
                let uid = review["request"]["uid"].clone();
                let raw = |response: Value| {
                    Act::Raw(
                        200,
                        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
                            .to_string(),
                    )
                };
                match review["request"]["name"].as_str().unwrap_or("") {
                    "absent" => Act::Raw(200, "{}".to_owned()),
                    "uid" => raw(json!({"uid": "other", "allowed": true})),
                    "kindless" => Act::Raw(200, json!({"response": {"uid": uid, "allowed": true}}).to_string()),
                    "typeless" => raw(json!({"uid": uid, "allowed": true, "patch": "W10="})),
                    "patchless" => raw(json!({"uid": uid, "allowed": true, "patchType": "JSONPatch"})),
                    "merge" => raw(json!({"uid": uid, "allowed": true, "patchType": "MergePatch", "patch": "W10="})),
                    "closed" => Act::HangUp,
                    "late" => Act::Late(Duration::from_secs(600), json!({"allowed": true})),
                    "code-500" => Act::Raw(500, "oops".to_owned()),
                    "code-404" => Act::Raw(404, String::new()),
                    "code-403" => Act::Raw(403, "not you".to_owned()),
                    "code-503" => Act::Raw(503, "busy".to_owned()),
                    "status" => Act::Raw(
                        400,
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "as a Status"})
                            .to_string(),
                    ),
                    _ => Act::allow(),
                }
            },
            steps: [
                "absent",
                "uid",
                "kindless",
                "typeless",
                "patchless",
                "merge",
                "late",
                "closed",
                "code-500",
                "code-404",
                "code-403",
                "code-503",
                "status",
            ]
            .map(|name| ask(&format!("no answer: {name}"), "POST", &maps, JSON, map(name)))
            .into_iter()
            .collect(),
        },
        Case {
            name: "failures that are ignored",
            hooks: vec![
                ("mutating", "/m", merged(&of_maps, &json!({"failurePolicy": "Ignore"}))),
                ("validating", "/v", merged(&of_maps, &json!({"failurePolicy": "Ignore"}))),
            ],
            decide: |_, review| match review["request"]["name"].as_str().unwrap_or("") {
                "denied" => Act::deny("still"),
                "broken" => Act::patch(&json!([{"op": "remove", "path": "/none"}])),
                "closed" => Act::HangUp,
                _ => Act::Raw(500, "oops".to_owned()),
            },
            steps: ["ignored", "denied", "broken", "closed"]
                .map(|name| ask(&format!("ignored: {name}"), "POST", &maps, JSON, map(name)))
                .into_iter()
                .collect(),
        },
        Case {
            name: "the order, and the second round",
            hooks: vec![
                ("mutating", "/c", merged(&of_maps, &json!({"reinvocationPolicy": "IfNeeded"}))),
                ("mutating", "/a", merged(&of_maps, &json!({"reinvocationPolicy": "IfNeeded"}))),
                ("mutating", "/b", of_maps.clone()),
            ],
            decide: |path, review| {
                let data = &review["request"]["object"]["data"];
                match (path, review["request"]["name"].as_str()) {
                    ("/c", Some("last")) if data["c"].is_null() => adds("c", "1"),
                    ("/a", Some("first")) if data["x"].is_null() => adds("x", "1"),
                    ("/b", Some("middle")) if data["b"].is_null() => adds("b", "1"),
                    (_, Some("all")) => {
                        adds(path.trim_matches('/'), &data.as_object().map_or(0, serde_json::Map::len).to_string())
                    }
                    _ => Act::allow(),
                }
            },
            steps: ["last", "first", "middle", "all", "none"]
                .map(|name| ask(&format!("order: {name}"), "POST", &maps, JSON, map(name)))
                .into_iter()
                .collect(),
        },
        Case {
            name: "conditions",
            hooks: vec![
                (
                    "mutating",
                    "/m",
                    merged(&of_maps, &conditions(&["object.metadata.name != 'skipped'", "object.data.a == 'b'"])),
                ),
                (
                    "validating",
                    "/v",
                    merged(
                        &of_maps,
                        &merged(
                            &conditions(&["request.userInfo.username != ''", "object.data.x == '1'"]),
                            &json!({"failurePolicy": "Ignore"}),
                        ),
                    ),
                ),
            ],
            decide: |_, _| Act::allow(),
            steps: vec![
                ask("condition: skipped", "POST", &maps, JSON, map("skipped")),
                ask("condition: seen", "POST", &maps, JSON, map("seen-by-one")),
                ask(
                    "condition: without a value",
                    "POST",
                    &maps,
                    JSON,
                    json!({"metadata": {"name": "keyless"}, "data": {"c": "d"}}),
                ),
                ask(
                    "condition: false and without a value",
                    "POST",
                    &maps,
                    JSON,
                    json!({"metadata": {"name": "skipped"}, "data": {"c": "d"}}),
                ),
                refused_condition("params.a == 1"),
                refused_condition("object.a = 1"),
                refused_condition("1 + 1"),
                refused_condition("request.uid == ''"),
                refused_condition("request.userInfo == 'a'"),
                refused_condition("object.name.matches('[')"),
                refused_condition("'a' + 1 == 'b' && [1, 'a'].size() > 0"),
            ],
        },
        Case {
            name: "changes",
            hooks: vec![(
                "mutating",
                "/m",
                merged(&rules("", "v1", "*"), &json!({"objectSelector": {"matchLabels": {"changed": "yes"}}})),
            )],
            decide: |_, review| {
                let patch = |operations: Value| Act::patch(&operations);
                match review["request"]["name"].as_str().unwrap_or("") {
                    "containers" => patch(
                        json!([{"op": "add", "path": "/spec/initContainers", "value": [{"name": "i", "image": "j:1", "x": 1}]}]),
                    ),
                    "invalid" => patch(json!([{"op": "remove", "path": "/spec/containers"}])),
                    "wrong" => patch(json!([{"op": "replace", "path": "/spec/containers", "value": 5}])),
                    "namespace" => patch(json!([{"op": "add", "path": "/metadata/namespace", "value": "other"}])),
                    "uid" => patch(json!([{"op": "add", "path": "/metadata/uid", "value": "a"}])),
                    "owners" => patch(
                        json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{"operation": "Odd"}]}]),
                    ),
                    "status" => patch(json!([{"op": "add", "path": "/status", "value": {"phase": "Running"}}])),
                    "labels" => patch(
                        json!([{"op": "remove", "path": "/metadata/labels/changed"}, {"op": "add", "path": "/metadata/labels/more", "value": "1"}]),
                    ),
                    "" => patch(json!([{"op": "add", "path": "/metadata/name", "value": "chosen"}])),
                    _ => Act::allow(),
                }
            },
            steps: ["containers", "invalid", "wrong", "namespace", "uid", "owners", "status", "labels"]
                .map(|name| {
                    let mut object = pod(name, json!({}));
                    object["metadata"]["labels"] = json!({"changed": "yes"});
                    ask(&format!("changed: {name}"), "POST", &within("pods"), JSON, object)
                })
                .into_iter()
                .chain([ask(
                    "changed: name",
                    "POST",
                    &maps,
                    JSON,
                    json!({"metadata": {"generateName": "g-", "labels": {"changed": "yes"}}}),
                )])
                .collect(),
        },
        Case {
            name: "subresources and other versions",
            hooks: vec![
                ("validating", "/status", rules("", "v1", "pods/*")),
                ("validating", "/scale", rules("*", "*", "*/scale")),
                ("mutating", "/events", rules("events.k8s.io", "v1", "events")),
                ("validating", "/exact", merged(&rules("autoscaling", "v1", "*"), &json!({"matchPolicy": "Exact"}))),
                ("validating", "/equivalent", rules("autoscaling", "v1", "*")),
                (
                    "validating",
                    "/namespaces",
                    merged(
                        &rules("", "v1", "namespaces"),
                        &json!({"namespaceSelector": {"matchLabels": {"seen": "yes"}}}),
                    ),
                ),
            ],
            decide: |path, _| match path {
                "/events" => Act::patch(&json!([{"op": "add", "path": "/note", "value": "changed"}])),
                _ => Act::allow(),
            },
            steps: subresources(),
        },
    ]
}

fn conditions(expressions: &[&str]) -> Value {
    let all: Vec<Value> = expressions
        .iter()
        .enumerate()
        .map(|(at, text)| json!({"name": format!("c{at}"), "expression": text}))
        .collect();
    json!({"matchConditions": all})
}

/// A configuration with a condition that cannot be compiled.
fn refused_condition(expression: &str) -> Step {
    let hook = merged(
        &json!({"name": "a.b.c", "clientConfig": {"url": "https://localhost/x"}, "sideEffects": "None", "admissionReviewVersions": ["v1"]}),
        &conditions(&[expression]),
    );
    let body = json!({"metadata": {"name": "refused"}, "webhooks": [hook]});
    ask(
        &format!("condition: {expression}"),
        "POST",
        &format!("{CONFIGURATIONS}/validatingwebhookconfigurations?dryRun=All"),
        JSON,
        body,
    )
}

fn subresources() -> Vec<Step> {
    let (deployments, autoscalers) = (
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    );
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "scaled"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let autoscaler = json!({"metadata": {"name": "hpa"}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
    let event = json!({"metadata": {"name": "event"}, "involvedObject": {"namespace": "default"}, "message": "m", "reason": "r", "type": "Normal"});
    let one = format!("{}/sub", within("pods"));
    vec![
        ask("sub: pod", "POST", &within("pods"), JSON, pod("sub", json!({}))),
        ask("sub: status", "PATCH", &format!("{one}/status"), MERGE, json!({"status": {"message": "m"}})),
        ask(
            "sub: eviction",
            "POST",
            &format!("{one}/eviction?dryRun=All"),
            JSON,
            json!({"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "sub"}}),
        ),
        ask(
            "sub: binding",
            "POST",
            &format!("{one}/binding"),
            JSON,
            json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "sub"}, "target": {"kind": "Node", "name": "n"}}),
        ),
        ask("sub: exec", "POST", &format!("{one}/exec?command=a&command=b&stdin=true&container=c"), JSON, Value::Null),
        ask("sub: attach", "POST", &format!("{one}/attach?stdout=false"), JSON, Value::Null),
        ask("sub: port-forward", "POST", &format!("{one}/portforward?ports=80"), JSON, Value::Null),
        ask("sub: deployment", "POST", deployments, JSON, deployment),
        ask("sub: scale", "PATCH", &format!("{deployments}/scaled/scale"), MERGE, json!({"spec": {"replicas": 3}})),
        ask("sub: event", "POST", &within("events"), JSON, event),
        ask("sub: autoscaler", "POST", autoscalers, JSON, autoscaler),
        ask(
            "sub: namespace",
            "POST",
            "/api/v1/namespaces",
            JSON,
            json!({"metadata": {"name": "seen", "labels": {"seen": "yes"}}}),
        ),
        ask(
            "sub: namespace is changed",
            "PATCH",
            "/api/v1/namespaces/seen",
            MERGE,
            json!({"metadata": {"labels": {"seen": "no"}}}),
        ),
    ]
}

/// A server with a webhook of its own.
pub(crate) struct Side<'a> {
    pub(crate) api: &'a ApiServer,
    pub(crate) webhook: WebhookServer,
}

impl<'a> Side<'a> {
    pub(crate) async fn new(api: &'a ApiServer) -> Self {
        Self { api, webhook: WebhookServer::start(NODE_IP, &[]).await }
    }

    async fn configure(&self, hooks: &[(&str, &str, Value)]) -> anyhow::Result<Vec<String>> {
        let mut made = Vec::new();
        for (kind, path, changes) in hooks {
            let name = path.trim_matches('/');
            let mut client_config = self.webhook.client_config(path);
            // A certificate is its own authority.
            if *path == "/v" {
                client_config["caBundle"] = json!(STANDARD.encode(&self.webhook.certificate));
            }
            let usual = json!({
                "name": format!("{name}.hook.example"), "clientConfig": client_config,
                "sideEffects": "None", "admissionReviewVersions": ["v1"],
            });
            let configuration =
                json!({"metadata": {"name": format!("{kind}-{name}")}, "webhooks": [merged(&usual, changes)]});
            let all = format!("{CONFIGURATIONS}/{kind}webhookconfigurations");
            let answer = self.api.ask(&ask("configuration", "POST", &all, JSON, configuration)).await?;
            anyhow::ensure!(answer["code"] == 201, "{}: {answer}", self.api.name);
            made.push(format!("{all}/{kind}-{name}"));
        }
        Ok(made)
    }

    /// An answer or a call without where the webhook of the side is.
    pub(crate) fn placeless(&self, value: &Value) -> anyhow::Result<Value> {
        let text = value.to_string().replace(&self.webhook.address.to_string(), "WEBHOOK");
        Ok(serde_json::from_str(&text)?)
    }

    /// The calls since the last question, without who has written: the administrators of the two have other names.
    fn calls(&self) -> anyhow::Result<Value> {
        let calls = self.webhook.calls().into_iter().map(|(path, mut review)| {
            if let Some(request) = review["request"].as_object_mut() {
                request.remove("userInfo");
            }
            json!({"path": path, "review": review})
        });
        // Validating webhooks are called in any order.
        let mut calls: Vec<Value> = calls.collect();
        calls.sort_by_key(|call| matches!(call["path"].as_str(), Some(path) if path.starts_with("/v")));
        self.placeless(&Value::Array(calls))
    }
}

pub(crate) fn webhooks_are_asked_alike() {
    with_both_servers(async |real, ours| {
        let mut report = Report::default();
        let (real, ours) = (Side::new(real).await, Side::new(ours).await);
        for case in cases() {
            let mut made = Vec::new();
            for side in [&real, &ours] {
                side.webhook.decide(case.decide);
                made = side.configure(&case.hooks).await?;
            }
            tokio::time::sleep(PAUSE).await;
            for side in [&real, &ours] {
                side.webhook.calls();
            }
            for step in &case.steps {
                report.request = format!("{}: {} {} {}", case.name, step.method, step.path, step.body);
                let (theirs, own) = (real.api.ask(step).await?, ours.api.ask(step).await?);
                report.compare(&step.name, &real.placeless(&theirs)?, &ours.placeless(&own)?);
                report.compare(&format!("{} (calls)", step.name), &real.calls()?, &ours.calls()?);
            }
            for side in [&real, &ours] {
                for path in &made {
                    side.api.ask(&ask("configuration goes", "DELETE", path, JSON, Value::Null)).await?;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        report.print();
        anyhow::ensure!(ours.webhook.connections() < report.asked / 2, "connections are not kept");
        report.assert_all_seen(|row| row.step.starts_with("webhook: "));
        Ok(())
    });
}
