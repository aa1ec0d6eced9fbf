//! A document of version 3 out of one of version 2, for servers that have no other. What only version 2 knows is lost.
//!
//! Upstream: `k8s.io/kube-openapi/pkg/openapiconv`. It leaves references to shared parameters, and those of a schema's `allOf` and
//! the like, as they were, which lead nowhere in the new document; here they are followed.

use serde_json::{Map, Value, json};

const DEFINITIONS: &str = "#/definitions/";
const SCHEMAS: &str = "#/components/schemas/";
const PARAMETERS: &str = "#/parameters/";
const RESPONSES: (&str, &str) = ("#/responses/", "#/components/responses/");
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

/// The document in version 3.
#[must_use]
pub fn v3_of(document: &Value) -> Value {
    let mut out = taking(document, &["info"]);
    out.insert("openapi".to_owned(), json!("3.0.0"));
    out.extend(external_docs(document));
    let conversion = Conversion { parameters: &document["parameters"] };
    if let Some(paths) = document["paths"].as_object() {
        let paths = paths.iter().map(|(path, item)| {
            let item = if path.starts_with("x-") { item.clone() } else { conversion.path_item(item) };
            (path.clone(), item)
        });
        out.insert("paths".to_owned(), Value::Object(paths.collect()));
    }
    let mut components = Map::new();
    let mut part = |from: &str, to: &str, convert: &dyn Fn(&Value) -> Value| {
        if let Some(all) = document[from].as_object() {
            let all = all.iter().map(|(name, value)| (name.clone(), convert(value)));
            components.insert(to.to_owned(), Value::Object(all.collect()));
        }
    };
    part("definitions", "schemas", &schema);
    part("securityDefinitions", "securitySchemes", &security_scheme);
    part("responses", "responses", &|one| response(one, &document["produces"]));
    out.insert("components".to_owned(), Value::Object(components));
    Value::Object(out)
}

/// The fields of these names that are there, and all extensions.
fn taking(value: &Value, names: &[&str]) -> Map<String, Value> {
    let fields = value.as_object().into_iter().flatten();
    let kept = fields.filter(|(name, _)| names.contains(&name.as_str()) || name.starts_with("x-"));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn external_docs(value: &Value) -> Option<(String, Value)> {
    let docs = value["externalDocs"].as_object()?;
    let kept = docs.iter().filter(|(name, _)| ["description", "url"].contains(&name.as_str()));
    Some(("externalDocs".to_owned(), Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())))
}

struct Conversion<'a> {
    /// The parameters that operations share.
    parameters: &'a Value,
}

impl Conversion<'_> {
    fn path_item(&self, item: &Value) -> Value {
        let mut out = taking(item, &["$ref"]);
        for method in METHODS.into_iter().filter(|method| item[*method].is_object()) {
            out.insert(method.to_owned(), self.operation(&item[method]));
        }
        // Bodies of all operations of a path have no form in version 3.
        let parameters = self.parameters_of(item).filter(|parameter| !is_body(parameter));
        let parameters: Vec<Value> = parameters.map(parameter).collect();
        if !parameters.is_empty() {
            out.insert("parameters".to_owned(), parameters.into());
        }
        Value::Object(out)
    }

    fn operation(&self, operation: &Value) -> Value {
        let mut out = taking(operation, &["description", "tags", "summary", "deprecated", "operationId"]);
        out.extend(external_docs(operation));
        let (bodies, others): (Vec<&Value>, Vec<&Value>) =
            self.parameters_of(operation).partition(|parameter| is_body(parameter));
        if let Some(body) = bodies.last() {
            let content = content(&operation["consumes"], &body["schema"]);
            out.insert("requestBody".to_owned(), Value::Object(content.into_iter().collect()));
        }
        if !others.is_empty() {
            out.insert("parameters".to_owned(), others.into_iter().map(parameter).collect());
        }
        if let Some(responses) = operation["responses"].as_object() {
            let responses = responses.iter().map(|(code, one)| {
                let one = if code.starts_with("x-") { one.clone() } else { response(one, &operation["produces"]) };
                (code.clone(), one)
            });
            out.insert("responses".to_owned(), Value::Object(responses.collect()));
        }
        Value::Object(out)
    }

    /// The parameters of a path or an operation, without references to what is shared.
    fn parameters_of<'a>(&'a self, of: &'a Value) -> impl Iterator<Item = &'a Value> {
        of["parameters"].as_array().into_iter().flatten().map(|parameter| {
            let shared = parameter["$ref"].as_str().and_then(|reference| reference.strip_prefix(PARAMETERS));
            shared.and_then(|name| self.parameters.get(name)).unwrap_or(parameter)
        })
    }
}

