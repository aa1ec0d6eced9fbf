//! Records how a real API server calls the webhooks of a real operator, what those answer, and what clients get:
//! `TEKTON=… UPDATE_RECORDED=1 cargo test -p windlass-control --test recordings operators` writes
//! `src/plugin/admission/webhook/tests/tekton.jsonl` with the answers to the requests that it has; without the variable
//! `UPDATE_RECORDED` it compares.
//!
//! `TEKTON` names a folder with the sources of Tekton Pipelines, and its program `bin/webhook` as
//! `go build -o bin/ ./cmd/webhook` makes it there. It is given its own ConfigMaps and configurations, and definitions of our
//! own, makes of them what it makes in every cluster, and is then called through a server that writes down what passes.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::Context as _;
use serde_json::{Value, json};
use windlass_tests::cluster::ControlPlane;

use crate::{
    exchanges::{Call, Case, Recorded, normal_user, reply},
    is_recording,
    real_server::RealServer,
    recorded::{Asking, Caller, Request, Server as _},
    tekton::{Exchanges, Operator},
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How long the API server may take to see another configuration or definition.
const PAUSE: Duration = Duration::from_secs(3);

/// Compares or writes the file.
pub(crate) async fn record(server: RealServer, plane: &ControlPlane) -> anyhow::Result<()> {
    let mut asking = Asking::new(server);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/plugin/admission/webhook/tests/tekton.jsonl");
    let text = fs::read_to_string(file)?;
    let mut recorded = Recorded::read(&text);
    let operator = Operator::install(&asking, plane).await?;
    define(&mut asking, &recorded, &operator).await?;
    let exchanges = operator.start(&asking).await?;
    recorded.configurations = redirect(&mut asking, &recorded, &operator, &exchanges).await?;
    tokio::time::sleep(PAUSE).await;
    exchanges.quiet().await;

    let version = asking.must(200, "GET", "/version", &Value::Null).await?;
    recorded.by["kube-apiserver"] = version["gitVersion"].clone();
    if let Some(revision) = operator.revision()? {
        recorded.by["revision"] = json!(revision);
    }
    let mut conversions = Vec::new();
    let mut seen = Vec::new();
    for case in &mut recorded.cases {
        let said = ask(&mut asking, case).await.with_context(|| case.name.clone())?;
        case.reply = said;
        exchanges.quiet().await;
        let (of_conversion, of_admission): (Vec<Call>, Vec<Call>) =
            exchanges.taken().into_iter().partition(|call| call.review["kind"] == "ConversionReview");
        conversions.extend(of_conversion);
        seen.push(of_admission);
    }
    let user = seen.iter().flatten().map(|call| normal_user(&call.review["request"]["userInfo"])).next();
    recorded.user = user.context("no webhook was called")?;
    for (case, calls) in recorded.cases.iter_mut().zip(seen) {
        let calls: Vec<Call> = calls.iter().map(|call| call.blanked(&recorded.user)).collect();
        let is_as_before =
            calls.len() == case.calls.len() && calls.iter().zip(&case.calls).all(|(now, before)| now.is_like(before));
        if !is_as_before {
            case.calls = calls;
        }
    }
    recorded.conversions = each_once(&conversions, &recorded.user)?;
    compare(file, &text, &recorded)
}

/// Prints what differs from the file, and writes it if that is asked for.
fn compare(file: &str, text: &str, recorded: &Recorded) -> anyhow::Result<()> {
    let (before, now): (Vec<&str>, Vec<String>) = (text.lines().collect(), recorded.lines());
    let gone = before.iter().filter(|line| !now.iter().any(|other| other == *line));
    let new = now.iter().filter(|line| !before.contains(&line.as_str()));
    let mut differ: Vec<String> = gone.map(|line| format!("recorded: {line}")).collect();
    differ.extend(new.map(|line| format!("now:      {line}")));
    let calls: usize = recorded.cases.iter().map(|case| case.calls.len()).sum();
    println!(
        "{} requests with {calls} calls, {} conversions, {} lines differ",
        recorded.cases.len(),
        recorded.conversions.len(),
        differ.len()
    );
    if is_recording() {
        fs::write(file, now.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    }
    anyhow::ensure!(differ.is_empty() || is_recording(), "{}", differ.join("\n"));
    Ok(())
}

/// Creates the definitions, with the operator's Service as their conversion webhook.
async fn define(asking: &mut Asking<RealServer>, recorded: &Recorded, operator: &Operator) -> anyhow::Result<()> {
    let mut paths = Vec::new();
    for definition in &recorded.definitions {
        let mut definition = definition.clone();
        definition["spec"]["conversion"]["webhook"]["clientConfig"] = json!({"service": operator.service()});
        asking.must(201, "POST", DEFINITIONS, &definition).await?;
        paths.push(path_of(&definition));
    }
    asking.server().established(&paths).await
}

fn path_of(definition: &Value) -> String {
    format!("{DEFINITIONS}/{}", definition["metadata"]["name"].as_str().unwrap_or_default())
}

/// Has everything that the operator has configured call the exchanges in place of its Service; the configurations, with paths
/// in place of URLs.
async fn redirect(
    asking: &mut Asking<RealServer>,
    recorded: &Recorded,
    operator: &Operator,
    exchanges: &Exchanges,
) -> anyhow::Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for path in operator.configurations() {
        let there = asking.must(200, "GET", path, &Value::Null).await?;
        let (all, name) = path.rsplit_once('/').context("a path")?;
        let kind = all.rsplit('/').next().and_then(|plural| plural.strip_suffix("webhookconfigurations"));
        let mut configuration = json!({"metadata": {"name": name}, "webhooks": there["webhooks"]});
        let mut ours = configuration.clone();
        let pairs = configuration["webhooks"].as_array_mut().into_iter().flatten();
        for (webhook, ours) in pairs.zip(ours["webhooks"].as_array_mut().into_iter().flatten()) {
            let path = webhook["clientConfig"]["service"]["path"].as_str().context("a path of the Service")?.to_owned();
            ours["clientConfig"] = exchanges.client_config(&path);
            webhook["clientConfig"] = json!({"path": path});
        }
        // The operator does not create again what is gone.
        asking.must(200, "DELETE", path, &Value::Null).await?;
        asking.must(201, "POST", all, &ours).await?;
        found.push((kind.context("a kind of configuration")?.to_owned(), configuration));
    }
    let mut paths = Vec::new();
    for definition in &recorded.definitions {
        let path = path_of(definition);
        let there = asking.must(200, "GET", &path, &Value::Null).await?;
        let is = &there["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["path"];
        let wanted = Recorded::conversion_path(definition);
        anyhow::ensure!(*is == json!(wanted), "{path}: the operator converts at {is}, not at {wanted}");
        let mut client_config = exchanges.client_config(&wanted);
        client_config["service"] = Value::Null;
        let patch = json!({"spec": {"conversion": {"webhook": {"clientConfig": client_config}}}});
        asking.must(200, "PATCH", &path, &patch).await?;
        paths.push(path);
    }
    tokio::time::sleep(PAUSE).await;
    asking.server().established(&paths).await?;
    Ok(found)
}

/// The answer to a request.
async fn ask(asking: &mut Asking<RealServer>, case: &Case) -> anyhow::Result<Value> {
    let mut revision = String::new();
    if case.has_revision() {
        let path = case.path.split('?').next().unwrap_or_default();
        let there = asking.must(200, "GET", path, &Value::Null).await?;
        there["metadata"]["resourceVersion"].as_str().context("a revision")?.clone_into(&mut revision);
    }
    let (method, path, content_type) = (case.method.as_str(), case.path.as_str(), case.content_type());
    let (accept, body) = ("application/json", case.body(&revision));
    let caller = Caller::Administrator;
    let said = asking.server().ask(&Request { caller, method, path, content_type, accept, body: &body }).await?;
    Ok(reply(said.code, &said.warnings, &said.body))
}

/// The conversions, each object by itself, once, in the order of what they are about.
fn each_once(calls: &[Call], user: &Value) -> anyhow::Result<Vec<Call>> {
    let mut all = BTreeMap::new();
    for call in calls {
        let objects = call.review["request"]["objects"].as_array().map_or(&[][..], Vec::as_slice);
        let converted = call.answer["response"]["convertedObjects"].as_array().map_or(&[][..], Vec::as_slice);
        anyhow::ensure!(objects.len() == converted.len(), "a conversion has failed: {}", call.answer);
        for (object, converted) in objects.iter().zip(converted) {
            let mut one = call.clone();
            one.review["request"]["objects"] = json!([object]);
            one.answer["response"]["convertedObjects"] = json!([converted]);
            let one = one.blanked(user);
            let request = &one.review["request"];
            let object = &request["objects"][0];
            let about = [&object["kind"], &object["metadata"]["name"], &request["desiredAPIVersion"], &one.review];
            all.insert(about.map(Value::to_string), one);
        }
    }
    Ok(all.into_values().collect())
}
