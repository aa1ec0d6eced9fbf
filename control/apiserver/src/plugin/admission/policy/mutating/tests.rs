//! What mutations make of objects. The tables are those of upstream's `json_patch_test.go`, `smd_test.go` and
//! `compilation_test.go`.

use serde_json::{Value, json};
use windlass_apimachinery::managed_fields::Type;
use windlass_cel::ResourceAttributes;

use super::mutator::Mutator;
use crate::{cel::Inputs, kinds::types, plugin::admission::policy::configuration::Evaluator};

/// What the mutations of a policy make of a Deployment, one after the other.
fn made(spec: &Value, object: &Value, old: &Value) -> Result<Value, String> {
    let (deployment, object_meta) = (types::built_in("apps/v1", "Deployment"), types::schema("meta/v1.ObjectMeta"));
    let ty = Type::new(deployment.node(), &object_meta);
    let mutator = Mutator::compile(spec);
    let mut object = object.clone();
    for mutation in &mutator.mutations {
        let inputs = Inputs {
            object: &object,
            old,
            request: &Value::Null,
            namespace: &Value::Null,
            params: &json!({"data": {"k1": "100"}}),
            authorizer: None,
            resource: ResourceAttributes::default(),
            effort: None,
        };
        object = mutator.apply(mutation, &inputs, ty)?;
    }
    Ok(object)
}

fn json_patch(expression: &str) -> Value {
    json!({"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]})
}

fn apply(expression: &str) -> Value {
    let applied = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
    json!({"mutations": [applied]})
}

/// A Deployment with a spec.
fn deployment(spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": spec})
}

fn labelled(labels: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"labels": labels}, "spec": {}})
}

fn with_containers(names: &[&str]) -> Value {
    let containers: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    deployment(json!({"template": {"spec": {"containers": containers}}}))
}

#[test]
fn operations_of_json_patches_are_applied() {
    let one = deployment(json!({"replicas": 1}));
    let containers = "/spec/template/spec/containers";
    let of_containers = |operation: &str| operation.replace("CONTAINERS", containers);
    for (expression, object, wanted) in [
        (
            r#"[JSONPatch{op: "test", path: "/spec/replicas", value: 100}, JSONPatch{op: "replace", path: "/spec/replicas", value: 3}]"#.to_owned(),
            one.clone(),
            one.clone(),
        ),
        (
            r#"[JSONPatch{op: "test", path: "/spec/replicas", value: 1}, JSONPatch{op: "replace", path: "/spec/replicas", value: 3}]"#.to_owned(),
            one.clone(),
            deployment(json!({"replicas": 3})),
        ),
        (r#"[JSONPatch{op: "remove", path: "/spec/replicas"}]"#.to_owned(), one.clone(), deployment(json!({}))),
        (
            r#"[JSONPatch{op: "remove", path: "/metadata/labels/y"}]"#.to_owned(),
            labelled(json!({"x": "1", "y": "1"})),
            labelled(json!({"x": "1"})),
        ),
        (
            of_containers(r#"[JSONPatch{op: "remove", path: "CONTAINERS/1"}]"#),
            with_containers(&["a", "b", "c"]),
            with_containers(&["a", "c"]),
        ),
        (
            r#"[JSONPatch{op: "copy", from: "/metadata/labels/x", path: "/metadata/labels/y"}]"#.to_owned(),
            labelled(json!({"x": "1"})),
            labelled(json!({"x": "1", "y": "1"})),
        ),
        (
            of_containers(r#"[JSONPatch{op: "copy", from: "CONTAINERS/0", path: "CONTAINERS/-"}]"#),
            with_containers(&["a", "b", "c"]),
            with_containers(&["a", "b", "c", "a"]),
        ),
        (
            r#"[JSONPatch{op: "move", from: "/metadata/labels/x", path: "/metadata/labels/y"}]"#.to_owned(),
            labelled(json!({"x": "1"})),
            labelled(json!({"y": "1"})),
        ),
        (
            r#"[JSONPatch{op: "add", path: "/metadata/labels", value: {"y": "2"}}]"#.to_owned(),
            labelled(json!({"x": "1"})),
            labelled(json!({"y": "2"})),
        ),
        (
            of_containers(r#"[JSONPatch{op: "add", path: "CONTAINERS/0", value: {"name": "x"}}]"#),
            with_containers(&["a"]),
            with_containers(&["x", "a"]),
        ),
        (
            r#"[JSONPatch{op: "replace", path: "/metadata/labels/x", value: "2"}]"#.to_owned(),
            labelled(json!({"y": "1"})),
            labelled(json!({"y": "1", "x": "2"})),
        ),
        (
            r#"[JSONPatch{op: "add", path: "/spec", value: Object.spec{selector: Object.spec.selector{}, replicas: 10}}]"#.to_owned(),
            deployment(json!({})),
            deployment(json!({"selector": {}, "replicas": 10})),
        ),
        (
            r#"[JSONPatch{op: "add", path: "/metadata/labels", value: {
                "op": JSONPatch{op: "opValue"}.op, "path": JSONPatch{path: "pathValue"}.path,
                "has": string(has(JSONPatch{op: "a"}.op)), "has-not": string(has(JSONPatch{}.op)),
                "same": string(JSONPatch{op: "add", value: 1} == JSONPatch{op: "add", value: 1}),
                "other": string(JSONPatch{op: "add"} == JSONPatch{op: "remove"})
            }}]"#.to_owned(),
            labelled(json!({})),
            labelled(json!({
                "op": "opValue", "path": "pathValue", "has": "true", "has-not": "false", "same": "true", "other": "false",
            })),
        ),
        (
            r#"[JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("k8s.io/x~y"), value: "true"}]"#.to_owned(),
            labelled(json!({})),
            labelled(json!({"k8s.io/x~y": "true"})),
        ),
        (
            of_containers(
                r#"[JSONPatch{op: "add", path: "CONTAINERS/-", value: Object.spec.template.spec.containers{
                    name: "x", ports: [Object.spec.template.spec.containers.ports{containerPort: 8080}]}}]"#,
            ),
            with_containers(&["a"]),
            deployment(json!({"template": {"spec": {"containers": [
                {"name": "a"}, {"name": "x", "ports": [{"containerPort": 8080}]},
            ]}}})),
        ),
        (r#"object.spec.replicas == 1 ? [JSONPatch{op: "replace", path: "/spec/replicas", value: null}] : []"#.to_owned(),
            one.clone(), deployment(json!({"replicas": null}))),
    ] {
        assert_eq!(made(&json_patch(&expression), &object, &Value::Null), Ok(wanted), "{expression}");
    }
}

