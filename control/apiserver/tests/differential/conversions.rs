//! Conversion webhooks: the same requests in two versions of a resource, with the same webhook. How often it is asked is not
//! compared: the real server converts each object of a list alone, and once more for its watch cache.

use serde_json::{Value, json};

use crate::{
    Report,
    api_server::{JSON, Step},
    definitions::PAUSE,
    scenario::{APPLY, MERGE, step},
    webhook_server::Act,
    webhooks::Side,
    with_both_servers,
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FIRST: &str = "/apis/diff.example/v1/namespaces/default/bolts";
const SECOND: &str = "/apis/diff.example/v2/namespaces/default/bolts";

fn ask(name: &str, method: &'static str, path: &str, kind: &'static str, body: Value) -> Step {
    step(&format!("conversion: {name}"), "admin", method, path, kind, body)
}

fn definition(client_config: &Value) -> Value {
    let version = |name: &str, field: &str, kind: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": format!(".spec.{field}")}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {field: {"type": kind}, "head": {"type": "string", "default": name}}},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
        }}}})
    };
    let webhook = json!({"clientConfig": client_config, "conversionReviewVersions": ["v1"]});
    json!({"metadata": {"name": "bolts.diff.example"}, "spec": {"group": "diff.example", "scope": "Namespaced",
        "names": {"plural": "bolts", "kind": "Bolt"},
        "versions": [version("v1", "size", "integer", true), version("v2", "length", "string", false)],
        "conversion": {"strategy": "Webhook", "webhook": webhook}}})
}

fn bolt(version: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("diff.example/{version}"), "kind": "Bolt", "metadata": {"name": name}, "spec": spec})
}

