//! The built-in types, for tests.

use std::sync::{Arc, LazyLock};

use crate::schema::{Schema, TypeIndex};

macro_rules! table {
    ($package:literal, $file:literal) => {
        ($package, include_str!(concat!("../../control/src/kinds/types/", $file)))
    };
}

static TABLES: &[(&str, &str)] = &[
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

pub(crate) static TYPES: LazyLock<TypeIndex> = LazyLock::new(|| TypeIndex::new(TABLES));

/// The node of a built-in type, such as `core/v1.Pod`.
#[track_caller]
pub(crate) fn schema(name: &str) -> Arc<Schema> {
    TYPES.get(name).unwrap_or_else(|error| panic!("{error}"))
}
