//! Evictions and budgets over the API, without the controller that counts.

use super::*;

const BUDGETS: &str = "/apis/policy/v1/namespaces/n/poddisruptionbudgets";

/// A pod that runs on a node.
async fn running(api: &Api, name: &str, ready: bool) {
    let mut pod = pod(name);
    pod["metadata"]["labels"] = json!({"app": "web"});
    pod["spec"]["nodeName"] = json!("node");
    let made = call(api, "POST", PODS, pod).await;
    assert_eq!(made.code, 201, "{}", made.body);
    set_phase(api, name, "Running", ready).await;
}

async fn set_phase(api: &Api, name: &str, phase: &str, ready: bool) {
    let ready = if ready { "True" } else { "False" };
    let status = json!({"status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}});
    let set = call(api, "PATCH", &format!("{PODS}/{name}/status"), status).await;
    assert_eq!(set.code, 200, "{}", set.body);
}

/// A budget that the controller has processed, which allows this number of disruptions.
async fn budget(api: &Api, name: &str, allowed: i32) {
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}});
    let made = call(api, "POST", BUDGETS, json!({"metadata": {"name": name}, "spec": spec})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let status = json!({"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1 + allowed,
        "desiredHealthy": 1, "expectedPods": 1 + allowed});
    let set = call(api, "PATCH", &format!("{BUDGETS}/{name}/status"), json!({"status": status})).await;
    assert_eq!(set.code, 200, "{}", set.body);
}

async fn status(api: &Api, name: &str) -> Value {
    call(api, "GET", &format!("{BUDGETS}/{name}"), Value::Null).await.body["status"].clone()
}

async fn evict_with(api: &Api, pod: &str, query: &str, options: Value) -> Reply {
    let mut eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "n"}});
    if !options.is_null() {
        eviction["deleteOptions"] = options;
    }
    call(api, "POST", &format!("{PODS}/{pod}/eviction{query}"), eviction).await
}

async fn evict(api: &Api, pod: &str) -> Reply {
    evict_with(api, pod, "", Value::Null).await
}

async fn read(api: &Api, pod: &str) -> Value {
    call(api, "GET", &format!("{PODS}/{pod}"), Value::Null).await.body
}

fn is_marked(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "DisruptionTarget" && c["status"] == "True"))
}

#[tokio::test]
async fn an_eviction_spends_what_the_budget_allows() {
    let api = with_namespace().await;
    for name in ["a", "b"] {
        running(&api, name, true).await;
    }
    budget(&api, "one", 1).await;
    let tried = evict_with(&api, "a", "?dryRun=All", Value::Null).await;
    assert_eq!((tried.code, status(&api, "one").await["disruptionsAllowed"].clone()), (201, json!(1)));
    assert!(!is_marked(&read(&api, "a").await));

    assert_eq!(evict(&api, "a").await.code, 201);
    let (pod, spent) = (read(&api, "a").await, status(&api, "one").await);
    assert!(is_marked(&pod) && !pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
    assert_eq!((&spent["disruptionsAllowed"], &spent["currentHealthy"]), (&json!(0), &json!(2)));
    assert!(spent["disruptedPods"]["a"].is_string(), "{spent}");
    let condition = &spent["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("InsufficientPods")));

    // The next is refused, and that shows nowhere; one that ends already costs nothing.
    for query in ["", "?dryRun=All"] {
        let refused = evict_with(&api, "b", query, Value::Null).await;
        let cause = &refused.body["details"]["causes"][0];
        assert_eq!((refused.code, &cause["reason"]), (429, &json!("DisruptionBudget")), "{}", refused.body);
    }
    assert!(!is_marked(&read(&api, "b").await));
    assert_eq!(evict(&api, "a").await.code, 201);
    assert_eq!(status(&api, "one").await, spent);

    // A changed budget is first looked at by the controller.
    let changed = call(&api, "PATCH", &format!("{BUDGETS}/one"), json!({"spec": {"minAvailable": 0}})).await;
    assert_eq!(changed.code, 200);
    let refused = evict(&api, "b").await;
    assert_eq!((refused.code, &refused.body["details"]["retryAfterSeconds"]), (429, &json!(10)));
    budget(&api, "two", 9).await;
    assert_eq!(evict(&api, "b").await.code, 500);
    for name in ["one", "two"] {
        assert_eq!(call(&api, "DELETE", &format!("{BUDGETS}/{name}"), Value::Null).await.code, 200);
    }
    assert_eq!(evict(&api, "b").await.code, 201);
    assert_eq!(evict(&api, "nobody").await.code, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_evictions_at_once_only_as_many_pass_as_are_allowed() {
    for allowed in [0, 1, 3] {
        let api = with_namespace().await;
        let names: Vec<String> = (0..8).map(|i| format!("p{i}")).collect();
        for name in &names {
            running(&api, name, true).await;
        }
        budget(&api, "b", allowed).await;
        let evictions = names.iter().map(|name| {
            let (api, name) = (api.clone(), name.clone());
            tokio::spawn(async move { evict(&api, &name).await.code })
        });
        let codes: Vec<u16> =
            futures::future::join_all(evictions.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).collect();
        let passed = codes.iter().filter(|code| **code == 201).count();
        assert_eq!(passed, usize::try_from(allowed).unwrap(), "{codes:?}");
        assert!(codes.iter().all(|code| matches!(code, 201 | 429)), "{codes:?}");
        let status = status(&api, "b").await;
        assert_eq!(status["disruptionsAllowed"], 0);
        assert_eq!(status["disruptedPods"].as_object().map_or(0, serde_json::Map::len), passed);
        for (name, code) in names.iter().zip(&codes) {
            assert_eq!(is_marked(&read(&api, name).await), *code == 201, "{name}: {code}");
        }
    }
}

#[tokio::test]
async fn what_fails_spends_nothing() {
    let api = with_namespace().await;
    running(&api, "a", true).await;
    budget(&api, "b", 1).await;
    let before = status(&api, "b").await;
    let pod = read(&api, "a").await;
    for preconditions in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let refused = evict_with(&api, "a", "", json!({"preconditions": preconditions})).await;
        assert_eq!((refused.code, &refused.body["reason"]), (409, &json!("Conflict")), "{preconditions}");
    }
    let unnamed = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": "n"}});
    assert_eq!(call(&api, "POST", &format!("{PODS}/a/eviction"), unnamed).await.code, 400);
    assert_eq!((status(&api, "b").await, read(&api, "a").await), (before, pod.clone()));
    let version = pod["metadata"]["resourceVersion"].clone();
    let done = evict_with(&api, "a", "", json!({"preconditions": {"resourceVersion": version}})).await;
    assert_eq!(done.code, 201, "{}", done.body);
}

#[tokio::test]
async fn pods_that_no_budget_counts_go_without_one() {
    let api = with_namespace().await;
    budget(&api, "b", 0).await;
    running(&api, "ready", true).await;
    for (name, phase) in [("over", "Succeeded"), ("failed", "Failed"), ("waits", "Pending"), ("unready", "Running")] {
        running(&api, name, false).await;
        set_phase(&api, name, phase, false).await;
        let done = evict(&api, name).await;
        assert_eq!(done.code, 201, "{name}: {}", done.body);
        let left = read(&api, name).await;
        assert!(left["code"] == 404 || is_marked(&left), "{left}");
    }
    assert_eq!(status(&api, "b").await["disruptedPods"], Value::Null);
    assert_eq!(evict(&api, "ready").await.code, 429);
}
