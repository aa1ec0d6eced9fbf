//! Whole documents.

use serde_json::{Map, Value, json};

use super::{
    Descriptions, GroupVersionResources,
    definitions::Definitions,
    names,
    operation::{Operation, Path},
    parameters::Parameter,
    paths::Paths,
    v2,
};
use crate::schema::TypeIndex;

/// What documents are made from.
#[derive(Debug, Clone, Copy)]
pub struct Documents<'a> {
    /// The types that documents name of themselves, such as `meta/v1.Status`, and those of lists.
    pub types: &'a TypeIndex,
    /// What types and fields are for.
    pub descriptions: &'a Descriptions<'a>,
    /// The version of the server, as `1.36`.
    pub version: &'a str,
}

impl<'a> Documents<'a> {
    /// The document of one group version in version 3.
    #[must_use]
    pub fn v3(&self, group_version: &GroupVersionResources) -> Value {
        let mut definitions = Definitions::new(self.types, self.descriptions);
        let paths = self.paths(&mut definitions, group_version);
        let tag = names::tag(&group_version.group, &group_version.version);
        let paths: Map<String, Value> =
            paths.into_iter().map(|path| (path.path.clone(), path_v3(&path, &tag))).collect();
        json!({
            "openapi": "3.0.0",
            "info": {"title": TITLE, "version": self.version},
            "paths": paths,
            "components": {"schemas": definitions.finish(), "securitySchemes": security()},
        })
    }

    /// The document of all group versions in version 2.
    #[must_use]
    pub fn v2(&self, group_versions: &[GroupVersionResources]) -> Value {
        let mut definitions = Definitions::new(self.types, self.descriptions);
        let mut shared = v2::SharedParameters::default();
        let mut paths = Map::new();
        for group_version in group_versions {
            let tag = names::tag(&group_version.group, &group_version.version);
            for path in self.paths(&mut definitions, group_version) {
                paths.insert(path.path.clone(), v2::path(&path, &tag, &mut shared));
            }
        }
        let definitions: Map<String, Value> =
            definitions.finish().into_iter().map(|(name, schema)| (name, v2::schema(schema))).collect();
        json!({
            "swagger": "2.0",
            "info": {"title": TITLE, "version": self.version},
            "paths": paths,
            "definitions": definitions,
            "parameters": shared.finish(),
            "securityDefinitions": security(),
            "security": [{"BearerToken": []}],
        })
    }

    fn paths(&self, definitions: &mut Definitions<'a>, group_version: &GroupVersionResources) -> Vec<Path> {
        let GroupVersionResources { group, version, resources } = group_version;
        let mut makes = Paths { definitions, descriptions: self.descriptions, group, version };
        let mut paths = vec![makes.discovery()];
        for resource in resources {
            paths.extend(makes.resource(resource));
        }
        paths
    }
}

const TITLE: &str = "Kubernetes";

fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header",
    }})
}

fn path_v3(path: &Path, tag: &str) -> Value {
    let mut out = Map::new();
    for operation in &path.operations {
        out.insert(operation.method.to_owned(), operation_v3(operation, tag));
    }
    if !path.parameters.is_empty() {
        out.insert("parameters".to_owned(), parameters_v3(&path.parameters));
    }
    Value::Object(out)
}

fn operation_v3(operation: &Operation, tag: &str) -> Value {
    let mut responses = Map::new();
    for (code, words, schema) in &operation.responses {
        let content: Map<String, Value> =
            operation.produces.iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema}))).collect();
        responses.insert(code.to_string(), json!({"description": words, "content": content}));
    }
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    let mut out = json!({
        "tags": [tag],
        "description": operation.description,
        "operationId": operation.id,
        "responses": responses,
    });
    if !operation.parameters.is_empty() {
        out["parameters"] = parameters_v3(&operation.parameters);
    }
    if let Some(body) = &operation.body {
        let content: Map<String, Value> =
            body.consumes.iter().map(|kind| ((*kind).to_owned(), json!({"schema": body.schema}))).collect();
        out["requestBody"] = json!({"content": content});
        if body.required {
            out["requestBody"]["required"] = true.into();
        }
    }
    v2::set_action(&mut out, operation);
    out
}

fn parameters_v3(parameters: &[Parameter]) -> Value {
    let one = |parameter: &Parameter| {
        let mut out = json!({
            "name": parameter.name,
            "in": parameter.place,
            "description": parameter.description,
            "schema": {"type": parameter.kind, "uniqueItems": true},
        });
        if parameter.place == "path" {
            out["required"] = true.into();
        }
        out
    };
    parameters.iter().map(one).collect()
}
