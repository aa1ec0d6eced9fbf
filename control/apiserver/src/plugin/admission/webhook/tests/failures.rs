//! Webhooks that hang, lie, break the object or do not exist.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::*;

async fn fails(api: &Instance, name: &str) -> String {
    let refused = call(api, "POST", MAPS, map(name)).await;
    assert_eq!((refused.code, &refused.body["reason"]), (500, &json!("InternalError")), "{}", refused.body);
    refused.body["message"].as_str().unwrap().to_owned()
}

const FAILED: &str = "Internal error occurred: failed calling webhook \"x.hook.example\": ";

#[tokio::test]
async fn a_webhook_that_hangs_is_waited_for_no_longer_than_its_time() {
    let (api, server) = api_and_webhook().await;
    let brief = json!({"timeoutSeconds": 1});
    configure(&api, "validating", "a", &[hook(&server, "/x", &brief)]).await;
    server.decide(|_, _| Act::Late(Duration::from_secs(600), json!({"allowed": true})));
    let why = fails(&api, "m").await;
    let url = format!("https://{}/x?timeout=1s", server.address);
    assert_eq!(why, format!("{FAILED}failed to call webhook: Post {url:?}: context deadline exceeded"));
}

#[tokio::test]
async fn failures_are_ignored_where_the_policy_says_so() {
    let (api, server) = api_and_webhook().await;
    let ignored = json!({"failurePolicy": "Ignore"});
    configure(&api, "validating", "a", &[hook(&server, "/x", &ignored)]).await;
    configure(&api, "mutating", "a", &[hook(&server, "/y", &ignored)]).await;
    server.decide(|_, _| Act::HangUp);
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 201);
    let page = api.metrics().page(windlass_kit::prometheus::Format::Plain);
    for kind in ["admit", "validating"] {
        let name = if kind == "admit" { "y.hook.example" } else { "x.hook.example" };
        let line = format!("apiserver_admission_webhook_fail_open_count{{name={name:?},type={kind:?}}} 1");
        assert!(page.contains(&line), "{line}");
    }
}

#[tokio::test]
async fn answers_that_are_none_refuse() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "mutating", "a", &[hook(&server, "/x", &json!({}))]).await;
    let url = format!("https://{}/x?timeout=10s", server.address);
    let huge = "x".repeat(7 << 20);
    for (act, wanted) in [
        (Act::Raw(200, "{}".to_owned()), "received invalid webhook response: webhook response was absent".to_owned()),
        (Act::Raw(200, "no".to_owned()), "failed to call webhook: ".to_owned()),
        (Act::Raw(200, huge), format!("failed to call webhook: Post {url:?}: the answer has more than ")),
        (
            Act::Raw(500, "oops".to_owned()),
            "failed to call webhook: an error on the server (\"oops\") has prevented the request from succeeding"
                .to_owned(),
        ),
        (
            Act::Raw(404, String::new()),
            "failed to call webhook: the server could not find the requested resource".to_owned(),
        ),
        (
            Act::Raw(403, json!({"kind": "Status", "status": "Failure", "message": "not you"}).to_string()),
            "failed to call webhook: not you".to_owned(),
        ),
        (Act::HangUp, format!("failed to call webhook: Post {url:?}: ")),
    ] {
        server.decide(move |_, _| act.clone());
        let why = fails(&api, "m").await;
        assert!(why.starts_with(&format!("{FAILED}{wanted}")), "{why}\n{wanted}");
    }
    // A patch that does not fit is an error of the server, as upstream.
    for patch in [json!([{"op": "remove", "path": "/none"}]), json!([{"op": "replace", "path": "", "value": 1}])] {
        server.decide(move |_, _| Act::patch(&patch));
        fails(&api, "m").await;
    }
}

