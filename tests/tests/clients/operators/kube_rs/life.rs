//! The life of the operator's type, step by step, by a user of kubectl.

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, eventually};

use super::{
    NAMESPACE,
    controller::FINALIZER,
    leader::LEASE,
    manifests::{UNCHECKED, definition, final_definition, rights, webhooks},
    process::Operator,
    webhooks::PROTECTED,
};
use crate::operators::{Site, becomes, established, is_denied, is_refused};

const OLD: &str = "caches.v1alpha1.operators.example.com";
const NEW: &str = "caches.v1.operators.example.com";
const CHECK: &str = "check.operators.example.com";
const DEFINITION: &str = "crd/caches.operators.example.com";

fn old(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "operators.example.com/v1alpha1", "kind": "Cache", "metadata": {"name": name}, "spec": spec})
}

fn new(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "operators.example.com/v1", "kind": "Cache", "metadata": {"name": name}, "spec": spec})
}

pub(in crate::operators) fn an_operator_lives() {
    let mut site = Site::start();
    let operator = Operator::start(&site.testbed);
    installed(&site.kubectl(), &operator);
    defaulted_in_both_versions(&site.kubectl(), &operator);
    refused(&site.kubectl());
    operator.begin("one");
    becomes(&site.kubectl(), &["lease", LEASE, "-n", NAMESPACE], "/spec/holderIdentity", &json!("one"));
    operator.begin("two");
    reconciled(&site.kubectl());
    guarded(&site.kubectl(), &operator);
    scaled(&site.kubectl());
    another_leads(&site.kubectl(), &operator);
    outlives_the_server(&mut site);
    deleted(&site.kubectl());
    migrated(&site.kubectl(), &operator);
}

/// Without the authority of the webhooks nothing can be written; it is injected afterwards.
fn installed(kubectl: &Kubectl<'_>, operator: &Operator) {
    kubectl.apply(&rights().to_string());
    let url = format!("https://{}", operator.webhooks.address);
    kubectl.apply(&definition(&url, "v1alpha1").to_string());
    established(kubectl, "caches.operators.example.com", &[OLD, NEW]);
    kubectl.apply(&webhooks(&url).to_string());
    let first = old("main", json!({"size": 2}));
    is_refused(
        kubectl,
        &["apply", "-f", "-"],
        &first,
        "failed to verify certificate: x509: certificate signed by unknown authority",
    );
    operator.inject();
    eventually(DEFAULT_TIMEOUT, "the webhooks are trusted", || {
        let output = kubectl.output(&["apply", "--dry-run=server", "-f", "-"], &first.to_string());
        anyhow::ensure!(output.ok, "{}", output.err);
        Ok(())
    });
    let _ = operator.webhooks.calls();
}

/// An object of the old version is defaulted by webhooks that know the new one, and is read in both.
fn defaulted_in_both_versions(kubectl: &Kubectl<'_>, operator: &Operator) {
    kubectl.apply(&old("main", json!({"size": 2})).to_string());
    let calls = operator.webhooks.calls();
    let asked = |path: &str| -> Vec<&Value> {
        let of =
            calls.iter().filter(|(called, review)| called.starts_with(path) && review["request"]["name"] == "main");
        of.map(|(_, review)| &review["request"]).collect()
    };
    let labelled = asked("/label");
    // Once more after another webhook has set the tier.
    assert_eq!(labelled.len(), 2, "{labelled:?}");
    assert!(labelled[0]["object"]["spec"]["tier"].is_null(), "{labelled:?}");
    assert_eq!(labelled[1]["object"]["spec"]["tier"], "standard");
    let [checked] = asked("/check")[..] else { panic!("checked not once: {calls:?}") };
    let kind = |version: &str| json!({"group": "operators.example.com", "version": version, "kind": "Cache"});
    assert_eq!((&checked["kind"], &checked["requestKind"]), (&kind("v1"), &kind("v1alpha1")));
    assert_eq!((&checked["operation"], &checked["dryRun"]), (&json!("CREATE"), &json!(false)));
    assert_eq!(checked["object"]["spec"], json!({"replicas": 2, "tier": "standard", "memory": {"limit": "64Mi"}}));

    let spec = |kind: &str| kubectl.json(&[kind, "main"]).expect("the cache")["spec"].clone();
    assert_eq!(spec(OLD), json!({"size": 2, "tier": "standard", "memory": "64Mi"}));
    assert_eq!(spec(NEW), json!({"replicas": 2, "tier": "standard", "memory": {"limit": "64Mi"}}));
    for kind in [OLD, NEW] {
        let by_field = ["get", kind, "-l", "tier=standard", "-o", "name", "--field-selector"];
        assert_eq!(kubectl.run(&[&by_field[..], &["spec.tier=standard"]].concat()).lines().count(), 1);
        assert_eq!(kubectl.run(&[&by_field[..], &["spec.tier=large"]].concat()), "");
    }
    let table = kubectl.run(&["get", NEW]);
    let columns: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(columns, ["NAME", "WANTED", "REPLICAS", "TIER"], "{table}");
}

