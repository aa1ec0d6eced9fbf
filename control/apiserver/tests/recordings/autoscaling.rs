//! Records what the autoscalers of a real kube-controller-manager do in the cases of
//! `control/controllers/src/horizontal_pod_autoscaler/tests/recorded.jsonl`, and checks that they still do:
//! `UPDATE_RECORDED=1 cargo test -p windlass-control --test recordings autoscaling` writes the cases that differ.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use windlass_kit::percent::decoded;
use windlass_tests::cluster::{ControlPlane, Part};

use crate::{
    autoscaling_cases::{
        Case, Seen, at_their_times, autoscaler, begin, lines, now, of_several, path_of, read, timeless,
    },
    is_recording,
    metrics_server::MetricsServer,
    real_server::RealServer,
    recorded::{Asking, Server as _},
};

/// The groups of metrics, by the version that is served.
const GROUPS: [(&str, &str); 3] =
    [("metrics.k8s.io", "v1beta1"), ("custom.metrics.k8s.io", "v1beta2"), ("external.metrics.k8s.io", "v1beta1")];

/// Only autoscalers, which are visited every second, all at once.
const CONTROLLER_MANAGER: [&str; 5] = [
    "--controllers=horizontal-pod-autoscaler-controller",
    "--horizontal-pod-autoscaler-sync-period=1s",
    "--concurrent-horizontal-pod-autoscaler-syncs=8",
    "--kube-api-qps=2000",
    "--kube-api-burst=4000",
];

/// How often a case that differs is asked again, with fewer others: a controller that has much to say drops events.
const TRIES: usize = 3;
/// Objects that are created side by side.
const SIDE_BY_SIDE: usize = 8;
/// Nothing has changed for so long when all is at rest: usual scaling goes in steps of 15 seconds.
const REST: Duration = Duration::from_secs(40);
/// Between two looks at it.
const INTERVAL: Duration = Duration::from_secs(2);

/// Compares or writes the file.
pub(crate) async fn record(server: RealServer, plane: &ControlPlane) -> anyhow::Result<()> {
    let mut asking = Asking::new(server);
    let file =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../controllers/src/horizontal_pod_autoscaler/tests/recorded.jsonl");
    let text = fs::read_to_string(file)?;
    let (usual, cases) = read(&text);
    let asked = cases.len();
    let mut left = cases;
    let mut seen = BTreeMap::new();
    for _ in 0..TRIES {
        for has_apis in [true, false] {
            let some: Vec<&Case> = left.iter().map(|(_, case)| case).filter(|case| case.apis == has_apis).collect();
            if !some.is_empty() {
                asking.start_afresh().await?;
                seen.extend(seen_of(&mut asking, plane, &some).await?);
            }
        }
        left.retain(|(_, case)| !differences(case, &seen[&case.name]).is_empty());
    }
    let (mut differ, mut written) = (Vec::new(), text.clone());
    for (line, case) in &left {
        let now = &seen[&case.name];
        differ.push(format!("{}:\n{}", case.name, differences(case, now)));
        let given = line.split_once("\"seen\":").map_or("", |(given, _)| given);
        written = written.replace(line, &format!("{given}\"seen\":{}}}", now.shortly(&usual, case)));
    }
    println!("{asked} cases, {} of which differ", differ.len());
    if is_recording() {
        fs::write(file, written)?;
    }
    anyhow::ensure!(asked > 300, "only {asked} cases were found");
    anyhow::ensure!(differ.is_empty() || is_recording(), "{}", differ.join("\n"));
    Ok(())
}

/// What is seen of a case now and was not before, and the other way round, in lines.
fn differences(case: &Case, now: &Seen) -> String {
    let (mut before, mut now) = (case.seen.clone(), now.clone());
    if case.autoscalers.len() > 1 {
        of_several(&mut before);
        of_several(&mut now);
    }
    if before == now {
        return String::new();
    }
    let (before, now) = (lines(&before), lines(&now));
    let only = |of: &[String], not: &[String]| -> String {
        of.iter().filter(|line| !not.contains(line)).map(|line| format!("\n    {line}")).collect()
    };
    format!("  recorded:{}\n  now:{}", only(&before, &now), only(&now, &before))
}

