//! kube-apiserver's defaults of pods: set by the API server, and by the node for static pods. Pure.

use serde_json::{Map, Value, json};

use super::{image::Reference, sums::of_containers};
use crate::quantity::Quantity;

/// Sets a field that is missing, null or an empty string. The value is made only then: nearly every object has all its defaults.
pub fn set(object: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    let is_empty = match object.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) if text.is_empty() => true,
        Some(_) => return,
    };
    let value = value.into();
    if !is_empty || value.as_str().is_some_and(|text| !text.is_empty()) {
        object.insert(key.to_owned(), value);
    }
}

/// Sets a field that is missing or null, where an empty string is a value: upstream's pointers.
pub fn set_pointer(object: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    if object.get(key).is_none_or(Value::is_null) {
        object.insert(key.to_owned(), value.into());
    }
}

/// The object below `key`, created if it is missing.
pub fn child<'a>(object: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let entry = object.entry(key.to_owned()).or_insert_with(|| json!({}));
    if !entry.is_object() {
        *entry = json!({});
    }
    entry.as_object_mut().expect("made an object just above")
}

/// The objects in the list at `key`.
pub fn items<'a>(
    object: &'a mut Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> + use<'a> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Sets the defaults of a pod.
pub fn pod(object: &mut Map<String, Value>) {
    let spec = child(object, "spec");
    set(spec, "enableServiceLinks", true);
    pod_spec(spec);
    pod_only(spec);
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        one_address(status);
    }
}

/// Synchronises `podIP` and `podIPs`: the single field wins where they differ, as in kube-apiserver for nodes that know
/// no list.
fn one_address(status: &mut Map<String, Value>) {
    let Some(alone) = status.get("podIP").filter(|ip| ip.as_str().is_some_and(|ip| !ip.is_empty())).cloned() else {
        if let Some(first) = status.get("podIPs").map(|all| all[0]["ip"].clone()).filter(Value::is_string) {
            status.insert("podIP".to_owned(), first);
        }
        return;
    };
    if status.get("podIPs").is_none_or(|all| all[0]["ip"] != alone) {
        status.insert("podIPs".to_owned(), json!([{"ip": alone}]));
    }
}

/// Sets the defaults of a pod spec, also of a template.
pub fn pod_spec(spec: &mut Map<String, Value>) {
    set(spec, "dnsPolicy", "ClusterFirst");
    set(spec, "restartPolicy", "Always");
    set(spec, "securityContext", Map::new());
    set(spec, "terminationGracePeriodSeconds", 30);
    set(spec, "schedulerName", "default-scheduler");
    if let Some(account) = spec.get("serviceAccountName").cloned().filter(|a| a.as_str().is_some_and(|a| !a.is_empty()))
    {
        // The older field follows, whatever it was.
        spec.insert("serviceAccount".to_owned(), account);
    } else if let Some(account) = spec.get("serviceAccount").cloned() {
        set(spec, "serviceAccountName", account);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        items(spec, list).for_each(container);
    }
    items(spec, "volumes").for_each(volume);
    if let Some(whole) = spec.get_mut("resources").and_then(Value::as_object_mut) {
        amounts(whole);
    }
    if let Some(overhead) = spec.get_mut("overhead").and_then(Value::as_object_mut) {
        overhead.values_mut().for_each(amount);
    }
}

/// Sets the defaults that only a pod has, and a template in a controller does not.
fn pod_only(spec: &mut Map<String, Value>) {
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|grace| grace < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
    }
    let host_network = spec.get("hostNetwork") == Some(&json!(true));
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            for port in items(container, "ports").filter(|_| host_network) {
                let number = port.get("containerPort").cloned().unwrap_or_default();
                unless_zero(port, "hostPort", number);
            }
            let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { continue };
            if let Some(limits) = resources.get("limits").and_then(Value::as_object).filter(|l| !l.is_empty()).cloned()
            {
                let requests = child(resources, "requests");
                for (resource, amount) in limits {
                    set(requests, &resource, amount);
                }
            }
        }
    }
    whole_huge_pages(spec);
    whole_requests(spec);
}

