//! Definitions that are refused, and odd ones that are not.

use serde_json::{Value, json};

use super::{DEFINITIONS, Settles, Steps, called, definition, schema, version};
use crate::api_server::JSON;

pub(super) fn steps() -> Steps {
    let all = format!("{DEFINITIONS}?dryRun=All");
    let post =
        |name: &str, object: Value| (called(&format!("refused: {name}"), "POST", &all, JSON, object), Settles::Now);
    let of = |versions: Value| definition("odds", "Odd", versions);
    let selecting = |fields: Value| {
        let more = json!({"list": {"type": "array", "items": {"type": "string"}}, "flag": {"type": "boolean"},
            "num": {"type": "number"}, "map": {"type": "object", "additionalProperties": {"type": "string"}}});
        of(json!([version(
            "v1",
            true,
            json!({"selectableFields": fields, "schema": {"openAPIV3Schema": schema(more)}})
        )]))
    };
    let mut steps = Vec::new();
    for path in [
        "",
        ".",
        "spec.colour",
        ".spec.none",
        ".spec.list",
        ".spec.list[0]",
        ".spec.num",
        ".spec.map.x",
        ".spec.flag",
        ".metadata.name",
        ".kind",
        ".spec",
        ".spec['colour']",
        ".spec..colour",
        ".spec.colour.",
        ".status.phase",
        ".a]",
    ] {
        steps.push(post(&format!("selectable {path:?}"), selecting(json!([{"jsonPath": path}]))));
    }
    steps
        .push(post("selectable twice", selecting(json!([{"jsonPath": ".spec.colour"}, {"jsonPath": ".spec.colour"}]))));
    let (colour, size) = (json!([{"jsonPath": ".spec.colour"}]), json!([{"jsonPath": ".spec.size"}]));
    let other = json!({"openAPIV3Schema": schema(json!({"more": {"type": "string"}}))});
    let fields: Vec<Value> = (0..9).map(|n| json!({"jsonPath": format!(".spec.n{n}")})).collect();
    let many: Value =
        (0..9).map(|n| (format!("n{n}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>().into();
    let many = json!({"selectableFields": fields, "schema": {"openAPIV3Schema": schema(many)}});
    let hidden = json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string"}}}}});
    let bad = |name: &str| json!({"schema": {"openAPIV3Schema": {"type": "object", "properties": {name: {}}}}});
    let column =
        json!({"additionalPrinterColumns": [{"name": "", "type": "x", "jsonPath": "x", "format": "y"}, {"name": "a"}]});
    let scale = |path: &str| json!({"subresources": {"scale": {"specReplicasPath": path, "statusReplicasPath": ".spec.y", "labelSelectorPath": ".x"}}});
    let warned = |warning: &str| json!({"deprecated": true, "deprecationWarning": warning});
    for (name, versions) in [
        ("nine selectable", json!([version("v1", true, many)])),
        (
            "selectable metadata",
            json!([version(
                "v1",
                true,
                json!({"selectableFields": [{"jsonPath": ".metadata.name"}], "schema": {"openAPIV3Schema": hidden}})
            )]),
        ),
        (
            "selectable of one schema",
            json!([
                version("v1", true, json!({"selectableFields": colour})),
                version("v2", false, json!({"selectableFields": size}))
            ]),
        ),
        (
            "selectable of two schemas alike",
            json!([
                version("v1", true, json!({"selectableFields": colour})),
                version("v2", false, json!({"selectableFields": colour, "schema": other}))
            ]),
        ),
        (
            "selectable of two schemas",
            json!([
                version("v1", true, json!({"selectableFields": colour})),
                version("v2", false, json!({"selectableFields": size, "schema": other}))
            ]),
        ),
        ("a schema", json!([version("v1", true, bad("a"))])),
        ("a schema twice", json!([version("v1", true, bad("a")), version("v2", false, bad("a"))])),
        ("two schemas", json!([version("v1", true, bad("a")), version("v2", false, bad("b"))])),
        ("no schema", json!([version("v1", true, json!({"schema": null}))])),
        ("columns", json!([version("v1", true, column.clone())])),
        ("columns of one", json!([version("v1", true, column), version("v2", false, json!({}))])),
        ("a scale", json!([version("v1", true, scale("spec.x"))])),
        ("a scale of one", json!([version("v1", true, scale(".spec")), version("v2", false, json!({}))])),
        ("two of a name", json!([version("v1", true, json!({})), version("v1", false, json!({}))])),
        ("two that are stored", json!([version("v1", true, json!({})), version("v2", true, json!({}))])),
        ("none that is stored", json!([version("v1", false, json!({})), version("v2", false, json!({}))])),
        ("no versions", json!([])),
        ("a version", json!([version("V1", true, json!({}))])),
        ("an undue warning", json!([version("v1", true, json!({"deprecationWarning": "x"}))])),
        ("an empty warning", json!([version("v1", true, warned(""))])),
        ("a long warning", json!([version("v1", true, warned(&"x".repeat(257)))])),
        ("a warning of lines", json!([version("v1", true, warned("x\ny"))])),
    ] {
        steps.push(post(name, of(versions)));
    }
    for (name, names) in [
        ("no kind", json!({"plural": "odds", "kind": ""})),
        ("names", json!({"plural": "Odds", "kind": "O_", "shortNames": ["A"], "categories": ["X"]})),
        ("one kind", json!({"plural": "odds", "kind": "Odd", "listKind": "Odd"})),
    ] {
        let mut object = of(json!([version("v1", true, json!({}))]));
        object["spec"]["names"] = names;
        steps.push(post(name, object));
    }
    steps.extend(conversions(&all));
    steps
}

fn conversions(all: &str) -> Steps {
    let url = |url: &str| json!({"url": url});
    let service = |more: Value| {
        let mut service = json!({"namespace": "n", "name": "s"});
        for (name, field) in more.as_object().into_iter().flatten() {
            service[name] = field.clone();
        }
        json!({"service": service})
    };
    let of = |config: Value, versions: Value| json!({"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": versions}});
    let mut conversions = vec![
        json!({}),
        json!({"strategy": "X"}),
        json!({"strategy": "None", "webhook": {"conversionReviewVersions": []}}),
        json!({"strategy": "None", "webhook": {"clientConfig": {"url": "https://x"}, "conversionReviewVersions": ["v1"]}}),
        json!({"strategy": "Webhook"}),
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}}),
        json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://x"}}}),
        of(json!({}), json!(["v1"])),
        of(json!({"url": "https://x", "service": {"namespace": "n", "name": "s"}}), json!(["v1"])),
    ];
    for text in [
        "https://x.example/c",
        "http://x",
        "https:///x",
        "https://u:p@x/y",
        "https://x/y#z",
        "https://x/y?z=1",
        "%zz",
        "",
        "HTTPS://x:1",
    ] {
        conversions.push(of(url(text), json!(["v1"])));
    }
    for more in [
        json!({}),
        json!({"name": ""}),
        json!({"namespace": ""}),
        json!({"port": 0}),
        json!({"port": 70000}),
        json!({"path": "x"}),
        json!({"path": "//x"}),
        json!({"path": "/x/ y_"}),
        json!({"path": "/x/"}),
        json!({"path": "/"}),
        json!({"path": ""}),
    ] {
        conversions.push(of(service(more), json!(["v1"])));
    }
    for versions in [
        json!([]),
        json!(["v2"]),
        json!(["v2", "v1"]),
        json!(["v1", "v1"]),
        json!(["V1!"]),
        json!(["v1", "V1!"]),
        json!(["v1beta1"]),
    ] {
        conversions.push(of(url("https://x"), versions));
    }
    let definition = |conversion: Value| {
        let mut object =
            definition("odds", "Odd", json!([version("v1", true, json!({})), version("v2", false, json!({}))]));
        object["spec"]["conversion"] = conversion;
        object
    };
    let post = |(at, conversion): (usize, Value)| {
        (called(&format!("refused: conversion {at}"), "POST", all, JSON, definition(conversion)), Settles::Now)
    };
    conversions.into_iter().enumerate().map(post).collect()
}
