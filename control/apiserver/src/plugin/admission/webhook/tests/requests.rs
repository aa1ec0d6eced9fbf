//! Which requests webhooks see, in which order, and what becomes of their answers.

use super::*;

#[tokio::test]
async fn a_webhook_refuses_in_its_own_words() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "validating", "a", &[hook(&server, "/deny", &json!({}))]).await;
    server.decide(|_, review| match review["request"]["name"].as_str() {
        Some("good") => Act::allow(),
        Some("mute") => Act::Answer(json!({"allowed": false})),
        Some("coded") => Act::Answer(
            json!({"allowed": false, "status": {"code": 418, "reason": "Teapot", "details": {"kind": "pot"}}}),
        ),
        _ => Act::deny("no"),
    });
    assert_eq!(call(&api, "POST", MAPS, map("good")).await.code, 201);
    let refused = call(&api, "POST", MAPS, map("bad")).await;
    let denied = "admission webhook \"deny.hook.example\" denied the request";
    assert_eq!((refused.code, &refused.body["message"]), (400, &json!(format!("{denied}: no"))));
    let refused = call(&api, "POST", MAPS, map("mute")).await;
    assert_eq!((refused.code, &refused.body["message"]), (400, &json!(format!("{denied} without explanation"))));
    let refused = call(&api, "POST", MAPS, map("coded")).await;
    assert_eq!((refused.code, &refused.body["message"]), (418, &json!(format!("{denied}: Teapot"))));
    assert_eq!((&refused.body["reason"], &refused.body["details"]["kind"]), (&json!("Teapot"), &json!("pot")));
    for name in ["bad", "mute", "coded"] {
        assert_eq!(call(&api, "GET", &format!("{MAPS}/{name}"), Value::Null).await.code, 404, "{name}");
    }
    assert_eq!(server.connections(), 1, "connections are kept");
}

#[tokio::test]
async fn each_webhook_sees_what_those_before_it_have_made() {
    let (api, server) = api_and_webhook().await;
    // The configurations are in the order of their names, whenever they came.
    configure(&api, "mutating", "b", &[hook(&server, "/third", &json!({}))]).await;
    configure(&api, "mutating", "a", &[hook(&server, "/first", &json!({})), hook(&server, "/second", &json!({}))])
        .await;
    server.decide(|path, review| {
        let seen = review["request"]["object"]["data"].as_object().map_or(0, serde_json::Map::len);
        adds(path.trim_matches('/'), &seen.to_string())
    });
    let made = call(&api, "POST", MAPS, map("m")).await;
    assert_eq!(made.body["data"], json!({"a": "b", "first": "1", "second": "2", "third": "3"}));
    let stored = call(&api, "GET", &format!("{MAPS}/m"), Value::Null).await;
    assert_eq!(stored.body["data"], made.body["data"]);
}

#[tokio::test]
async fn a_change_calls_those_before_it_once_more() {
    let (api, server) = api_and_webhook().await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let hooks = [hook(&server, "/a", &again), hook(&server, "/b", &json!({})), hook(&server, "/c", &again)];
    configure(&api, "mutating", "all", &hooks).await;
    server.decide(|path, review| match path {
        // Only the last one changes something, and only once.
        "/c" if review["request"]["object"]["data"]["c"].is_null() => adds("c", "1"),
        _ => Act::allow(),
    });
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 201);
    let paths: Vec<String> = server.calls().into_iter().map(|(path, _)| path[..2].to_owned()).collect();
    assert_eq!(paths, ["/a", "/b", "/c", "/a"]);
}

