//! The built-in types: one table for each package of Go types, one line for each field. Pure.
//!
//! The columns are those of [`windlass_apimachinery::schema::table`]; a field is added by one line. Names and numbers are
//! those of Kubernetes 1.36.

use std::sync::{Arc, LazyLock};

use windlass_apimachinery::schema::{NamedType, Schema, TypeIndex};

use crate::apiserver::types::TypeSchema;

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

/// The schema of a built-in kind.
///
/// # Panics
/// When no table has it: the definitions of all kinds are made by tests.
#[must_use]
pub fn built_in(api_version: &str, kind: &str) -> TypeSchema {
    let of = named(api_version, kind).unwrap_or_else(|| panic!("no table has the type {api_version} {kind}"));
    TypeSchema::built_in(kind.to_owned().into(), Arc::new(Schema::named(of)))
}

/// The package of each group's types.
const PACKAGES: [(&str, &str); 23] = [
    ("", "core"),
    ("admissionregistration.k8s.io", "admissionregistration"),
    ("apiextensions.k8s.io", "apiextensions"),
    ("apiregistration.k8s.io", "apiregistration"),
    ("apps", "apps"),
    ("authentication.k8s.io", "authentication"),
    ("authorization.k8s.io", "authorization"),
    ("autoscaling", "autoscaling"),
    ("batch", "batch"),
    ("certificates.k8s.io", "certificates"),
    ("coordination.k8s.io", "coordination"),
    ("discovery.k8s.io", "discovery"),
    ("events.k8s.io", "events"),
    ("flowcontrol.apiserver.k8s.io", "flowcontrol"),
    ("meta.k8s.io", "meta"),
    ("metrics.k8s.io", "metrics"),
    ("networking.k8s.io", "networking"),
    ("node.k8s.io", "node"),
    ("policy", "policy"),
    ("rbac.authorization.k8s.io", "rbac"),
    ("resource.k8s.io", "resource"),
    ("scheduling.k8s.io", "scheduling"),
    ("storage.k8s.io", "storage"),
];

/// The type of a built-in kind. `Status`, options and discovery are kinds of `v1`, their types are in `meta/v1`.
#[must_use]
pub fn named(api_version: &str, kind: &str) -> Option<Arc<NamedType>> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let mut packages = PACKAGES.iter().filter(|(of, _)| *of == group);
    let package = packages.next().map(|(_, package)| *package)?;
    let found = TYPES.named(&format!("{package}/{version}.{kind}"));
    found
        .or_else(|error| if group.is_empty() { TYPES.named(&format!("meta/{version}.{kind}")) } else { Err(error) })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_by_its_group_version() {
        for (api_version, kind, of) in [
            ("v1", "Pod", Some("core/v1.Pod")),
            ("v1", "Status", Some("meta/v1.Status")),
            ("v1", "DeleteOptions", Some("meta/v1.DeleteOptions")),
            ("meta.k8s.io/v1", "PartialObjectMetadataList", Some("meta/v1.PartialObjectMetadataList")),
            ("rbac.authorization.k8s.io/v1", "RoleList", Some("rbac/v1.RoleList")),
            ("autoscaling/v2", "HorizontalPodAutoscaler", Some("autoscaling/v2.HorizontalPodAutoscaler")),
            ("core/v1", "Pod", None),
            ("example.com/v1", "Pod", None),
            ("apps/v1", "Status", None),
            ("v2", "Pod", None),
        ] {
            assert_eq!(named(api_version, kind).as_ref().map(|of| of.name()), of, "{api_version} {kind}");
        }
    }

    #[test]
    fn every_type_can_be_read() {
        let mut names: Vec<&str> = TYPES.names().collect();
        names.sort_unstable();
        assert!(names.len() > 600, "{}", names.len());
        for name in names {
            assert!(TYPES.get(name).is_ok(), "{name}: {:?}", TYPES.get(name).err());
        }
    }
}