fn refused(kubectl: &Kubectl<'_>) {
    let sized = |name: &str, limit: &str| new(name, json!({"replicas": 1, "memory": {"limit": limit}}));
    let words = r#"memory "lots" is no amount that a cache can have"#;
    is_denied(kubectl, &sized("wrong", "lots"), CHECK, words);
    is_denied(kubectl, &old("wrong", json!({"size": 1, "memory": "lots"})), CHECK, words);
    is_refused(kubectl, &["create", "--dry-run=server", "-f", "-"], &sized("wrong", "lots"), words);
    let too_many = new("wrong", json!({"replicas": 4}));
    is_refused(kubectl, &["create", "-f", "-"], &too_many, "more than 3 replicas need the large tier");
    is_refused(kubectl, &["get", NEW, "wrong"], &Value::Null, r#"caches.operators.example.com "wrong" not found"#);
    let change = r#"{"spec":{"tier":"large"}}"#;
    is_refused(
        kubectl,
        &["patch", NEW, "main", "--type=merge", "-p", change],
        &Value::Null,
        "the tier cannot be changed",
    );
    // What a condition or the namespace leaves out.
    let mut unchecked = sized("unchecked", "lots");
    unchecked["metadata"]["annotations"] = json!({UNCHECKED: "yes"});
    kubectl.apply(&unchecked.to_string());
    let elsewhere = kubectl.within("unchecked");
    elsewhere.apply(&sized("elsewhere", "lots").to_string());
    let _ = kubectl.run(&["delete", NEW, "unchecked"]);
    let _ = elsewhere.run(&["delete", NEW, "elsewhere"]);
}

/// The controller makes the children and says so; what is deleted of them comes back.
fn reconciled(kubectl: &Kubectl<'_>) {
    becomes(kubectl, &[NEW, "main"], "/status/replicas", &json!(2));
    let cache = kubectl.json(&[NEW, "main"]).expect("the cache");
    assert_eq!(cache["metadata"]["finalizers"], json!([FINALIZER]));
    for child in ["deployment/main", "configmap/main-settings"] {
        let child = kubectl.json(&[child]).expect("a child");
        let owner = &child["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&cache["metadata"]["uid"], &json!(true)), "{child}");
    }
    eventually(DEFAULT_TIMEOUT, "the event is there", || {
        let events = kubectl.try_run(&["events", "--for", "cache/main"])?;
        anyhow::ensure!(events.contains("2 replicas with 64Mi each"), "{events}");
        Ok(())
    });
    let uid = kubectl.json(&["deployment", "main"]).expect("the Deployment")["metadata"]["uid"].clone();
    let _ = kubectl.run(&["delete", "deployment", "main"]);
    eventually(DEFAULT_TIMEOUT, "the Deployment comes back", || {
        let found = kubectl.json(&["deployment", "main"])?;
        anyhow::ensure!(found["metadata"]["uid"] != uid, "{found}");
        Ok(())
    });
    becomes(kubectl, &["deployment", "main"], "/status/replicas", &json!(2));
}

/// Users may not change the operator's objects, not even for a trial; others of theirs they may.
fn guarded(kubectl: &Kubectl<'_>, operator: &Operator) {
    const WORDS: &str = "objects of a cache are changed by its operator alone";
    let _ = operator.webhooks.calls();
    let change = ["patch", "configmap", "main-settings", "--type=merge", "-p", r#"{"data":{"memory":"1Mi"}}"#];
    for more in [&[][..], &["--dry-run=server"]] {
        is_refused(kubectl, &[&change[..], more].concat(), &Value::Null, WORDS);
    }
    let calls = operator.webhooks.calls();
    let dry: Vec<&Value> = calls
        .iter()
        .filter(|(path, _)| path.starts_with("/guard"))
        .map(|(_, review)| &review["request"]["dryRun"])
        .collect();
    assert_eq!(dry, [&json!(false), &json!(true)]);
    let _ = kubectl.run(&["create", "configmap", "own", "--from-literal=a=b"]);
    let _ = kubectl.run(&["label", "configmap", "own", "c=d"]);
    becomes(kubectl, &["configmap", "main-settings"], "/data/memory", &json!("64Mi"));
}

/// Through the subresource, which webhooks and rules judge too.
fn scaled(kubectl: &Kubectl<'_>) {
    let _ = kubectl.run(&["scale", "cache/main", "--replicas=3"]);
    becomes(kubectl, &["deployment", "main"], "/spec/replicas", &json!(3));
    becomes(kubectl, &[NEW, "main"], "/status/replicas", &json!(3));
    let words = "more than 3 replicas need the large tier";
    is_refused(kubectl, &["scale", "cache/main", "--replicas=4"], &Value::Null, words);
    let raw = "/apis/operators.example.com/v1alpha1/namespaces/default/caches/main/scale";
    let scale: Value = serde_json::from_str(&kubectl.run(&["get", "--raw", raw])).expect("JSON");
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]),
        (&json!(3), &json!({"replicas": 3, "selector": "cache=main"}))
    );
}

