//! CSINode. Pure.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            field::{Field, IMMUTABLE},
            tables::{AGE, count, named},
        },
        types,
    },
};

const MAX_NODE_ID: usize = 256;
pub(super) const MAX_DRIVER_NAME: usize = 63;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("storage.k8s.io", "csinodes", "CSINode", CsiNode);
    resource.namespaced = false;
    resource.returns_deleted = true;
    resource.allow_unconditional_update = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("storage.k8s.io/v1", "CSINode"));
    v1.table = named(vec![count("Drivers", "Drivers on the node."), AGE], |object, age| {
        vec![json!(object["spec"]["drivers"].as_array().map_or(0, Vec::len)), json!(age)]
    });
    Definition::single(resource, v1)
}

/// Validates the name of a CSI driver.
pub(super) fn driver_name(name: &Field<'_>, errors: &mut Errors) {
    if name.text().is_empty() {
        return name.required("", errors);
    }
    name.max_bytes(MAX_DRIVER_NAME, errors);
    let lower = name.text().to_lowercase();
    errors.unless(&name.path, name.text(), names::subdomain(&lower));
}

#[derive(Debug)]
struct CsiNode;

impl Strategy for CsiNode {
    fn validate(&self, object: &Value, errors: &mut Errors) {
        let mut seen = BTreeSet::new();
        for driver in Field::root(object).below("spec.drivers").items() {
            driver_name(&driver.at("name"), errors);
            let id = driver.at("nodeID");
            match id.text().len() {
                0 => id.required(id.text(), errors),
                1..=MAX_NODE_ID => {}
                _ => id.invalid("must be 256 characters or less", errors),
            }
            driver.below("allocatable.count").at_least_0(errors);
            if !seen.insert(driver.at("name").text()) {
                driver.at("name").duplicate(errors);
            }
            let mut keys = BTreeSet::new();
            for key in driver.at("topologyKeys").items() {
                if key.text().is_empty() {
                    errors.required(&driver.path, key.text());
                } else if !keys.insert(key.text()) {
                    errors.duplicate(&driver.path, key.value);
                }
                for why in names::qualified_problems(key.text()) {
                    errors.invalid_text(&driver.path, key.text(), &why);
                }
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        // How many volumes fit may change.
        let fixed = |driver: &Value| {
            let mut fixed = driver.clone();
            fixed.as_object_mut().map(|fields| fields.remove("allocatable"));
            fixed
        };
        let before = old["spec"]["drivers"].as_array();
        for driver in Field::root(new).below("spec.drivers").items() {
            let same = |old: &&Value| old["name"] == driver.value["name"];
            if before.into_iter().flatten().find(same).is_some_and(|old| fixed(old) != fixed(driver.value)) {
                let shown = driver.internal(&[
                    ("Name", "name"),
                    ("NodeID", "nodeID"),
                    ("TopologyKeys", "topologyKeys"),
                    ("Allocatable", "allocatable"),
                ]);
                Field::root(new).below("spec.drivers").invalid_as(&shown, IMMUTABLE, errors);
            }
        }
    }
}
