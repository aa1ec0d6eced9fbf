//! What is said of changes of stored objects.

use serde_json::{Map, Value, json};

use super::{
    columns,
    objects::{created, name_of, object},
    reply_columns::{Said, errors_of, warnings_of},
    rows::{with, written},
    server::{Asking, Reply, Server},
};

/// How often a change is sent again that another one has overtaken: real servers change some objects themselves.
const MAX_CONFLICTS: usize = 5;

/// The answer to a change of the object at a path, of which nothing is kept.
pub(super) async fn replaced<S: Server>(
    asking: &Asking<S>,
    one: &str,
    subresource: &str,
    change: impl Fn(Value) -> Value,
) -> anyhow::Result<Reply> {
    let slash = if subresource.is_empty() { "" } else { "/" };
    let path = format!("{one}{slash}{subresource}?dryRun=All");
    let mut conflicts = 0;
    loop {
        let stored = asking.must(200, "GET", one, &Value::Null).await?;
        let reply = asking.call("PUT", &path, &change(stored)).await?;
        if reply.body["reason"] != "Conflict" || conflicts == MAX_CONFLICTS {
            return Ok(reply);
        }
        conflicts += 1;
    }
}

/// The answer to a change of the sample of a kind.
async fn of_sample<S: Server>(
    asking: &mut Asking<S>,
    [api_version, kind, subresource, pointer, value]: [&str; 5],
) -> anyhow::Result<Reply> {
    let path = asking.collection(api_version, kind).await?;
    // Kinds in two versions share their objects.
    let name = if api_version == "autoscaling/v1" { "y" } else { "x" };
    // It may be there from the row before.
    asking.call("POST", &path, &object(api_version, kind, name)).await?;
    let one = format!("{path}/{}", name_of(kind, name));
    replaced(asking, &one, subresource, |stored| with(stored, pointer, value)).await
}

/// `apiVersion`, kind, the subresource, a pointer into the stored object, what stands there instead; the errors.
pub(super) async fn errors<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [api_version, kind, subresource, pointer, value, _] = columns(row)?;
    let reply = of_sample(asking, [api_version, kind, subresource, pointer, value]).await?;
    Ok(vec![Said::Errors(errors_of(&reply))])
}

/// The same of what is taken; the warnings.
pub(super) async fn warnings<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [api_version, kind, subresource, pointer, value, _] = columns(row)?;
    let reply = of_sample(asking, [api_version, kind, subresource, pointer, value]).await?;
    anyhow::ensure!(reply.code == 200, "{}", reply.body);
    Ok(vec![Said::Warnings(warnings_of(&reply))])
}

/// `apiVersion`, kind, a pointer into the object, what stands there; the errors of a new object with it, and those of another
/// change of a stored one that has it.
pub(super) async fn tolerated<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [api_version, kind, pointer, value, ..] = columns::<6>(row)?;
    let refused = created(asking, [api_version, kind, pointer, value], "w").await?;
    let path = asking.collection(api_version, kind).await?;
    asking.must(201, "POST", &path, &object(api_version, kind, "x")).await?;
    let one = format!("{path}/{}", name_of(kind, "x"));
    asking.server().write_past(&one, &|stored| with(stored, pointer, value)).await?;
    let reply = replaced(asking, &one, "", |stored| with(stored, "/metadata/annotations/an", "\"2\"")).await?;
    anyhow::ensure!(matches!(reply.code, 200 | 422), "{}", reply.body);
    // The same is said more than once where several functions look at it.
    let mut errors = errors_of(&reply);
    errors.dedup();
    Ok(vec![Said::Errors(errors_of(&refused)), Said::Errors(errors)])
}

/// What only a node may write, which does not matter here.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The errors of a change of an object that is stored at a path, with a status if there is one: values by pointers (`-` for
/// nothing). How a spec differs is in each server's own words, which begin in a line of their own and are left out.
pub(super) async fn changed<S: Server>(
    asking: &mut Asking<S>,
    [path, name, subresource]: [&str; 3],
    mut object: Value,
    status: &Map<String, Value>,
    changes: &Map<String, Value>,
) -> anyhow::Result<Vec<Said>> {
    let mirror = object["metadata"]["annotations"].as_object_mut().and_then(|all| all.remove(MIRROR));
    asking.must(201, "POST", path, &object).await?;
    let one = format!("{path}/{name}");
    if let Some(mirror) = mirror {
        let change = |mut pod: Value| {
            pod["metadata"]["annotations"][MIRROR] = mirror.clone();
            pod
        };
        asking.server().write_past(&one, &change).await?;
    }
    if !status.is_empty() {
        let mut stored = asking.must(200, "GET", &one, &Value::Null).await?;
        if stored["status"].is_null() {
            stored["status"] = json!({});
        }
        stored["status"].as_object_mut().into_iter().for_each(|all| all.extend(status.clone()));
        asking.must(200, "PUT", &format!("{one}/status"), &stored).await?;
    }
    let change = |stored| {
        changes.iter().fold(stored, |stored, (pointer, value)| {
            with(stored, pointer, &if value == "-" { "-".to_owned() } else { value.to_string() })
        })
    };
    let mut errors = errors_of(&replaced(asking, &one, subresource, change).await?);
    for error in &mut errors {
        error.truncate(error.find('\n').unwrap_or(error.len()));
    }
    Ok(vec![Said::Errors(errors)])
}

/// `apiVersion`, kind, the object without its name, its status or `null`, the subresource that is written, what is changed by
/// pointers; the errors.
pub(super) async fn of_stored<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [api_version, kind, rest, status, subresource, changes, _] = columns(row)?;
    let name = name_of(kind, "x");
    let mut object = written(rest);
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    object["metadata"]["name"] = json!(name);
    let path = asking.collection(api_version, kind).await?;
    let status: Option<Map<String, Value>> = serde_json::from_value(written(status))?;
    let changes = serde_json::from_value(written(changes))?;
    changed(asking, [&path, &name, subresource], object, &status.unwrap_or_default(), &changes).await
}

/// `PersistentVolume` or `PersistentVolumeClaim`, the object without its name, its status or `null`, a pointer, what stands
/// there instead; the errors, and the warnings.
pub(super) async fn of_volumes<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [kind, object, status, pointer, value, ..] = columns::<7>(row)?;
    let path = asking.collection("v1", kind).await?;
    let mut object = written(object);
    object["metadata"]["name"] = json!("x");
    let mut stored = asking.must(201, "POST", &path, &object).await?;
    if status != "null" {
        stored["status"] = written(status);
        asking.must(200, "PUT", &format!("{path}/x/status"), &stored).await?;
    }
    let reply = replaced(asking, &format!("{path}/x"), "", |stored| with(stored, pointer, value)).await?;
    Ok(vec![Said::Errors(errors_of(&reply)), Said::Warnings(warnings_of(&reply))])
}
