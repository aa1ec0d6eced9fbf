//! What upstream refuses beyond one field of a sample: changes of objects in a certain state, and requests to other paths.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Map, Value, json};

use super::{
    refusals::{changed, compare, compare_warnings, repeats, served, written},
    table,
};
use crate::{
    apiextensions::tests::establish_all,
    apiserver::{
        User,
        tests::{
            Reply, api_with, call, send,
            templates::{collection, name_of},
            with_namespace,
        },
    },
    service_account_tokens::TokenIssuer,
};

/// `apiVersion`, kind, the object without its name, its status or `null`, the subresource that is written, what is changed by
/// pointers (`-` for nothing), and the errors of fields. Recorded from kube-apiserver 1.36.
static CHANGES: LazyLock<String> = LazyLock::new(|| table("stored_changes"));

/// Objects that are there, each with its path, and without a body those that are deleted; method, with the type of a patch or
/// of the answer if it is another one, path and body of a request, of which nothing is kept; the code, and the errors of
/// fields or else the message. Recorded from kube-apiserver 1.36.
static REQUESTS: LazyLock<String> = LazyLock::new(|| table("requests"));

/// Requests as in [`REQUESTS`], with the warnings of their answers.
static REQUEST_WARNINGS: LazyLock<String> = LazyLock::new(|| table("request_warnings"));

#[tokio::test]
async fn objects_in_any_state_change_as_upstream_allows() {
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in CHANGES.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [api_version, kind, rest, status, subresource, changes, refused] = columns[..] else { panic!("{line}") };
        let api = with_namespace().await;
        let version = served(&api, api_version, kind);
        let name = name_of(&version, "x");
        let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
        for (field, value) in written(rest).as_object().unwrap() {
            match field.as_str() {
                "metadata" => object["metadata"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone()),
                _ => object[field] = value.clone(),
            }
        }
        let path = collection(&version);
        let status_written = serde_json::from_value::<Option<Map<String, Value>>>(written(status)).unwrap();
        let changes_written = serde_json::from_value(written(changes)).unwrap();
        let at = [path.as_str(), name.as_str(), subresource];
        let answer = changed(&api, at, object, &status_written.unwrap_or_default(), changes_written).await;
        wrong.extend(compare(&format!("{kind} {subresource} {status} {changes}"), &answer, refused));
        rows += 1;
    }
    assert!(rows > 10, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What the API says to each request of a table.
async fn answers(table: &str) -> Vec<(Vec<&str>, Reply)> {
    let mut by_given: BTreeMap<&str, Vec<Vec<&str>>> = BTreeMap::new();
    for line in table.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        by_given.entry(columns[0]).or_default().push(columns);
    }
    let mut told = Vec::new();
    for (given, requests) in by_given {
        let tokens = TokenIssuer::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let api = api_with(Some(tokens), Some(24 * 60 * 60));
        call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
        let given = written(given);
        let defines = |one: &&Value| one[0].as_str().is_some_and(|path| path.ends_with("customresourcedefinitions"));
        let (definitions, others): (Vec<&Value>, Vec<&Value>) = given.as_array().unwrap().iter().partition(defines);
        let mut served = None;
        for (all, is_first) in [(&definitions, true), (&others, false)] {
            for one in all {
                let method = if one[1].is_null() { "DELETE" } else { "POST" };
                let made = call(&api, method, one[0].as_str().unwrap(), one[1].clone()).await;
                assert!(matches!(made.code, 200..=202), "{one}: {}", made.body);
            }
            if is_first {
                served = establish_all(&api, &definitions).await;
            }
        }
        for row in requests {
            let (method, media) = row[1].split_once(' ').unwrap_or((row[1], ""));
            let media = |at: &str, usual| if method == at && !media.is_empty() { media } else { usual };
            let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
            let (kind, accept) = (media("PATCH", kind), media("GET", "application/json"));
            let answer = send(&api, &User::internal("test"), method, row[2], kind, accept, &repeats(row[3])).await;
            told.push((row, answer));
        }
        drop(served);
    }
    told
}

#[tokio::test]
async fn requests_are_refused_as_upstream_refuses_them() {
    let (mut rows, mut wrong) = (0, Vec::new());
    for (row, mut answer) in answers(&REQUESTS).await {
        let [_, method, path, body, code, told] = row[..] else { panic!("{row:?}") };
        if answer.body["details"]["causes"].as_array().is_none_or(Vec::is_empty) && answer.code >= 400 {
            let told = json!([answer.body["message"]]).to_string();
            if told != *row[5] {
                wrong.push(format!("{row:?}: {told}"));
            }
        } else {
            let told = if answer.code < 400 { "[]" } else { told };
            wrong.extend(compare(&format!("{method} {path} {body}"), &answer, told));
        }
        // What is the client's fault is told as such, also where upstream calls it its own.
        if answer.code.to_string() != code && !(code == "500" && answer.code == 400) {
            wrong.push(format!("{row:?}: {} {}", answer.code, answer.body.take()));
        }
        rows += 1;
    }
    assert!(rows > 10, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn requests_are_warned_of_as_upstream_warns() {
    let (mut rows, mut wrong) = (0, Vec::new());
    for (row, answer) in answers(&REQUEST_WARNINGS).await {
        let [_, method, path, body, told] = row[..] else { panic!("{row:?}") };
        assert!(answer.code < 300, "{row:?}: {}", answer.body);
        wrong.extend(compare_warnings(&format!("{method} {path} {body}"), &answer, told));
        rows += 1;
    }
    assert!(rows > 3, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}