#[test]
fn what_is_wrong_with_a_json_patch_is_said() {
    let of = |expression: &str| made(&json_patch(expression), &with_containers(&["a"]), &Value::Null).unwrap_err();
    let wrong = of(
        r#"[JSONPatch{op: "add", path: "/spec/template/spec/containers/-", value: Object.spec.template.spec.containers{
            name: "x", ports: [Object.spec.template.spec.containers.portsZ{containerPort: 8080}]}}]"#,
    );
    let mismatch = "type mismatch: unexpected type name \"Object.spec.template.spec.containers.portsZ\", expected \"Object.spec.template.spec.containers.ports\", which matches field name path from root Object type";
    assert_eq!(wrong, mismatch);
    let missing = of(r#"[JSONPatch{op: "replace", path: "/spec/template/spec/containers/-", value: {"name": "x"}}]"#);
    assert!(missing.starts_with("JSON Patch: "), "{missing}");
    assert_eq!(of("1"), "must evaluate to list(JSONPatch) but got int");
    assert!(of("[JSONPatch{op: 1}]").contains("expected type of field 'op' is 'string' but provided type is 'int'"));
    assert!(of("[JSONPatch{other: 1}]").contains("undefined field 'other'"));
    let unwritable = of(r#"[JSONPatch{op: "add", path: "/x", value: quantity("1")}]"#);
    assert!(unwritable.contains("could not marshal to JSON"), "{unwritable}");
}

fn volumes(volumes: Value) -> Value {
    deployment(json!({"template": {"spec": {"volumes": volumes}}}))
}

#[test]
fn apply_configurations_are_merged_by_the_type() {
    let replicas = |count: i64| deployment(json!({"replicas": count}));
    let env = |replicas: i64, env: Value| {
        let containers = json!([{"name": "nginx", "env": env}]);
        deployment(json!({"replicas": replicas, "template": {"spec": {"containers": containers}}}))
    };
    let twice = json!([{"name": "test", "value": "a"}, {"name": "test", "value": "b"}]);
    for (expression, object, old, wanted) in [
        (
            r#"Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
                volumes: [Object.spec.template.spec.volumes{name: "y"}]}}}}"#,
            volumes(json!([{"name": "x"}])),
            Value::Null,
            volumes(json!([{"name": "x"}, {"name": "y"}])),
        ),
        (
            r#"Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
                volumes: [Object.spec.template.spec.volumes{
                    name: "y", hostPath: Object.spec.template.spec.volumes.hostPath{path: "a"}}]}}}}"#,
            volumes(json!([{"name": "x"}, {"name": "y"}])),
            Value::Null,
            volumes(json!([{"name": "x"}, {"name": "y", "hostPath": {"path": "a"}}])),
        ),
        (
            "Object{spec: Object.spec{replicas: object.spec.replicas % 2 == 0?object.spec.replicas + 1:object.spec.replicas}}",
            replicas(2),
            Value::Null,
            replicas(3),
        ),
        ("Object{spec: Object.spec{replicas: oldObject.spec.replicas + 1}}", replicas(1), replicas(2), replicas(3)),
        (
            r#"Object{spec: Object.spec{replicas: 1, template: Object.spec.template{
                metadata: Object.spec.template.metadata{labels: {"app": "nginx"}},
                spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{
                    name: "nginx", image: "nginx:1.14.2",
                    ports: [Object.spec.template.spec.containers.ports{containerPort: 80}],
                    resources: Object.spec.template.spec.containers.resources{limits: {"cpu": "128M"}}}]}}}}"#,
            deployment(json!({})),
            Value::Null,
            deployment(json!({"replicas": 1, "template": {
                "metadata": {"labels": {"app": "nginx"}},
                "spec": {"containers": [{
                    "name": "nginx", "image": "nginx:1.14.2", "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": "128M"}},
                }]},
            }})),
        ),
        ("Object{spec: Object.spec{replicas: 3}}", env(1, twice.clone()), Value::Null, env(3, twice.clone())),
        (
            r#"Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
                containers: [Object.spec.template.spec.containers{name: "nginx",
                    env: [Object.spec.template.spec.containers.env{name: "test", value: "c"}]}]}}}}"#,
            env(1, json!([twice[0], twice[1], {"name": "foo", "value": "bar"}])),
            Value::Null,
            env(1, json!([{"name": "test", "value": "c"}, {"name": "foo", "value": "bar"}])),
        ),
        // A field that may be left out.
        (
            "Object{spec: Object.spec{?paused: optional.none(), ?replicas: optional.of(7)}}",
            replicas(1),
            Value::Null,
            replicas(7),
        ),
    ] {
        assert_eq!(made(&apply(expression), &object, &old), Ok(wanted), "{expression}");
    }
}