#[tokio::test]
async fn a_review_says_what_is_written_and_who_writes() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "validating", "a", &[hook(&server, "/all", &json!({"timeoutSeconds": 7}))]).await;
    let sent = json!({"metadata": {"generateName": "g-"}, "data": {"a": "b"}});
    let made = call(&api, "POST", &format!("{MAPS}?fieldManager=me&fieldValidation=Strict"), sent).await;
    let name = made.body["metadata"]["name"].as_str().unwrap().to_owned();
    let (path, review) = server.calls().remove(0);
    assert_eq!(path, "/all?timeout=7s");
    assert_eq!((&review["kind"], &review["apiVersion"]), (&json!("AdmissionReview"), &json!("admission.k8s.io/v1")));
    let request = &review["request"];
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    assert_eq!((&request["kind"], &request["requestKind"]), (&kind, &kind));
    assert_eq!((&request["resource"], &request["requestResource"]), (&resource, &resource));
    assert_eq!((&request["operation"], &request["namespace"]), (&json!("CREATE"), &json!("n")));
    assert_eq!((&request["dryRun"], &request["oldObject"]), (&json!(false), &Value::Null));
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me", "fieldValidation": "Strict"});
    assert_eq!(request["options"], options);
    assert_eq!((&request["object"]["kind"], &request["object"]["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    assert!(request["userInfo"]["username"].is_string() && request["subResource"].is_null());

    let one = format!("{MAPS}/{name}");
    call(&api, "PATCH", &one, json!({"data": {"c": "d"}})).await;
    let (_, review) = server.calls().remove(0);
    let request = &review["request"];
    assert_eq!((&request["operation"], &request["name"]), (&json!("UPDATE"), &json!(name)));
    assert_eq!(request["options"]["kind"], "UpdateOptions");
    assert_eq!((&request["object"]["data"]["c"], &request["oldObject"]["data"]["c"]), (&json!("d"), &Value::Null));

    call(&api, "DELETE", &one, json!({"propagationPolicy": "Foreground"})).await;
    let (_, review) = server.calls().remove(0);
    let request = &review["request"];
    assert_eq!((&request["operation"], &request["object"]), (&json!("DELETE"), &Value::Null));
    assert_eq!(
        (&request["oldObject"]["data"]["c"], &request["options"]["propagationPolicy"]),
        (&json!("d"), &json!("Foreground"))
    );
}

#[tokio::test]
async fn a_webhook_names_an_object_before_the_server_does() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "mutating", "a", &[hook(&server, "/name", &json!({}))]).await;
    server.decide(|_, _| Act::patch(&json!([{"op": "add", "path": "/metadata/name", "value": "chosen"}])));
    let made = call(&api, "POST", MAPS, json!({"metadata": {"generateName": "g-"}})).await;
    assert_eq!((made.code, &made.body["metadata"]["name"]), (201, &json!("chosen")), "{}", made.body);
}

#[tokio::test]
async fn what_a_webhook_adds_has_defaults_and_is_validated() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "mutating", "a", &[hook(&server, "/pods", &json!({}))]).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    server.decide(|_, _| {
        Act::patch(
            &json!([{"op": "add", "path": "/spec/initContainers", "value": [{"name": "i", "image": "j:1", "x": 1}]}]),
        )
    });
    let made = call(&api, "POST", PODS, pod.clone()).await;
    let added = &made.body["spec"]["initContainers"][0];
    assert_eq!(added["terminationMessagePolicy"], "File", "{}", made.body);
    assert!(added["x"].is_null(), "a field that the type does not have is dropped");
    server.decide(|_, _| Act::patch(&json!([{"op": "remove", "path": "/spec/containers"}])));
    let refused = call(&api, "POST", PODS, json!({"metadata": {"name": "q"}, "spec": pod["spec"]})).await;
    assert_eq!((refused.code, &refused.body["reason"]), (422, &json!("Invalid")), "{}", refused.body);
    server.decide(|_, _| Act::patch(&json!([{"op": "replace", "path": "/spec/containers", "value": 5}])));
    let refused = call(&api, "POST", PODS, json!({"metadata": {"name": "q"}, "spec": pod["spec"]})).await;
    assert_eq!((refused.code, &refused.body["reason"]), (500, &json!("InternalError")), "{}", refused.body);
    // Another namespace than that of the request is none of its business.
    server.decide(|_, _| Act::patch(&json!([{"op": "add", "path": "/metadata/namespace", "value": "other"}])));
    assert_eq!(call(&api, "POST", PODS, json!({"metadata": {"name": "q"}, "spec": pod["spec"]})).await.code, 400);
}

