//! The built-in types: one table for each package of Go types, one line for each field. Pure.
//!
//! The columns are those of [`windlass_apimachinery::schema::table`]; a field is added by one line. Names and numbers are
//! those of Kubernetes 1.36.

mod tables;

use std::sync::{Arc, LazyLock};

use windlass_apimachinery::group_version::GroupVersion;
use windlass_apimachinery::schema::{NamedType, Schema, TypeIndex};

use crate::apiserver::types::TypeSchema;

pub(crate) use tables::TABLES;

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

fn package_of(group: &str) -> Option<&'static str> {
    PACKAGES.iter().find(|(of, _)| *of == group).map(|(_, package)| *package)
}

/// The kinds of `meta/v1` that belong to every version of every group: a client in Go sends the options of a deletion of a
/// Deployment as `apps/v1`. Upstream's `AddToGroupVersion`.
const OF_EVERY_VERSION: [&str; 7] =
    ["CreateOptions", "DeleteOptions", "GetOptions", "ListOptions", "PatchOptions", "UpdateOptions", "WatchEvent"];

/// The type of a built-in kind. `Status` and discovery are kinds of `v1`, their types are in `meta/v1`; options are kinds of
/// every version.
#[must_use]
pub fn named(api_version: &str, kind: &str) -> Option<Arc<NamedType>> {
    let GroupVersion { group, version } = GroupVersion::parse(api_version);
    let own = package_of(group).and_then(|package| TYPES.named(&format!("{package}/{version}.{kind}")).ok());
    own.or_else(|| {
        let is_meta = api_version == "v1" || OF_EVERY_VERSION.contains(&kind);
        is_meta.then(|| TYPES.named(&format!("meta/v1.{kind}")).ok()).flatten()
    })
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
            ("apps/v1", "DeleteOptions", Some("meta/v1.DeleteOptions")),
            ("autoscaling/v2", "PatchOptions", Some("meta/v1.PatchOptions")),
            ("example.com/v1alpha1", "DeleteOptions", Some("meta/v1.DeleteOptions")),
            ("meta.k8s.io/v1", "DeleteOptions", Some("meta/v1.DeleteOptions")),
            ("autoscaling/v1", "Scale", Some("autoscaling/v1.Scale")),
            ("v1", "APIGroup", Some("meta/v1.APIGroup")),
            ("apps/v1", "Status", None),
            ("example.com/v1", "Status", None),
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
