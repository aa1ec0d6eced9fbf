//! What the server adds to an object before it is stored, and what admission makes of it. Pure, except that
//! admission looks at other objects through the store.

use std::collections::BTreeSet;

use jiff::Timestamp;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Map, Value, json};

use super::{
    error::ApiError, node_authorizer::references::is_mirror, node_restriction::mirror_has_no_account, parts,
    target::Target,
};
use crate::{
    registry::{Gvk, ResourceType},
    schema,
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

/// Random bytes. Without them two objects could have one uid, and the garbage collector would take them for one.
fn random<const N: usize>() -> Result<[u8; N], ApiError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| ApiError::internal("the system gives no random numbers"))?;
    Ok(bytes)
}

/// A random place to start a search from; where there are no random numbers, the first one.
pub(super) fn random_u32() -> u32 {
    random().map_or(0, u32::from_le_bytes)
}

/// A random version 4 identifier.
pub(super) fn new_uid() -> Result<String, ApiError> {
    let mut b: [u8; 16] = random()?;
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let hex: String = b.iter().map(|x| format!("{x:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// `base` and five random letters.
pub(super) fn generated_name(base: &str) -> Result<String, ApiError> {
    let suffix: String = random::<5>()?.iter().map(|b| char::from(LETTERS[usize::from(*b) % LETTERS.len()])).collect();
    let cut: String = base.chars().take(LONGEST_BASE).collect();
    Ok(format!("{cut}{suffix}"))
}

/// Makes an object say what it is. Clients may leave that out, but not say something else.
///
/// # Errors
/// What it says instead.
pub(super) fn type_meta(gvk: &Gvk, object: &mut Value) -> Result<(), String> {
    let Some(fields) = object.as_object_mut() else { return Err("it is no JSON object".to_owned()) };
    for (field, wanted) in [("kind", gvk.kind.to_owned()), ("apiVersion", gvk.api_version())] {
        match fields.get(field) {
            Some(Value::String(given)) if *given == wanted => {}
            Some(Value::String(given)) if !given.is_empty() => {
                return Err(format!(
                    "the {field} in the data ({given}) does not match the expected {field} ({wanted})"
                ));
            }
            None | Some(Value::Null | Value::String(_)) => drop(fields.insert(field.to_owned(), json!(wanted))),
            Some(_) => return Err(format!("the {field} in the data is no text; expected {wanted}")),
        }
    }
    Ok(())
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
        let name = generated_name(base)?;
        metadata.insert("name".to_owned(), json!(name));
    }
    metadata.insert("uid".to_owned(), json!(new_uid()?));
    metadata.insert("creationTimestamp".to_owned(), json!(now()));
    if resource.generation {
        metadata.insert("generation".to_owned(), json!(1));
    } else {
        metadata.remove("generation");
    }
    begin_status(resource, object);
    if resource.gvk.kind == "Namespace" {
        // What deletes its objects takes it out again: without it a deletion would leave them behind.
        let mut finalizers: Vec<Value> = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|f| f == "kubernetes") {
            finalizers.push(json!("kubernetes"));
        }
        if !object["spec"].is_object() {
            object["spec"] = json!({});
        }
        object["spec"]["finalizers"] = Value::Array(finalizers);
    }
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
    check_name(target, object)
}

/// The name in the path is the object's; the object must say the same.
pub(super) fn check_name(target: &Target, object: &Value) -> Result<(), ApiError> {
    let (name, wanted) = (object["metadata"]["name"].as_str().unwrap_or(""), target.name.as_deref().unwrap_or(""));
    if name == wanted {
        return Ok(());
    }
    Err(ApiError::bad_request(if name.is_empty() {
        format!("the name of the object ({wanted} based on URL) was undeterminable: name must be provided")
    } else {
        format!("the name of the object ({name}) does not match the name on the URL ({wanted})")
    }))
}

/// The parts of `old` that a change through this path does not reach: upstream's strategies.
pub(super) fn keep_parts(target: &Target, object: &mut Value, old: &Value) {
    let resource = target.resource;
    let kind = resource.gvk.kind;
    let mut keep = |field: &str| match old.get(field) {
        Some(value) => object[field] = value.clone(),
        None => drop(object.as_object_mut().map(|fields| fields.remove(field))),
    };
    match target.sub.as_deref() {
        Some("status") => {
            let others = old.as_object().into_iter().flatten().map(|(field, _)| field.as_str());
            for field in others.chain(["spec"]).filter(|f| !matches!(*f, "metadata" | "status")) {
                keep(field);
            }
            if kind == "Pod" {
                match old["metadata"].get("ownerReferences") {
                    Some(owners) => object["metadata"]["ownerReferences"] = owners.clone(),
                    None => drop(object["metadata"].as_object_mut().map(|m| m.remove("ownerReferences"))),
                }
                if object["status"]["qosClass"].as_str().is_none_or(str::is_empty)
                    && old["status"]["qosClass"].is_string()
                {
                    if !object["status"].is_object() {
                        object["status"] = json!({});
                    }
                    object["status"]["qosClass"] = old["status"]["qosClass"].clone();
                }
                keep_generations(&mut object["status"], &old["status"]);
            }
        }
        Some("finalize") => keep("status"),
        _ => {
            if resource.has_status() {
                keep("status");
            }
            // Only /finalize changes what a namespace waits for.
            if kind == "Namespace" {
                keep("spec");
            }
        }
    }
}

/// What a status does not say of the generation that it was made for, it says as before: whoever knows of none takes none
/// away.
fn keep_generations(status: &mut Value, old: &Value) {
    const FIELD: &str = "observedGeneration";
    let keep = |new: &mut Value, old: &Value| {
        if new.is_object() && new[FIELD].as_i64().unwrap_or(0) == 0 && old[FIELD].as_i64().unwrap_or(0) != 0 {
            new[FIELD] = old[FIELD].clone();
        }
    };
    keep(status, old);
    let before = old["conditions"].as_array().cloned().unwrap_or_default();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if let Some(old) = before.iter().find(|old| old["type"] == condition["type"]) {
            keep(condition, old);
        }
    }
}