/// The `requests` or `limits` of the pod level.
fn of_pod(spec: &Map<String, Value>, list: &str) -> Map<String, Value> {
    spec.get("resources").and_then(|whole| whole.get(list)).and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Sets the pod-level limits of huge pages: the sum of the containers', unless the pod requests some (upstream:
/// `defaultHugePagePodLimits`).
fn whole_huge_pages(spec: &mut Map<String, Value>) {
    let (mut limits, requests) = (of_pod(spec, "limits"), of_pod(spec, "requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (resource, sum) in of_containers(&Value::Object(spec.clone()), "limits") {
        if resource.starts_with(HUGE_PAGES) && !requests.contains_key(&resource) {
            set(&mut limits, &resource, json!(sum.to_string()));
        }
    }
    if !limits.is_empty() {
        child(spec, "resources").insert("limits".to_owned(), Value::Object(limits));
    }
}

/// Sets the pod-level requests of a pod with pod-level limits: the sum of its containers', or the limit (upstream:
/// `defaultPodRequests`).
fn whole_requests(spec: &mut Map<String, Value>) {
    let (limits, mut requests) = (of_pod(spec, "limits"), of_pod(spec, "requests"));
    if limits.is_empty() {
        return;
    }
    for (resource, sum) in of_containers(&Value::Object(spec.clone()), "requests") {
        if matches!(resource.as_str(), "cpu" | "memory") {
            set(&mut requests, &resource, json!(sum.to_string()));
        }
    }
    for (resource, limit) in limits.into_iter().filter(|(name, _)| is_of_pods(name)) {
        set(&mut requests, &resource, limit);
    }
    if !requests.is_empty() {
        child(spec, "resources").insert("requests".to_owned(), Value::Object(requests));
    }
}

const HUGE_PAGES: &str = "hugepages-";

/// Whether a resource is allowed at pod level.
#[must_use]
pub fn is_of_pods(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with(HUGE_PAGES)
}

/// Like `set`, where 0 counts as missing.
pub fn unless_zero(object: &mut Map<String, Value>, key: &str, value: Value) {
    if object.get(key) == Some(&json!(0)) {
        object.remove(key);
    }
    set(object, key, value);
}

/// Writes the quantities of limits and requests in their canonical form.
fn amounts(resources: &mut Map<String, Value>) {
    for kind in ["limits", "requests"] {
        let list = resources.get_mut(kind).and_then(Value::as_object_mut);
        list.into_iter().flat_map(|all| all.values_mut()).for_each(amount);
    }
}

/// Writes a quantity in its canonical form, as `500m` for `0.5`, rounded up to thousandths.
fn amount(amount: &mut Value) {
    let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    let Ok(quantity) = text.parse::<Quantity>() else { return };
    let rounded = Quantity::from_milli(quantity.milli());
    let beyond = matches!(quantity.milli(), i64::MAX | i64::MIN);
    let exact = rounded == quantity || beyond;
    *amount = Value::String(if exact { quantity.to_string() } else { rounded.to_string() });
}

/// The pull policy of an image that has none.
fn pull_policy(image: &str) -> &'static str {
    if Reference::parse(image).is_some_and(|image| image.moves()) { "Always" } else { "IfNotPresent" }
}

fn container(container: &mut Map<String, Value>) {
    if container.get("imagePullPolicy").and_then(Value::as_str).is_none_or(str::is_empty) {
        let policy = pull_policy(container.get("image").and_then(Value::as_str).unwrap_or(""));
        set(container, "imagePullPolicy", policy);
    }
    set(container, "terminationMessagePath", "/dev/termination-log");
    set(container, "terminationMessagePolicy", "File");
    set(container, "resources", Map::new());
    for port in items(container, "ports") {
        set(port, "protocol", "TCP");
    }
    amounts(child(container, "resources"));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            for (key, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                unless_zero(probe, key, json!(value));
            }
            http_get(probe);
            if let Some(grpc) = probe.get_mut("grpc").and_then(Value::as_object_mut) {
                set(grpc, "service", "");
            }
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
        if let Some(from) = variable.get_mut("valueFrom").and_then(Value::as_object_mut) {
            field_ref(from);
        }
    }
}

