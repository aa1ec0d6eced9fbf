//! What kube-controller-manager has done and said about the same autoscalers: `recorded.jsonl` has one case a line, and says
//! at its beginning how it was recorded and what its fields are.

use std::{collections::BTreeMap, time::Duration};

use kube::Client;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_kit::{metrics::Registry, percent::decoded};

use super::{
    cases::{Case, Seen, at_their_times, autoscaler, custom_metrics_group, lines, now, of_several, path_of, read},
    recorded_api::RecordedApi,
};
use crate::{horizontal_pod_autoscaler::HorizontalController, runtime::Controllers};

/// Cases of which ours makes something else on purpose (`docs/decisions.md`).
const DIFFERENT: [&str; 4] = [
    // The value is divided by no pods: upstream shows the lowest number there is, ours the whole value.
    "object-average-present-none",
    "external-average-present-none",
    // Counts and values beyond the range of their types: upstream's wrap, and ours are the nearest.
    "object-huge-average",
    "external-big",
];

/// After so many visits all is at rest.
const VISITS: u64 = 10;

async fn create(client: &Client, namespace: &str, mut object: Value) {
    at_their_times(&mut object, now());
    let path = match object["kind"].as_str().unwrap() {
        "Namespace" => "/api/v1/namespaces".to_owned(),
        kind => path_of(kind, namespace),
    };
    let request = http::Request::post(path).body(object.to_string().into_bytes()).unwrap();
    let _: Value = client.request(request).await.unwrap();
}

/// What our controller has made of these cases.
async fn ours(cases: &[Case], apis: bool) -> BTreeMap<String, Seen> {
    let fake = RecordedApi::new();
    if apis {
        let (path, group) = custom_metrics_group();
        fake.answer(path, 200, "application/json", &group.to_string());
    }
    let (client, stop) = (fake.client(), CancellationToken::new());
    let mut controllers = Controllers::new(client.clone(), None, &Registry::default(), stop.clone());
    controllers.add::<HorizontalController>(now);
    let running = tokio::spawn(controllers.run());
    for case in cases {
        create(&client, "", json!({"kind": "Namespace", "metadata": {"name": case.name}})).await;
        for object in case.given() {
            create(&client, &case.name, object).await;
        }
        for (path, (code, content_type, body)) in case.answers() {
            fake.answer(&path, code, &content_type, &body);
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for case in cases {
        for (name, change) in &case.autoscalers {
            create(&client, &case.name, autoscaler(name, change)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(VISITS * 15)).await;
    stop.cancel();
    running.await.unwrap();
    collected(&fake, cases)
}

fn collected(fake: &RecordedApi, cases: &[Case]) -> BTreeMap<String, Seen> {
    let changes = fake.history();
    let autoscalers =
        changes.iter().filter(|(plural, event)| plural == "horizontalpodautoscalers" && event["type"] == "MODIFIED");
    let autoscalers: Vec<Value> = autoscalers.map(|(_, event)| event["object"].clone()).collect();
    let mut events = fake.all("events");
    let number = |event: &Value| event["metadata"]["uid"].as_str().unwrap().to_owned();
    events.sort_by_key(number);
    let kinds = ["deployments", "replicasets", "statefulsets", "replicationcontrollers", "widgets"];
    let targets: Vec<Value> = kinds.into_iter().flat_map(|plural| fake.all(plural)).collect();
    let asked = fake.asked().into_iter().filter(|uri| uri.contains("metrics.k8s.io/v"));
    Seen::of(
        cases.iter().map(|case| case.name.clone()),
        &autoscalers,
        &events,
        &targets,
        asked.map(|uri| decoded(&uri).unwrap()),
    )
}

#[tokio::test(start_paused = true)]
async fn statuses_events_and_sizes_are_those_of_kube_controller_manager() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/horizontal_pod_autoscaler/tests/recorded.jsonl");
    let recorded = std::fs::read_to_string(path).unwrap();
    let cases = read(&recorded).1.into_iter().map(|(_, case)| case);
    let (with, without): (Vec<Case>, Vec<Case>) = cases.partition(|case| case.apis);
    let mut differing = Vec::new();
    for (cases, apis) in [(with, true), (without, false)] {
        let mut ours = ours(&cases, apis).await;
        for mut case in cases {
            let (mut ours, theirs) = (ours.remove(&case.name).unwrap(), &mut case.seen);
            if case.autoscalers.len() > 1 {
                of_several(&mut ours);
                of_several(theirs);
            }
            if DIFFERENT.contains(&&*case.name) {
                assert!(ours != *theirs, "{} does not differ", case.name);
            } else if ours != *theirs {
                let (ours, theirs) = (lines(&ours), lines(theirs));
                let only = |of: &[String], not: &[String]| -> String {
                    of.iter().filter(|line| !not.contains(line)).map(|line| format!("\n    {line}")).collect()
                };
                let (mine, other) = (only(&ours, &theirs), only(&theirs, &ours));
                differing.push(format!("{}:\n  ours{mine}\n  theirs{other}", case.name));
            }
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
}