fn is_body(parameter: &Value) -> bool {
    parameter["in"] == "body" && parameter["schema"].is_object()
}

/// The content of a body in each media type.
fn content(media_types: &Value, of: &Value) -> Option<(String, Value)> {
    let media_types = media_types.as_array()?.iter().filter_map(Value::as_str);
    let content: Map<String, Value> =
        media_types.map(|media_type| (media_type.to_owned(), json!({"schema": schema(of)}))).collect();
    Some(("content".to_owned(), Value::Object(content)))
}

fn parameter(parameter: &Value) -> Value {
    let mut out = taking(parameter, &["$ref", "name", "description", "in", "required", "allowEmptyValue"]);
    let schema = match &parameter["schema"] {
        Value::Null => {
            let names = ["type", "format", "uniqueItems"];
            let fields = parameter.as_object().into_iter().flatten().filter(|(name, _)| names.contains(&name.as_str()));
            Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
        }
        given => schema(given),
    };
    out.insert("schema".to_owned(), schema);
    Value::Object(out)
}

fn response(response: &Value, produces: &Value) -> Value {
    let mut out = taking(response, &["description"]);
    if let Some(reference) = response["$ref"].as_str() {
        out.insert("$ref".to_owned(), json!(reference.replacen(RESPONSES.0, RESPONSES.1, 1)));
    }
    if response["schema"].is_object() {
        out.extend(content(produces, &response["schema"]));
    }
    Value::Object(out)
}

