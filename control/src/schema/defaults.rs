//! The values that the server writes where a manifest says nothing; upstream's, for each kind.

use serde_json::{Map, Value, json};

use crate::registry::Gvk;

/// Fills an object in.
pub fn default(gvk: &Gvk, value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    match gvk.kind {
        "Pod" => {
            let spec = child(object, "spec");
            set(spec, "enableServiceLinks", json!(true));
            pod_spec(spec);
        }
        "ReplicationController" => replication_controller(object),
        "Service" => service(object),
        "Secret" => secret(object),
        "Namespace" => namespace(object),
        "Endpoints" => {
            for subset in items(object, "subsets") {
                items(subset, "ports").for_each(|port| set(port, "protocol", json!("TCP")));
            }
        }
        "EndpointSlice" => items(object, "ports").for_each(|port| {
            set(port, "protocol", json!("TCP"));
            set(port, "name", json!(""));
        }),
        _ => {}
    }
}

fn set(object: &mut Map<String, Value>, key: &str, value: Value) {
    match object.get(key) {
        None | Some(Value::Null) => drop(object.insert(key.to_owned(), value)),
        Some(Value::String(text)) if text.is_empty() && value.as_str().is_some_and(|v| !v.is_empty()) => {
            object.insert(key.to_owned(), value);
        }
        _ => {}
    }
}

/// The object below `key`, made if it is missing.
fn child<'a>(object: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let entry = object.entry(key.to_owned()).or_insert_with(|| json!({}));
    if !entry.is_object() {
        *entry = json!({});
    }
    entry.as_object_mut().expect("made an object just above")
}

/// The objects in the list at `key`.
fn items<'a>(object: &'a mut Map<String, Value>, key: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> + use<'a> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn pod_spec(spec: &mut Map<String, Value>) {
    for (key, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("restartPolicy", json!("Always")),
        ("securityContext", json!({})),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
    ] {
        set(spec, key, value);
    }
    if let Some(account) = spec.get("serviceAccountName").cloned().filter(|a| a.as_str().is_some_and(|a| !a.is_empty())) {
        set(spec, "serviceAccount", account);
    } else if let Some(account) = spec.get("serviceAccount").cloned() {
        set(spec, "serviceAccountName", account);
    }
    let host_network = spec.get("hostNetwork") == Some(&json!(true));
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        items(spec, list).for_each(|c| container(c, host_network));
    }
    items(spec, "volumes").for_each(volume);
}

fn container(container: &mut Map<String, Value>, host_network: bool) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or("");
    let policy = if moving_tag(image) { "Always" } else { "IfNotPresent" };
    set(container, "imagePullPolicy", json!(policy));
    set(container, "terminationMessagePath", json!("/dev/termination-log"));
    set(container, "terminationMessagePolicy", json!("File"));
    set(container, "resources", json!({}));
    for port in items(container, "ports") {
        set(port, "protocol", json!("TCP"));
        if host_network {
            let number = port.get("containerPort").cloned().unwrap_or_default();
            set(port, "hostPort", number);
        }
    }
    let resources = child(container, "resources");
    if let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() {
        let requests = child(resources, "requests");
        for (resource, amount) in limits {
            set(requests, &resource, amount);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            for (key, value) in [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)] {
                set(probe, key, json!(value));
            }
            http_get(probe);
        }
    }
    if let Some(lifecycle) = container.get_mut("lifecycle").and_then(Value::as_object_mut) {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = lifecycle.get_mut(hook).and_then(Value::as_object_mut) {
                http_get(hook);
            }
        }
    }
    for variable in items(container, "env") {
        if let Some(field) = variable.get_mut("valueFrom").and_then(|v| v.get_mut("fieldRef")).and_then(Value::as_object_mut) {
            set(field, "apiVersion", json!("v1"));
        }
    }
}

fn http_get(handler: &mut Map<String, Value>) {
    if let Some(get) = handler.get_mut("httpGet").and_then(Value::as_object_mut) {
        set(get, "path", json!("/"));
        set(get, "scheme", json!("HTTP"));
    }
}

/// A name without a tag or with `latest` may mean something else tomorrow; a digest never does.
fn moving_tag(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn volume(volume: &mut Map<String, Value>) {
    if volume.len() == 1 && volume.contains_key("name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            set(source, "defaultMode", json!(0o644));
        }
    }
    if let Some(path) = volume.get_mut("hostPath").and_then(Value::as_object_mut) {
        set(path, "type", json!(""));
    }
}

fn replication_controller(object: &mut Map<String, Value>) {
    let template = object.get("spec").and_then(|s| s.get("template")).cloned().unwrap_or_default();
    let labels = template["metadata"]["labels"].clone();
    let spec = child(object, "spec");
    set(spec, "replicas", json!(1));
    if spec.get("selector").is_none_or(|s| s.as_object().is_none_or(Map::is_empty)) && labels.is_object() {
        spec.insert("selector".to_owned(), labels.clone());
    }
    if let Some(template) = spec.get_mut("template").and_then(Value::as_object_mut) {
        set(template, "metadata", json!({}));
        pod_spec(child(template, "spec"));
    }
    let metadata = child(object, "metadata");
    if metadata.get("labels").is_none_or(|l| l.as_object().is_none_or(Map::is_empty)) && labels.is_object() {
        metadata.insert("labels".to_owned(), labels);
    }
}

fn service(object: &mut Map<String, Value>) {
    let spec = child(object, "spec");
    set(spec, "type", json!("ClusterIP"));
    set(spec, "sessionAffinity", json!("None"));
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or("").to_owned();
    if spec.get("sessionAffinity") == Some(&json!("ClientIP")) {
        let config = child(spec, "sessionAffinityConfig");
        set(child(config, "clientIP"), "timeoutSeconds", json!(10800));
    } else {
        spec.remove("sessionAffinityConfig");
    }
    if kind != "ExternalName" {
        set(spec, "internalTrafficPolicy", json!("Cluster"));
    }
    if kind == "NodePort" || kind == "LoadBalancer" {
        set(spec, "externalTrafficPolicy", json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        set(spec, "allocateLoadBalancerNodePorts", json!(true));
    }
    for port in items(spec, "ports") {
        set(port, "protocol", json!("TCP"));
        let number = port.get("port").cloned().unwrap_or_default();
        if port.get("targetPort").is_none_or(|t| t == &json!(0) || t == &json!("") || t.is_null()) {
            port.insert("targetPort".to_owned(), number);
        }
    }
}

fn secret(object: &mut Map<String, Value>) {
    use base64::Engine as _;
    set(object, "type", json!("Opaque"));
    if let Some(Value::Object(texts)) = object.remove("stringData") {
        let data = child(object, "data");
        for (key, text) in texts {
            let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or(""));
            data.insert(key, Value::String(encoded));
        }
    }
}

fn namespace(object: &mut Map<String, Value>) {
    let metadata = child(object, "metadata");
    let name = metadata.get("name").cloned().unwrap_or_default();
    child(metadata, "labels").insert("kubernetes.io/metadata.name".to_owned(), name);
    set(child(object, "spec"), "finalizers", json!(["kubernetes"]));
    set(child(object, "status"), "phase", json!("Active"));
}
