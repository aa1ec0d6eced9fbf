//! ServiceAccount: a pod's account must exist, its token is mounted into the containers, and it may limit which Secrets they
//! use.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{mountable_secrets, node_restriction::validate_mirror_pod};
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation, generate::generated_name},
    kinds::core::pod::is_mirror,
    store::{Key, Store},
};

/// Mount path of token, CA certificate and namespace.
const ACCOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Upstream's value: the seven seconds distinguish injected tokens from requested ones.
const ACCOUNT_SECONDS: i64 = 3607;

/// Sets the account and mounts its token.
#[derive(Debug)]
pub(super) struct ServiceAccount {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        if is_new_pod(attributes) {
            set_default(object);
            mount_token(&self.store, attributes, object)?;
        }
        Ok(())
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let adds_containers = attributes.is_core("pods")
            && attributes.operation == Operation::Update
            && attributes.target.subresource.as_deref() == Some("ephemeralcontainers");
        if is_mirror(object) || !(is_new_pod(attributes) || adds_containers) {
            return Ok(());
        }
        let account = account_of(&self.store, attributes, object)?;
        if adds_containers {
            // Upstream gives this one no reason.
            return mountable_secrets::of_ephemeral_containers(object, &account)
                .map_or(Ok(()), |why| Err(ApiError::unknown(why)));
        }
        mountable_secrets::of_pod(object, &account).map_or(Ok(()), |why| Err(attributes.forbidden(object, &why)))
    }
}

/// Whether a pod is created.
fn is_new_pod(attributes: &AdmissionAttributes<'_>) -> bool {
    attributes.is_core("pods") && attributes.operation == Operation::Create && attributes.target.subresource.is_none()
}

/// The account of a pod.
fn account_of(store: &Store, attributes: &AdmissionAttributes<'_>, pod: &Value) -> Result<Value, ApiError> {
    let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or("default").to_owned();
    let namespace = attributes.target.namespace.clone().unwrap_or_default();
    let key = Key { namespace: namespace.clone(), name: name.clone() };
    match store.get(store.resource("serviceaccounts"), &key) {
        Some(account) => Ok(account.value()),
        // The default account of a new namespace may not exist yet. Upstream refuses the pod until then, and scripts
        // work around that.
        None if name == "default" => Ok(json!({})),
        None => {
            let why = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
            Err(attributes.forbidden(pod, &why))
        }
    }
}

/// A pod that names no account runs under the default one; a mirror pod has none.
fn set_default(object: &mut Value) {
    let mirrored = is_mirror(object);
    let spec = &mut object["spec"];
    if !mirrored && spec.is_object() && spec["serviceAccountName"].as_str().is_none_or(str::is_empty) {
        spec["serviceAccountName"] = json!("default");
        spec["serviceAccount"] = json!("default");
    }
}

/// Checks that the service account exists and mounts its token into every container, unless that is disabled.
fn mount_token(store: &Store, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
    // A mirror pod has no service account.
    if is_mirror(object) {
        return validate_mirror_pod(object).map_err(|why| attributes.forbidden(object, why));
    }
    if !object["spec"].is_object() {
        return Ok(());
    }
    let account = account_of(store, attributes, object)?;
    let spec = &mut object["spec"];
    if spec["imagePullSecrets"].as_array().is_none_or(Vec::is_empty) && account["imagePullSecrets"].is_array() {
        spec["imagePullSecrets"] = account["imagePullSecrets"].clone();
    }
    let automount = |v: &Value| v["automountServiceAccountToken"].as_bool();
    if !automount(spec).or_else(|| automount(&account)).unwrap_or(true) {
        return Ok(());
    }
    let mut volume = None;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|c| c.is_object()) {
            let mounts = &mut container["volumeMounts"];
            if mounts.as_array().into_iter().flatten().any(|m| m["mountPath"] == ACCOUNT_PATH) {
                continue;
            }
            let name = match &volume {
                Some(name) => name,
                None => volume.insert(generated_name("kube-api-access-")?),
            };
            let mount = json!({"name": name, "readOnly": true, "mountPath": ACCOUNT_PATH});
            match mounts.as_array_mut() {
                Some(mounts) => mounts.push(mount),
                None => *mounts = json!([mount]),
            }
        }
    }
    let Some(name) = volume else { return Ok(()) };
    let volume = json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": ACCOUNT_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}});
    match spec["volumes"].as_array_mut() {
        Some(volumes) => volumes.push(volume),
        None => spec["volumes"] = json!([volume]),
    }
    Ok(())
}
