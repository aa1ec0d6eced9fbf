//! The cells of a pod: what `STATUS` says follows upstream's order of questions.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    apiserver::types::{Column, Table},
    kinds::shared::{
        cells::{age, or_none, text},
        tables::NAME,
    },
};

/// The table of pods; its first column is the name.
pub(super) fn table(columns: Vec<Column>) -> Table {
    Table { columns: std::iter::once(NAME).chain(columns).collect(), row: Box::new(row) }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    list(status, "conditions").iter().find(|c| c["type"] == kind)
}

fn restarts(status: &Value) -> i64 {
    status["restartCount"].as_i64().unwrap_or(0)
}

/// How a container ended, in a word.
fn end(terminated: &Value) -> String {
    let reason = text(&terminated["reason"]);
    match (reason, terminated["signal"].as_i64().unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", terminated["exitCode"]),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

struct Summary {
    word: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<String>,
}

fn newer(last: &mut Option<String>, status: &Value) {
    let finished = text(&status["lastState"]["terminated"]["finishedAt"]);
    if !finished.is_empty() && last.as_deref().is_none_or(|l| finished > l) {
        *last = Some(finished.to_owned());
    }
}

fn summarize(pod: &Value) -> Summary {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let mut word = text(&status["reason"]).to_owned();
    if word.is_empty() {
        text(&status["phase"]).clone_into(&mut word);
    }
    if condition(status, "PodScheduled").is_some_and(|c| c["reason"] == "SchedulingGated") {
        word = "SchedulingGated".to_owned();
    }
    let sidecar = |name: &Value| {
        list(spec, "initContainers").iter().any(|c| c["name"] == *name && c["restartPolicy"] == "Always")
    };
    let (mut ready, mut init_restarts, mut sidecar_restarts, mut last_init, mut last) = (0, 0, 0, None, None);
    let mut initializing = false;
    let inits = list(status, "initContainerStatuses");
    for (at, init) in inits.iter().enumerate() {
        init_restarts += restarts(init);
        newer(&mut last_init, init);
        if sidecar(&init["name"]) {
            sidecar_restarts += restarts(init);
            newer(&mut last, init);
        }
        let state = &init["state"];
        if state["terminated"].is_object() && state["terminated"]["exitCode"] == 0 {
            continue;
        }
        if sidecar(&init["name"]) && init["started"] == true {
            ready += usize::from(init["ready"] == true);
            continue;
        }
        word = if state["terminated"].is_object() {
            format!("Init:{}", end(&state["terminated"]))
        } else {
            match text(&state["waiting"]["reason"]) {
                "" | "PodInitializing" => format!("Init:{at}/{}", list(spec, "initContainers").len()),
                reason => format!("Init:{reason}"),
            }
        };
        initializing = true;
        break;
    }
    let mut total = init_restarts;
    if !initializing || condition(status, "Initialized").is_some_and(|c| c["status"] == "True") {
        total = sidecar_restarts;
        let (mut running, mut error) = (false, None);
        for container in list(status, "containerStatuses").iter().rev() {
            total += restarts(container);
            newer(&mut last, container);
            let state = &container["state"];
            let waiting = text(&state["waiting"]["reason"]);
            if !waiting.is_empty() {
                waiting.clone_into(&mut word);
            } else if state["terminated"].is_object() {
                word = end(&state["terminated"]);
                if state["terminated"]["exitCode"] != 0 {
                    error = Some(word.clone());
                }
            } else if container["ready"] == true && state["running"].is_object() {
                running = true;
                ready += 1;
            }
        }
        if word == "Completed" {
            let is_ready = condition(status, "Ready").is_some_and(|c| c["status"] == "True");
            word = match (running, is_ready, error) {
                (true, true, _) => "Running".to_owned(),
                (_, _, Some(error)) => error,
                (true, false, None) => "NotReady".to_owned(),
                (false, ..) => word,
            };
        }
    } else {
        last = last_init;
    }
    let phase = text(&status["phase"]);
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        if status["reason"] == "NodeLost" {
            word = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            word = "Terminating".to_owned();
        }
    }
    Summary { word, ready, restarts: total, last_restart: last }
}

fn row(pod: &Value, now: Timestamp) -> Vec<Value> {
    let pod_age = age(text(&pod["metadata"]["creationTimestamp"]), now);
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let summary = summarize(pod);
    let all = list(spec, "containers").len()
        + list(spec, "initContainers").iter().filter(|c| c["restartPolicy"] == "Always").count();
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts > 0 => format!("{} ({} ago)", summary.restarts, age(&at, now)),
        _ => summary.restarts.to_string(),
    };
    let gates = list(spec, "readinessGates");
    let open = gates
        .iter()
        .filter(|g| condition(status, text(&g["conditionType"])).is_some_and(|c| c["status"] == "True"))
        .count();
    let gates = if gates.is_empty() { "<none>".to_owned() } else { format!("{open}/{}", gates.len()) };
    vec![
        pod["metadata"]["name"].clone(),
        json!(format!("{}/{all}", summary.ready)),
        json!(summary.word),
        json!(restarts),
        json!(pod_age),
        json!(or_none(text(&status["podIP"]).to_owned())),
        json!(or_none(text(&spec["nodeName"]).to_owned())),
        json!(or_none(text(&status["nominatedNodeName"]).to_owned())),
        json!(gates),
    ]
}