#[tokio::test]
async fn selectors_say_what_is_seen() {
    let (api, server) = api_and_webhook().await;
    let labelled = json!({"metadata": {"name": "out", "labels": {"skip": "yes"}}});
    assert_eq!(call(&api, "POST", "/api/v1/namespaces", labelled.clone()).await.code, 201);
    let selectors = json!({
        "namespaceSelector": {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]},
        "objectSelector": {"matchLabels": {"guarded": "yes"}},
    });
    configure(&api, "validating", "a", &[hook(&server, "/deny", &selectors)]).await;
    server.decide(|_, _| Act::deny("no"));
    let guarded = |name: &str| json!({"metadata": {"name": name, "labels": {"guarded": "yes"}}});
    assert_eq!(call(&api, "POST", MAPS, map("free")).await.code, 201);
    assert_eq!(call(&api, "POST", MAPS, guarded("m")).await.code, 400);
    assert_eq!(call(&api, "POST", "/api/v1/namespaces/out/configmaps", guarded("m")).await.code, 201);
    // The labels that it had count, too.
    assert_eq!(
        call(&api, "PATCH", &format!("{MAPS}/free"), json!({"metadata": {"labels": {"guarded": "yes"}}})).await.code,
        400
    );
    // A Namespace is chosen by its own labels, and by those that it would have.
    let mut namespace = guarded("also-out");
    namespace["metadata"]["labels"]["skip"] = json!("yes");
    assert_eq!(call(&api, "POST", "/api/v1/namespaces", namespace).await.code, 201);
    assert_eq!(call(&api, "POST", "/api/v1/namespaces", guarded("in")).await.code, 400);
    // What is in no namespace is never left out.
    let class = json!({"metadata": {"name": "c", "labels": {"guarded": "yes"}}, "value": 1});
    assert_eq!(call(&api, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", class).await.code, 400);
}

#[tokio::test]
async fn configurations_and_policies_are_decided_on_by_nobody() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "validating", "a", &[hook(&server, "/deny", &json!({}))]).await;
    configure(&api, "mutating", "a", &[hook(&server, "/deny", &json!({}))]).await;
    server.decide(|_, _| Act::deny("no"));
    for kind in ["mutating", "validating"] {
        let path = format!("{CONFIGURATIONS}/{kind}webhookconfigurations/a");
        assert_eq!(call(&api, "PATCH", &path, json!({"metadata": {"labels": {"a": "b"}}})).await.code, 200);
        assert_eq!(call(&api, "DELETE", &path, Value::Null).await.code, 200);
    }
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 201);
    assert!(server.calls().is_empty());
}

#[tokio::test]
async fn an_equivalent_resource_is_shown_in_the_version_of_the_rule() {
    let (api, server) = api_and_webhook().await;
    let rules = json!([{"operations": ["CREATE"], "apiGroups": ["events.k8s.io"], "apiVersions": ["v1"], "resources": ["events"]}]);
    configure(&api, "mutating", "a", &[hook(&server, "/events", &json!({"rules": rules}))]).await;
    server.decide(|_, _| Act::patch(&json!([{"op": "add", "path": "/note", "value": "changed"}])));
    let event = json!({"metadata": {"name": "e", "namespace": "n"}, "involvedObject": {"namespace": "n"}, "message": "m", "reason": "r", "type": "Normal"});
    let made = call(&api, "POST", "/api/v1/namespaces/n/events", event.clone()).await;
    assert_eq!((made.code, &made.body["message"]), (201, &json!("changed")), "{}", made.body);
    let (_, review) = server.calls().remove(0);
    let request = &review["request"];
    assert_eq!((&request["kind"]["group"], &request["requestKind"]["group"]), (&json!("events.k8s.io"), &json!("")));
    assert_eq!(request["object"]["apiVersion"], "events.k8s.io/v1");
    // Only if it wants to see those.
    let exact = json!({"matchPolicy": "Exact", "rules": rules});
    configure(&api, "mutating", "b", &[hook(&server, "/exact", &exact)]).await;
    call(&api, "DELETE", &format!("{CONFIGURATIONS}/mutatingwebhookconfigurations/a"), Value::Null).await;
    let mut other = event;
    other["metadata"]["name"] = json!("f");
    assert_eq!(call(&api, "POST", "/api/v1/namespaces/n/events", other).await.body["message"], "m");
}

#[tokio::test]
async fn warnings_of_webhooks_are_passed_on() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "validating", "a", &[hook(&server, "/warn", &json!({}))]).await;
    server.decide(|_, _| Act::Answer(json!({"allowed": true, "warnings": ["mind the gap"]})));
    let made = call(&api, "POST", MAPS, map("m")).await;
    assert!(made.warnings.iter().any(|warning| warning == "299 - \"mind the gap\""), "{:?}", made.warnings);
}

#[tokio::test]
async fn dry_runs_call_only_what_has_no_effects() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "validating", "a", &[hook(&server, "/a", &json!({"sideEffects": "NoneOnDryRun"}))]).await;
    let dry = format!("{MAPS}?dryRun=All");
    assert_eq!(call(&api, "POST", &dry, map("m")).await.code, 201);
    let (_, review) = server.calls().remove(0);
    assert_eq!(
        (&review["request"]["dryRun"], &review["request"]["options"]["dryRun"]),
        (&json!(true), &json!(["All"]))
    );
}

