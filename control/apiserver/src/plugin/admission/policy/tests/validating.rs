use super::*;
use crate::store::{Expected, Key, Write};

fn validation(expression: &str) -> Value {
    json!({"validations": [{"expression": expression}]})
}

/// The conformance test's policy: its message does not evaluate, as it adds a text and a number.
#[tokio::test]
async fn a_violation_refuses_with_reason_and_cause() {
    let api = with_namespace().await;
    let spec = json!({
        "matchConstraints": {"resourceRules": [rule("apps", "v1", "deployments")]},
        "variables": [{"name": "replicas", "expression": "object.spec.replicas"}],
        "validations": [{
            "expression": "variables.replicas > 1 && variables.replicas % 2 == 0",
            "messageExpression": "'wants more than ' + object.spec.replicas",
        }],
    });
    validates(&api, "p", &spec, &json!({})).await;
    let deployment = |name: &str, replicas: i64| {
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        json!({"metadata": {"name": name}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template,
        }})
    };
    let refused = call(&api, "POST", DEPLOYMENTS, deployment("one", 1)).await;
    let why = "ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: failed expression: variables.replicas > 1 && variables.replicas % 2 == 0";
    assert_eq!((refused.code, &refused.body["reason"]), (422, &json!("Invalid")));
    assert_eq!(message(&refused), format!("deployments.apps \"one\" is forbidden: {why}"));
    let details = json!({"name": "one", "group": "apps", "kind": "deployments", "causes": [{"message": why}]});
    assert_eq!(refused.body["details"], details);
    made(&api, DEPLOYMENTS, deployment("two", 2)).await;
    let changed = call(&api, "PATCH", &format!("{DEPLOYMENTS}/two"), json!({"spec": {"replicas": 3}})).await;
    assert_eq!(changed.code, 422, "{}", changed.body);
    // Another resource is none of its business.
    made(&api, MAPS, map("m")).await;
}

#[tokio::test]
async fn reasons_have_their_codes() {
    for (reason, code) in [("Forbidden", 403), ("Invalid", 422), ("RequestEntityTooLarge", 413)] {
        let api = with_namespace().await;
        let spec = json!({"validations": [{"expression": "false", "message": "no", "reason": reason}]});
        validates(&api, "p", &spec, &json!({})).await;
        let refused = call(&api, "POST", MAPS, map("m")).await;
        assert_eq!((refused.code, &refused.body["reason"]), (code, &json!(reason)), "{}", refused.body);
    }
}

#[tokio::test]
async fn a_binding_says_what_follows() {
    let api = with_namespace().await;
    validates(&api, "p", &validation("false"), &json!({"validationActions": ["Warn", "Audit"]})).await;
    let made = call(&api, "POST", MAPS, map("m")).await;
    assert_eq!(made.code, 201);
    let warning =
        "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-b': failed expression: false\"";
    assert_eq!(made.warnings, [warning]);
    let page = api.metrics().page(windlass_kit::prometheus::Format::Plain);
    for action in ["warn", "audit"] {
        let labels =
            format!("policy=\"p\",policy_binding=\"p-b\",error_type=\"invalid_error\",enforcement_action=\"{action}\"");
        assert!(page.contains(&format!("apiserver_validating_admission_policy_check_total{{{labels}}} 1")), "{page}");
    }
    // Without a binding it has no effect.
    let path = format!("{POLICIES}/validatingadmissionpolicybindings/p-b");
    assert_eq!(call(&api, "DELETE", &path, Value::Null).await.code, 200);
    assert_eq!(call(&api, "POST", MAPS, map("n")).await.warnings, [""; 0]);
}

