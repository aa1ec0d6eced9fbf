//! Good objects of all kinds with one field that is broken: both servers refuse the same, for the same reasons at the same
//! fields. What is broken, and how, follows from the type tables and a seed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use windlass_apimachinery::schema::{Kind, Schema};
use windlass_control::kinds::types;

use crate::{
    api_server::{ApiServer, JSON},
    kinds::{Served, collection, sample, samples, served},
    normalize::matches_pattern,
    random::Rng,
    scenario::step,
    seeds, with_both_servers,
};

/// Objects of each kind and seed.
const OBJECTS: usize = 12;

/// Differences that stay: a pattern of `kind pointer`, and why.
const KNOWN: [(&str, &str); 10] = [
    ("*WebhookConfiguration /metadata/finalizers*", "finalizers without a domain are refused of all kinds"),
    ("Lease /metadata/finalizers*", "finalizers without a domain are refused of all kinds"),
    ("Lease /spec/*Time", "times of another precision are read as well"),
    ("Event /*Time", "times of another precision are read as well"),
    ("Event /metadata*", "names of Events are validated as those of all objects"),
    ("StatefulSet /spec/volumeClaimTemplates/*/metadata*", "a claim without a name is told of once"),
    ("* /metadata/managedFields*", "who wrote what is told by other words"),
    ("ResourceClaim*", "devices are not validated as a whole yet"),
    ("ResourceSlice*", "devices are not validated as a whole yet"),
    ("DeviceClass*", "devices are not validated as a whole yet"),
];

/// One field of an object, broken.
struct Broken {
    object: Value,
    /// Where, as a JSON pointer.
    at: String,
    /// What stands there now, shortened.
    by: String,
}

/// The values that break a field of a type.
fn breaks(schema: &Schema, value: &Value, rng: &mut Rng) -> Value {
    let long = "x".repeat(300);
    let all = match &schema.kind {
        Kind::Bool => vec![json!(true), json!(false), json!("x")],
        Kind::Integer(_) => {
            vec![json!(-1), json!(0), json!(70_000), json!(2_147_483_647), json!(99_999_999_999_i64), json!("x")]
        }
        Kind::Number => vec![json!(-1.5), json!("x")],
        Kind::String => {
            vec![
                json!(""),
                json!("A_b c"),
                json!(long),
                json!("-x"),
                json!("a/b/c"),
                json!("1.2.3.4"),
                json!("x\u{1}"),
                json!(5),
            ]
        }
        Kind::Bytes => vec![json!(""), json!("eA=="), json!("%")],
        Kind::Quantity => vec![json!("-1"), json!("0"), json!("1.5"), json!("1m"), json!("x"), json!(1)],
        Kind::IntOrString => {
            vec![json!(-1), json!(0), json!(70_000), json!("x"), json!("-1%"), json!("150%"), json!("")]
        }
        Kind::Time | Kind::MicroTime => vec![json!("x"), json!("2020-01-01T00:00:00Z"), Value::Null],
        Kind::Duration => vec![json!("x"), json!("1s")],
        Kind::List(items) => {
            let twice = value.as_array().and_then(|all| all.first()).map(|first| json!([first, first]));
            let empty = if matches!(kind_of(items), Kind::String) { json!([""]) } else { json!([{}]) };
            vec![json!([]), twice.unwrap_or_else(|| json!([])), empty, Value::Null, json!("x")]
        }
        Kind::Map(values) => {
            let filler = match kind_of(values) {
                Kind::String => json!("c d"),
                Kind::Quantity => json!("-1"),
                _ => json!({}),
            };
            vec![json!({}), json!({"a b": filler}), json!({"": filler}), json!({long: filler}), json!("x")]
        }
        Kind::Object(_) | Kind::Named(_) | Kind::Union(_) => vec![json!({}), Value::Null, json!("x")],
        Kind::Any | Kind::Json | Kind::RawExtension | Kind::FieldsV1 => vec![json!({}), json!("x"), Value::Null],
    };
    rng.of(&all).clone()
}

/// The kind behind a name.
fn kind_of(schema: &Schema) -> Kind {
    match &schema.kind {
        Kind::Named(_) => schema.resolved().kind.clone(),
        kind => kind.clone(),
    }
}

/// Fields that are not broken: their rules are those of every object.
const LEFT_ALONE: [&str; 3] = ["apiVersion", "kind", "status"];