/// What is seen of cases that are there side by side.
async fn seen_of(
    asking: &mut Asking<RealServer>,
    plane: &ControlPlane,
    cases: &[&Case],
) -> anyhow::Result<BTreeMap<String, Seen>> {
    begin();
    let has_apis = cases.first().is_some_and(|case| case.apis);
    let server = MetricsServer::start(cases, &GROUPS).await?;
    define_widgets(asking).await?;
    if has_apis {
        register(asking, server.port()).await?;
    }
    let asking = &*asking;
    let each = futures::stream::iter(cases);
    each.map(Ok).try_for_each_concurrent(SIDE_BY_SIDE, |case| given(asking, case)).await?;
    let from = asking.must(200, "GET", AUTOSCALERS, &Value::Null).await?;
    let from = from["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
    plane.change(Part::ControllerManager, &CONTROLLER_MANAGER);
    let is_over = Cell::new(false);
    let (mut autoscalers, mut events, ()) = tokio::try_join!(
        watched(asking, AUTOSCALERS, &from, "MODIFIED", &is_over),
        watched(asking, "/api/v1/events", &from, "ADDED", &is_over),
        async {
            for case in cases {
                for (name, change) in &case.autoscalers {
                    let path = path_of("HorizontalPodAutoscaler", &case.name);
                    asking.must(201, "POST", &path, &autoscaler(name, change)).await?;
                }
            }
            until_rest(asking).await?;
            is_over.set(true);
            anyhow::Ok(())
        },
    )?;
    plane.end(Part::ControllerManager, nix::sys::signal::Signal::SIGKILL);
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    let is_of_case = |object: &Value| object["metadata"]["namespace"].as_str().is_some_and(|name| names.contains(name));
    autoscalers.retain(&is_of_case);
    events.retain(|event| is_of_case(event) && event["source"]["component"] == "horizontal-pod-autoscaler");
    let targets = targets(asking, &is_of_case).await?;
    // Go writes a space in a query as a plus.
    let asked = server.asked().into_iter().map(|uri| decoded(&uri.replace('+', " ")).unwrap_or(uri));
    Ok(Seen::of(cases.iter().map(|case| case.name.clone()), &autoscalers, &events, &targets, asked))
}

const AUTOSCALERS: &str = "/apis/autoscaling/v2/horizontalpodautoscalers";

/// What autoscalers can have as target.
async fn targets(asking: &Asking<RealServer>, is_of_case: impl Fn(&Value) -> bool) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    for (kind, path) in [
        ("Deployment", "/apis/apps/v1/deployments"),
        ("ReplicaSet", "/apis/apps/v1/replicasets"),
        ("StatefulSet", "/apis/apps/v1/statefulsets"),
        ("ReplicationController", "/api/v1/replicationcontrollers"),
        ("Widget", "/apis/example.com/v1/widgets"),
    ] {
        let mut found = asking.must(200, "GET", path, &Value::Null).await?;
        for object in found["items"].as_array_mut().into_iter().flatten().filter(|object| is_of_case(object)) {
            object["kind"] = json!(kind);
            all.push(object.take());
        }
    }
    Ok(all)
}

/// Waits until no autoscaler has changed for a while. Messages do not count: some name autoscalers in another order each time.
async fn until_rest(asking: &Asking<RealServer>) -> anyhow::Result<()> {
    let (mut before, mut since) = (Vec::new(), tokio::time::Instant::now());
    while since.elapsed() < REST {
        tokio::time::sleep(INTERVAL).await;
        let found = asking.must(200, "GET", AUTOSCALERS, &Value::Null).await?;
        let items = found["items"].as_array().into_iter().flatten();
        let mut all: Vec<Value> = items.map(|one| timeless(&one["status"])).collect();
        for condition in all.iter_mut().filter_map(|one| one["conditions"].as_array_mut()).flatten() {
            condition[3] = Value::Null;
        }
        if all != before {
            (before, since) = (all, tokio::time::Instant::now());
        }
    }
    Ok(())
}

