//! DeviceClass. Pure.

use serde_json::{Value, json};
use windlass_kit::objects::resource_names::is_extended;

use super::{devices, lists};
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            field::Field,
            tables::{AGE, named},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("resource.k8s.io", "deviceclasses", "DeviceClass", DeviceClass);
    resource.namespaced = false;
    resource.returns_deleted = true;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("resource.k8s.io/v1", "DeviceClass"));
    v1.table = named(vec![AGE], |_, age| vec![json!(age)]);
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct DeviceClass;

impl Strategy for DeviceClass {
    fn validation_takes_long(&self, _: Option<&Value>) -> bool {
        true
    }

    /// As upstream, whose generated validation looks at the name alone: it only must fit into a path.
    fn validate_prefix(&self, prefix: &str) -> Option<String> {
        names::path_segment(prefix)
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        devices::validate_selectors(&spec.at("selectors"), errors);
        let stored = old.is_some_and(|old| old["spec"]["config"] == *spec.at("config").value);
        lists::slice(&spec.at("config"), devices::MAX_CONFIGS, errors, |config, errors| {
            devices::validate_config(config, stored, errors);
        });
        let extended = spec.at("extendedResourceName");
        if extended.is_set() && !is_extended(extended.text()) {
            extended.invalid("must be a valid extended resource name", errors);
        }
    }
}
