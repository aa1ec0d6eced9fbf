//! Grace, finalizers and policies of deletions that come twice.

use super::*;

async fn bound_pod(api: &Api, name: &str) -> String {
    call(api, "POST", PODS, pod(name)).await;
    let path = format!("{PODS}/{name}");
    let binding = json!({"metadata": {"name": name}, "target": {"name": "a"}});
    assert_eq!(call(api, "POST", &format!("{path}/binding"), binding).await.code, 201);
    path
}

fn end(object: &Value) -> jiff::Timestamp {
    object["metadata"]["deletionTimestamp"].as_str().unwrap().parse().unwrap()
}

/// Namespaces and definitions end by controllers of their own: the first request says when, and nothing of a grace period.
#[tokio::test]
async fn what_a_controller_ends_is_only_marked() {
    let api = with_namespace().await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({"metadata": {"name": "things.test.example"}, "spec": {"group": "test.example", "scope": "Namespaced",
        "names": {"kind": "Thing", "plural": "things"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    assert_eq!(call(&api, "POST", definitions, definition).await.code, 201);
    for path in ["/api/v1/namespaces/n", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.test.example"]
    {
        let before = call(&api, "GET", path, Value::Null).await.body;
        let marked = call(&api, "DELETE", path, Value::Null).await.body;
        let metadata = &marked["metadata"];
        assert!(
            metadata["deletionTimestamp"].is_string() && metadata["deletionGracePeriodSeconds"].is_null(),
            "{marked}"
        );
        assert_eq!(metadata["generation"], before["metadata"]["generation"]);
    }
}

#[tokio::test]
async fn a_pending_deletion_is_only_shortened_from_its_start() {
    let api = with_namespace().await;
    let path = bound_pod(&api, "p").await;
    let first = call(&api, "DELETE", &path, json!({"gracePeriodSeconds": 60})).await.body;
    assert_eq!(first["metadata"]["generation"], 2);
    for again in [Value::Null, json!({"gracePeriodSeconds": 90, "propagationPolicy": "Foreground"})] {
        let same = call(&api, "DELETE", &path, again.clone()).await.body;
        assert_eq!(same, first, "{again}");
    }
    let shorter = call(&api, "DELETE", &path, json!({"gracePeriodSeconds": 20})).await.body;
    assert_eq!(end(&first).as_second() - end(&shorter).as_second(), 40);
    assert_eq!(
        (&shorter["metadata"]["deletionGracePeriodSeconds"], &shorter["metadata"]["generation"]),
        (&json!(20), &json!(2))
    );
    // It has ended, but its node has not yet reported that everything is unmounted.
    call(&api, "PATCH", &format!("{path}/status"), json!({"status": {"phase": "Succeeded"}})).await;
    let late = call(&api, "DELETE", &path, Value::Null).await.body;
    assert_eq!(late["metadata"]["deletionGracePeriodSeconds"], 20);
    let collection = call(&api, "DELETE", PODS, Value::Null).await;
    assert_eq!((collection.code, call(&api, "GET", &path, Value::Null).await.code), (200, 200));
    let negative = call(&api, "DELETE", &path, json!({"gracePeriodSeconds": -5})).await.body;
    assert_eq!(negative["metadata"]["deletionGracePeriodSeconds"], 1);
    call(&api, "DELETE", &path, json!({"gracePeriodSeconds": 0})).await;
    assert_eq!(call(&api, "GET", &path, Value::Null).await.code, 404);
}

#[tokio::test]
async fn a_repeated_deletion_keeps_the_propagation_policy() {
    let api = with_namespace().await;
    let rcs = "/api/v1/namespaces/n/replicationcontrollers";
    let rc = |name: &str| {
        let mut rc = super::templates::object(&version("ReplicationController"), name);
        rc["metadata"]["finalizers"] = json!(["a/b"]);
        rc
    };
    for (first, second, wanted) in [
        (json!({"propagationPolicy": "Foreground"}), Value::Null, json!(["a/b", "foregroundDeletion"])),
        (Value::Null, Value::Null, json!(["a/b", "orphan"])),
        (json!({"orphanDependents": false}), Value::Null, json!(["a/b", "orphan"])),
        (json!({"propagationPolicy": "Foreground"}), json!({"propagationPolicy": "Background"}), json!(["a/b"])),
        (
            json!({"propagationPolicy": "Orphan"}),
            json!({"propagationPolicy": "Foreground"}),
            json!(["a/b", "foregroundDeletion"]),
        ),
    ] {
        let path = format!("{rcs}/r");
        assert_eq!(call(&api, "POST", rcs, rc("r")).await.code, 201);
        call(&api, "DELETE", &path, first.clone()).await;
        let after = call(&api, "DELETE", &path, second.clone()).await.body;
        assert_eq!(after["metadata"]["finalizers"], wanted, "{first} {second}");
        call(&api, "PATCH", &path, json!({"metadata": {"finalizers": null}})).await;
        assert_eq!(call(&api, "GET", &path, Value::Null).await.code, 404);
    }
    // Events have no dependents, whatever is asked.
    let events = "/api/v1/namespaces/n/events";
    call(&api, "POST", events, super::templates::object(&version("Event"), "e")).await;
    call(&api, "DELETE", &format!("{events}/e"), json!({"propagationPolicy": "Foreground"})).await;
    assert_eq!(call(&api, "GET", &format!("{events}/e"), Value::Null).await.code, 404);
}

#[tokio::test]
async fn options_of_deletions_are_checked() {
    let api = with_namespace().await;
    let path = bound_pod(&api, "p").await;
    for (options, code, words) in [
        (json!({"preconditions": {"uid": "x"}}), 409, "The object might have been deleted and then recreated"),
        (json!({"preconditions": {"resourceVersion": "1"}}), 409, "The object might have been modified"),
        (json!({"propagationPolicy": "Orphan", "orphanDependents": true}), 422, "cannot be both set"),
        (json!({"propagationPolicy": "Weird"}), 422, "Unsupported value: \"Weird\""),
        (json!({"dryRun": ["x"]}), 422, "Unsupported value: [\"x\"]"),
        (json!({"gracePeriodSeconds": "x"}), 400, "cannot be read"),
    ] {
        let reply = call(&api, "DELETE", &path, options.clone()).await;
        assert_eq!(reply.code, code, "{options}: {}", reply.body);
        assert!(reply.body["message"].as_str().unwrap().contains(words), "{options}: {}", reply.body);
    }
}

#[tokio::test]
async fn a_namespace_keeps_its_finalizer() {
    let api = api();
    let all = "/api/v1/namespaces";
    for (name, given, wanted) in [
        ("a", json!([]), json!(["kubernetes"])),
        ("b", json!(["x.y/z"]), json!(["x.y/z", "kubernetes"])),
        ("c", Value::Null, json!(["kubernetes"])),
    ] {
        let made = call(&api, "POST", all, json!({"metadata": {"name": name}, "spec": {"finalizers": given}})).await;
        assert_eq!(made.body["spec"]["finalizers"], wanted, "{}", made.body);
    }
    let path = format!("{all}/a");
    for finalizers in [json!([]), json!(["a/b"]), Value::Null] {
        let patched = call(&api, "PATCH", &path, json!({"spec": {"finalizers": finalizers}})).await;
        assert_eq!((patched.code, &patched.body["spec"]["finalizers"]), (200, &json!(["kubernetes"])));
        let put =
            call(&api, "PUT", &path, json!({"metadata": {"name": "a"}, "spec": {"finalizers": finalizers}})).await;
        assert_eq!((put.code, &put.body["spec"]["finalizers"]), (200, &json!(["kubernetes"])));
        let status = json!({"spec": {"finalizers": finalizers}, "metadata": {"labels": {"q": "1"}}});
        let status = call(&api, "PATCH", &format!("{path}/status"), status).await;
        assert_eq!((status.code, &status.body["spec"]["finalizers"]), (200, &json!(["kubernetes"])));
    }
    assert_eq!(
        call(&api, "POST", all, json!({"metadata": {"name": "d"}, "spec": {"finalizers": ["zz"]}})).await.code,
        422
    );
    let finalize = format!("{path}/finalize");
    let with = |metadata: Value, finalizers: Value| json!({"metadata": metadata, "spec": {"finalizers": finalizers}});
    for (body, code) in [
        (with(json!({"name": "a"}), json!(["bad"])), 422),
        (with(json!({"name": "a"}), json!([7])), 400),
        (with(json!({"name": "a", "uid": "x"}), json!([])), 409),
        (with(json!({"name": "a", "resourceVersion": "1"}), json!([])), 409),
        (with(json!({"name": "b"}), json!([])), 400),
    ] {
        assert_eq!(call(&api, "PUT", &finalize, body.clone()).await.code, code, "{body}");
    }
    let held = call(&api, "DELETE", &path, Value::Null).await.body;
    assert_eq!(
        (&held["status"]["phase"], &held["spec"]["finalizers"]),
        (&json!("Terminating"), &json!(["kubernetes"]))
    );
    let done = call(&api, "PUT", &finalize, with(json!({"name": "a"}), json!(["x.y/z"]))).await.body;
    assert_ne!(
        done["metadata"]["resourceVersion"], held["metadata"]["resourceVersion"],
        "the answer is what was written"
    );
    call(&api, "PUT", &finalize, with(json!({"name": "a"}), json!([]))).await;
    assert_eq!(call(&api, "GET", &path, Value::Null).await.code, 404);
    assert_eq!(call(&api, "DELETE", all, Value::Null).await.code, 405, "not all namespaces at once");
}

#[tokio::test]
async fn a_service_is_answered_as_it_was() {
    let api = with_namespace().await;
    let services = "/api/v1/namespaces/n/services";
    let made =
        call(&api, "POST", services, json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})).await.body;
    let gone = call(&api, "DELETE", &format!("{services}/s"), Value::Null).await.body;
    assert_eq!((&gone["kind"], &gone["spec"]), (&made["kind"], &made["spec"]));
}

/// `orphanDependents` is the older form of the policy, whose clients expect the code of what is accepted.
#[tokio::test]
async fn what_is_not_deleted_at_once_is_accepted_in_the_older_form_alone() {
    let api = with_namespace().await;
    let old = json!({"orphanDependents": false});
    for (query, body, finalizers, code) in [
        ("", old.clone(), json!([]), 200),
        ("", old.clone(), json!(["a.b/c"]), 202),
        ("?orphanDependents=false", Value::Null, json!(["a.b/c"]), 202),
        // The query does not count where there is a body.
        ("?orphanDependents=false", json!({}), json!(["a.b/c"]), 200),
        ("?propagationPolicy=Background", Value::Null, json!(["a.b/c"]), 200),
        ("?dryRun=All", old.clone(), json!(["a.b/c"]), 202),
        ("?dryRun=All", old, json!([]), 200),
        ("?gracePeriodSeconds=x", json!({}), json!([]), 200),
        ("?propagationPolicy=Nope", json!({}), json!([]), 200),
    ] {
        let made = call(&api, "POST", MAPS, json!({"metadata": {"generateName": "m", "finalizers": finalizers}})).await;
        let path = format!("{MAPS}/{}{query}", made.body["metadata"]["name"].as_str().unwrap());
        let deleted = call(&api, "DELETE", &path, body.clone()).await;
        assert_eq!(deleted.code, code, "{query} {body} {finalizers}: {}", deleted.body);
    }
    let orphaned = call(&api, "POST", MAPS, map("o")).await;
    assert_eq!(orphaned.code, 201);
    for (query, finalizers) in
        [("orphanDependents=&dryRun=All", json!(["orphan"])), ("orphanDependents=x&dryRun=All", json!(["orphan"]))]
    {
        let deleted = call(&api, "DELETE", &format!("{MAPS}/o?{query}"), Value::Null).await;
        assert_eq!((deleted.code, &deleted.body["metadata"]["finalizers"]), (200, &finalizers), "{query}");
    }
}

/// A collection is deleted page by page where its client asks for pages: what it did not ask for stays.
#[tokio::test]
async fn of_a_collection_no_more_than_the_limit_is_deleted() {
    let api = with_namespace().await;
    let names = |reply: &Reply| -> Vec<String> {
        let items = reply.body["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    for name in ["a", "b", "c", "d", "e"] {
        call(&api, "POST", MAPS, json!({"metadata": {"name": name, "labels": {"l": "1"}}})).await;
    }
    let path = format!("{MAPS}?labelSelector=l%3D1");
    let first = call(&api, "DELETE", &format!("{path}&limit=2"), Value::Null).await;
    assert_eq!((first.code, names(&first)), (200, vec!["a".to_owned(), "b".to_owned()]));
    let left = call(&api, "GET", &path, Value::Null).await;
    assert_eq!(names(&left), ["c", "d", "e"]);
    let next = call(&api, "DELETE", &format!("{path}&limit=2&dryRun=All"), Value::Null).await;
    assert_eq!(names(&next), ["c", "d"]);
    let token = next.body["metadata"]["continue"].as_str().unwrap();
    let last = call(&api, "DELETE", &format!("{path}&limit=2&dryRun=All&continue={token}"), Value::Null).await;
    assert_eq!((names(&last), &last.body["metadata"]["continue"]), (vec!["e".to_owned()], &Value::Null));
    let late = call(&api, "DELETE", &format!("{path}&resourceVersion=99999999"), Value::Null).await;
    assert_eq!(late.code, 504, "{}", late.body);
    assert_eq!(names(&call(&api, "DELETE", &path, Value::Null).await), ["c", "d", "e"]);
}
