//! Kinds of the group `flowcontrol.apiserver.k8s.io`.

mod conditions;
pub(crate) mod flow_schema;
pub(crate) mod priority_level_configuration;
