//! Service. Cluster IPs and node ports are allocated by `allocator`, in the order of the writes.

mod allocator;
mod families;
mod prepare;
mod proxy;
mod validation;
mod warnings;

use std::sync::Arc;

use serde_json::{Map, Value, json};

pub(crate) use allocator::{DEFAULT_SERVICE_CIDR, IP_ADDRESSES, ServiceAllocator, cluster_ip, ip_address};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{joined, map_of, or_none, text},
            load_balancer_warnings, set_status,
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
        prepare::set_defaults(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        set_status(object, json!({"loadBalancer": {}}));
        prepare::for_create(object);
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        prepare::for_update(object, old);
    }

    fn validate_name(&self, name: &str) -> Option<String> {
        names::label(name)
    }

    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        validation::validate(object, None, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validation::validate(new, Some(old), errors);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut Errors) {
        validation::validate_load_balancer(new, old, errors);
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings::of(new)
    }

    fn status_warnings(&self, new: &Value, _old: &Value) -> Vec<String> {
        load_balancer_warnings(new)
    }

    fn allocator(&self) -> Option<Arc<dyn Allocator>> {
        Some(Arc::<ServiceAllocator>::clone(&self.allocator))
    }

    fn dry_run(&self, object: &mut Value) -> Result<(), AllocationError> {
        self.allocator.dry_run(object)
    }
}