#[tokio::test]
async fn rules_and_selectors_of_policy_and_binding_say_for_what_it_is() {
    let api = with_namespace().await;
    let rules = json!({"matchConstraints": {
        "resourceRules": [merged(&rule("", "*", "*"), &json!({"resourceNames": ["named", "out"]}))],
        "excludeResourceRules": [rule("", "v1", "secrets")],
        "namespaceSelector": {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]},
    }});
    let labelled = json!({"metadata": {"name": "skipped", "labels": {"skip": "yes"}}});
    made(&api, "/api/v1/namespaces", labelled).await;
    let binding = json!({"matchResources": {"objectSelector": {"matchLabels": {"guarded": "yes"}}}});
    validates(&api, "p", &merged(&rules, &validation("false")), &binding).await;
    let guarded = |name: &str| json!({"metadata": {"name": name, "labels": {"guarded": "yes"}}});
    let out = "/api/v1/namespaces/skipped/configmaps";
    for (path, object, code) in [
        (MAPS, guarded("named"), 422),
        (MAPS, guarded("other"), 201),
        (MAPS, map("named"), 201),
        ("/api/v1/namespaces/n/secrets", guarded("named"), 201),
        (out, guarded("named"), 201),
        ("/api/v1/namespaces", guarded("out"), 422),
    ] {
        let reply = call(&api, "POST", path, object.clone()).await;
        assert_eq!(reply.code, code, "{path} {object}: {}", reply.body);
    }
}

#[tokio::test]
async fn an_equivalent_resource_is_shown_in_the_version_of_the_rule() {
    let api = with_namespace().await;
    let spec = json!({
        "matchConstraints": {"resourceRules": [rule("events.k8s.io", "v1", "events")]},
        "validations": [{"expression": "object.note != 'bad' && request.kind.group == 'events.k8s.io'"}],
    });
    validates(&api, "p", &spec, &json!({})).await;
    let event = |name: &str, message: &str| json!({"metadata": {"name": name, "namespace": "n"}, "involvedObject": {"namespace": "n"}, "message": message, "reason": "r", "type": "Normal"});
    let path = "/api/v1/namespaces/n/events";
    made(&api, path, event("good", "good")).await;
    assert_eq!(call(&api, "POST", path, event("bad", "bad")).await.code, 422);
}

#[tokio::test]
async fn the_namespace_and_the_old_object_are_known() {
    let api = with_namespace().await;
    let patch = json!({"metadata": {"labels": {"frozen": "yes"}}});
    let spec = validation(
        "request.operation != 'UPDATE' || !('frozen' in namespaceObject.metadata.labels) || object.data == oldObject.data",
    );
    validates(&api, "p", &spec, &json!({})).await;
    made(&api, MAPS, map("m")).await;
    let one = format!("{MAPS}/m");
    let change = |value: &str| json!({"data": {"a": value}});
    // The namespace has one label, that of its name.
    assert_eq!(call(&api, "PATCH", &one, change("c")).await.code, 200);
    assert_eq!(call(&api, "PATCH", "/api/v1/namespaces/n", patch).await.code, 200);
    assert_eq!(call(&api, "PATCH", &one, change("d")).await.code, 422);
    assert_eq!(call(&api, "PATCH", &one, json!({"metadata": {"labels": {"x": "y"}}})).await.code, 200);
}

