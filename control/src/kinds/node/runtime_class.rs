//! RuntimeClass. Pure.

use serde_json::json;

use crate::{
    apiserver::{
        Strategy,
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::tables::{AGE, column, named},
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("node.k8s.io", "runtimeclasses", "RuntimeClass", RuntimeClass);
    resource.singular = "runtimeclass".into();
    resource.namespaced = false;
    resource.create_on_update = true;
    resource.allow_unconditional_update = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("node.k8s.io/v1", "RuntimeClass"));
    v1.table = named(vec![column("Handler", "The runtime's name on the nodes."), AGE], |object, age| {
        vec![object["handler"].clone(), json!(age)]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct RuntimeClass;

impl Strategy for RuntimeClass {}
