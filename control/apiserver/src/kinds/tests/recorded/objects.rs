//! A good object of each kind, and what is said of new ones that are not so good.

use serde_json::{Value, json};

use super::{
    columns,
    reply_columns::{Said, errors_of, warnings_of},
    rows::with,
    server::{Asking, Reply, Server},
};

/// A good object of each kind that has a line here: `apiVersion`, kind, and the rest of the object.
pub(crate) static SAMPLES: &str = include_str!("../samples.tsv");

/// A good object of a kind, without its metadata.
pub(crate) fn sample(api_version: &str, kind: &str) -> Value {
    let start = format!("{api_version}\t{kind}\t");
    let found = SAMPLES.lines().find_map(|line| line.strip_prefix(&start));
    let found = found.unwrap_or_else(|| panic!("{api_version} {kind} needs a sample"));
    serde_json::from_str(found).unwrap_or_else(|error| panic!("{error}: {found}"))
}

/// The name of an object: some are named after what they define.
pub(crate) fn name_of(kind: &str, name: &str) -> String {
    match kind {
        "CustomResourceDefinition" => format!("{name}.test.example"),
        "APIService" => format!("v1.{name}.example"),
        "IPAddress" => {
            let digits: String = name.chars().filter(char::is_ascii_digit).collect();
            format!("10.9.{}.{}", name.as_bytes()[0], digits.parse().unwrap_or(0_u8))
        }
        _ => name.to_owned(),
    }
}

/// A good object of a kind, under a name.
pub(crate) fn object(api_version: &str, kind: &str, name: &str) -> Value {
    let mut object = sample(api_version, kind);
    if kind == "CustomResourceDefinition" {
        object["spec"]["names"]["plural"] = json!(name);
    }
    if kind == "APIService" {
        object["spec"]["group"] = json!(format!("{name}.example"));
    }
    object["kind"] = json!(kind);
    object["apiVersion"] = json!(api_version);
    object["metadata"] = json!({"name": name_of(kind, name), "labels": {"l": "1"}, "annotations": {"an": "1"}});
    object
}

/// The answer to a new object, of which nothing is kept.
pub(super) async fn created<S: Server>(
    asking: &mut Asking<S>,
    [api_version, kind, pointer, value]: [&str; 4],
    name: &str,
) -> anyhow::Result<Reply> {
    let path = format!("{}?dryRun=All", asking.collection(api_version, kind).await?);
    asking.call("POST", &path, &with(object(api_version, kind, name), pointer, value)).await
}

/// `apiVersion`, kind, a pointer into the sample of the kind, what stands there instead; the errors.
pub(super) async fn refusal<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [api_version, kind, pointer, value, _] = columns(row)?;
    let reply = created(asking, [api_version, kind, pointer, value], "x").await?;
    Ok(vec![Said::Errors(errors_of(&reply))])
}

/// The same of what is taken; the warnings.
pub(super) async fn warnings<S: Server>(asking: &mut Asking<S>, row: &[&str]) -> anyhow::Result<Vec<Said>> {
    let [api_version, kind, pointer, value, _] = columns(row)?;
    let reply = created(asking, [api_version, kind, pointer, value], "w").await?;
    anyhow::ensure!(reply.code == 201, "{}", reply.body);
    Ok(vec![Said::Warnings(warnings_of(&reply))])
}