fn security_scheme(scheme: &Value) -> Value {
    let mut out = taking(scheme, &["type", "description", "name", "in"]);
    if let Some(flow) = scheme["flow"].as_str().filter(|flow| !flow.is_empty()) {
        let mut fields = Map::new();
        for name in ["authorizationUrl", "tokenUrl", "scopes"] {
            fields.extend(scheme.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        out.insert("flows".to_owned(), json!({flow: fields}));
    }
    Value::Object(out)
}

/// A schema whose references lead to the schemas of version 3, where a reference has no siblings.
fn schema(of: &Value) -> Value {
    let Some(fields) = of.as_object() else { return of.clone() };
    let each = |map: &Map<String, Value>| map.iter().map(|(name, of)| (name.clone(), schema(of))).collect();
    let mut out: Map<String, Value> = fields
        .iter()
        .map(|(name, value)| {
            let converted = match (name.as_str(), value) {
                ("properties" | "patternProperties" | "definitions", Value::Object(map)) => Value::Object(each(map)),
                ("items" | "allOf" | "anyOf" | "oneOf", Value::Array(all)) => all.iter().map(schema).collect(),
                ("items" | "additionalProperties" | "additionalItems" | "not", value) => schema(value),
                ("$ref", Value::String(text)) => match text.find(DEFINITIONS) {
                    Some(at) => json!(format!("{SCHEMAS}{}", &text[at + DEFINITIONS.len()..])),
                    None => value.clone(),
                },
                _ => value.clone(),
            };
            (name.clone(), converted)
        })
        .collect();
    if out.len() > 1
        && let Some(reference) = out.remove("$ref")
    {
        out.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What upstream's tests of the conversion show of single parts.
    #[test]
    fn parts_have_their_form_of_version_3() {
        let reference = json!({"$ref": "#/components/schemas/foo"});
        for (v2, v3) in [
            (json!({"$ref": "#/definitions/foo"}), reference.clone()),
            (
                json!({"$ref": "#/definitions/foo", "description": "d"}),
                json!({"allOf": [reference], "description": "d"}),
            ),
            (
                json!({"type": "object", "properties": {"a": {"$ref": "#/definitions/foo", "default": {}}}}),
                json!({"type": "object", "properties": {"a": {"allOf": [reference], "default": {}}}}),
            ),
            (json!({"items": {"$ref": "#/definitions/foo"}}), json!({"items": reference})),
            (json!({"items": [{"$ref": "#/definitions/foo"}]}), json!({"items": [reference]})),
            (
                json!({"additionalProperties": {"$ref": "#/definitions/foo"}}),
                json!({"additionalProperties": reference}),
            ),
            (json!({"additionalProperties": true}), json!({"additionalProperties": true})),
            (json!({"not": {"$ref": "#/definitions/foo"}}), json!({"not": reference})),
            // A property of that name is none.
            (json!({"properties": {"$ref": {"type": "string"}}}), json!({"properties": {"$ref": {"type": "string"}}})),
            (
                json!({"$ref": "other.json", "enum": ["#/definitions/foo"]}),
                json!({"allOf": [{"$ref": "other.json"}], "enum": ["#/definitions/foo"]}),
            ),
        ] {
            assert_eq!(schema(&v2), v3, "{v2}");
        }
        let v2 = json!({"in": "query", "name": "p", "type": "boolean", "uniqueItems": true, "x-a": 1});
        let v3 = json!({"in": "query", "name": "p", "schema": {"type": "boolean", "uniqueItems": true}, "x-a": 1});
        assert_eq!(parameter(&v2), v3);
        let v2 = json!({"type": "oauth2", "flow": "implicit", "authorizationUrl": "a", "scopes": {"s": "t"}});
        let v3 = json!({"type": "oauth2", "flows": {"implicit": {"authorizationUrl": "a", "scopes": {"s": "t"}}}});
        assert_eq!(security_scheme(&v2), v3);
    }

    #[test]
    fn a_document_has_nothing_of_version_2() {
        let thing = json!({"$ref": "#/definitions/Thing"});
        let v2 = json!({
            "swagger": "2.0", "info": {"title": "t", "version": "v1"},
            "paths": {"/apis/g/v1/things": {
                "parameters": [{"$ref": "#/parameters/pretty"}],
                "post": {
                    "consumes": ["application/json"], "produces": ["application/json", "application/yaml"],
                    "schemes": ["https"], "operationId": "create", "x-kubernetes-action": "post",
                    "parameters": [{"name": "body", "in": "body", "required": true, "schema": thing},
                        {"$ref": "#/parameters/dryRun"}],
                    "responses": {"200": {"description": "OK", "schema": thing}, "401": {"description": "Unauthorized"}},
                },
            }},
            "parameters": {
                "pretty": {"name": "pretty", "in": "query", "type": "string"},
                "dryRun": {"name": "dryRun", "in": "query", "type": "string"},
            },
            "definitions": {"Thing": {"type": "object"}},
            "securityDefinitions": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
        });
        let thing = json!({"schema": {"$ref": "#/components/schemas/Thing"}});
        let query = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
        assert_eq!(
            v3_of(&v2),
            json!({
                "openapi": "3.0.0", "info": {"title": "t", "version": "v1"},
                "paths": {"/apis/g/v1/things": {
                    "parameters": [query("pretty")],
                    "post": {
                        "operationId": "create", "x-kubernetes-action": "post",
                        "parameters": [query("dryRun")],
                        "requestBody": {"content": {"application/json": thing}},
                        "responses": {
                            "200": {"description": "OK", "content": {"application/json": thing, "application/yaml": thing}},
                            "401": {"description": "Unauthorized"},
                        },
                    },
                }},
                "components": {
                    "schemas": {"Thing": {"type": "object"}},
                    "securitySchemes": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
                },
            })
        );
        assert_eq!(v3_of(&json!([])), json!({"openapi": "3.0.0", "components": {}}));
    }
}