/// Breaks one field somewhere inside of a value.
fn break_one(schema: &Schema, value: &mut Value, at: &mut String, rng: &mut Rng) {
    let kind = kind_of(schema);
    match (&kind, &mut *value) {
        (Kind::Object(object), Value::Object(fields)) => {
            // Mostly what is there; sometimes any field of the type.
            let there: Vec<String> = fields.keys().filter(|key| !LEFT_ALONE.contains(&key.as_str())).cloned().collect();
            let known: Vec<String> = object
                .properties
                .keys()
                .map(ToString::to_string)
                .filter(|key| !LEFT_ALONE.contains(&key.as_str()))
                .collect();
            if known.is_empty() {
                return;
            }
            let name = if there.is_empty() || rng.below(3) == 0 { rng.of(&known) } else { rng.of(&there) }.clone();
            let Some(property) = object.properties.get(name.as_str()) else { return };
            at.push_str(&format!("/{name}"));
            let inside = fields.entry(name.clone()).or_insert(Value::Null);
            if rng.below(8) == 0 {
                fields.remove(&name);
            } else if inside.is_null() || rng.below(4) == 0 {
                *inside = breaks(&Schema { kind: kind_of(&property.schema), ..property.schema.clone() }, inside, rng);
            } else {
                break_one(&property.schema, inside, at, rng);
            }
        }
        (Kind::List(items), Value::Array(all)) if !all.is_empty() && rng.below(4) > 0 => {
            let place = rng.below(all.len());
            at.push_str(&format!("/{place}"));
            break_one(items, &mut all[place], at, rng);
        }
        (Kind::Map(values), Value::Object(fields)) if !fields.is_empty() && rng.below(3) > 0 => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let key = rng.of(&keys).clone();
            at.push_str(&format!("/{key}"));
            break_one(values, &mut fields[&key], at, rng);
        }
        _ => *value = breaks(&Schema { kind, ..schema.clone() }, value, rng),
    }
}

fn broken(api_version: &str, kind: &str, rng: &mut Rng) -> anyhow::Result<Broken> {
    let mut object = sample(api_version, kind);
    let of = types::named(api_version, kind).ok_or_else(|| anyhow::anyhow!("no table has {api_version} {kind}"))?;
    let mut at = String::new();
    break_one(&Schema::named(of), &mut object, &mut at, rng);
    if object["metadata"]["name"].is_null() && object["metadata"].is_object() {
        object["metadata"]["name"] = json!("x");
    }
    let by = object.pointer(&at).unwrap_or(&Value::Null).to_string();
    Ok(Broken { object, at, by: by.chars().take(40).collect() })
}

/// What of an answer must agree: the code, the reason, and the fields with theirs.
fn verdict(answer: &Value) -> (Value, Value, BTreeSet<String>) {
    let causes = answer["body"]["details"]["causes"].as_array().cloned().unwrap_or_default();
    let told = causes.iter().map(|cause| format!("{} {}", cause["field"], cause["reason"])).collect();
    (answer["code"].clone(), answer["body"]["reason"].clone(), told)
}

async fn compare(
    (real, ours): (&ApiServer, &ApiServer),
    (api_version, kind): (&str, &str),
    resource: &Served,
    rng: &mut Rng,
    unknown: &mut BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let Broken { object, at, by } = broken(api_version, kind, rng)?;
    let path = format!("{}?dryRun=All", collection(api_version, resource));
    let post = step("broken", "admin", "POST", &path, JSON, object);
    let (is, wanted) = (ours.ask(&post).await?, real.ask(&post).await?);
    if verdict(&is) == verdict(&wanted) || KNOWN.iter().any(|(row, _)| matches_pattern(row, &format!("{kind} {at}"))) {
        return Ok(());
    }
    let show = |answer: &Value| format!("{} {}", answer["code"], answer["body"]["message"]);
    let places = at.split('/').map(|step| if step.parse::<usize>().is_ok() { "*" } else { step });
    let place = places.collect::<Vec<_>>().join("/");
    unknown
        .entry(format!("{kind} {place} {by}"))
        .or_insert_with(|| format!("  upstream: {}\n  ours:     {}", show(&wanted), show(&is)));
    Ok(())
}

pub(crate) fn what_is_broken_is_refused_alike() {
    let mut unknown = BTreeMap::new();
    let mut asked = 0;
    with_both_servers(async |real, ours| {
        let mut kinds: Map<String, Value> = Map::new();
        let mut resources: BTreeMap<String, BTreeMap<String, Served>> = BTreeMap::new();
        for seed in seeds() {
            println!("seed {seed}");
            let mut rng = Rng::new(seed);
            for line in samples() {
                let fields: Vec<&str> = line.splitn(3, '\t').collect();
                let [api_version, kind, _] = fields[..] else { anyhow::bail!("a sample has three fields: {line}") };
                if kinds.insert(api_version.to_owned(), Value::Null).is_none() {
                    resources.insert(api_version.to_owned(), served(real, api_version).await?);
                }
                let Some(resource) = resources.get(api_version).and_then(|all| all.get(kind)) else { continue };
                for _ in 0..OBJECTS {
                    compare((real, ours), (api_version, kind), resource, &mut rng, &mut unknown).await?;
                    asked += 1;
                }
            }
        }
        Ok(())
    });
    println!("{asked} objects");
    let told: Vec<String> = unknown.iter().map(|(what, how)| format!("{what}\n{how}")).collect();
    assert!(told.is_empty(), "{} are answered differently:\n{}", told.len(), told.join("\n"));
}