/// The size is a number in v1 and a text in v2; what the name says goes wrong.
fn decide(_: &str, review: &Value) -> Act {
    let request = &review["request"];
    let raw = |response: Value| {
        Act::Raw(
            200,
            json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response}).to_string(),
        )
    };
    let mut objects: Vec<Value> = request["objects"].as_array().cloned().unwrap_or_default();
    for object in &mut objects {
        object["apiVersion"] = request["desiredAPIVersion"].clone();
        if let Some(spec) = object["spec"].as_object_mut() {
            match (spec.remove("size"), spec.remove("length")) {
                (Some(size), _) => drop(spec.insert("length".to_owned(), json!(size.to_string()))),
                (_, Some(length)) => {
                    let size = length.as_str().and_then(|length| length.parse::<u64>().ok());
                    spec.insert("size".to_owned(), json!(size));
                }
                _ => {}
            }
        }
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        match name.as_str() {
            "kind" => object["kind"] = json!("Nut"),
            "version" => object["apiVersion"] = json!("diff.example/v3"),
            "uid" => object["metadata"]["uid"] = json!("x"),
            "name" => object["metadata"]["name"] = json!("x"),
            "namespace" => object["metadata"]["namespace"] = json!("x"),
            "number" => object["metadata"]["labels"] = json!({"a": 1}),
            "list" => object["metadata"]["annotations"] = json!([]),
            "label" => object["metadata"]["labels"] = json!({"a b": "c"}),
            "metadata" => drop(object.as_object_mut().map(|object| object.remove("metadata"))),
            "text" => object["metadata"] = json!("x"),
            "kindless" => drop(object.as_object_mut().map(|object| object.remove("kind"))),
            "labelled" => {
                object["metadata"] = json!({"name": "labelled", "namespace": "default",
                "uid": object["metadata"]["uid"], "labels": {"by": "webhook"}, "finalizers": ["a.example/b"]})
            }
            "unknown" => object["spec"]["more"] = json!(1),
            "absent" => return Act::Raw(200, "{}".to_owned()),
            "responseless" => {
                return Act::Raw(200, json!({"kind": review["kind"], "apiVersion": review["apiVersion"]}).to_string());
            }
            "other" => return raw(json!({"uid": "other", "result": {"status": "Success"}})),
            "failed" => return Act::Answer(json!({"result": {"status": "Failure", "message": "not today"}})),
            "silent" => return Act::Answer(json!({"result": {"status": "Failure"}})),
            "none" => return Act::Answer(json!({"result": {"status": "Success"}, "convertedObjects": []})),
            "code" => return Act::Raw(500, "broken".to_owned()),
            "hangup" => return Act::HangUp,
            _ => {}
        }
    }
    Act::Answer(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

fn good() -> Vec<Step> {
    let one = |version: &str, name: &str| format!("/apis/diff.example/{version}/namespaces/default/bolts/{name}");
    let apply = |name: &str, version: &str, manager: &str, object: Value| {
        ask(name, "PATCH", &format!("{}?fieldManager={manager}", one(version, "applied")), APPLY, object)
    };
    vec![
        ask("create in the other version", "POST", SECOND, JSON, bolt("v2", "a", json!({"length": "3"}))),
        ask("create in the stored version", "POST", FIRST, JSON, bolt("v1", "b", json!({"size": 4, "head": "x"}))),
        ask("read in the stored version", "GET", &one("v1", "a"), JSON, Value::Null),
        ask("read in the other version", "GET", &one("v2", "b"), JSON, Value::Null),
        ask("dry run", "POST", &format!("{SECOND}?dryRun=All"), JSON, bolt("v2", "dry", json!({"length": "3"}))),
        ask("list", "GET", SECOND, JSON, Value::Null),
        ask("page", "GET", &format!("{SECOND}?limit=1"), JSON, Value::Null),
        ask("select", "GET", &format!("{SECOND}?fieldSelector=spec.length%3D4"), JSON, Value::Null),
        ask("patch", "PATCH", &one("v2", "b"), MERGE, json!({"spec": {"length": "7"}})),
        ask("patch that changes nothing", "PATCH", &one("v2", "b"), MERGE, json!({"spec": {"length": "7"}})),
        ask("patch of a stored one", "PATCH", &one("v1", "b"), MERGE, json!({"spec": {"size": 8}})),
        ask("status", "PATCH", &format!("{}/status", one("v2", "b")), MERGE, json!({"status": {"phase": "Up"}})),
        apply("apply", "v1", "first", bolt("v1", "applied", json!({"size": 1}))),
        apply("apply with a conflict", "v2", "second", bolt("v2", "applied", json!({"length": "2"}))),
        apply("apply of the same", "v2", "second", bolt("v2", "applied", json!({"length": "1", "head": "h"}))),
        apply("apply without", "v2", "second", bolt("v2", "applied", json!({"length": "1"}))),
        ask("update of others' fields", "PATCH", &one("v1", "applied"), MERGE, json!({"spec": {"size": 9}})),
        apply("apply in the version of another", "v2", "third", bolt("v2", "applied", json!({"head": "t"}))),
        ask("labels of the webhook", "POST", FIRST, JSON, {
            let mut object = bolt("v1", "labelled", json!({"size": 1}));
            object["metadata"]["labels"] = json!({"a": "b"});
            object["metadata"]["annotations"] = json!({"a": "b"});
            object
        }),
        ask("labels of the webhook are read", "GET", &one("v2", "labelled"), JSON, Value::Null),
        ask("unknown fields of the webhook", "POST", FIRST, JSON, bolt("v1", "unknown", json!({"size": 1}))),
        ask("unknown fields of the webhook are read", "GET", &one("v2", "unknown"), JSON, Value::Null),
        ask("delete", "DELETE", &one("v2", "b"), JSON, Value::Null),
    ]
}

const WRONG: [&str; 18] = [
    "kind",
    "version",
    "uid",
    "name",
    "namespace",
    "number",
    "list",
    "label",
    "metadata",
    "text",
    "kindless",
    "absent",
    "responseless",
    "other",
    "failed",
    "silent",
    "none",
    "code",
];

fn wrong() -> Vec<Step> {
    let mut steps = Vec::new();
    for name in WRONG {
        let one = format!("{SECOND}/{name}");
        steps.push(ask(&format!("{name}: create"), "POST", FIRST, JSON, bolt("v1", name, json!({"size": 1}))));
        steps.push(ask(&format!("{name}: read"), "GET", &one, JSON, Value::Null));
        steps.push(ask(&format!("{name}: patch"), "PATCH", &one, MERGE, json!({"spec": {"length": "2"}})));
        steps.push(ask(&format!("{name}: delete"), "DELETE", &one, JSON, Value::Null));
        steps.push(ask(
            &format!("{name}: create in the other version"),
            "POST",
            SECOND,
            JSON,
            bolt("v2", name, json!({"length": "1"})),
        ));
        steps.push(ask(&format!("{name}: goes"), "DELETE", &format!("{FIRST}/{name}"), JSON, Value::Null));
    }
    steps
}

impl Side<'_> {
    async fn define(&self) -> anyhow::Result<()> {
        self.webhook.decide(decide);
        let definition = definition(&self.webhook.client_config("/convert"));
        let made = self.api.ask(&ask("definition", "POST", DEFINITIONS, JSON, definition)).await?;
        anyhow::ensure!(made["code"] == 201, "{}: {made}", self.api.name);
        let read = ask("definition", "GET", &format!("{DEFINITIONS}/bolts.diff.example"), JSON, Value::Null);
        for _ in 0..200 {
            let answer = self.api.ask(&read).await?;
            let conditions = answer["body"]["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        anyhow::bail!("{}: the definition is not established", self.api.name)
    }
}

pub(crate) fn objects_are_converted_alike() {
    with_both_servers(async |real, ours| {
        let mut report = Report::default();
        let (real, ours) = (Side::new(real).await, Side::new(ours).await);
        for side in [&real, &ours] {
            side.define().await?;
        }
        // The real server stalls what is created just after that.
        tokio::time::sleep(2 * PAUSE).await;
        for step in good().into_iter().chain(wrong()) {
            report.request = format!("{} {} {}", step.method, step.path, step.body);
            let (theirs, own) = (real.api.ask(&step).await?, ours.api.ask(&step).await?);
            report.compare(&step.name, &real.placeless(&theirs)?, &ours.placeless(&own)?);
        }
        report.print();
        report.assert_all_seen(|row| row.step.starts_with("conversion: "));
        Ok(())
    });
}
