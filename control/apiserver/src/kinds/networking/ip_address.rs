//! IPAddress.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::text,
            field::{Field, IMMUTABLE},
            tables::{column, named},
        },
        types,
    },
    store::Allocator,
};

/// The resource; `allocator` hears of each of its writes.
pub(crate) fn definition(allocator: Arc<dyn Allocator>) -> Definition {
    let strategy = IpAddressStrategy { allocator };
    let mut resource = Resource::new("networking.k8s.io", "ipaddresses", "IPAddress", strategy);
    resource.short_names = vec!["ip".into()];
    resource.namespaced = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("networking.k8s.io/v1", "IPAddress"));
    v1.table = named(vec![column("ParentRef", "What it belongs to.")], |object, _| {
        vec![json!(parent(&object["spec"]["parentRef"]))]
    });
    Definition::single(resource, v1)
}

fn parent(parent: &Value) -> String {
    if !parent.is_object() {
        return "<none>".to_owned();
    }
    let (group, namespace) = (text(&parent["group"]), text(&parent["namespace"]));
    let dot = if group.is_empty() { "" } else { "." };
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{}{dot}{group}/{namespace}{slash}{}", text(&parent["resource"]), text(&parent["name"])).to_lowercase()
}

#[derive(Debug)]
struct IpAddressStrategy {
    allocator: Arc<dyn Allocator>,
}

impl Strategy for IpAddressStrategy {
    fn allocator(&self) -> Option<Arc<dyn Allocator>> {
        Some(Arc::clone(&self.allocator))
    }

    fn validate_name(&self, name: &str) -> Option<String> {
        names::canonical_ip(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let parent = Field::root(object).below("spec.parentRef");
        if !parent.is_set() {
            return parent.required("", errors);
        }
        parent.at("group").optionally_fits(names::subdomain, errors);
        parent.at("resource").named(names::path_segment, errors);
        parent.at("name").named(names::path_segment, errors);
        parent.at("namespace").optionally_fits(names::path_segment, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let parent = Field::root(new).below("spec.parentRef");
        if parent.value != &old["spec"]["parentRef"] {
            // Upstream writes its internal type, in the order of its fields.
            let [group, resource, namespace, name] =
                ["group", "resource", "namespace", "name"].map(|field| json!(parent.at(field).text()));
            let shown =
                format!("{{\"Group\":{group},\"Resource\":{resource},\"Namespace\":{namespace},\"Name\":{name}}}");
            parent.invalid_as(&shown, IMMUTABLE, errors);
        }
    }
}
