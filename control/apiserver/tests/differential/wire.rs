//! The protobuf form of objects and the OpenAPI documents compared with those of a real kube-apiserver.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, ensure};
use http::{Request, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Map, Value, json};
use windlass_apimachinery::{
    openapi::v2_protobuf,
    protobuf::{decode, encode, envelope},
};
use windlass_control::{kinds::types, schema};
use windlass_tests::cri::read_varint;

use crate::{
    api_server::{ApiServer, JSON},
    kinds::ONLY_OURS,
    with_both_servers,
};

async fn ask(side: &ApiServer, method: &str, path: &str, accept: &str, body: &Value) -> anyhow::Result<(u16, Vec<u8>)> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, JSON);
    let request = request.header(header::ACCEPT, accept).body(Body::from(text.into_bytes()))?;
    let response = side.clients["admin"].send(request).await?;
    let code = response.status().as_u16();
    Ok((code, response.into_body().collect().await?.to_bytes().to_vec()))
}

async fn json_of(side: &ApiServer, path: &str) -> anyhow::Result<Value> {
    let (code, bytes) = ask(side, "GET", path, JSON, &Value::Null).await?;
    ensure!(code == 200, "{} {path}: {code} {}", side.name, String::from_utf8_lossy(&bytes));
    Ok(serde_json::from_slice(&bytes)?)
}

/// The same answer in JSON and protobuf: one encodes to the other, and that decodes to what equals the first.
fn compare(what: &str, json: &Value, bytes: &[u8]) -> anyhow::Result<()> {
    let opened = envelope::open(bytes).with_context(|| what.to_owned())?;
    let of =
        types::named(opened.api_version, opened.kind).with_context(|| format!("{what}: {} is unknown", opened.kind))?;
    let message = encode(of.definition(), json).with_context(|| what.to_owned())?;
    let decoded = decode(of.definition(), opened.raw).with_context(|| what.to_owned())?;
    if message != opened.raw {
        let ours = decode(of.definition(), &message)?;
        ensure!(ours == decoded, "{what}:\nours {ours:#}\nkube-apiserver {decoded:#}");
        anyhow::bail!("{what}: the bytes differ");
    }
    let definition = of.definition();
    ensure!(
        windlass_apimachinery::schema::same(definition, &decoded, &without_kinds(json)),
        "{what}:\nours {decoded:#}\nkube-apiserver {json:#}"
    );
    Ok(())
}

/// `TypeMeta` is not on the wire, neither of an object nor of one inside it.
fn without_kinds(object: &Value) -> Value {
    let mut object = object.clone();
    let strip = |value: &mut Value| {
        for name in ["apiVersion", "kind"] {
            value.as_object_mut().and_then(|fields| fields.remove(name));
        }
    };
    strip(&mut object);
    if let Some(templates) = object.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut) {
        templates.iter_mut().for_each(strip);
    }
    object
}

/// Objects with everything odd, and whatever the server makes of itself.
pub(crate) fn objects_have_the_bytes_of_the_real_server() {
    with_both_servers(async |real, _| {
        let made = ask(real, "POST", "/api/v1/namespaces", JSON, &json!({"metadata": {"name": "wire"}})).await?;
        ensure!(made.0 == 201, "{}", String::from_utf8_lossy(&made.1));
        let account = json!({"metadata": {"name": "default"}});
        ask(real, "POST", "/api/v1/namespaces/wire/serviceaccounts", JSON, &account).await?;
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apimachinery/tests/protobuf");
        let mut compared = 0;
        for entry in fs::read_dir(directory)? {
            let case: Value = serde_json::from_slice(&fs::read(entry?.path())?)?;
            // A limit range would bound what others may be.
            if case["type"] == "core/v1.LimitRange" {
                continue;
            }
            let path = case["path"].as_str().unwrap_or_default();
            compare_case(real, path, &case).await.with_context(|| case["type"].to_string())?;
            compared += 1;
        }
        ensure!(compared > 30, "{compared} objects");
        println!("{compared} odd objects, {} of the server's own lists compared", compare_lists(real).await?);
        Ok(())
    });
}

