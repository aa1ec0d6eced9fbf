//! What upstream refuses beyond one field of a sample: changes of objects in a certain state, and requests to other paths.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Map, Value, json};
use windlass_identity::service_account_tokens::TokenIssuer;

use super::{
    recorded_rows::{repeats, written},
    refusals::{changed, compare, compare_warnings, served},
    table,
};
use crate::{
    apiextensions::tests::establish_all,
    apiserver::{
        User,
        tests::{
            Reply, api_with, call, send, send_with,
            templates::{collection, name_of},
            with_namespace,
        },
    },
    control_plane::instance::Instance,
};

/// `apiVersion`, kind, the object without its name, its status or `null`, the subresource that is written, what is changed by
/// pointers (`-` for nothing), and the errors of fields. Recorded from kube-apiserver 1.36.
static CHANGES: LazyLock<String> = LazyLock::new(|| table("stored_changes"));

/// Objects that are there, each with its path and, where it is changed, the method; `null` where it is deleted; method, path
/// and body of a request, of which nothing is kept; the code, and the errors of fields or else the message. The method may
/// end in the type of a patch or of the answer: `PATCH application/apply-patch+yaml`, in whom the request acts as:
/// `PUT as NAME,GROUP,KEY=VALUE`, or in its token: `GET with TOKEN`. `{uid:PATH}` in a body is the uid of an object. Recorded
/// from kube-apiserver 1.36.
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

/// A body with the uid in place of what stands for one.
async fn with_uid(api: &Instance, body: &str) -> String {
    let Some((before, (path, after))) =
        body.split_once("{uid:").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return body.to_owned();
    };
    let found = call(api, "GET", path, Value::Null).await;
    assert_eq!(found.code, 200, "{path}: {}", found.body);
    format!("{before}{}{after}", found.body["metadata"]["uid"].as_str().unwrap())
}

/// A user by the columns of a row.
fn user(columns: &str) -> User {
    let mut user = User::default();
    for part in columns.split(',') {
        match part.split_once('=') {
            Some((key, value)) => drop(user.extra.insert(key.to_owned(), vec![value.to_owned()])),
            None if user.name.is_empty() => part.clone_into(&mut user.name),
            None => user.groups.push(part.to_owned()),
        }
    }
    user
}

/// An answer; the method may be followed by the type of a patch, or by that which a GET accepts.
async fn asked(api: &Instance, user: &User, method: &str, path: &str, body: &str) -> Reply {
    let (method, media) = method.split_once(' ').unwrap_or((method, ""));
    let media = |at: &str, usual| if method == at && !media.is_empty() { media } else { usual };
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    send(api, user, method, path, media("PATCH", kind), media("GET", "application/json"), body).await
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
        for name in ["n", "kube-system"] {
            call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
        }
        call(&api, "POST", "/api/v1/namespaces/n/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
        let given = written(given);
        let defines = |one: &&Value| one[0].as_str().is_some_and(|path| path.ends_with("customresourcedefinitions"));
        let (definitions, others): (Vec<&Value>, Vec<&Value>) = given.as_array().unwrap().iter().partition(defines);
        let mut served = None;
        for (all, is_first) in [(&definitions, true), (&others, false)] {
            for one in all {
                let method = one[2].as_str().unwrap_or(if one[1].is_null() { "DELETE" } else { "POST" });
                let made = call(&api, method, one[0].as_str().unwrap(), one[1].clone()).await;
                assert!(matches!(made.code, 200..=202), "{one}: {}", made.body);
            }
            if is_first {
                served = establish_all(&api, &definitions).await;
            }
        }
        for row in requests {
            let body = repeats(&with_uid(&api, row[3]).await);
            let answer = match (row[1].split_once(" as "), row[1].split_once(" with ")) {
                (_, Some((method, token))) => send_with(&api, token, method, row[2], &body).await,
                (Some((method, who)), _) => asked(&api, &user(who), method, row[2], &body).await,
                _ => asked(&api, &User::internal("test"), row[1], row[2], &body).await,
            };
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
