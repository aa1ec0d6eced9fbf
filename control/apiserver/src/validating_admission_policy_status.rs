//! Keeps the status of policies that validate: the warnings about the types of their expressions.
//!
//! Upstream's `validatingadmissionpolicy-status` is part of kube-controller-manager and reads the API's OpenAPI documents. Here it
//! is part of the API server, which has the schemas, and the compiler of expressions with what admission knows.

use std::{collections::BTreeSet, time::Duration};

use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use windlass_kit::blocking::COMPUTE;

use crate::{
    apiserver::Api,
    plugin::admission::policy::type_checking,
    store::{Error, Key, Store},
};

/// Upstream's name of the controller, which owns the status.
const NAME: &str = "validatingadmissionpolicy-status";
const RESOURCE: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
/// The pause before a failed write is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long it takes at most until what an event was lost of is seen.
const RESYNC_INTERVAL: Duration = Duration::from_secs(3600);

/// Keeps the status of all policies until `shutdown`. `client` has all rights.
pub(crate) async fn run(api: &Api, client: Client, shutdown: CancellationToken) {
    let store = api.store().clone();
    let resource = store.resource(RESOURCE);
    loop {
        let Ok(mut watch) = store.watch(resource, store.revision()) else { return };
        // From a full list at first, and after a watch that was too slow.
        let mut changed = names(&store);
        loop {
            changed = settle(api, &store, &client, changed).await;
            let pause = if changed.is_empty() { RESYNC_INTERVAL } else { RETRY_INTERVAL };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {
                    if changed.is_empty() {
                        changed = names(&store);
                    }
                }
                events = watch.next() => match events {
                    Ok(events) => changed.extend(events.iter().map(|event| event.object.key.name.clone())),
                    Err(Error::Closed) => return,
                    Err(error) => {
                        tracing::warn!(%error, "watch of admission policies was too slow; listing again");
                        break;
                    }
                },
            }
        }
    }
}

/// Whether a policy has changed since its types were checked.
fn is_due(policy: &Value) -> bool {
    let observed = policy["status"]["observedGeneration"].as_i64();
    policy["metadata"]["generation"].as_i64() > Some(observed.unwrap_or(0))
}

/// What is written to the status of a policy.
fn status(policy: &Value, warnings: Vec<Value>) -> Value {
    let checked = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": policy["metadata"]["name"]},
        "status": {"observedGeneration": policy["metadata"]["generation"], "typeChecking": checked},
    })
}

/// The names of all policies.
fn names(store: &Store) -> BTreeSet<String> {
    store.list(store.resource(RESOURCE), None).0.iter().map(|object| object.key.name.clone()).collect()
}

/// Checks those of the policies that are due. What is left to retry.
async fn settle(api: &Api, store: &Store, client: &Client, changed: BTreeSet<String>) -> BTreeSet<String> {
    let mut failed = BTreeSet::new();
    for name in changed {
        let key = Key { namespace: String::new(), name };
        let Some(policy) = store.get(store.resource(RESOURCE), &key).map(|object| object.value()) else { continue };
        if !is_due(&policy) {
            continue;
        }
        if let Err(error) = check(api, client, policy).await {
            tracing::warn!(policy = key.name, error, "failed to write status of admission policy; retrying");
            failed.insert(key.name);
        }
    }
    failed
}

/// Checks a policy and writes what was found.
async fn check(api: &Api, client: &Client, policy: Value) -> Result<(), String> {
    let catalog = api.catalogs().current();
    // Schemas take processor time.
    let checked = COMPUTE.call(move || status(&policy, type_checking::warnings(&policy, &catalog))).await;
    let status = checked.map_err(|error| error.to_string())?;
    let name = status["metadata"]["name"].as_str().unwrap_or("").to_owned();
    write(client, &name, status).await.map_err(|error| windlass_kit::client::message(&error))
}

async fn write(client: &Client, name: &str, status: Value) -> Result<(), kube::Error> {
    let resource = ApiResource {
        group: "admissionregistration.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "admissionregistration.k8s.io/v1".to_owned(),
        kind: "ValidatingAdmissionPolicy".to_owned(),
        plural: "validatingadmissionpolicies".to_owned(),
    };
    let policies: KubeApi<DynamicObject> = KubeApi::all_with(client.clone(), &resource);
    match policies.patch_status(name, &PatchParams::apply(NAME).force(), &Patch::Apply(status)).await {
        // Deleted meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        written => written.map(drop),
    }
}
