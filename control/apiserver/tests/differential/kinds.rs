//! Every built-in kind: discovery, a good object through all its paths, and what is refused.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    Report,
    api_server::{ApiServer, JSON, Step},
    known_differences::is_of_kinds,
    recorded::{self, SAMPLES, rows, with},
    scenario::{MERGE, TABLE, step},
    with_both_servers,
};

/// The namespace of the objects, which some name themselves.
pub(crate) const NAMESPACE: &str = "n";

/// The version that is served here, and not by upstream any more.
pub(crate) const ONLY_OURS: &str = "autoscaling/v2beta1";

/// The samples of what both serve.
pub(crate) fn samples() -> impl Iterator<Item = &'static str> {
    SAMPLES.lines().filter(|line| !line.starts_with(ONLY_OURS))
}

/// What upstream refuses of each: `apiVersion`, kind, a pointer, and what stands there instead.
static REFUSALS: &str = include_str!("../../src/kinds/tests/refusals.tsv");

/// What upstream refuses of a change: `apiVersion`, kind, the subresource, a pointer, and what stands there instead.
static CHANGES: &str = include_str!("../../src/kinds/tests/changes.tsv");

/// A resource as discovery shows it.
pub(crate) struct Served {
    plural: String,
    namespaced: bool,
    subresources: Vec<String>,
}

fn root(api_version: &str) -> String {
    if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") }
}

fn get(name: &str, path: &str) -> Step {
    step(&format!("kind: {name}"), "admin", "GET", path, JSON, Value::Null)
}

/// The resources of a group version, by kind.
pub(crate) async fn served(side: &ApiServer, api_version: &str) -> anyhow::Result<BTreeMap<String, Served>> {
    let answer = side.ask(&get("discovery", &root(api_version))).await?;
    let mut all: BTreeMap<String, Served> = BTreeMap::new();
    for resource in answer["body"]["resources"].as_array().into_iter().flatten() {
        let name = resource["name"].as_str().unwrap_or_default();
        let kind = resource["kind"].as_str().unwrap_or_default().to_owned();
        match name.split_once('/') {
            None => {
                let namespaced = resource["namespaced"] == true;
                let fresh = Served { plural: name.to_owned(), namespaced, subresources: Vec::new() };
                all.insert(kind, fresh);
            }
            Some((plural, subresource)) => {
                if let Some(parent) = all.values_mut().find(|parent| parent.plural == plural) {
                    parent.subresources.push(subresource.to_owned());
                }
            }
        }
    }
    Ok(all)
}

/// Some objects are named after what they define.
fn name_of(kind: &str) -> &'static str {
    match kind {
        "APIService" => "v1.x.example",
        "CustomResourceDefinition" => "samples.test.example",
        "IPAddress" => "10.9.8.7",
        _ => "sample",
    }
}

/// The good object of a kind.
pub(crate) fn sample(api_version: &str, kind: &str) -> Value {
    let mut object = recorded::sample(api_version, kind);
    object["metadata"] = json!({"name": name_of(kind)});
    object
}

/// The path of all objects of a kind, in the namespace of the test.
pub(crate) fn collection(api_version: &str, served: &Served) -> String {
    let namespace = if served.namespaced { format!("/namespaces/{NAMESPACE}") } else { String::new() };
    format!("{}{namespace}/{}", root(api_version), served.plural)
}

