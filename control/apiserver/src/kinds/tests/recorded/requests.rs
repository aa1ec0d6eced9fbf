//! What is said of any request, with objects that are there before it.

use serde_json::Value;

use super::{
    columns,
    reply_columns::{Said, errors_of, warnings_of},
    rows::{repeats, written},
    server::{Asking, Caller, JSON, Reply, Request, Server},
};

/// Makes what is given: objects, each with its path and, where it is changed, the method; `null` where it is deleted.
/// Definitions of kinds come first.
pub(super) async fn prepare<S: Server>(asking: &mut Asking<S>, given: &str) -> anyhow::Result<()> {
    let given = written(given);
    let given = given.as_array().map_or(&[][..], Vec::as_slice);
    let path = |one: &Value| one[0].as_str().unwrap_or("").to_owned();
    let (definitions, others): (Vec<&Value>, Vec<&Value>) =
        given.iter().partition(|one| path(one).ends_with("customresourcedefinitions"));
    for (all, is_first) in [(&definitions, true), (&others, false)] {
        for one in all {
            let method = one[2].as_str().unwrap_or(if one[1].is_null() { "DELETE" } else { "POST" });
            let made = asking.call(method, &path(one), &one[1]).await?;
            anyhow::ensure!(matches!(made.code, 200..=202), "{one}: {}", made.body);
        }
        if is_first {
            let name = |one: &Value| one[1]["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let paths: Vec<String> = all.iter().map(|one| format!("{}/{}", path(one), name(one))).collect();
            asking.server().established(&paths).await?;
        }
    }
    if !given.is_empty() {
        asking.server().settle().await;
    }
    Ok(())
}

/// A body with the uid in place of what stands for one.
async fn with_uid<S: Server>(asking: &Asking<S>, body: &str) -> anyhow::Result<String> {
    let Some((before, (path, after))) =
        body.split_once("{uid:").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return Ok(body.to_owned());
    };
    let found = asking.must(200, "GET", path, &Value::Null).await?;
    Ok(format!("{before}{}{after}", found["metadata"]["uid"].as_str().unwrap_or("")))
}

/// The answer to the request of a row. The method may be followed by the caller, by the type of a patch, or by that which a
/// GET accepts.
async fn asked<S: Server>(asking: &mut Asking<S>, method: &str, path: &str, body: &str) -> anyhow::Result<Reply> {
    let body = repeats(&with_uid(asking, body).await?);
    let (caller, method) = match (method.split_once(" as "), method.split_once(" with ")) {
        (_, Some((method, token))) => (Caller::Token(token), method),
        (Some((method, who)), _) => (Caller::User(who), method),
        _ => (Caller::Administrator, method),
    };
    let (method, media) = method.split_once(' ').unwrap_or((method, ""));
    let media = |at: &str, usual| if method == at && !media.is_empty() { media } else { usual };
    let usual = if method == "PATCH" { "application/merge-patch+json" } else { JSON };
    let (content_type, accept) = (media("PATCH", usual), media("GET", JSON));
    asking.server().ask(&Request { caller, method, path, content_type, accept, body: &body }).await
}

/// What is given, method, path and body; the code, and the errors or else the message.
pub(super) async fn answer<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [_, method, path, body, ..] = columns::<6>(row)?;
    let reply = asked(asking, method, path, body).await?;
    let errors = errors_of(&reply);
    let refused = if errors.is_empty() && reply.code >= 400 {
        Said::Message(reply.body["message"].as_str().unwrap_or("").to_owned())
    } else {
        Said::Errors(errors)
    };
    Ok(vec![Said::Code(reply.code), refused])
}

/// What is given, method, path and body of what is taken; the warnings.
pub(super) async fn warnings<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [_, method, path, body, _] = columns(row)?;
    let reply = asked(asking, method, path, body).await?;
    anyhow::ensure!(reply.code < 300, "{}", reply.body);
    Ok(vec![Said::Warnings(warnings_of(&reply))])
}