async fn compare_case(real: &ApiServer, path: &str, case: &Value) -> anyhow::Result<()> {
    let manifest = &case["manifest"];
    if case["review"] == true {
        let (_, json) = ask(real, "POST", path, JSON, manifest).await?;
        let (_, bytes) = ask(real, "POST", path, envelope::MEDIA_TYPE, manifest).await?;
        return compare(path, &serde_json::from_slice(&json)?, &bytes);
    }
    let (code, made) = ask(real, "POST", path, JSON, manifest).await?;
    ensure!(code == 201, "{}", String::from_utf8_lossy(&made));
    let mut made: Value = serde_json::from_slice(&made)?;
    let path = format!("{path}/{}", manifest["metadata"]["name"].as_str().unwrap_or_default());
    if let Some(status) = case.get("status") {
        made["status"] = status.clone();
        let (code, answer) = ask(real, "PUT", &format!("{path}/status"), JSON, &made).await?;
        ensure!(code == 200, "{}", String::from_utf8_lossy(&answer));
    }
    // The server itself writes the status of some.
    for attempt in 0.. {
        let (before, (_, bytes)) =
            (json_of(real, &path).await?, ask(real, "GET", &path, envelope::MEDIA_TYPE, &Value::Null).await?);
        if json_of(real, &path).await? == before || attempt > 20 {
            return compare(&path, &before, &bytes);
        }
    }
    Ok(())
}

/// Everything that the server lists, as of one revision.
async fn compare_lists(real: &ApiServer) -> anyhow::Result<usize> {
    let mut compared = 0;
    let groups = json_of(real, "/apis").await?;
    let named = groups["groups"].as_array().into_iter().flatten();
    let named =
        named.filter_map(|group| Some(format!("/apis/{}", group["preferredVersion"]["groupVersion"].as_str()?)));
    for base in std::iter::once("/api/v1".to_owned()).chain(named) {
        // The odd objects brought groups of their own: custom resources have no protobuf form, nobody serves the other.
        if base.contains("example.") {
            continue;
        }
        let resources = json_of(real, &base).await?;
        for resource in resources["resources"].as_array().into_iter().flatten() {
            let listed = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("list")));
            let name = resource["name"].as_str().unwrap_or_default();
            // Components have no revision.
            if !listed || name == "componentstatuses" {
                continue;
            }
            let list = json_of(real, &format!("{base}/{name}")).await?;
            let at = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            let path = format!("{base}/{name}?resourceVersion={at}&resourceVersionMatch=Exact");
            let json = json_of(real, &path).await?;
            let (code, bytes) = ask(real, "GET", &path, envelope::MEDIA_TYPE, &Value::Null).await?;
            ensure!(code == 200, "{path}: {code}");
            let mut plain = json.clone();
            plain["items"].as_array_mut().into_iter().flatten().for_each(|item| *item = without_kinds(item));
            compare(&path, &plain, &bytes)?;
            compared += 1;
        }
    }
    ensure!(compared > 40, "{compared} lists");
    Ok(compared)
}

/// Definitions and operations of our documents are those of the real server, where it has them.
pub(crate) fn documents_are_those_of_the_real_server() {
    with_both_servers(async |real, ours| {
        let mut problems = Vec::new();
        let (mut definitions, mut operations) = (BTreeSet::new(), 0);
        let index = json_of(ours, "/openapi/v3").await?;
        for path in index["paths"].as_object().into_iter().flat_map(Map::keys) {
            // Usage is not the real server's own, and a version is not served there any more.
            if path.contains("metrics.k8s.io") || path.contains(ONLY_OURS) {
                continue;
            }
            let path = format!("/openapi/v3/{path}");
            let (theirs, mine) = (json_of(real, &path).await?, json_of(ours, &path).await?);
            let schemas = |document: &Value| document["components"]["schemas"].clone();
            for (name, schema) in schemas(&mine).as_object().into_iter().flatten() {
                let Some(real) = schemas(&theirs).get(name).cloned() else { continue };
                definitions.insert(name.clone());
                differences(name, &plain(&real), &plain(schema), &mut problems);
            }
            for (route, item) in mine["paths"].as_object().into_iter().flatten() {
                for (method, operation) in
                    item.as_object().into_iter().flatten().filter(|(name, _)| *name != "parameters")
                {
                    operations += 1;
                    let known = &theirs["paths"][route][method];
                    for field in ["operationId", "x-kubernetes-action", "x-kubernetes-group-version-kind", "tags"] {
                        if known[field] != operation[field] {
                            problems.push(format!("{method} {route} {field}: {} | {}", known[field], operation[field]));
                        }
                    }
                }
            }
        }
        problems.sort();
        problems.dedup();
        ensure!(problems.is_empty(), "{} differences\n{}", problems.len(), problems.join("\n"));
        ensure!(definitions.len() > 150 && operations > 150, "{} {operations}", definitions.len());
        println!("{} definitions and {operations} operations compared", definitions.len());
        Ok(())
    });
}