/// The requests about one kind.
fn steps(api_version: &str, kind: &str, served: &Served) -> anyhow::Result<Vec<Step>> {
    let mut object = sample(api_version, kind);
    object["metadata"]["labels"] = json!({"a": "b"});
    let all = collection(api_version, served);
    let one = format!("{all}/{}", name_of(kind));
    let named = |what: &str| format!("kind: {what} {api_version} {kind}");
    let ask = |what: &str, method, path: &str, media, body| step(&named(what), "admin", method, path, media, body);
    let table = |what: &str, path: &str| Step { accept: TABLE, ..ask(what, "GET", path, JSON, Value::Null) };
    let mut steps = vec![
        ask("create", "POST", &all, JSON, object.clone()),
        ask("create again", "POST", &all, JSON, object.clone()),
        ask("get", "GET", &one, JSON, Value::Null),
        table("table", &one),
        ask("label", "PATCH", &one, MERGE, json!({"metadata": {"labels": {"c": "d"}}})),
        ask("annotate", "PATCH", &one, MERGE, json!({"metadata": {"annotations": {"c": "d"}}})),
        ask("replace without a version", "PUT", &one, JSON, object.clone()),
        ask("refuse a prefix of", "POST", &format!("{all}?dryRun=All"), JSON, {
            let mut prefixed = object.clone();
            prefixed["metadata"]["generateName"] = json!("A_/b");
            prefixed
        }),
        ask("replace what is not there", "PUT", &format!("{all}/none?dryRun=All"), JSON, {
            object["metadata"]["name"] = json!("none");
            object
        }),
    ];
    for subresource in &served.subresources {
        let path = format!("{one}/{subresource}");
        steps.push(ask(&format!("get {subresource}"), "GET", &path, JSON, Value::Null));
        let patch = match subresource.as_str() {
            "scale" => json!({"spec": {"replicas": 2}}),
            _ => json!({"metadata": {"labels": {"e": "f"}}}),
        };
        steps.push(ask(&format!("patch {subresource}"), "PATCH", &path, MERGE, patch));
    }
    steps.push(ask("delete", "DELETE", &one, JSON, json!({"propagationPolicy": "Background"})));
    Ok(steps)
}

/// Compares discovery, and every kind that has a sample.
pub(crate) fn every_kind_is_answered_alike() {
    with_both_servers(async |real, ours| {
        let mut report = Report::default();
        let mut kinds: BTreeMap<&str, BTreeMap<String, Served>> = BTreeMap::new();
        let versions = ["v1", "apiextensions.k8s.io/v1", "coordination.k8s.io/v1", "discovery.k8s.io/v1"];
        let more = ["authentication.k8s.io/v1", "authorization.k8s.io/v1", "events.k8s.io/v1", "node.k8s.io/v1"];
        let versions = versions.into_iter().chain(more);
        let sampled = samples().filter_map(|line| Some(line.split_once('\t')?.0));
        for api_version in versions.chain(sampled) {
            if !kinds.contains_key(api_version) {
                compare(real, ours, &get(&format!("discovery of {api_version}"), &root(api_version)), &mut report)
                    .await?;
                kinds.insert(api_version, served(real, api_version).await?);
            }
        }
        for line in samples() {
            let fields: Vec<&str> = line.splitn(3, '\t').collect();
            let [api_version, kind, _] = fields[..] else { anyhow::bail!("a sample has three fields: {line}") };
            let served = kinds.get(api_version).and_then(|all| all.get(kind));
            let served = served.ok_or_else(|| anyhow::anyhow!("{api_version} {kind} is not served"))?;
            for (number, step) in steps(api_version, kind, served)?.iter().enumerate() {
                compare(real, ours, step, &mut report).await?;
                // Both servers accept names of a definition on their own, a moment later.
                if (number, kind) == (0, "CustomResourceDefinition") {
                    let one = get("", &format!("{}/{}", collection(api_version, served), name_of(kind)));
                    for side in [real, ours] {
                        side.ask_until(&one, "/body/status/conditions/1/status", &json!("True")).await?;
                    }
                }
            }
        }
        local_api_services(real, ours, &mut report).await?;
        for (_, line) in rows(REFUSALS) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [api_version, kind, pointer, value, _] = fields[..] else { anyhow::bail!("not five fields: {line}") };
            let served = kinds.get(api_version).and_then(|all| all.get(kind));
            let served = served.ok_or_else(|| anyhow::anyhow!("{api_version} {kind} is not served"))?;
            let object = with(sample(api_version, kind), pointer, value);
            let path = format!("{}?dryRun=All", collection(api_version, served));
            let name = format!("kind: refused {api_version} {kind} {pointer}");
            compare(real, ours, &step(&name, "admin", "POST", &path, JSON, object), &mut report).await?;
        }
        changes(real, ours, &kinds, &mut report).await?;
        report.print();
        report.assert_all_seen(is_of_kinds);
        Ok(())
    });
}

/// Compares the APIServices of the groups that both serve themselves.
async fn local_api_services(real: &ApiServer, ours: &ApiServer, report: &mut Report) -> anyhow::Result<()> {
    let all = get("API services", "/apis/apiregistration.k8s.io/v1/apiservices");
    let listed = real.ask(&all).await?;
    for service in listed["body"]["items"].as_array().into_iter().flatten() {
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        // That of the definition among the samples, whose end the servers come to at times of their own.
        if name.ends_with(".test.example") {
            continue;
        }
        let one = get("API service", &format!("{}/{name}", all.path));
        let (mut real, mut ours) = (real.ask(&one).await?, ours.ask(&one).await?);
        for answer in [&mut real, &mut ours] {
            // Another client writes them on each side.
            answer["body"]["metadata"]["managedFields"] = Value::Null;
        }
        report.request = format!("GET {name}");
        report.compare(&format!("kind: local {name}"), &real, &ours);
    }
    anyhow::ensure!(listed["body"]["items"].as_array().is_some_and(|items| items.len() > 15), "{listed}");
    Ok(())
}

