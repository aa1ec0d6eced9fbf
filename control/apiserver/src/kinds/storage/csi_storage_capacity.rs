//! CSIStorageCapacity. Pure.

use serde_json::Value;

use crate::{
    apiserver::{
        FieldError, Strategy, Tolerance,
        pipeline::validation::{
            errors::{AT_LEAST_0, Errors},
            names,
        },
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            field::{Field, immutable},
            node_selector, selector,
            tables::created_at,
            tolerance,
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource =
        Resource::new("storage.k8s.io", "csistoragecapacities", "CSIStorageCapacity", CsiStorageCapacity);
    resource.allow_unconditional_update = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("storage.k8s.io/v1", "CSIStorageCapacity"));
    v1.table = created_at();
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct CsiStorageCapacity;

impl Strategy for CsiStorageCapacity {
    fn tolerates(&self, _object: &Value, error: &FieldError) -> Option<Tolerance> {
        tolerance::label_values(error, &["nodeTopology"])
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let topology = Field::root(new).at("nodeTopology");
        let mut told = node_selector::term_warnings(&topology, true);
        let labels = topology.at("matchLabels");
        let old_labels = labels.entries().filter_map(|(label, _)| Some((label, node_selector::deprecated(label)?)));
        told.extend(old_labels.map(|(label, why)| format!("{}.{label}: {why}", labels.path)));
        told
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        selector::validate(&root.at("nodeTopology"), errors);
        root.at("storageClassName").fits(names::subdomain, errors);
        let capacity = root.at("capacity");
        if capacity.quantity().is_some_and(|amount| amount.is_negative()) {
            capacity.invalid(AT_LEAST_0, errors);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["nodeTopology", "storageClassName"], errors);
    }
}
