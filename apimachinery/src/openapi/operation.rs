//! One operation, in neither document's form.

use serde_json::Value;

use super::{
    Gvk,
    parameters::{self, Parameter, Set},
};

/// All that can be done at a path.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) path: String,
    /// Those of every operation.
    pub(super) parameters: Vec<Parameter>,
    pub(super) operations: Vec<Operation>,
}

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) description: String,
    pub(super) action: Option<(&'static str, Gvk)>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    /// Status codes, in words too, and schemas in the form of version 3.
    pub(super) responses: Vec<(u16, &'static str, Value)>,
    pub(super) produces: Vec<&'static str>,
}

#[derive(Debug)]
pub(super) struct Body {
    pub(super) consumes: &'static [&'static str],
    /// In the form of version 3.
    pub(super) schema: Value,
    pub(super) required: bool,
}

pub(super) const ANY: &[&str] = &["*/*"];
pub(super) const OBJECT: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
pub(super) const STREAM: &[&str] =
    &["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
pub(super) const CUSTOM: &[&str] = &["application/json", "application/yaml"];
pub(super) const PATCH: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// A creating operation.
pub(super) struct Write {
    pub(super) id: String,
    pub(super) is_custom: bool,
}

impl Write {
    pub(super) fn post(self, description: String, gvk: Gvk, model: &Value) -> Operation {
        Operation {
            method: "post",
            id: self.id,
            description,
            action: Some(("post", gvk)),
            parameters: with_pretty(Set::Write),
            body: Some(Body { consumes: consumes(self.is_custom), schema: model.clone(), required: true }),
            responses: vec![
                (200, "OK", model.clone()),
                (201, "Created", model.clone()),
                (202, "Accepted", model.clone()),
            ],
            produces: produces(self.is_custom),
        }
    }
}

pub(super) fn produces(is_custom: bool) -> Vec<&'static str> {
    if is_custom { CUSTOM.to_vec() } else { OBJECT.to_vec() }
}

pub(super) fn consumes(is_custom: bool) -> &'static [&'static str] {
    if is_custom { CUSTOM } else { ANY }
}

pub(super) fn with_pretty(set: Set) -> Vec<Parameter> {
    let mut parameters = parameters::of(set);
    parameters.extend(parameters::of(Set::Pretty));
    parameters
}

/// A path; parameters that all its operations have are its own.
pub(super) fn path(path: String, mut parameters: Vec<Parameter>, mut operations: Vec<Operation>) -> Path {
    if let Some(first) = operations.first() {
        let everywhere = |parameter: &&Parameter| operations.iter().all(|one| one.parameters.contains(parameter));
        let common: Vec<Parameter> = first.parameters.iter().filter(everywhere).cloned().collect();
        for operation in &mut operations {
            operation.parameters.retain(|parameter| !common.contains(parameter));
        }
        parameters.extend(common);
    }
    parameters.sort_by(|a, b| a.name.cmp(&b.name));
    Path { path, parameters, operations }
}