/// The leader ends without a word; the other instance takes the lease when it is over.
fn another_leads(kubectl: &Kubectl<'_>, operator: &Operator) {
    operator.kill("one");
    let lease = ["lease", LEASE, "-n", NAMESPACE];
    becomes(kubectl, &lease, "/spec/holderIdentity", &json!("two"));
    let _ = kubectl.run(&["scale", "cache/main", "--replicas=1"]);
    becomes(kubectl, &[NEW, "main"], "/status/replicas", &json!(1));
    assert_eq!(kubectl.json(&lease).expect("the lease")["spec"]["leaseTransitions"], 1);
}

/// Watches go on where they were, and what changes at once is seen.
fn outlives_the_server(site: &mut Site) {
    let before = site.kubectl().json(&[NEW, "main"]).expect("the cache");
    site.is_killed_and_restarted();
    let kubectl = site.kubectl();
    let after = kubectl.json(&[NEW, "main"]).expect("the cache");
    assert_eq!(after, before);
    kubectl.apply(&new("second", json!({"replicas": 4, "tier": "large", "memory": {"limit": "32Mi"}})).to_string());
    let _ = kubectl.run(&["scale", "cache/main", "--replicas=2"]);
    becomes(&kubectl, &[NEW, "main"], "/status/replicas", &json!(2));
    becomes(&kubectl, &[NEW, "second"], "/status/replicas", &json!(4));
    let words = "a cache has at most 6 replicas";
    is_refused(&kubectl, &["scale", "cache/second", "--replicas=7"], &Value::Null, words);
}

/// The webhook may refuse a deletion; one that it admits waits for the finalizer, and takes the children with it.
fn deleted(kubectl: &Kubectl<'_>) {
    let _ = kubectl.run(&["annotate", "cache/main", &format!("{PROTECTED}=yes")]);
    is_refused(kubectl, &["delete", "cache/main"], &Value::Null, "the cache is protected from deletion");
    let _ = kubectl.run(&["annotate", "cache/main", &format!("{PROTECTED}-")]);
    let _ = kubectl.run(&["delete", "cache/main", "--timeout=60s"]);
    becomes(kubectl, &["configmap", "farewell-main"], "/data/replicas", &json!("2"));
    eventually(DEFAULT_TIMEOUT, "the children are gone", || {
        for child in ["deployment/main", "configmap/main-settings"] {
            let output = kubectl.output(&["get", child], "");
            anyhow::ensure!(output.err.contains("NotFound"), "{output:?}");
        }
        Ok(())
    });
}

/// What is stored is written in the new version, until the old one can go.
fn migrated(kubectl: &Kubectl<'_>, operator: &Operator) {
    let apply = |definition: &Value| kubectl.output(&["apply", "-f", "-"], &definition.to_string());
    let url = format!("https://{}", operator.webhooks.address);
    assert!(apply(&definition(&url, "v1")).ok);
    becomes(kubectl, &[DEFINITION], "/status/storedVersions", &json!(["v1alpha1", "v1"]));
    let refused = apply(&final_definition());
    assert!(!refused.ok && refused.err.contains("v1alpha1 was previously a storage version"), "{refused:?}");

    // An update that changes nothing else writes the new version.
    let before = kubectl.json(&[NEW, "second"]).expect("the cache");
    let output = kubectl.output(&["replace", "-f", "-"], &before.to_string());
    assert!(output.ok, "{output:?}");
    let after = kubectl.json(&[NEW, "second"]).expect("the cache");
    assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    assert_eq!(
        (&after["spec"], &after["metadata"]["generation"]),
        (&before["spec"], &before["metadata"]["generation"])
    );

    let pruned = r#"{"status":{"storedVersions":["v1"]}}"#;
    let _ = kubectl.run(&["patch", DEFINITION, "--subresource=status", "--type=merge", "-p", pruned]);
    let applied = apply(&final_definition());
    assert!(applied.ok, "{applied:?}");
    eventually(DEFAULT_TIMEOUT, "the old version is served no longer", || {
        let output = kubectl.output(&["get", "--raw", "/apis/operators.example.com/v1alpha1/caches"], "");
        anyhow::ensure!(output.err.contains("NotFound"), "{output:?}");
        Ok(())
    });
    let _ = operator.webhooks.calls();
    let _ = kubectl.run(&["scale", "cache/second", "--replicas=5"]);
    becomes(kubectl, &[NEW, "second"], "/status/replicas", &json!(5));
    let converted = operator.webhooks.calls().into_iter().filter(|(path, _)| path.starts_with("/convert")).count();
    assert_eq!(converted, 0, "nothing is left to convert");
}