#[tokio::test]
async fn parameters_are_read_as_the_binding_says() {
    let api = with_namespace().await;
    made(&api, "/api/v1/namespaces", json!({"metadata": {"name": "params"}})).await;
    let with_kind = merged(
        &validation("params == null || object.data.a != params.data.forbidden"),
        &json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}),
    );
    let of = |reference: Value| json!({"paramRef": merged(&json!({"parameterNotFoundAction": "Deny"}), &reference)});
    let elsewhere = "/api/v1/namespaces/params/configmaps";
    let binding = of(json!({"namespace": "params", "selector": {"matchLabels": {"limits": "yes"}}}));
    validates(&api, "p", &with_kind, &binding).await;
    let try_it = async |name: &str, value: &str| {
        let object = json!({"metadata": {"name": name}, "data": {"a": value}});
        let reply = call(&api, "POST", MAPS, object).await;
        (reply.code, message(&reply).to_owned())
    };
    let (code, why) = try_it("m", "a").await;
    assert_eq!(
        (code, why.as_str()),
        (
            422,
            "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
        )
    );
    // That of another binding is not needed: none found is fine.
    let path = format!("{POLICIES}/validatingadmissionpolicybindings/p-b");
    let allow = json!({"spec": {"paramRef": {"parameterNotFoundAction": "Allow"}}});
    assert_eq!(call(&api, "PATCH", &path, allow).await.code, 200);
    assert_eq!(try_it("m", "a").await.0, 201);
    // Each of several is asked. They are themselves ConfigMaps in a namespace.
    for (name, forbidden) in [("one", "a"), ("two", "b")] {
        let param = json!({"metadata": {"name": name, "labels": {"limits": "yes"}}, "data": {"forbidden": forbidden, "a": "x"}});
        made(&api, elsewhere, param).await;
    }
    assert_eq!(try_it("n1", "a").await.0, 422);
    assert_eq!(try_it("n2", "b").await.0, 422);
    assert_eq!(try_it("n3", "c").await.0, 201);
    // Without a namespace that of the object counts, where there is none of the name.
    let named = json!({"spec": {"paramRef": {"name": "one", "namespace": null, "selector": null}}});
    assert_eq!(call(&api, "PATCH", &path, named).await.code, 200);
    assert_eq!(try_it("n4", "a").await.0, 201);
    let unset = json!({"spec": {"paramRef": null}});
    assert_eq!(call(&api, "PATCH", &path, unset).await.code, 200);
    assert_eq!(try_it("n5", "a").await.0, 201);
}