/// What upstream's admission does to a pod that is changed, too: whoever replaces the tolerations keeps the default ones.
pub(super) fn admit_update(target: &Target, object: &mut Value) {
    if target.resource.gvk.kind == "Pod" && target.sub.is_none() && object["spec"].is_object() {
        tolerate(&mut object["spec"]);
    }
}

/// Everything but metadata and status.
fn spec_of(object: &Value) -> Map<String, Value> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(k, _)| !matches!(k.as_str(), "metadata" | "status")).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Counts a change of the spec.
pub(super) fn bump_generation(resource: &ResourceType, object: &mut Value, old: &Value) {
    let spec_of = |object: &Value| spec_of(&schema::canonical(&resource.gvk, object));
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
    let error = schema::FieldError {
        field: "metadata.finalizers".to_owned(),
        cause: schema::Cause::Forbidden,
        detail: format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
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
            admit_pod(target, object)?;
            admit_account(store, target, object)?;
            begin_pod(object);
            Ok(())
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
    if is_mirror(object) {
        let name = object["metadata"]["name"].as_str().unwrap_or("");
        return mirror_has_no_account(object).map_err(|why| ApiError::forbidden(target.resource, name, why));
    }
    if !object["spec"].is_object() {
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

/// The priority classes that every cluster has; there are no others here.
fn priority_of(class: &str) -> Option<i64> {
    match class {
        "" => Some(0),
        "system-cluster-critical" => Some(2_000_000_000),
        "system-node-critical" => Some(2_000_001_000),
        _ => None,
    }
}

/// A pod's priority is that of its class: others make room by it, so nobody chooses a number.
fn admit_priority(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    const POLICY: &str = "PreemptLowerPriority";
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let forbidden = |why: &str| Err(ApiError::forbidden(target.resource, &name, why));
    let spec = &mut object["spec"];
    let class = spec["priorityClassName"].as_str().unwrap_or("");
    let Some(priority) = priority_of(class) else {
        return forbidden(&format!("no PriorityClass with name {class} was found"));
    };
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        return forbidden(&format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != POLICY) {
        return forbidden(&format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {POLICY} from the given PriorityClass name"
        ));
    }
    spec["priority"] = json!(priority);
    spec["preemptionPolicy"] = json!(POLICY);
    Ok(())
}

/// What the first status of a pod says of its spec.
fn begin_pod(object: &mut Value) {
    // A spec that cannot be read is refused by validation.
    if let Ok(class) = parts::class_of(&object["spec"]) {
        object["status"]["qosClass"] = json!(class.name());
    }
    if object["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        object["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "lastTransitionTime": now(), "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
}

fn admit_pod(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    if object["spec"].is_object() {
        admit_priority(target, object)?;
    }
    let mirrored = is_mirror(object);
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return Ok(());
    }
    if !mirrored && spec["serviceAccountName"].as_str().is_none_or(str::is_empty) {
        spec["serviceAccountName"] = json!("default");
        spec["serviceAccount"] = json!("default");
    }
    tolerate(spec);
    Ok(())
}

/// Fills in for how long a pod stays where its node is not ready or out of reach.
fn tolerate(spec: &mut Value) {
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
}
