use super::*;

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn mutation(mutation: Value) -> Value {
    json!({"mutations": [mutation]})
}

#[tokio::test]
async fn objects_are_changed_before_they_are_validated_and_stored() {
    let api = with_namespace().await;
    let spec = json!({
        "matchConstraints": {"resourceRules": [rule("apps", "v1", "deployments")]},
        "mutations": [
            apply("Object{metadata: Object.metadata{annotations: {'a': 'b'}}, spec: Object.spec{replicas: 1337}}"),
            patch("[JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('x/y'), value: string(object.spec.replicas)}]"),
        ],
    });
    mutates(&api, "p", &spec).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment =
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let stored = made(&api, DEPLOYMENTS, deployment.clone()).await;
    assert_eq!(stored["spec"]["replicas"], 1337);
    assert_eq!(stored["metadata"]["annotations"], json!({"a": "b", "x/y": "1337"}));
    // What is added has defaults, and is validated.
    let init = "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{initContainers: [Object.spec.template.spec.initContainers{name: 'i', image: 'j'}]}}}}";
    mutates(&api, "q", &merged(&spec, &mutation(apply(init)))).await;
    let stored = made(&api, DEPLOYMENTS, merged(&deployment, &json!({"metadata": {"name": "e"}}))).await;
    assert_eq!(stored["spec"]["template"]["spec"]["initContainers"][0]["terminationMessagePolicy"], "File");
    let bad = "Object{spec: Object.spec{replicas: -1}}";
    mutates(&api, "r", &merged(&spec, &mutation(apply(bad)))).await;
    let refused = call(&api, "POST", DEPLOYMENTS, merged(&deployment, &json!({"metadata": {"name": "f"}}))).await;
    assert_eq!((refused.code, &refused.body["reason"]), (422, &json!("Invalid")), "{}", refused.body);
    assert!(message(&refused).contains("spec.replicas"), "{}", refused.body);
}