#[tokio::test]
async fn parameters_that_cannot_be_had_are_a_failure() {
    for (kind, reference, resource, wanted) in [
        (
            json!({"apiVersion": "rules.example/v1", "kind": "Limit"}),
            json!({"name": "a"}),
            rule("", "v1", "configmaps"),
            "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'rules.example/v1, Kind=Limit'",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Node"}),
            json!({"name": "a", "namespace": "n"}),
            rule("", "v1", "configmaps"),
            "ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: failed to configure binding: paramRef.namespace must not be provided for a cluster-scoped `paramKind`",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Secret"}),
            json!({"name": "a"}),
            rule("scheduling.k8s.io", "v1", "priorityclasses"),
            "ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: failed to configure binding: cannot use namespaced paramRef in policy binding that matches cluster-scoped resources",
        ),
    ] {
        for (failure, code) in [("Fail", 422), ("Ignore", 201)] {
            let api = with_namespace().await;
            let spec = json!({
                "failurePolicy": failure, "paramKind": kind, "matchConstraints": {"resourceRules": [resource]},
                "validations": [{"expression": "true"}],
            });
            let binding = json!({"paramRef": merged(&json!({"parameterNotFoundAction": "Deny"}), &reference)});
            validates(&api, "p", &spec, &binding).await;
            let is_class = resource["apiGroups"][0] != "";
            let reply = if is_class {
                let class = json!({"metadata": {"name": "c"}, "value": 1});
                call(&api, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", class).await
            } else {
                call(&api, "POST", MAPS, map("m")).await
            };
            assert_eq!(reply.code, code, "{}", reply.body);
            assert!(code == 201 || message(&reply).ends_with(wanted), "{}", reply.body);
        }
    }
}

#[tokio::test]
async fn what_has_no_value_is_a_failure() {
    for (failure, code) in [("Fail", 422), ("Ignore", 201)] {
        let api = with_namespace().await;
        let spec = merged(&validation("object.data.c == 'd'"), &json!({"failurePolicy": failure}));
        validates(&api, "p", &spec, &json!({})).await;
        let reply = call(&api, "POST", MAPS, map("m")).await;
        assert_eq!(reply.code, code, "{}", reply.body);
        let why = "expression 'object.data.c == 'd'' resulted in error: no such key: c";
        assert!(code == 201 || message(&reply).ends_with(why), "{}", reply.body);
    }
}

#[tokio::test]
async fn expressions_may_ask_what_the_user_may_do() {
    let api = with_namespace().await;
    let spec = json!({
        "matchConditions": [{"name": "c", "expression": "!authorizer.requestResource.check('breakglass').allowed()"}],
        "validations": [{"expression": "false"}],
    });
    validates(&api, "p", &spec, &json!({})).await;
    // The tests' user may do everything.
    made(&api, MAPS, map("m")).await;
    let account =
        "authorizer.serviceAccount('n', 'a').group('').resource('pods').namespace('n').check('get').allowed()";
    validates(&api, "q", &validation(account), &json!({})).await;
    assert_eq!(call(&api, "POST", MAPS, map("n")).await.code, 422);
}

/// A policy that refuses everything can be taken away again, and does not refuse the questions without which nobody can do so.
#[tokio::test]
async fn a_policy_against_everything_does_not_last() {
    let api = with_namespace().await;
    let rules = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
    let spec = merged(&validation("false"), &json!({"matchConstraints": {"resourceRules": [rules]}}));
    made(&api, MAPS, map("before")).await;
    validates(&api, "p", &spec, &json!({})).await;
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 422);
    assert_eq!(call(&api, "DELETE", &format!("{MAPS}/before"), Value::Null).await.code, 422);
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}});
    assert_eq!(call(&api, "POST", "/apis/coordination.k8s.io/v1/namespaces/n/leases", lease).await.code, 422);
    // Webhooks' configurations are resources as any other to policies.
    let webhooks = format!("{POLICIES}/validatingwebhookconfigurations");
    assert_eq!(call(&api, "POST", &webhooks, json!({"metadata": {"name": "w"}})).await.code, 422);
    let review = json!({"spec": {"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    made(&api, "/apis/authorization.k8s.io/v1/subjectaccessreviews", review).await;
    let policy = format!("{POLICIES}/validatingadmissionpolicies/p");
    assert_eq!(call(&api, "PATCH", &policy, json!({"metadata": {"labels": {"a": "b"}}})).await.code, 200);
    assert_eq!(call(&api, "DELETE", &policy, Value::Null).await.code, 200);
    made(&api, MAPS, map("m")).await;
    assert_eq!(
        call(&api, "DELETE", &format!("{POLICIES}/validatingadmissionpolicybindings/p-b"), Value::Null).await.code,
        200
    );
}

#[tokio::test]
async fn deletions_and_connections_are_validated_as_well() {
    let api = with_namespace().await;
    let rules = merged(&rule("", "v1", "configmaps"), &json!({"operations": ["DELETE"]}));
    let spec = json!({
        "matchConstraints": {"resourceRules": [rules]},
        "validations": [{"expression": "object == null && oldObject.metadata.name != 'kept'"}],
    });
    validates(&api, "p", &spec, &json!({})).await;
    for (name, code) in [("kept", 422), ("gone", 200)] {
        made(&api, MAPS, map(name)).await;
        assert_eq!(call(&api, "DELETE", &format!("{MAPS}/{name}"), Value::Null).await.code, code, "{name}");
    }
}

/// None can be written; what is stored in another way may be anything.
#[tokio::test]
async fn an_action_that_nobody_knows_denies() {
    let api = with_namespace().await;
    validates(&api, "p", &validation("!('bad' in object.data)"), &json!({})).await;
    let bindings = api.store().resource("validatingadmissionpolicybindings.admissionregistration.k8s.io");
    let key = Key { namespace: String::new(), name: "p-b".to_owned() };
    for (at, actions, why) in [
        (0, json!(["Refuse"]), "unrecognized evaluation decision \"Refuse\""),
        (1, json!(["Warn", "deny"]), "unrecognized evaluation decision \"deny\""),
        (2, json!(["Audit", 7]), "unrecognized evaluation decision \"7\""),
        (3, json!([]), "unrecognized evaluation decision \"[]\""),
        (4, json!("Deny"), "failed expression: !('bad' in object.data)"),
        (5, Value::Null, "unrecognized evaluation decision \"null\""),
    ] {
        let refused = call(
            &api,
            "PATCH",
            &format!("{POLICIES}/validatingadmissionpolicybindings/p-b"),
            json!({"spec": {"validationActions": actions}}),
        )
        .await;
        assert!(refused.code >= 400, "{actions}: {}", refused.body);
        let stored = api.store().get(bindings, &key).unwrap();
        let mut binding = stored.value();
        binding["spec"]["validationActions"] = actions.clone();
        let (expected, value) = (Expected::Revision(stored.revision), Some(binding));
        let (guards, companions) = (Vec::new(), Vec::new());
        let write = Write { resource: bindings, key: key.clone(), expected, value, guards, companions };
        api.store().write(write).await.unwrap();
        made(&api, MAPS, map(&format!("good-{at}"))).await;
        let bad = json!({"metadata": {"name": format!("bad-{at}")}, "data": {"bad": "v"}});
        let denied = call(&api, "POST", MAPS, bad).await;
        assert_eq!(denied.code, 422, "{actions}: {}", denied.body);
        assert!(message(&denied).ends_with(why), "{actions}: {}", denied.body);
    }
}

#[tokio::test]
async fn expressions_are_compiled_when_they_are_written() {
    let api = with_namespace().await;
    let path = format!("{POLICIES}/validatingadmissionpolicies");
    let rules = json!({"resourceRules": [rule("", "v1", "configmaps")]});
    for (spec, field, wanted) in [
        (
            validation("object.a = 1"),
            "spec.validations[0].expression",
            "compilation failed: ERROR: <input>:1:10: Syntax error",
        ),
        (validation("1 + 1"), "spec.validations[0].expression", "must evaluate to bool but got int"),
        (validation("params.a == 1"), "spec.validations[0].expression", "undeclared reference to 'params'"),
        (validation("variables.a == 1"), "spec.validations[0].expression", "undeclared reference to 'variables'"),
        (
            merged(&validation("variables.b"), &json!({"variables": [{"name": "a", "expression": "true"}]})),
            "spec.validations[0].expression",
            "undefined field 'b'",
        ),
        (
            merged(&validation("true"), &json!({"variables": [{"name": "a", "expression": "1 + 'a'"}]})),
            "spec.variables[0].expression",
            "found no matching overload for '_+_' applied to '(int, string)'",
        ),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "1"}]}),
            "spec.validations[0].messageExpression",
            "must evaluate to string but got int",
        ),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "string(authorizer.group('') == null)"}]}),
            "spec.validations[0].messageExpression",
            "undeclared reference to 'authorizer'",
        ),
        (
            json!({"auditAnnotations": [{"key": "k", "valueExpression": "1"}]}),
            "spec.auditAnnotations[0].valueExpression",
            "must evaluate to one of [string null_type] but got int",
        ),
        (
            merged(&validation("true"), &json!({"matchConditions": [{"name": "c", "expression": "params.a == 1"}]})),
            "spec.matchConditions[0].expression",
            "undeclared reference to 'params'",
        ),
    ] {
        let spec = merged(&json!({"matchConstraints": rules}), &spec);
        let refused = call(&api, "POST", &path, json!({"metadata": {"name": "p"}, "spec": spec})).await;
        let cause = &refused.body["details"]["causes"][0];
        assert_eq!((refused.code, &cause["field"]), (422, &json!(field)), "{}", refused.body);
        assert!(cause["message"].as_str().unwrap().contains(wanted), "{}", refused.body);
    }
}
