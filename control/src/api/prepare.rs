//! What the server adds to an object before it is stored, and what admission makes of it. Pure, except that
//! admission looks at other objects through the store.

use std::collections::BTreeSet;

use jiff::Timestamp;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Map, Value, json};

use super::{error::ApiError, target::Target};
use crate::{
    registry::ResourceType,
    store::{Key, Store},
};

/// Letters of generated names: no vowels, so no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// The longest base of a generated name.
const LONGEST_BASE: usize = 58;

pub(super) fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// Random bytes; a machine without any cannot serve.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        tracing::error!("the system has no random numbers; names and uids are not unique");
    }
    bytes
}

pub(super) fn random_u32() -> u32 {
    u32::from_le_bytes(random())
}

/// A random version 4 identifier.
pub(super) fn new_uid() -> String {
    let mut b: [u8; 16] = random();
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let hex: String = b.iter().map(|x| format!("{x:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// `base` and five random letters.
pub(super) fn generated_name(base: &str) -> String {
    let suffix: String = random::<5>().iter().map(|b| char::from(LETTERS[usize::from(*b) % LETTERS.len()])).collect();
    let cut: String = base.chars().take(LONGEST_BASE).collect();
    format!("{cut}{suffix}")
}

fn metadata_of(object: &mut Value) -> Result<&mut Map<String, Value>, ApiError> {
    let fields = object.as_object_mut().ok_or_else(|| ApiError::bad_request("the body must be a JSON object"))?;
    fields
        .entry("metadata")
        .or_insert_with(|| json!({}))
        .as_object_mut()
        .ok_or_else(|| ApiError::bad_request("metadata must be a JSON object"))
}

/// Identity of a new object: what the server decides and what clients may not.
pub(super) fn new_metadata(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    let resource = target.resource;
    let metadata = metadata_of(object)?;
    if metadata.get("resourceVersion").and_then(Value::as_str).is_some_and(|v| !v.is_empty()) {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    for field in ["managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
        metadata.remove(field);
    }
    put_namespace(target, metadata)?;
    let named = metadata.get("name").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
    if let (false, Some(base)) = (named, metadata.get("generateName").and_then(Value::as_str).filter(|b| !b.is_empty()))
    {
        let name = generated_name(base);
        metadata.insert("name".to_owned(), json!(name));
    }
    metadata.insert("uid".to_owned(), json!(new_uid()));
    metadata.insert("creationTimestamp".to_owned(), json!(now()));
    if resource.generation {
        metadata.insert("generation".to_owned(), json!(1));
    } else {
        metadata.remove("generation");
    }
    begin_status(resource, object);
    Ok(())
}

fn put_namespace(target: &Target, metadata: &mut Map<String, Value>) -> Result<(), ApiError> {
    let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or("");
    match &target.namespace {
        Some(namespace) if given.is_empty() => drop(metadata.insert("namespace".to_owned(), json!(namespace))),
        Some(namespace) if given != namespace => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Some(_) => {}
        None if !target.resource.namespaced => drop(metadata.remove("namespace")),
        None => return Err(ApiError::bad_request("an object of this kind needs a namespace in its path")),
    }
    Ok(())
}

/// A new object's status is the server's, except that a node brings its own.
fn begin_status(resource: &ResourceType, object: &mut Value) {
    let Some(fields) = object.as_object_mut() else { return };
    match resource.gvk.kind {
        "Node" => {}
        "Pod" => drop(fields.insert("status".to_owned(), json!({"phase": "Pending"}))),
        "PersistentVolume" | "PersistentVolumeClaim" => {
            fields.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
        "Service" => drop(fields.insert("status".to_owned(), json!({"loadBalancer": {}}))),
        "ReplicationController" => drop(fields.insert("status".to_owned(), json!({"replicas": 0}))),
        _ if resource.has_status() => drop(fields.remove("status")),
        _ => {}
    }
}

/// Identity of a changed object: what was stays, whatever the client sent.
pub(super) fn kept_metadata(target: &Target, object: &mut Value, old: &Value) -> Result<(), ApiError> {
    let metadata = metadata_of(object)?;
    put_namespace(target, metadata)?;
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ] {
        match old["metadata"].get(field) {
            Some(value) => drop(metadata.insert(field.to_owned(), value.clone())),
            None => drop(metadata.remove(field)),
        }
    }
    metadata.remove("managedFields");
    metadata.remove("selfLink");
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
    let wanted = target.name.as_deref().unwrap_or("");
    if name != wanted {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({wanted})"
        )));
    }
    Ok(())
}

/// Everything but metadata and status.
fn spec_of(object: &Value) -> Map<String, Value> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(k, _)| !matches!(k.as_str(), "metadata" | "status")).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Counts a change of the spec.
pub(super) fn bump_generation(resource: &ResourceType, object: &mut Value, old: &Value) {
    if resource.generation && spec_of(object) != spec_of(old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(1) + 1;
        object["metadata"]["generation"] = json!(generation);
    }
}

