//! Quotas and limit ranges: what is refused, what is counted, and that writers side by side never use more than there is.

use super::*;
use crate::store::Scope;

const QUOTAS: &str = "/api/v1/namespaces/n/resourcequotas";

/// Makes a quota whose status is that of an empty namespace.
async fn add_quota(api: &Api, name: &str, hard: Value) {
    let spec = json!({"hard": hard});
    let made = call(api, "POST", QUOTAS, json!({"metadata": {"name": name}, "spec": spec})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let used: Value = hard.as_object().unwrap().keys().map(|name| (name.clone(), json!("0"))).collect();
    let status = json!({"status": {"hard": hard, "used": used}});
    let set = call(api, "PATCH", &format!("{QUOTAS}/{name}/status"), status).await;
    assert_eq!(set.code, 200, "{}", set.body);
}

async fn used(api: &Api, name: &str) -> Value {
    call(api, "GET", &format!("{QUOTAS}/{name}"), Value::Null).await.body["status"]["used"].clone()
}

fn pod_with(name: &str, cpu: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod
}

#[tokio::test]
async fn each_write_is_counted_with_it() {
    let api = with_namespace().await;
    add_quota(&api, "q", json!({"pods": "2", "requests.cpu": "1", "count/configmaps": "1", "resourcequotas": "1"}))
        .await;
    // A try takes nothing.
    assert_eq!(call(&api, "POST", &format!("{PODS}?dryRun=All"), pod_with("a", "600m")).await.code, 201);
    assert_eq!(call(&api, "POST", PODS, pod_with("a", "600m")).await.code, 201);
    let one = json!({"pods": "1", "requests.cpu": "600m", "count/configmaps": "0", "resourcequotas": "0"});
    assert_eq!(used(&api, "q").await, one);
    for (object, wanted) in [
        (
            pod_with("b", "500m"),
            "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1",
        ),
        (pod("b"), "pods \"b\" is forbidden: failed quota: q: must specify requests.cpu for: c"),
    ] {
        for path in [PODS.to_owned(), format!("{PODS}?dryRun=All")] {
            let refused = call(&api, "POST", &path, object.clone()).await;
            assert_eq!((refused.code, refused.body["message"].as_str().unwrap()), (403, wanted));
        }
    }
    // What is refused for another reason takes nothing, too.
    assert_eq!(call(&api, "POST", PODS, pod_with("a", "1m")).await.code, 409);
    // What is not valid hears of that, not of the quota.
    let invalid = json!({"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]}});
    assert_eq!(call(&api, "POST", PODS, invalid).await.code, 422);
    assert_eq!(used(&api, "q").await, one);

    assert_eq!(call(&api, "POST", MAPS, map("m")).await.code, 201);
    let refused = call(&api, "POST", MAPS, map("m2")).await;
    assert_eq!(
        refused.body["message"],
        "configmaps \"m2\" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=1, limited: count/configmaps=1"
    );
    assert_eq!(call(&api, "PATCH", &format!("{MAPS}/m"), json!({"data": {"a": "c"}})).await.code, 200);
    assert_eq!(call(&api, "DELETE", &format!("{MAPS}/m"), Value::Null).await.code, 200);
    assert_eq!(used(&api, "q").await, one);

    // A resize counts, and a pod that has ended does not.
    let resize = |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    let merge = "application/strategic-merge-patch+json";
    let user = User::internal("t");
    let path = format!("{PODS}/a/resize");
    let patch =
        async |cpu: &str| send(&api, &user, "PATCH", &path, merge, "application/json", &resize(cpu).to_string()).await;
    assert_eq!(
        patch("1100m").await.body["message"],
        "pods \"a\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1"
    );
    assert_eq!(patch("400m").await.code, 200);
    assert_eq!(used(&api, "q").await["requests.cpu"], "400m");
    let ended = call(&api, "PATCH", &format!("{PODS}/a/status"), json!({"status": {"phase": "Succeeded"}})).await;
    assert_eq!(ended.code, 200, "{}", ended.body);
    let none = json!({"pods": "0", "requests.cpu": "0", "count/configmaps": "0", "resourcequotas": "0"});
    assert_eq!(used(&api, "q").await, none);
    assert_eq!(call(&api, "DELETE", &format!("{PODS}/a"), Value::Null).await.code, 200);
    assert_eq!(used(&api, "q").await, none);

    // A quota is an object as well, and does not count its own end.
    add_quota(&api, "other", json!({"secrets": "1"})).await;
    assert_eq!(used(&api, "q").await["resourcequotas"], "1");
    assert_eq!(call(&api, "DELETE", &format!("{QUOTAS}/q"), Value::Null).await.code, 200);
}

#[tokio::test]
async fn what_the_controller_has_not_counted_is_unknown() {
    let api = with_namespace().await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2", "services": "1"}}});
    assert_eq!(call(&api, "POST", QUOTAS, quota).await.code, 201);
    // Nothing is enforced before the controller has seen the quota.
    assert_eq!(call(&api, "POST", PODS, pod("a")).await.code, 201);
    let status = json!({"status": {"hard": {"pods": "2", "services": "1"}, "used": {"services": "0"}}});
    assert_eq!(call(&api, "PATCH", &format!("{QUOTAS}/q/status"), status).await.code, 200);
    let refused = call(&api, "POST", PODS, pod("b")).await;
    assert_eq!(refused.body["message"], "pods \"b\" is forbidden: status unknown for quota: q, resources: pods");
}

#[tokio::test]
async fn limit_ranges_fill_in_and_bound() {
    let api = with_namespace().await;
    let ranges = "/api/v1/namespaces/n/limitranges";
    let limits = json!([
        {"type": "Container", "defaultRequest": {"cpu": "100m"}, "default": {"cpu": "500m"}, "max": {"cpu": "600m"}},
        {"type": "Pod", "max": {"cpu": "700m"}},
    ]);
    let made = call(&api, "POST", ranges, json!({"metadata": {"name": "l"}, "spec": {"limits": limits}})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let made = call(&api, "POST", PODS, pod("p")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let filled = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "500m"}});
    assert_eq!(made.body["spec"]["containers"][0]["resources"], filled);
    let note = "LimitRanger plugin set: cpu request for container c; cpu limit for container c";
    assert_eq!(made.body["metadata"]["annotations"]["kubernetes.io/limit-ranger"], note);
    assert_eq!(made.body["status"]["qosClass"], "Burstable");
    // Its own limit becomes the request before the default does.
    let mut own = pod("own");
    own["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "300m"}});
    let made = call(&api, "POST", PODS, own).await;
    assert_eq!(made.body["spec"]["containers"][0]["resources"]["requests"]["cpu"], "300m");
    let mut large = pod("large");
    large["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "800m"}});
    let refused = call(&api, "POST", PODS, large).await;
    assert_eq!(
        refused.body["message"],
        "pods \"large\" is forbidden: [maximum cpu usage per Container is 600m, but limit is 800m, maximum cpu usage per Pod is 700m, but limit is 800m]"
    );
    assert_eq!(refused.code, 403);
}

/// A number that looks random, by its place.
fn scattered(at: u64) -> u64 {
    (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) >> 7
}

/// Many writers and the controller at once: no state of the quota is above its limits, and at the end it is what there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_side_by_side_never_use_more_than_there_is() {
    let api = Arc::new(with_namespace().await);
    let hard = json!({"pods": "7", "requests.cpu": "1", "count/configmaps": "5"});
    let made = call(&api, "POST", QUOTAS, json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let stop = tokio_util::sync::CancellationToken::new();
    let client = Client::new(api.router().layer(axum::Extension(User::api_server())), "default");
    let running =
        tokio::spawn(windlass_controllers::run(client, windlass_controllers::Config::default(), stop.clone()));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    // The controller's own objects of the namespace are counted as well.
    while used(&api, "q").await["count/configmaps"].is_null() {
        assert!(std::time::Instant::now() < deadline, "the controller counts");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let store = api.store().clone();
    let quotas = store.resource("resourcequotas");
    let mut watch = store.watch_scope(quotas, Scope::All, store.revision()).unwrap();
    let writer = |number: u64| {
        let api = Arc::clone(&api);
        async move {
            let mut codes = std::collections::BTreeMap::<u16, usize>::new();
            for step in 0..25 {
                let random = scattered(number * 1000 + step);
                let name = format!("o{}", random % 12);
                let (cpu, dry) = (format!("{}m", 1 + random / 12 % 400), random.is_multiple_of(7));
                let query = if dry { "?dryRun=All" } else { "" };
                let reply = match random / 64 % 6 {
                    0 | 1 => call(&api, "POST", &format!("{PODS}{query}"), pod_with(&name, &cpu)).await,
                    2 => call(&api, "DELETE", &format!("{PODS}/{name}{query}"), Value::Null).await,
                    3 => call(&api, "POST", &format!("{MAPS}{query}"), map(&name)).await,
                    4 => call(&api, "DELETE", &format!("{MAPS}/{name}{query}"), Value::Null).await,
                    _ => {
                        let ended = json!({"status": {"phase": "Failed"}});
                        call(&api, "PATCH", &format!("{PODS}/{name}/status{query}"), ended).await
                    }
                };
                *codes.entry(reply.code).or_default() += 1;
                // The controller counts in between.
                if random.is_multiple_of(50) {
                    let label = json!({"metadata": {"labels": {"a": name}}, "spec": {"hard": {"secrets": "9"}}});
                    call(&api, "PATCH", &format!("{QUOTAS}/q"), label).await;
                }
            }
            codes
        }
    };
    let tasks: Vec<_> = (0..16).map(|number| tokio::spawn(writer(number))).collect();
    let mut codes = std::collections::BTreeMap::<u16, usize>::new();
    for task in tasks {
        for (code, count) in task.await.unwrap() {
            *codes.entry(code).or_default() += count;
        }
    }
    assert!([201, 200, 403, 404, 409].iter().all(|code| codes.contains_key(code)), "{codes:?}");
    assert!(codes.keys().all(|code| *code < 422), "{codes:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.cancel();
    running.await.unwrap().unwrap();

    let amount = |text: &Value| {
        text.as_str().map_or(0, |text| text.parse::<windlass_kit::quantity::Quantity>().unwrap().milli())
    };
    let last = call(&api, "GET", &format!("{QUOTAS}/q"), Value::Null).await.body;
    let mut states = 0;
    'all: loop {
        for event in watch.next().await.unwrap() {
            let state = event.object.value();
            for (name, limit) in hard.as_object().unwrap() {
                let used = amount(&state["status"]["used"][name]);
                assert!(used <= amount(limit), "{state}");
            }
            states += 1;
            if state["metadata"]["resourceVersion"] == last["metadata"]["resourceVersion"] {
                break 'all;
            }
        }
    }
    assert!(states > 20, "{states}");
    let pods = call(&api, "GET", PODS, Value::Null).await.body["items"].as_array().unwrap().clone();
    let maps = call(&api, "GET", MAPS, Value::Null).await.body["items"].as_array().unwrap().len();
    let running: Vec<&Value> = pods.iter().filter(|pod| pod["status"]["phase"] != "Failed").collect();
    let cpu: i64 =
        running.iter().map(|pod| amount(&pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])).sum();
    let used = &last["status"]["used"];
    let found = (amount(&used["pods"]) / 1000, amount(&used["requests.cpu"]), amount(&used["count/configmaps"]) / 1000);
    let wanted = (i64::try_from(running.len()).unwrap(), cpu, i64::try_from(maps).unwrap());
    assert_eq!(found, wanted, "{used}");
}
