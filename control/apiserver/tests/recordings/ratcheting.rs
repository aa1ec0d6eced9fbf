//! Records what a real API server says of changes to an object that breaks rules which its definition has got since, and checks
//! that it still says what `src/apiextensions/tests/ratcheting.json` has: `UPDATE_RECORDED=1 cargo test -p windlass-control
//! --test recordings ratcheting` writes the answers that differ.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use windlass_tests::cluster::ControlPlane;

use crate::{
    is_recording,
    real_server::RealServer,
    recorded::{Asking, Server as _, warnings_of},
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const OBJECTS: &str = "/apis/test.example/v1/namespaces/n/gadgets";
/// How often it is asked whether the server knows the rules.
const TRIES: usize = 100;

/// Compares or writes the file.
pub(crate) async fn record(server: RealServer, _: &ControlPlane) -> anyhow::Result<()> {
    let mut asking = Asking::new(server);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/apiextensions/tests/ratcheting.json");
    let text = fs::read_to_string(file)?;
    let recorded: Value = serde_json::from_str(&text)?;
    let definition = format!("{DEFINITIONS}/gadgets.test.example");
    asking.must(201, "POST", DEFINITIONS, &recorded["definition"]).await?;
    asking.server().established(std::slice::from_ref(&definition)).await?;
    let mut object = recorded["object"].clone();
    asking.must(201, "POST", OBJECTS, &object).await?;
    asking.must(200, "PATCH", &definition, &recorded["rules"]).await?;
    object["metadata"]["name"] = "other".into();
    for tries in 0.. {
        if asking.call("POST", &format!("{OBJECTS}?dryRun=All"), &object).await?.code == 422 {
            break;
        }
        anyhow::ensure!(tries < TRIES, "the rules of {definition} have no effect");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (mut written, mut differ) = (text.clone(), Vec::new());
    for answer in recorded["answers"].as_array().into_iter().flatten() {
        let said = said_of(&asking, answer).await?;
        if said != *answer {
            differ.push(format!("recorded: {answer}\n  now:      {said}"));
            written = written.replace(&answer.to_string(), &said.to_string());
        }
    }
    println!("{} answers differ", differ.len());
    if is_recording() {
        fs::write(file, written)?;
    }
    anyhow::ensure!(differ.is_empty() || is_recording(), "{}", differ.join("\n"));
    Ok(())
}

/// What is said now of a recorded patch.
async fn said_of(asking: &Asking<RealServer>, answer: &Value) -> anyhow::Result<Value> {
    let path = format!("{OBJECTS}/g{}?dryRun=All", answer["path"].as_str().unwrap_or_default());
    let reply = asking.call("PATCH", &path, &answer["patch"]).await?;
    let text = |cause: &Value, name: &str| cause[name].as_str().unwrap_or_default().to_owned();
    let causes = reply.body["details"]["causes"].as_array().into_iter().flatten();
    let mut errors: Vec<String> =
        causes.map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message"))).collect();
    errors.sort();
    let mut warnings = warnings_of(&reply);
    warnings.sort();
    Ok(json!({
        "path": answer["path"], "patch": answer["patch"], "code": reply.code, "errors": errors, "warnings": warnings,
    }))
}
