//! The values that the server writes where a manifest says nothing; upstream's, for each kind.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, items, pod, pod_spec, set};

use crate::registry::Gvk;

/// Makes of an object what a typed decoder would: fields that its kind does not have go, defaults are filled in.
pub fn default(gvk: &Gvk, value: &mut Value) {
    super::prune(gvk, value);
    let Some(object) = value.as_object_mut() else { return };
    match gvk.kind {
        "Pod" => pod(object),
        "ReplicationController" => replication_controller(object),
        "Service" => service(object),
        "Secret" => secret(object),
        "Namespace" => namespace(object),
        "Node" => {
            // What a node has it may give, unless it says otherwise.
            if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
                && let Some(capacity) = status.get("capacity").filter(|all| all.is_object()).cloned()
            {
                set(status, "allocatable", capacity);
            }
        }
        "Endpoints" => {
            for subset in items(object, "subsets") {
                items(subset, "ports").for_each(|port| set(port, "protocol", json!("TCP")));
            }
        }
        "PersistentVolume" => {
            let spec = child(object, "spec");
            set(spec, "persistentVolumeReclaimPolicy", json!("Retain"));
            set(spec, "volumeMode", json!("Filesystem"));
            if let Some(source) = spec.get_mut("hostPath").and_then(Value::as_object_mut) {
                set(source, "type", json!(""));
            }
            if let Some(claim) = spec.get_mut("claimRef").and_then(Value::as_object_mut) {
                set(claim, "kind", json!("PersistentVolumeClaim"));
                set(claim, "apiVersion", json!("v1"));
            }
        }
        "PersistentVolumeClaim" => set(child(object, "spec"), "volumeMode", json!("Filesystem")),
        "StorageClass" => {
            set(object, "reclaimPolicy", json!("Delete"));
            set(object, "volumeBindingMode", json!("Immediate"));
        }
        "EndpointSlice" => items(object, "ports").for_each(|port| {
            set(port, "protocol", json!("TCP"));
            set(port, "name", json!(""));
        }),
        _ => {}
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
    // What belongs to a type goes with it when the type changes.
    if kind == "ExternalName" {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            spec.remove(key);
        }
    } else {
        set(spec, "internalTrafficPolicy", json!("Cluster"));
    }
    let outside = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    if outside || kind == "NodePort" || kind == "LoadBalancer" {
        set(spec, "externalTrafficPolicy", json!("Cluster"));
    } else {
        spec.remove("externalTrafficPolicy");
    }
    if kind == "LoadBalancer" {
        set(spec, "allocateLoadBalancerNodePorts", json!(true));
    } else {
        for key in ["allocateLoadBalancerNodePorts", "healthCheckNodePort", "loadBalancerClass"] {
            spec.remove(key);
        }
    }
    if kind == "LoadBalancer" {
        let status = object.get_mut("status").and_then(Value::as_object_mut);
        let balancer = status.and_then(|status| status.get_mut("loadBalancer")).and_then(Value::as_object_mut);
        for ingress in balancer.into_iter().flat_map(|balancer| items(balancer, "ingress")) {
            if ingress.get("ip").and_then(Value::as_str).is_some_and(|ip| !ip.is_empty()) {
                set(ingress, "ipMode", json!("VIP"));
            }
        }
    }
    for port in items(child(object, "spec"), "ports") {
        set(port, "protocol", json!("TCP"));
        // A port without a number is refused by its validation.
        let Some(number) = port.get("port").filter(|number| !number.is_null()).cloned() else { continue };
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

/// The finalizer is added by the strategy that makes a namespace: an update must not bring it back.
fn namespace(object: &mut Map<String, Value>) {
    let metadata = child(object, "metadata");
    if let Some(name) = metadata.get("name").filter(|name| name.is_string()).cloned() {
        child(metadata, "labels").insert("kubernetes.io/metadata.name".to_owned(), name);
    }
    set(child(object, "status"), "phase", json!("Active"));
}
