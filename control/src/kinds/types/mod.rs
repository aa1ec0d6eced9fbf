//! The built-in types: one table for each package of Go types, one line for each field. Pure.
//!
//! The columns are those of [`windlass_apimachinery::schema::table`]; a field is added by one line. Names and numbers are
//! those of Kubernetes 1.36.

use std::sync::{Arc, LazyLock};

use windlass_apimachinery::schema::{Schema, TypeIndex};

use crate::{
    apiserver::types::TypeSchema,
    registry::{self, Gvk},
};

macro_rules! table {
    ($package:literal, $file:literal) => {
        ($package, include_str!($file))
    };
}

/// All tables: the package, as in `core/v1.Pod`, and its text.
pub static TABLES: &[(&str, &str)] = &[
    table!("admissionregistration/v1", "admissionregistration_v1.tsv"),
    table!("apiextensions/v1", "apiextensions_v1.tsv"),
    table!("apiregistration/v1", "apiregistration_v1.tsv"),
    table!("apps/v1", "apps_v1.tsv"),
    table!("authentication/v1", "authentication_v1.tsv"),
    table!("authorization/v1", "authorization_v1.tsv"),
    table!("autoscaling/v1", "autoscaling_v1.tsv"),
    table!("autoscaling/v2", "autoscaling_v2.tsv"),
    table!("batch/v1", "batch_v1.tsv"),
    table!("certificates/v1", "certificates_v1.tsv"),
    table!("coordination/v1", "coordination_v1.tsv"),
    table!("core/v1", "core_v1.tsv"),
    table!("discovery/v1", "discovery_v1.tsv"),
    table!("events/v1", "events_v1.tsv"),
    table!("flowcontrol/v1", "flowcontrol_v1.tsv"),
    table!("meta/v1", "meta_v1.tsv"),
    table!("metrics/v1beta1", "metrics_v1beta1.tsv"),
    table!("networking/v1", "networking_v1.tsv"),
    table!("node/v1", "node_v1.tsv"),
    table!("policy/v1", "policy_v1.tsv"),
    table!("rbac/v1", "rbac_v1.tsv"),
    table!("resource/v1", "resource_v1.tsv"),
    table!("scheduling/v1", "scheduling_v1.tsv"),
    table!("storage/v1", "storage_v1.tsv"),
];

/// The index of all built-in types; each is read when it is first asked for.
pub static TYPES: LazyLock<TypeIndex> = LazyLock::new(|| TypeIndex::new(TABLES));

/// The node of a built-in type such as `core/v1.Pod`. One that no table has takes anything.
#[must_use]
pub fn schema(name: &str) -> Arc<Schema> {
    TYPES.get(name).unwrap_or_else(|_| Arc::new(Schema::any()))
}

/// The node of a built-in kind. The package is named after the first label of the group: `rbac.authorization.k8s.io` is
/// `rbac`.
#[must_use]
pub fn of_kind(gvk: &Gvk) -> Arc<Schema> {
    let package = if gvk.group.is_empty() { "core" } else { gvk.group.split('.').next().unwrap_or_default() };
    schema(&format!("{package}/{}.{}", gvk.version, gvk.kind))
}

/// The schema of a built-in kind.
///
/// # Panics
/// When it is not among the built-in types: the definitions of all kinds are made by tests.
#[must_use]
pub fn built_in(api_version: &str, kind: &str) -> TypeSchema {
    let of = registry::of_kind(api_version, kind);
    let of = of.unwrap_or_else(|| panic!("{api_version} {kind} is not among the built-in types"));
    TypeSchema::built_in(of, of_kind(&of.gvk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_can_be_read() {
        let mut names: Vec<&str> = TYPES.names().collect();
        names.sort_unstable();
        assert!(names.len() > 600, "{}", names.len());
        for name in names {
            assert!(TYPES.get(name).is_ok(), "{name}: {:?}", TYPES.get(name).err());
        }
    }

    #[test]
    fn every_served_kind_has_a_type() {
        for resource in registry::stored() {
            let schema = of_kind(&resource.gvk);
            assert!(schema.property("metadata").is_some(), "{:?}", resource.gvk);
        }
    }
}