#[tokio::test]
async fn each_sees_what_those_before_it_have_made() {
    let api = with_namespace().await;
    let adds = |key: &str| {
        mutation(patch(&format!("[JSONPatch{{op: 'add', path: '/data/{key}', value: string(size(object.data))}}]")))
    };
    // In the order of their names, whenever they came.
    mutates(&api, "b", &adds("second")).await;
    mutates(&api, "a", &adds("first")).await;
    let stored = made(&api, MAPS, map("m")).await;
    assert_eq!(stored["data"], json!({"a": "b", "first": "1", "second": "2"}));
    let owners = stored["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "what policies set has no owner: {owners:?}");
    assert!(owners[0]["fieldsV1"]["f:data"]["f:first"].is_null());
}

#[tokio::test]
async fn a_change_reinvokes_those_that_ask_for_it() {
    let api = with_namespace().await;
    let count = |key: &str, policy: &str| {
        let expression = format!(
            "[JSONPatch{{op: 'add', path: '/data/{key}', value: has(object.data.{key}) ? object.data.{key} + 'x' : 'x'}}]"
        );
        merged(&mutation(patch(&expression)), &json!({"reinvocationPolicy": policy}))
    };
    mutates(&api, "a", &count("again", "IfNeeded")).await;
    mutates(&api, "b", &count("once", "Never")).await;
    let stored = made(&api, MAPS, map("m")).await;
    assert_eq!(stored["data"], json!({"a": "b", "again": "xx", "once": "x"}));
}

#[tokio::test]
async fn failures_refuse_or_are_ignored() {
    let missing = "Object{data: Object.data{c: object.data.none}}";
    for (spec, wanted) in [
        (
            mutation(apply(missing)),
            "expression 'Object{data: Object.data{c: object.data.none}}' resulted in error: no such key: none",
        ),
        (
            mutation(apply("Object{data: Object.data{a: 1}}")),
            "error applying patch: failed to convert patch object to typed object: .data.a: expected string, got &value.valueUnstructured{Value:1}",
        ),
        (
            mutation(apply("Object{other: 1}")),
            "error applying patch: failed to convert patch object to typed object: .other: field not declared in schema",
        ),
        (
            mutation(apply("Object{metadata: Object.meta{}}")),
            "type mismatch: unexpected type name \"Object.meta\", expected \"Object.metadata\", which matches field name path from root Object type",
        ),
        (
            merged(
                &mutation(apply("Object{}")),
                &json!({"matchConditions": [{"name": "c", "expression": "object.data.none == '1'"}]}),
            ),
            "expression 'object.data.none == '1'' resulted in error: no such key: none",
        ),
    ] {
        for (failure, code) in [("Fail", 403), ("Ignore", 201)] {
            let api = with_namespace().await;
            mutates(&api, "p", &merged(&spec, &json!({"failurePolicy": failure}))).await;
            let reply = call(&api, "POST", MAPS, map("m")).await;
            assert_eq!(reply.code, code, "{}", reply.body);
            if code == 201 {
                assert_eq!(reply.body["data"], json!({"a": "b"}));
                continue;
            }
            let why = format!("policy 'p' with binding 'p-b' denied request: {wanted}");
            assert_eq!((message(&reply), &reply.body["reason"]), (why.as_str(), &json!("Invalid")));
            let details = json!({"name": "m", "kind": "configmaps", "causes": [{"message": why}]});
            assert_eq!(reply.body["details"], details);
        }
    }
}

#[tokio::test]
async fn a_patch_that_does_not_give_an_object_of_the_type_is_refused() {
    let api = with_namespace().await;
    let spec = mutation(patch("[JSONPatch{op: 'add', path: '/colour', value: 'red'}]"));
    mutates(&api, "p", &merged(&spec, &json!({"failurePolicy": "Ignore"}))).await;
    let refused = call(&api, "POST", MAPS, map("m")).await;
    let why = "Internal error occurred: strict decoding error: unknown field \"colour\"";
    assert_eq!((refused.code, message(&refused)), (500, why));
    let kind = mutation(patch("[JSONPatch{op: 'replace', path: '/kind', value: 'Secret'}]"));
    let path = format!("{POLICIES}/mutatingadmissionpolicies/p");
    assert_eq!(call(&api, "PATCH", &path, json!({"spec": kind})).await.code, 200);
    let refused = call(&api, "POST", MAPS, map("m")).await;
    let why = "Internal error occurred: failed to convert object: it may not become a v1 Secret";
    assert_eq!((refused.code, message(&refused)), (500, why));
}

#[tokio::test]
async fn a_scale_is_changed_by_its_own_type() {
    let api = with_namespace().await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    made(&api, DEPLOYMENTS, deployment).await;
    let spec = merged(
        &mutation(apply("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}")),
        &json!({"matchConstraints": {"resourceRules": [rule("apps", "v1", "deployments/scale")]}}),
    );
    mutates(&api, "p", &spec).await;
    let scaled = call(&api, "PATCH", &format!("{DEPLOYMENTS}/d/scale"), json!({"spec": {"replicas": 3}})).await;
    assert_eq!((scaled.code, &scaled.body["spec"]["replicas"]), (200, &json!(4)), "{}", scaled.body);
    assert_eq!(call(&api, "GET", &format!("{DEPLOYMENTS}/d"), Value::Null).await.body["spec"]["replicas"], 4);
}

#[tokio::test]
async fn a_failed_test_leaves_the_object_as_it_is() {
    let api = with_namespace().await;
    let spec = mutation(patch(
        "[JSONPatch{op: 'add', path: '/data/c', value: 'd'}, JSONPatch{op: 'test', path: '/data/a', value: 'x'}]",
    ));
    mutates(&api, "p", &spec).await;
    assert_eq!(made(&api, MAPS, map("m")).await["data"], json!({"a": "b"}));
}

#[tokio::test]
async fn policies_come_before_webhooks_and_validation_after_both() {
    let api = with_namespace().await;
    mutates(&api, "p", &mutation(apply("Object{data: {'c': 'd'}}"))).await;
    validates(&api, "v", &json!({"validations": [{"expression": "object.data.c == 'd'"}]}), &json!({})).await;
    assert_eq!(made(&api, MAPS, map("m")).await["data"], json!({"a": "b", "c": "d"}));
    // By an update as well, and by the Scale of what has one.
    let changed = call(&api, "PATCH", &format!("{MAPS}/m"), json!({"data": {"c": "x"}})).await;
    assert_eq!((changed.code, &changed.body["data"]["c"]), (200, &json!("d")));
}

#[tokio::test]
async fn expressions_are_compiled_when_they_are_written() {
    let api = with_namespace().await;
    let path = format!("{POLICIES}/mutatingadmissionpolicies");
    let usual = json!({
        "matchConstraints": {"resourceRules": [rule("", "v1", "configmaps")]}, "reinvocationPolicy": "Never",
    });
    for (spec, field, wanted) in [
        (
            mutation(apply("1")),
            "spec.mutations[0].applyConfiguration.expression",
            "Invalid value: \"1\": must evaluate to Object but got int",
        ),
        (
            mutation(patch(" 'a' ")),
            "spec.mutations[0].jsonPatch.expression",
            "Invalid value: \"'a'\": must evaluate to list(JSONPatch) but got string",
        ),
        (
            mutation(apply("Object{a: params.b}")),
            "spec.mutations[0].applyConfiguration.expression",
            "undeclared reference to 'params'",
        ),
        (
            merged(&mutation(apply("Object{}")), &json!({"variables": [{"name": "a", "expression": "Object{}"}]})),
            "spec.variables[0].expression",
            "undeclared reference to 'Object'",
        ),
        (
            mutation(apply("Object{a: variables.none}")),
            "spec.mutations[0].applyConfiguration.expression",
            "undefined field 'none'",
        ),
    ] {
        let policy = json!({"metadata": {"name": "p"}, "spec": merged(&usual, &spec)});
        let refused = call(&api, "POST", &path, policy).await;
        let cause = &refused.body["details"]["causes"][0];
        assert_eq!((refused.code, &cause["field"]), (422, &json!(field)), "{}", refused.body);
        assert!(cause["message"].as_str().unwrap().contains(wanted), "{}", refused.body);
    }
}

#[tokio::test]
async fn a_policy_against_everything_does_not_last() {
    let api = with_namespace().await;
    let rules =
        json!({"operations": ["CREATE", "UPDATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
    let spec = merged(&mutation(apply("Object{nothing: 1}")), &json!({"matchConstraints": {"resourceRules": [rules]}}));
    mutates(&api, "p", &spec).await;
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 403);
    let policy = format!("{POLICIES}/mutatingadmissionpolicies/p");
    assert_eq!(call(&api, "PATCH", &policy, json!({"metadata": {"labels": {"a": "b"}}})).await.code, 200);
    assert_eq!(call(&api, "DELETE", &policy, Value::Null).await.code, 200);
    made(&api, MAPS, map("m")).await;
}