/// A schema without what has no meaning to clients: words, order, and what the tables do not hold: defaults that are the
/// zero value, and unions that upstream derives from Go's tags.
fn plain(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let keep = |name: &str, value: &Value| match name {
                "description" => !value.is_string(),
                "default" => ![json!(0), json!(""), json!({}), json!(false)].contains(value),
                // Which groups a type of all groups belongs to depends on what is served.
                "x-kubernetes-unions" | "x-kubernetes-group-version-kind" => false,
                _ => true,
            };
            let fields = fields.iter().filter(|(name, value)| keep(name, value));
            let mut fields: Map<_, _> = fields.map(|(name, value)| (name.clone(), plain(value))).collect();
            if let Some([one]) = fields.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
                let one = one.clone();
                fields.remove("allOf");
                fields.extend(one.as_object().cloned().unwrap_or_default());
            }
            if let Some(Value::Array(words)) = fields.get_mut("required") {
                words.sort_by_key(Value::to_string);
            }
            Value::Object(fields)
        }
        Value::Array(items) => items.iter().map(plain).collect(),
        other => other.clone(),
    }
}

fn differences(at: &str, real: &Value, ours: &Value, problems: &mut Vec<String>) {
    match (real, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let of = |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                differences(&format!("{at}/{name}"), &of(a), &of(b), problems);
            }
        }
        (a, b) if a != b && !KNOWN.iter().any(|known| at.ends_with(known)) => {
            problems.push(format!("{at}: {a} | {b}"));
        }
        _ => {}
    }
}

/// Known differences: the allowed values of a map's values are not in the tables.
const KNOWN: &[&str] = &["allocatedResourceStatuses/additionalProperties/enum"];

/// The real server's document of version 2 has in our encoding the bytes that it has in its own, but for YAML where we
/// write JSON.
pub(crate) fn version_2_in_protobuf_is_that_of_the_real_server() {
    with_both_servers(async |real, _| {
        let document = json_of(real, "/openapi/v2").await?;
        let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        let (code, theirs) = ask(real, "GET", "/openapi/v2", accept, &Value::Null).await?;
        ensure!(code == 200, "{code}");
        ensure!(is_same_message(&v2_protobuf::encode(&document), &theirs, 0), "the documents differ");
        Ok(())
    });
}

fn is_same_message(a: &[u8], b: &[u8], depth: usize) -> bool {
    if a == b {
        return true;
    }
    let yaml = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        schema::decode(text.as_bytes(), schema::ContentType::Yaml).ok().map(|decoded| decoded.value)
    };
    let (Some(fields), Some(others)) = (fields(a), fields(b)) else {
        return yaml(a).is_some_and(|a| Some(a) == yaml(b));
    };
    let same = |one: &Field<'_>, other: &Field<'_>| one.0 == other.0 && is_same_message(one.1, other.1, depth + 1);
    depth < 100 && fields.len() == others.len() && fields.iter().zip(&others).all(|(one, other)| same(one, other))
        || yaml(a).is_some_and(|a| Some(a) == yaml(b))
}

/// A field's tag and payload.
type Field<'b> = (u64, &'b [u8]);

/// The fields of a message; nothing if the bytes are no message.
fn fields(mut bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = read_varint(&mut bytes)?;
        let before = bytes;
        let length = match tag & 7 {
            0 => {
                read_varint(&mut bytes)?;
                before.len() - bytes.len()
            }
            1 => 8,
            2 => usize::try_from(read_varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let from = if tag & 7 == 0 { before } else { bytes };
        let (payload, rest) = from.split_at_checked(length)?;
        all.push((tag, payload));
        bytes = rest;
    }
    Some(all)
}