fn field_ref(holder: &mut Map<String, Value>) {
    if let Some(field) = holder.get_mut("fieldRef").and_then(Value::as_object_mut) {
        set(field, "apiVersion", "v1");
    }
}

fn http_get(handler: &mut Map<String, Value>) {
    if let Some(get) = handler.get_mut("httpGet").and_then(Value::as_object_mut) {
        set(get, "path", "/");
        set(get, "scheme", "HTTP");
    }
}

/// Sets the fields of some kinds of volumes that are not set: of pods, and of persistent volumes.
pub fn volume_sources(holder: &mut Map<String, Value>) {
    let defaults = [
        ("hostPath", "type", ""),
        ("iscsi", "iscsiInterface", "default"),
        ("rbd", "keyring", "/etc/ceph/keyring"),
        ("rbd", "pool", "rbd"),
        ("rbd", "user", "admin"),
        ("scaleIO", "fsType", "xfs"),
        ("scaleIO", "storageMode", "ThinProvisioned"),
    ];
    for (kind, field, value) in defaults {
        if let Some(source) = holder.get_mut(kind).and_then(Value::as_object_mut) {
            set(source, field, value);
        }
    }
    if let Some(disk) = holder.get_mut("azureDisk").and_then(Value::as_object_mut) {
        for (field, value) in [("cachingMode", "ReadWrite"), ("fsType", "ext4"), ("kind", "Shared")] {
            set_pointer(disk, field, value);
        }
        set_pointer(disk, "readOnly", false);
    }
}

fn volume(volume: &mut Map<String, Value>) {
    if volume.keys().all(|field| field == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            set(source, "defaultMode", 0o644);
        }
    }
    volume_sources(volume);
    if let Some(image) = volume.get_mut("image").and_then(Value::as_object_mut) {
        let policy = pull_policy(image.get("reference").and_then(Value::as_str).unwrap_or(""));
        set(image, "pullPolicy", policy);
    }
    let template = volume.get_mut("ephemeral").and_then(|source| source.get_mut("volumeClaimTemplate"));
    if let Some(template) = template.and_then(Value::as_object_mut) {
        set(template, "metadata", Map::new());
        set_pointer(child(template, "spec"), "volumeMode", "Filesystem");
    }
    if let Some(downward) = volume.get_mut("downwardAPI").and_then(Value::as_object_mut) {
        items(downward, "items").for_each(field_ref);
    }
    if let Some(projected) = volume.get_mut("projected").and_then(Value::as_object_mut) {
        for source in items(projected, "sources") {
            if let Some(token) = source.get_mut("serviceAccountToken").and_then(Value::as_object_mut) {
                unless_zero(token, "expirationSeconds", json!(3600));
            }
            if let Some(downward) = source.get_mut("downwardAPI").and_then(Value::as_object_mut) {
                items(downward, "items").for_each(field_ref);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_field_follows_the_service_account() {
        let mut spec = json!({"serviceAccountName": "new", "serviceAccount": "old"});
        pod_spec(spec.as_object_mut().unwrap());
        assert_eq!(spec["serviceAccount"], "new");
    }

    #[test]
    fn what_a_pod_asks_for_as_a_whole() {
        let own = json!({"requests": {"cpu": "100m", "memory": "1Mi"}});
        for (whole, container, wanted) in [
            // Nothing is set: nothing is added.
            (json!(null), own.clone(), json!(null)),
            (json!({}), own.clone(), json!({})),
            (
                json!({"limits": {"cpu": "0.5"}}),
                json!({}),
                json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}}),
            ),
            (
                json!({"limits": {"cpu": "1"}}),
                own.clone(),
                json!({"limits": {"cpu": "1"}, "requests": {"cpu": "200m", "memory": "2Mi"}}),
            ),
            // Without limits nothing is added.
            (json!({"requests": {"cpu": "1"}}), own, json!({"requests": {"cpu": "1"}})),
        ] {
            let container = |name: &str| json!({"name": name, "image": "i", "resources": container});
            let mut made = json!({"spec": {"resources": whole, "containers": [container("a"), container("b")]}});
            pod(made.as_object_mut().unwrap());
            assert_eq!(made["spec"]["resources"], wanted, "{whole}");
        }
    }
}