/// New finalizers may not be added once an object is being deleted.
pub(super) fn check_finalizers(resource: &ResourceType, object: &Value, old: &Value) -> Result<(), ApiError> {
    if old["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let set = |o: &Value| -> BTreeSet<String> {
        o["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|f| f.as_str().map(str::to_owned))
            .collect()
    };
    let added: Vec<String> = set(object).difference(&set(old)).cloned().collect();
    if added.is_empty() {
        return Ok(());
    }
    let name = old["metadata"]["name"].as_str().unwrap_or("");
    let error = crate::schema::FieldError {
        field: "metadata.finalizers".to_owned(),
        cause: crate::schema::Cause::Forbidden,
        detail: format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
        ),
    };
    Err(ApiError::invalid(resource, name, &[error]))
}

/// Admission of a new object: its namespace must live; what upstream's plugins add is added.
pub(super) fn admit_create(store: &Store, target: &Target, object: &mut Value) -> Result<(), ApiError> {
    let resource = target.resource;
    if let Some(namespace) = &target.namespace {
        let key = Key { namespace: String::new(), name: namespace.clone() };
        let Some(found) = store.get("namespaces", &key) else {
            let namespaces = crate::registry::of_kind("Namespace").unwrap_or(resource);
            return Err(ApiError::not_found(namespaces, namespace));
        };
        // Events of what is going must still be told, as upstream allows for none: there they fail as well.
        if found.value()["status"]["phase"] == "Terminating" {
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            let cause = format!("namespace {namespace} is being terminated");
            return Err(ApiError::forbidden(resource, &name, &why).with_cause(
                "NamespaceTerminating",
                &cause,
                "metadata.namespace",
            ));
        }
    }
    match resource.gvk.kind {
        "Pod" => {
            admit_pod(object)?;
            admit_account(store, target, object)
        }
        "PersistentVolumeClaim" => {
            admit_claim(store, object);
            Ok(())
        }
        "Node" => {
            let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
            if let Some(spec) = object["spec"].as_object_mut().map(|s| s.entry("taints").or_insert_with(|| json!([]))) {
                if let Some(taints) = spec.as_array_mut().filter(|t| !t.contains(&taint)) {
                    taints.push(taint);
                }
            } else {
                object["spec"] = json!({"taints": [taint]});
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A claim that says nothing of a class gets the default one, if there is one.
fn admit_claim(store: &Store, object: &mut Value) {
    if !object["spec"]["storageClassName"].is_null() || !object["spec"].is_object() {
        return;
    }
    let (classes, _) = store.list("storageclasses.storage.k8s.io", None);
    let is_default = |class: &Value| class["metadata"]["annotations"][DEFAULT_CLASS] == "true";
    let mut all: Vec<Value> = classes.iter().map(|(_, class)| class.value()).filter(is_default).collect();
    // Of several the newest, as upstream has it.
    all.sort_by_key(|class| class["metadata"]["creationTimestamp"].as_str().unwrap_or("").to_owned());
    if let Some(class) = all.last() {
        object["spec"]["storageClassName"] = class["metadata"]["name"].clone();
    }
}

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Where containers find the token, the authority and the namespace.
const ACCOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Upstream's: such tokens are renewed each hour, and the seconds tell them from those that somebody asked for.
const ACCOUNT_SECONDS: i64 = 3607;

/// A pod's service account must be there; its token is mounted in every container, unless that is switched off.
fn admit_account(store: &Store, target: &Target, object: &mut Value) -> Result<(), ApiError> {
    // What a node mirrors of a file has no account.
    let mirrored = object["metadata"]["annotations"].get("kubernetes.io/config.mirror").is_some();
    if mirrored || !object["spec"].is_object() {
        return Ok(());
    }
    let name = object["spec"]["serviceAccountName"].as_str().unwrap_or("default").to_owned();
    let namespace = target.namespace.clone().unwrap_or_default();
    let key = Key { namespace: namespace.clone(), name: name.clone() };
    let account = match store.get("serviceaccounts", &key) {
        Some(account) => account.value(),
        // A controller is about to make it; upstream refuses the pod until then, and people script around that.
        None if name == "default" => json!({}),
        None => {
            let pod = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let why = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
            return Err(ApiError::forbidden(target.resource, &pod, &why));
        }
    };
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
            let name = volume.get_or_insert_with(|| generated_name("kube-api-access-"));
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

fn admit_pod(object: &mut Value) -> Result<(), ApiError> {
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return Ok(());
    }
    if spec["serviceAccountName"].as_str().is_none_or(str::is_empty) {
        spec["serviceAccountName"] = json!("default");
        spec["serviceAccount"] = json!("default");
    }
    if spec["priority"].is_null() {
        spec["priority"] = json!(match spec["priorityClassName"].as_str() {
            Some("system-node-critical") => 2_000_001_000,
            Some("system-cluster-critical") => 2_000_000_000,
            _ => 0,
        });
    }
    if spec["preemptionPolicy"].is_null() {
        spec["preemptionPolicy"] = json!("PreemptLowerPriority");
    }
    let tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let mut all = tolerations.clone();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = tolerations.iter().any(|t| {
            let same_key = t["key"] == key || t["key"].as_str().is_none_or(str::is_empty);
            same_key && matches!(t["effect"].as_str(), None | Some("" | "NoExecute"))
        });
        if !tolerated {
            all.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    spec["tolerations"] = Value::Array(all);
    Ok(())
}