/// The objects of the events of one kind since a revision, until all is over.
async fn watched(
    asking: &Asking<RealServer>,
    all: &str,
    from: &str,
    kind: &str,
    is_over: &Cell<bool>,
) -> anyhow::Result<Vec<Value>> {
    let (mut objects, mut from) = (Vec::new(), from.to_owned());
    loop {
        let is_last = is_over.get();
        let path = format!("{all}?watch=true&resourceVersion={from}&timeoutSeconds=3");
        let answer = asking.call("GET", &path, &Value::Null).await?;
        // Many documents in JSON are none: the answer is there as text.
        let text = answer.body["message"].as_str().map_or_else(|| answer.body.to_string(), str::to_owned);
        for event in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            let mut event = event?;
            anyhow::ensure!(event["type"] != "ERROR", "{all}: {event}");
            event["object"]["metadata"]["resourceVersion"].as_str().unwrap_or("").clone_into(&mut from);
            if event["type"] == kind {
                objects.push(event["object"].take());
            }
        }
        if is_last {
            return Ok(objects);
        }
    }
}

/// The kind of some targets, which says itself what its scale is.
async fn define_widgets(asking: &mut Asking<RealServer>) -> anyhow::Result<()> {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector"});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
        "properties": {"spec": any, "status": any}}}, "subresources": {"status": {}, "scale": scale}});
    let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version]}});
    let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    asking.must(201, "POST", all, &definition).await?;
    asking.server().established(&[format!("{all}/widgets.example.com")]).await
}

/// Makes the server of metrics known, and waits until it is asked.
async fn register(asking: &mut Asking<RealServer>, port: u16) -> anyhow::Result<()> {
    let service = json!({"metadata": {"name": "metrics"},
        "spec": {"type": "ExternalName", "externalName": windlass_tests::NODE_IP}});
    asking.must(201, "POST", "/api/v1/namespaces/default/services", &service).await?;
    let all = "/apis/apiregistration.k8s.io/v1/apiservices";
    for (group, version) in GROUPS {
        let spec = json!({"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "metrics", "port": port}});
        let body = json!({"metadata": {"name": format!("{version}.{group}")}, "spec": spec});
        asking.must(201, "POST", all, &body).await?;
    }
    for (group, version) in GROUPS {
        asking.server().until(&format!("/apis/{group}/{version}"), |reply| reply.code == 200).await?;
    }
    Ok(())
}

/// Creates what is there before the autoscalers of a case.
async fn given(asking: &Asking<RealServer>, case: &Case) -> anyhow::Result<()> {
    let namespace = &case.name;
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    asking.must(201, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await?;
    asking.must(201, "POST", &accounts, &json!({"metadata": {"name": "default"}})).await?;
    for mut object in case.given() {
        at_their_times(&mut object, now());
        let kind = object["kind"].as_str().unwrap_or("").to_owned();
        let all = path_of(&kind, namespace);
        let one = format!("{all}/{}", object["metadata"]["name"].as_str().unwrap_or(""));
        let ending = object["metadata"]["deletionGracePeriodSeconds"].take();
        completed(&mut object, &kind, !ending.is_null());
        let mut made = asking.must(201, "POST", &all, &object).await?;
        if !object["status"].is_null() {
            made["status"] = object["status"].take();
            asking.must(200, "PUT", &format!("{one}/status"), &made).await?;
        }
        if let Some(seconds) = ending.as_i64() {
            asking.must(200, "DELETE", &format!("{one}?gracePeriodSeconds={seconds}"), &Value::Null).await?;
        }
    }
    Ok(())
}

/// Adds what a real server needs and autoscalers do not look at.
fn completed(object: &mut Value, kind: &str, is_ending: bool) {
    match kind {
        "Pod" => {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("deletionTimestamp");
                metadata.remove("deletionGracePeriodSeconds");
            }
            for list in ["containers", "initContainers"] {
                for container in object["spec"][list].as_array_mut().into_iter().flatten() {
                    container["image"] = json!("i");
                }
            }
            object["spec"]["automountServiceAccountToken"] = json!(false);
            if is_ending {
                // A pod of no node would be gone at once.
                object["spec"]["nodeName"] = json!("n");
            }
        }
        "Deployment" | "ReplicaSet" | "StatefulSet" | "ReplicationController" => {
            let selector = &object["spec"]["selector"];
            let labels = if kind == "ReplicationController" { selector } else { &selector["matchLabels"] };
            let template =
                json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
            object["spec"]["template"] = template;
        }
        // One kind is in no group that the path would say.
        "Widget" => object["apiVersion"] = json!("example.com/v1"),
        _ => {}
    }
}
