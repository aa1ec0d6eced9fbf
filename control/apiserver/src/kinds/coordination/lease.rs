//! Lease. Pure.

use serde_json::{Value, json};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::tables::{AGE, column, named},
        types,
    },
    store::RelaxedDurability,
};

/// Node heartbeats alone may reach the disk later: other leases elect leaders, and a crash must not undo an acknowledged
/// one.
pub(crate) const DURABILITY: RelaxedDurability = RelaxedDurability::InNamespace("kube-node-lease");

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("coordination.k8s.io", "leases", "Lease", Lease);
    resource.create_on_update = true;
    resource.allow_unconditional_update = false;
    resource.relaxed_durability = DURABILITY;
    let mut v1 = VersionSpec::new("v1", types::built_in("coordination.k8s.io/v1", "Lease"));
    v1.table = named(vec![column("Holder", "Who holds it."), AGE], |object, age| {
        vec![object["spec"]["holderIdentity"].clone(), json!(age)]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct Lease;

impl Strategy for Lease {
    /// Coordinated leader election is off, as upstream's is by default: no component would follow the strategy.
    fn prepare_for_create(&self, object: &mut Value) {
        for field in ["strategy", "preferredHolder"] {
            object["spec"].as_object_mut().map(|spec| spec.remove(field));
        }
    }

    fn prepare_for_update(&self, object: &mut Value, _old: &Value) {
        self.prepare_for_create(object);
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = &object["spec"];
        if spec["leaseDurationSeconds"].as_i64().is_some_and(|n| n <= 0) {
            errors.invalid("spec.leaseDurationSeconds", &spec["leaseDurationSeconds"], "must be greater than 0");
        }
        errors.at_least_0("spec.leaseTransitions", &spec["leaseTransitions"]);
    }
}