/// Answers that are well formed and answer something else, or allow with what is no patch.
#[tokio::test]
async fn a_webhook_that_lies_refuses() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "mutating", "a", &[hook(&server, "/x", &json!({}))]).await;
    let review = |changes: Value| {
        let mut review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {"uid": "u", "allowed": true}});
        json_patch::merge(&mut review, &changes);
        review
    };
    let invalid = "received invalid webhook response: ";
    for (changes, wanted) in [
        (json!({}), format!("{invalid}expected response.uid=\"")),
        (json!({"kind": "ConversionReview"}), format!("{invalid}expected response.uid=\"")),
        (json!({"response": null}), format!("{invalid}webhook response was absent")),
        (json!({"response": {"patch": "?"}}), "failed to call webhook: ".to_owned()),
    ] {
        let act = Act::Raw(200, review(changes).to_string());
        server.decide(move |_, _| act.clone());
        let why = fails(&api, "m").await;
        assert!(why.starts_with(&format!("{FAILED}{wanted}")), "{why}\n{wanted}");
    }
    server.decide(move |_, asked| {
        let uid = &asked["request"]["uid"];
        let body = json!({"kind": "ConversionReview", "apiVersion": "admission.k8s.io/v1", "response": {"uid": uid, "allowed": true}});
        Act::Raw(200, body.to_string())
    });
    let why = fails(&api, "m").await;
    let wanted = "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v1, Kind=ConversionReview";
    assert_eq!(why, format!("{FAILED}{invalid}{wanted}"));
    for patch in ["no JSON", "{}", "[{}]", "[{\"op\": \"jump\", \"path\": \"/a\"}]"] {
        let patch = STANDARD.encode(patch);
        server.decide(move |_, _| Act::Answer(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})));
        fails(&api, "m").await;
    }
    // Each copy doubles the object: it is refused long before memory is short.
    let doubling: Vec<Value> =
        (0..200).map(|at| json!({"op": "copy", "from": "/data", "path": format!("/data/copy{at}")})).collect();
    server.decide(move |_, _| Act::patch(&json!(doubling)));
    let why = fails(&api, "m").await;
    assert!(why.contains("copies more than"), "{why}");
    server.decide(|_, _| Act::allow());
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 201);
}

/// Two that undo each other: neither is called more than twice, and what stands at the end is what the last one wants.
#[tokio::test]
async fn webhooks_that_undo_each_other_come_to_an_end() {
    let (api, server) = api_and_webhook().await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    configure(&api, "mutating", "a", &[hook(&server, "/a", &again), hook(&server, "/b", &again)]).await;
    server.decide(|path, _| {
        let mine = path.trim_start_matches('/').to_owned();
        Act::patch(&json!([{"op": "add", "path": "/data/owner", "value": mine}]))
    });
    let made = call(&api, "POST", MAPS, map("m")).await;
    assert_eq!((made.code, &made.body["data"]["owner"]), (201, &json!("b")), "{}", made.body);
    let paths: Vec<String> = server.calls().into_iter().map(|(path, _)| path[..2].to_owned()).collect();
    assert_eq!(paths, ["/a", "/b", "/a", "/b"]);
}

