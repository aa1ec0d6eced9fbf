//! Service. Cluster IPs and node ports are allocated by `allocator`, in the order of the writes.

mod allocator;
mod proxy;
mod validation;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, items, set};

use allocator::needs_health_check;
pub(crate) use allocator::{DEFAULT_SERVICE_CIDR, IP_ADDRESSES, ServiceAllocator, cluster_ip, ip_address};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        subresource::Subresource,
        types::{Definition, Resource, VersionSpec},
        validation::{errors::Errors, names},
    },
    kinds::{
        shared::{
            cells::{joined, map_of, or_none, text},
            set_status,
            tables::{AGE, column, named, wide},
        },
        types,
    },
    store::{AllocationError, Allocator},
};

/// The resource.
pub(crate) fn definition(allocator: Arc<ServiceAllocator>) -> Definition {
    let mut resource = Resource::new("", "services", "Service", Service { allocator });
    resource.short_names = vec!["svc".into()];
    resource.categories = vec!["all".into()];
    resource.create_on_update = true;
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "Service"));
    v1.selectable = ["spec.clusterIP", "spec.type"].map(SelectableField::path).to_vec();
    v1.subresources = vec![Subresource::proxy("ServiceProxyOptions", proxy::Proxy), Subresource::status()];
    let columns = vec![
        column("Type", "How it is reached."),
        column("Cluster-IP", "Its address in the cluster."),
        column("External-IP", "Its addresses outside."),
        column("Port(s)", "Its ports."),
        AGE,
        wide("Selector", "Labels of its pods."),
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let spec = &object["spec"];
    vec![
        spec["type"].clone(),
        json!(or_none(text(&spec["clusterIP"]).to_owned())),
        json!(external_ip(object)),
        json!(service_ports(spec)),
        json!(age),
        json!(or_none(map_of(&spec["selector"]))),
    ]
}

fn external_ip(object: &Value) -> String {
    let spec = &object["spec"];
    let mut external: Vec<String> =
        spec["externalIPs"].as_array().into_iter().flatten().map(|ip| text(ip).to_owned()).collect();
    match text(&spec["type"]) {
        "ExternalName" => text(&spec["externalName"]).to_owned(),
        "LoadBalancer" => {
            let ingress = object["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
            let shown = ingress
                .map(|i| if text(&i["ip"]).is_empty() { text(&i["hostname"]) } else { text(&i["ip"]) }.to_owned());
            let mut all: Vec<String> = shown.filter(|t| !t.is_empty()).collect();
            all.append(&mut external);
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ => or_none(external.join(",")),
    }
}

fn service_ports(spec: &Value) -> String {
    let ports = spec["ports"].as_array().into_iter().flatten().map(|p| {
        let node = p["nodePort"].as_i64().filter(|n| *n > 0).map(|n| format!(":{n}")).unwrap_or_default();
        format!("{}{node}/{}", p["port"], text(&p["protocol"]))
    });
    or_none(joined(ports))
}

#[derive(Debug)]
struct Service {
    allocator: Arc<ServiceAllocator>,
}

impl Strategy for Service {
    fn default(&self, object: &mut Map<String, Value>) {
        set_defaults(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        set_status(object, json!({"loadBalancer": {}}));
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        patch_allocated_values(object, old);
    }

    fn validate_name(&self, name: &str) -> Option<String> {
        names::label(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        validation::validate_spec(&object["spec"], errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validation::validate_spec_update(&new["spec"], &old["spec"], errors);
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        validation::validate_load_balancer(new, errors);
    }

    fn allocator(&self) -> Option<Arc<dyn Allocator>> {
        Some(Arc::<ServiceAllocator>::clone(&self.allocator))
    }

    fn dry_run(&self, object: &mut Value) -> Result<(), AllocationError> {
        self.allocator.dry_run(object)
    }
}

fn set_defaults(object: &mut Map<String, Value>) {
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
        for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
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

/// A service keeps the port of its health check while it needs one.
fn patch_health_check(object: &mut Value, old: &Value) {
    const FIELD: &str = "healthCheckNodePort";
    if !needs_health_check(&old["spec"]) {
        return;
    }
    let is_unset = object["spec"][FIELD].as_i64().unwrap_or(0) == 0;
    if needs_health_check(&object["spec"]) {
        if is_unset {
            object["spec"][FIELD] = old["spec"][FIELD].clone();
        }
    } else if object["spec"][FIELD] == old["spec"][FIELD]
        && let Some(spec) = object["spec"].as_object_mut()
    {
        spec.remove(FIELD);
    }
}

/// A service keeps its cluster IP and node ports when an update leaves them out.
fn patch_allocated_values(object: &mut Value, old: &Value) {
    let both_have_addresses = object["spec"]["type"] != "ExternalName" && old["spec"]["type"] != "ExternalName";
    if both_have_addresses && object["spec"]["clusterIP"].as_str().is_none_or(str::is_empty) {
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(value) = old["spec"].get(field) {
                object["spec"][field] = value.clone();
            }
        }
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if object["spec"][field].is_null()
            && let Some(value) = old["spec"].get(field)
        {
            object["spec"][field] = value.clone();
        }
    }
    patch_health_check(object, old);
    if !matches!(object["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
        // Node ports are released with the type that had them.
        for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
            let unchanged =
                old["spec"]["ports"].as_array().into_iter().flatten().any(|o| o["nodePort"] == port["nodePort"]);
            if let Some(port) = port.as_object_mut().filter(|_| unchanged) {
                port.remove("nodePort");
            }
        }
        return;
    }
    let old_ports = old["spec"]["ports"].as_array().cloned().unwrap_or_default();
    for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port["nodePort"].as_i64().unwrap_or(0) == 0 {
            let same = |o: &&Value| {
                o["port"] == port["port"]
                    && o["protocol"].as_str().unwrap_or("TCP") == port["protocol"].as_str().unwrap_or("TCP")
            };
            if let Some(number) = old_ports.iter().find(same).and_then(|o| o.get("nodePort")) {
                port["nodePort"] = number.clone();
            }
        }
    }
}
