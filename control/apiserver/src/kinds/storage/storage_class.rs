//! StorageClass. Pure; the time is a value.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::set_pointer;

use super::parameters;
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, Table, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{age, text},
            field::{Field, immutable},
            node_selector,
            tables::{AGE, NAME, column},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("storage.k8s.io", "storageclasses", "StorageClass", StorageClass);
    resource.short_names = vec!["sc".into()];
    resource.namespaced = false;
    resource.returns_deleted = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("storage.k8s.io/v1", "StorageClass"));
    let columns = vec![
        NAME,
        column("Provisioner", "Who makes its volumes."),
        column("ReclaimPolicy", "What becomes of them when their claims are gone."),
        column("VolumeBindingMode", "When claims are bound."),
        column("AllowVolumeExpansion", "Whether they can grow."),
        AGE,
    ];
    v1.table = Table { columns, row: Box::new(row) };
    Definition::single(resource, v1)
}

fn row(object: &Value, now: Timestamp) -> Vec<Value> {
    let name = text(&object["metadata"]["name"]);
    let default = object["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
    let shown = if default { format!("{name} (default)") } else { name.to_owned() };
    vec![
        json!(shown),
        object["provisioner"].clone(),
        object["reclaimPolicy"].clone(),
        object["volumeBindingMode"].clone(),
        json!(object["allowVolumeExpansion"] == true),
        json!(age(text(&object["metadata"]["creationTimestamp"]), now)),
    ]
}

#[derive(Debug)]
struct StorageClass;

impl Strategy for StorageClass {
    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let terms = Field::root(new).at("allowedTopologies").items();
        let keys = terms.flat_map(|term| term.at("matchLabelExpressions").items()).map(|label| label.at("key"));
        keys.filter_map(|key| Some(format!("{}: {}", key.path, node_selector::deprecated(key.text())?))).collect()
    }

    fn default(&self, object: &mut Map<String, Value>) {
        set_pointer(object, "reclaimPolicy", json!("Delete"));
        set_pointer(object, "volumeBindingMode", json!("Immediate"));
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        let provisioner = root.at("provisioner");
        if provisioner.text().is_empty() {
            provisioner.required("", errors);
        } else {
            let lower = provisioner.text().to_lowercase();
            errors.unless("provisioner", provisioner.text(), names::qualified(&lower));
        }
        parameters::validate(&root.at("parameters"), false, errors);
        errors.optional_one_of("reclaimPolicy", &object["reclaimPolicy"], &["Delete", "Retain"]);
        root.at("volumeBindingMode").pointer_one_of(&["Immediate", "WaitForFirstConsumer"], errors);
        topologies(&root.at("allowedTopologies"), errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"], errors);
    }
}

fn topologies(terms: &Field<'_>, errors: &mut Errors) {
    // As upstream, which compares each term also with as many empty ones as there are terms.
    let mut before: Vec<BTreeMap<&str, BTreeSet<&str>>> = vec![BTreeMap::new(); terms.len()];
    for term in terms.items() {
        let mut keys = BTreeMap::new();
        for expression in term.at("matchLabelExpressions").items() {
            let (key, values) = (expression.at("key"), expression.at("values"));
            if values.is_empty() {
                values.required("", errors);
            }
            let mut seen = BTreeSet::new();
            for value in values.items().filter(|value| !seen.insert(value.text())) {
                value.duplicate(errors);
            }
            key.fits(names::qualified, errors);
            if keys.insert(key.text(), values.texts().into_iter().collect()).is_some() {
                key.duplicate(errors);
            }
        }
        // Upstream reports it for each equal previous term, without its value.
        for _ in before.iter().filter(|other| **other == keys) {
            errors.duplicate(term.at("matchLabelExpressions").path, &json!(""));
        }
        before.push(keys);
    }
}