#[tokio::test]
async fn conditions_say_what_is_seen() {
    let (api, server) = api_and_webhook().await;
    let conditions = |expressions: &[&str]| {
        let all: Vec<Value> = expressions
            .iter()
            .enumerate()
            .map(|(at, text)| json!({"name": format!("c{at}"), "expression": text}))
            .collect();
        json!({"matchConditions": all})
    };
    let path = format!("{CONFIGURATIONS}/validatingwebhookconfigurations");
    let broken =
        json!({"metadata": {"name": "a"}, "webhooks": [hook(&server, "/deny", &conditions(&["params.a == 1"]))]});
    let refused = call(&api, "POST", &path, broken).await;
    let message = refused.body["message"].as_str().unwrap_or("");
    assert!(refused.code == 422 && message.contains("compilation failed: ERROR: <input>:1:1: undeclared"), "{message}");

    let all = [
        "object.metadata.name != 'skip-me'",
        "!has(object.data) || object.data.a == 'b'",
        "request.operation == 'CREATE'",
    ];
    configure(&api, "validating", "a", &[hook(&server, "/deny", &conditions(&all))]).await;
    server.decide(|_, _| Act::deny("no"));
    assert_eq!(call(&api, "POST", MAPS, map("skip-me")).await.code, 201);
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 400);
    assert_eq!(
        call(&api, "DELETE", &format!("{MAPS}/skip-me"), Value::Null).await.code,
        200,
        "the object is null there"
    );
    // Without a value of one that decides it, the failure policy does.
    let keyless = json!({"metadata": {"name": "keyless"}, "data": {"c": "d"}});
    let refused = call(&api, "POST", MAPS, keyless.clone()).await;
    let why = "configmaps \"keyless\" is forbidden: expression '!has(object.data) || object.data.a == 'b'' resulted in error: no such key: a";
    assert_eq!((refused.code, &refused.body["message"]), (403, &json!(why)));
    call(&api, "DELETE", &format!("{path}/a"), Value::Null).await;
    let mut ignoring = conditions(&all);
    ignoring["failurePolicy"] = json!("Ignore");
    configure(&api, "validating", "a", &[hook(&server, "/deny", &ignoring)]).await;
    assert_eq!(call(&api, "POST", MAPS, keyless).await.code, 201);
}

#[tokio::test]
async fn conditions_may_ask_what_the_user_may_do() {
    let (api, server) = api_and_webhook().await;
    let breakglass = "!authorizer.requestResource.check('breakglass').allowed()";
    let account =
        "!authorizer.serviceAccount('n', 'nobody').group('').resource('pods').namespace('n').check('get').allowed()";
    for (name, expression, code) in [("own", breakglass, 201), ("of-others", account, 400)] {
        let condition = json!({"matchConditions": [{"name": "c", "expression": expression}]});
        configure(&api, "validating", name, &[hook(&server, "/deny", &condition)]).await;
        server.decide(|_, _| Act::deny("no"));
        // The tests' user may do everything.
        assert_eq!(call(&api, "POST", MAPS, map(name)).await.code, code, "{expression}");
        call(&api, "DELETE", &format!("{CONFIGURATIONS}/validatingwebhookconfigurations/{name}"), Value::Null).await;
    }
}

#[tokio::test]
async fn policies_come_before_webhooks_and_see_what_those_have_changed() {
    let (api, server) = api_and_webhook().await;
    let maps = json!({"resourceRules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]},
    ]});
    let expression =
        "[JSONPatch{op: 'add', path: '/data/policy', value: has(object.data.policy) ? object.data.policy + 'x' : 'x'}]";
    let mutation = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    let valid = json!({"expression": "object.data.hook == 'x' && object.data.policy == 'xx'"});
    for (kind, spec) in [
        ("mutating", json!({"matchConstraints": maps, "mutations": [mutation], "reinvocationPolicy": "IfNeeded"})),
        ("validating", json!({"matchConstraints": maps, "validations": [valid]})),
    ] {
        let mut binding = json!({"policyName": "p"});
        if kind == "validating" {
            binding["validationActions"] = json!(["Deny"]);
        }
        for (resource, spec) in [("policies", spec), ("policybindings", binding)] {
            let path = format!("{CONFIGURATIONS}/{kind}admission{resource}");
            let made = call(&api, "POST", &path, json!({"metadata": {"name": "p"}, "spec": spec})).await;
            assert_eq!(made.code, 201, "{}", made.body);
        }
    }
    configure(&api, "mutating", "a", &[hook(&server, "/hook", &json!({}))]).await;
    server.decide(|_, review| adds("hook", review["request"]["object"]["data"]["policy"].as_str().unwrap_or("none")));
    let made = call(&api, "POST", MAPS, map("m")).await;
    assert_eq!(
        (made.code, &made.body["data"]),
        (201, &json!({"a": "b", "hook": "x", "policy": "xx"})),
        "{}",
        made.body
    );
    assert_eq!(server.calls().len(), 1);
}