/// A guard of everything whose pod is gone: the node stays alive, and the guard can be taken away.
#[tokio::test]
async fn a_guard_of_everything_that_nobody_serves_does_not_end_the_node() {
    let (api, server) = api_and_webhook().await;
    let service = json!({"metadata": {"name": "hook"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 443}]}});
    assert_eq!(call(&api, "POST", "/api/v1/namespaces/n/services", service).await.code, 201);
    let node = json!({"metadata": {"name": "one"}});
    assert_eq!(call(&api, "POST", "/api/v1/nodes", node).await.code, 201);
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "one", "containers": [{"name": "c", "image": "i:1"}]}});
    assert_eq!(call(&api, "POST", PODS, pod).await.code, 201);
    assert_eq!(call(&api, "POST", MAPS, map("before")).await.code, 201);
    let config = json!({"clientConfig": {"url": null, "service": {"namespace": "n", "name": "hook", "path": "/x", "port": 443}, "caBundle": STANDARD.encode(&server.ca)}});
    for kind in ["mutating", "validating"] {
        configure(&api, kind, "a", &[hook(&server, "/x", &config)]).await;
    }
    let condition = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True"}]}});
    let lease = json!({"metadata": {"name": "one", "namespace": "n"}, "spec": {"holderIdentity": "one"}});
    let event = json!({"metadata": {"name": "e", "namespace": "n"}, "involvedObject": {"namespace": "n"}, "reason": "r", "message": "m", "type": "Normal"});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
    for (method, path, body, code) in [
        ("POST", leases.to_owned(), lease, 201),
        ("PATCH", format!("{leases}/one"), json!({"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}), 200),
        ("POST", "/api/v1/namespaces/n/events".to_owned(), event, 201),
        ("PATCH", "/api/v1/nodes/one/status".to_owned(), condition("Ready"), 200),
        ("PATCH", format!("{PODS}/p/status"), condition("Initialized"), 200),
        // All else is refused, as upstream refuses it.
        ("POST", MAPS.to_owned(), map("m"), 500),
        ("DELETE", format!("{MAPS}/before"), Value::Null, 500),
        ("PATCH", "/api/v1/nodes/one".to_owned(), json!({"metadata": {"labels": {"a": "b"}}}), 500),
    ] {
        let reply = call(&api, method, &path, body).await;
        assert_eq!(reply.code, code, "{method} {path}: {}", reply.body);
    }
    for kind in ["mutating", "validating"] {
        let path = format!("{CONFIGURATIONS}/{kind}webhookconfigurations/a");
        assert_eq!(call(&api, "DELETE", &path, Value::Null).await.code, 200);
    }
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 201);
}

#[tokio::test]
async fn certificates_that_nobody_vouches_for_are_refused_in_gos_words() {
    let (api, server) = api_and_webhook().await;
    let other = WebhookServer::start("127.0.0.1", &[]).await;
    let mut config = server.client_config("/x");
    config["caBundle"] = json!(STANDARD.encode(&other.ca));
    configure(&api, "validating", "a", &[hook(&server, "/x", &json!({"clientConfig": config}))]).await;
    let why = fails(&api, "m").await;
    let unknown = "tls: failed to verify certificate: x509: certificate signed by unknown authority (possibly because of \"x509: ECDSA verification failure\" while trying to verify candidate authority certificate \"webhook-ca\")";
    assert!(why.ends_with(unknown), "{why}");
    // The certificate itself may stand in place of its authority.
    call(&api, "DELETE", &format!("{CONFIGURATIONS}/validatingwebhookconfigurations/a"), Value::Null).await;
    config["caBundle"] = json!(STANDARD.encode(&server.certificate));
    configure(&api, "validating", "a", &[hook(&server, "/x", &json!({"clientConfig": config}))]).await;
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 201);
    // But not for another name.
    call(&api, "DELETE", &format!("{CONFIGURATIONS}/validatingwebhookconfigurations/a"), Value::Null).await;
    config["url"] = json!(format!("https://localhost:{}/x", server.address.port()));
    configure(&api, "validating", "a", &[hook(&server, "/x", &json!({"clientConfig": config}))]).await;
    let why = fails(&api, "n").await;
    assert!(why.ends_with("x509: certificate is valid for 127.0.0.1, hook.n.svc, not localhost"), "{why}");
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_is_named() {
    let (api, server) = api_and_webhook().await;
    let config = json!({"clientConfig": {"url": null, "service": {"namespace": "n", "name": "hook", "path": "/x", "port": 8443}, "caBundle": STANDARD.encode(&server.ca)}});
    configure(&api, "validating", "a", &[hook(&server, "/x", &config)]).await;
    let post = "failed to call webhook: Post \"https://hook.n.svc:8443/x?timeout=10s\": ";
    assert_eq!(fails(&api, "m").await, format!("{FAILED}{post}service \"hook\" not found"));
    call(&api, "DELETE", &format!("{CONFIGURATIONS}/validatingwebhookconfigurations/a"), Value::Null).await;
    let service = json!({"metadata": {"name": "hook"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 443}]}});
    assert_eq!(call(&api, "POST", "/api/v1/namespaces/n/services", service).await.code, 201);
    configure(&api, "validating", "a", &[hook(&server, "/x", &config)]).await;
    assert_eq!(fails(&api, "m").await, format!("{FAILED}{post}no service port 8443 found for service \"hook\""));
    call(&api, "DELETE", &format!("{CONFIGURATIONS}/validatingwebhookconfigurations/a"), Value::Null).await;
    let mut config = config;
    config["clientConfig"]["service"]["port"] = json!(443);
    configure(&api, "validating", "a", &[hook(&server, "/x", &config)]).await;
    let post = post.replace("8443", "443");
    assert_eq!(fails(&api, "m").await, format!("{FAILED}{post}no endpoints available for service \"hook\""));
}

#[tokio::test]
async fn what_a_webhook_makes_unreadable_for_others_is_restored() {
    let (api, server) = api_and_webhook().await;
    configure(&api, "mutating", "a", &[hook(&server, "/x", &json!({}))]).await;
    server.decide(|_, _| {
        Act::patch(&json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{"operation": "Odd"}]}]))
    });
    let made = call(&api, "POST", MAPS, map("m")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.body["metadata"]["managedFields"][0]["operation"], "Update", "{}", made.body);
    assert!(
        made.warnings.iter().any(|warning| warning.contains("invalid state after admission")),
        "{:?}",
        made.warnings
    );
}

#[tokio::test]
async fn a_deletion_is_not_patched() {
    let (api, server) = api_and_webhook().await;
    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 201);
    configure(&api, "mutating", "a", &[hook(&server, "/x", &json!({}))]).await;
    server.decide(|_, _| adds("a", "c"));
    let refused = call(&api, "DELETE", &format!("{MAPS}/m"), Value::Null).await;
    let why = "Internal error occurred: admission webhook \"x.hook.example\" attempted to modify the object, which is not supported for this operation";
    assert_eq!((refused.code, &refused.body["message"]), (500, &json!(why)));
}