/// How often a change is sent again that another one has overtaken.
const MAX_CONFLICTS: usize = 5;

/// Changes an object of each kind in ways that are refused.
async fn changes(
    real: &ApiServer,
    ours: &ApiServer,
    kinds: &BTreeMap<&str, BTreeMap<String, Served>>,
    report: &mut Report,
) -> anyhow::Result<()> {
    for (_, line) in rows(CHANGES) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [api_version, kind, subresource, pointer, value, _] = fields[..] else {
            anyhow::bail!("not six fields: {line}")
        };
        let served = kinds.get(api_version).and_then(|all| all.get(kind));
        let served = served.ok_or_else(|| anyhow::anyhow!("{api_version} {kind} is not served"))?;
        let (all, object) = (collection(api_version, served), sample(api_version, kind));
        let one = format!("{all}/{}", name_of(kind));
        let mut answers = Vec::new();
        for side in [real, ours] {
            side.ask(&step("kind: change", "admin", "POST", &all, JSON, object.clone())).await?;
            answers.push(changed(side, &one, subresource, |stored| with(stored, pointer, value)).await?);
        }
        report.request = format!("PUT {one} {subresource} {pointer} {value}");
        report.compare(&format!("kind: changed {api_version} {kind} {pointer}"), &answers[0], &answers[1]);
    }
    Ok(())
}

/// What a server says of a change of the stored object at `one`, or of a subresource of it; nothing is stored.
async fn changed(
    side: &ApiServer,
    one: &str,
    subresource: &str,
    change: impl Fn(Value) -> Value,
) -> anyhow::Result<Value> {
    let ask = |method, path: &str, body| step("kind: change", "admin", method, path, JSON, body);
    let slash = if subresource.is_empty() { "" } else { "/" };
    let path = format!("{one}{slash}{subresource}?dryRun=All");
    // Upstream's own controllers change APIServices and FlowSchemas between two requests.
    let mut answer = Value::Null;
    for _ in 0..MAX_CONFLICTS {
        let stored = side.ask(&ask("GET", one, Value::Null)).await?["body"].take();
        answer = side.ask(&ask("PUT", &path, change(stored))).await?;
        if answer["body"]["reason"] != "Conflict" {
            break;
        }
    }
    Ok(answer)
}

async fn compare(real: &ApiServer, ours: &ApiServer, step: &Step, report: &mut Report) -> anyhow::Result<()> {
    report.request = format!("{} {} {} {}", step.method, step.path, step.kind, step.body);
    let (mut real, mut ours) = (real.ask(step).await?, ours.ask(step).await?);
    for answer in [&mut real, &mut ours] {
        // A text, such as that of a page, has no fields.
        let Some(body) = answer["body"].as_object_mut() else { continue };
        body.get_mut("resources").into_iter().for_each(by_name);
        for column in body.get_mut("columnDefinitions").and_then(Value::as_array_mut).into_iter().flatten() {
            // Descriptions of columns are our own words.
            column["description"] = Value::Null;
        }
        let cells = body.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten();
        let cells = cells.filter_map(|row| row["cells"].as_array_mut()).flatten();
        for cell in cells.filter(|cell| is_age(cell)) {
            *cell = json!("0s");
        }
    }
    report.compare(&step.name, &real, &ours);
    Ok(())
}

/// Whether a cell is the age of an object that was created just now.
fn is_age(cell: &Value) -> bool {
    let seconds = cell.as_str().and_then(|text| text.strip_suffix('s'));
    seconds.is_some_and(|seconds| seconds.parse::<u32>().is_ok())
}

/// Makes an object of a list of resources, so that one more does not shift the others.
fn by_name(resources: &mut Value) {
    if let Some(list) = resources.as_array() {
        let entry = |resource: &Value| Some((resource["name"].as_str()?.to_owned(), resource.clone()));
        *resources = Value::Object(list.iter().filter_map(entry).collect());
    }
}
