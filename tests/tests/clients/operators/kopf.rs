//! `tests/clients/kopf_operator.py`: kopf writes finalizers, annotations, statuses and events, and the configurations of its own
//! webhooks. Operator and API server are killed in turn.

use std::{fs, path::Path};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Kubectl, eventually};

use super::{Site, becomes, established, is_refused};
use crate::{python, webhook_server::certificates};

const MIRRORS: &str = "mirrors.kopf.example.com";
const WEBHOOK: &str = "admission webhook \"check.auto.kopf.example.com\"";

fn definition() -> Value {
    let properties = json!({
        "spec": {"type": "object", "required": ["text"],
            "properties": {"text": {"type": "string"}, "copies": {"type": "integer"}}},
        // kopf keeps what its handlers have done there.
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    });
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": MIRRORS},
        "spec": {"group": "kopf.example.com", "scope": "Namespaced", "names": {"plural": "mirrors", "kind": "Mirror"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}]}})
}

fn mirror(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kopf.example.com/v1", "kind": "Mirror", "metadata": {"name": name}, "spec": spec})
}

/// Starts the operator and waits until its webhooks are called at where it now serves.
fn start(site: &Site) -> Daemon {
    let folder = site.testbed.dir().join("kopf");
    let file = |name: &str| folder.join(name);
    if !folder.exists() {
        let (authority, certificate, key) = certificates(&["127.0.0.1"]);
        fs::create_dir(&folder).expect("a directory");
        for (name, text) in
            [("ca.crt", authority.pem()), ("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())]
        {
            fs::write(file(name), text).expect("a file");
        }
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/kopf_operator.py");
    let mut command = site.testbed.command("python3");
    command.args(["-m", "kopf", "run", "--standalone", "--all-namespaces", "--verbose"]).arg(script);
    command.env("KUBECONFIG", site.testbed.windlass().kubeconfig()).env("CERTIFICATES", &folder);
    python::with_packages(&mut command);
    let mut operator = Daemon::start("kopf", &mut command, &folder.join("kopf.txt")).expect("python3 starts");
    let kubectl = site.kubectl();
    eventually(DEFAULT_TIMEOUT, "the operator's webhooks answer", || {
        anyhow::ensure!(operator.runs(), "it has ended: {}", operator.log());
        // Without a configuration nothing is defaulted.
        let probe = mirror("probe", json!({"text": "one"}));
        let output = kubectl.output(&["create", "--dry-run=server", "-o", "json", "-f", "-"], &probe.to_string());
        let made: Value = serde_json::from_str(&output.out).unwrap_or_default();
        anyhow::ensure!(made["spec"]["copies"] == 2, "{output:?}");
        Ok(())
    });
    operator
}

/// The copies of a mirror have these texts.
#[track_caller]
fn has_copies(kubectl: &Kubectl<'_>, name: &str, texts: &[&str]) {
    eventually(DEFAULT_TIMEOUT, &format!("{name} has the copies {texts:?}"), || {
        let found = kubectl.json(&["configmaps", "-l", &format!("kopf.example.com/copy-of={name}")])?;
        let found: Vec<&Value> =
            found["items"].as_array().into_iter().flatten().map(|map| &map["data"]["text"]).collect();
        anyhow::ensure!(found == texts, "{found:?}");
        Ok(())
    });
}

pub(super) fn an_operator_lives() {
    let mut site = Site::start();
    site.kubectl().apply(&definition().to_string());
    established(&site.kubectl(), MIRRORS, &["mirrors"]);
    let mut operator = start(&site);
    admitted(&site.kubectl());
    followed(&site.kubectl());
    operator = is_killed(&site, operator);
    outlives_the_server(&mut site);
    assert!(operator.runs(), "{}", operator.log());
    operator.end(Signal::SIGTERM);
}

fn admitted(kubectl: &Kubectl<'_>) {
    is_refused(
        kubectl,
        &["apply", "-f", "-"],
        &mirror("wrong", json!({"text": "bad"})),
        &format!("{WEBHOOK} denied the request: no mirror shows a bad text"),
    );
    is_refused(kubectl, &["get", "mirror", "wrong"], &Value::Null, "not found");
    let applied = kubectl.output(&["apply", "-f", "-"], &mirror("first", json!({"text": "one"})).to_string());
    assert!(applied.ok && applied.err.contains("Warning: spec.copies is defaulted to 2"), "{applied:?}");
}

/// Handlers follow creation and changes; what is deleted of the children comes back.
fn followed(kubectl: &Kubectl<'_>) {
    has_copies(kubectl, "first", &["one", "one"]);
    becomes(kubectl, &["mirror", "first"], "/status/copies", &json!(2));
    let first = kubectl.json(&["mirror", "first"]).expect("the mirror");
    assert_eq!(first["metadata"]["finalizers"], json!(["kopf.example.com/farewell"]));
    let copy = kubectl.json(&["configmap", "first-0"]).expect("a copy");
    assert_eq!(copy["metadata"]["ownerReferences"][0]["uid"], first["metadata"]["uid"]);
    eventually(DEFAULT_TIMEOUT, "the event is there", || {
        let events = kubectl.try_run(&["events", "--for", "mirror/first"])?;
        anyhow::ensure!(events.contains("2 copies of one"), "{events}");
        Ok(())
    });
    let change = r#"{"spec":{"text":"two","copies":3}}"#;
    let _ = kubectl.run(&["patch", "mirror", "first", "--type=merge", "-p", change]);
    has_copies(kubectl, "first", &["two", "two", "two"]);
    let _ = kubectl.run(&["delete", "configmap", "first-1"]);
    has_copies(kubectl, "first", &["two", "two", "two"]);
}

/// Without the operator nothing is admitted and nothing with its finalizer goes; the next one does what was left.
fn is_killed(site: &Site, mut operator: Daemon) -> Daemon {
    let kubectl = site.kubectl();
    kubectl.apply(&mirror("second", json!({"text": "one", "copies": 1})).to_string());
    has_copies(&kubectl, "second", &["one"]);
    becomes(&kubectl, &["mirror", "second"], "/status/copies", &json!(1));
    operator.end(Signal::SIGKILL);
    let third = mirror("third", json!({"text": "one"}));
    is_refused(&kubectl, &["apply", "-f", "-"], &third, "failed calling webhook \"default.auto.kopf.example.com\"");
    let _ = kubectl.run(&["delete", "configmap", "first-2"]);
    let _ = kubectl.run(&["delete", "mirror", "second", "--wait=false"]);
    assert!(kubectl.json(&["mirror", "second"]).expect("it waits")["metadata"]["deletionTimestamp"].is_string());

    let operator = start(site);
    has_copies(&kubectl, "first", &["two", "two", "two"]);
    becomes(&kubectl, &["configmap", "farewell-second"], "/data/text", &json!("one"));
    eventually(DEFAULT_TIMEOUT, "the mirror is gone", || {
        let output = kubectl.output(&["get", "mirror", "second"], "");
        anyhow::ensure!(output.err.contains("not found"), "{output:?}");
        Ok(())
    });
    has_copies(&kubectl, "second", &[]);
    kubectl.apply(&third.to_string());
    has_copies(&kubectl, "third", &["one", "one"]);
    operator
}

/// Its watches go on over another life of the server.
fn outlives_the_server(site: &mut Site) {
    site.is_killed_and_restarted();
    let kubectl = site.kubectl();
    has_copies(&kubectl, "first", &["two", "two", "two"]);
    let change = r#"{"spec":{"text":"three","copies":1}}"#;
    let _ = kubectl.run(&["patch", "mirror", "first", "--type=merge", "-p", change]);
    has_copies(&kubectl, "first", &["three"]);
    let _ = kubectl.run(&["delete", "mirror", "first", "--timeout=60s"]);
    becomes(&kubectl, &["configmap", "farewell-first"], "/data/text", &json!("three"));
}