#[test]
fn what_is_wrong_with_an_apply_configuration_is_said_in_upstreams_words() {
    for (expression, wanted) in [
        (
            r#"Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {"l": "v"}}}}"#,
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector",
        ),
        (
            "Object{spec: Object.specx{replicas: 1}}",
            "type mismatch: unexpected type name \"Object.specx\", expected \"Object.spec\", which matches field name path from root Object type",
        ),
        (
            "Object{spec: Object.spec{replicasx: 1}}",
            "error applying patch: failed to convert patch object to typed object: .spec.replicasx: field not declared in schema",
        ),
        (
            r#"Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
                containers: [Object.spec.template.spec.containers{name: "c", args: ["a"]}]}}}}"#,
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.template.spec.containers[0].args",
        ),
        ("Object.spec.metadata{}", "must evaluate to Object but got Object.spec.metadata"),
        (
            "Object{spec: Object.spec{replicas: object.spec.none}}",
            "expression 'Object{spec: Object.spec{replicas: object.spec.none}}' resulted in error: no such key: none",
        ),
    ] {
        let object = deployment(json!({"replicas": 1}));
        assert_eq!(made(&apply(expression), &object, &Value::Null), Err(wanted.to_owned()), "{expression}");
    }
}

#[test]
fn mutations_follow_each_other_with_variables_and_parameters() {
    let patch = |expression: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    let applied =
        |expression: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
    let add = "Object{spec: Object.spec{replicas: object.spec.replicas + 100}}";
    let replace = r#"[JSONPatch{op: "replace", path: "/spec/replicas", value: object.spec.replicas + 10}]"#;
    let one = deployment(json!({"replicas": 1}));
    for (spec, count) in [
        (json!({"mutations": [applied(add), patch(replace)]}), 111),
        (json!({"mutations": [patch(replace), applied(add)]}), 111),
        (
            json!({
                "variables": [{"name": "desired", "expression": "10"}],
                "mutations": [applied("Object{spec: Object.spec{replicas: variables.desired + 1}}")],
            }),
            11,
        ),
        (
            json!({
                "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
                "mutations": [applied("Object{spec: Object.spec{replicas: int(params.data['k1'])}}")],
            }),
            100,
        ),
    ] {
        assert_eq!(made(&spec, &one, &Value::Null), Ok(deployment(json!({"replicas": count}))), "{spec}");
    }
}
