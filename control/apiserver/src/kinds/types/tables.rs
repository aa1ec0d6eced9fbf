//! The list of tables, also of the tests of the type index.

macro_rules! tables {
    ($($package:literal $version:literal),* $(,)?) => {
        &[$((concat!($package, "/", $version), include_str!(concat!($package, "_", $version, ".tsv")))),*]
    };
}

/// All tables: the package, as in `core/v1.Pod`, and its text.
pub(crate) static TABLES: &[(&str, &str)] = tables![
    "admissionregistration" "v1",
    "apiextensions" "v1",
    "apiregistration" "v1",
    "apps" "v1",
    "authentication" "v1",
    "authorization" "v1",
    "autoscaling" "v1",
    "autoscaling" "v2",
    "autoscaling" "v2beta1",
    "batch" "v1",
    "certificates" "v1",
    "coordination" "v1",
    "core" "v1",
    "discovery" "v1",
    "events" "v1",
    "flowcontrol" "v1",
    "meta" "v1",
    "metrics" "v1beta1",
    "networking" "v1",
    "node" "v1",
    "policy" "v1",
    "rbac" "v1",
    "resource" "v1",
    "scheduling" "v1",
    "storage" "v1",
];
