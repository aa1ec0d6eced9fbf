//! Expressions of policies that validate, compared with the types of what their rules name. What does not fit is a warning in the
//! status of the policy, and changes nothing of what the policy does.
//!
//! Upstream: `policy/validating/typechecking.go`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};
use windlass_apimachinery::group_version::GroupVersion;
use windlass_cel::DeclType;

use crate::{apiserver::types::Catalog, cel::Compiler, schema::openapi_definitions};

/// How many types of one rule are compared.
const MAX_TYPES: usize = 10;
/// How deep references are followed; types are not nested deeper.
const MAX_DEPTH: usize = 64;

/// A group, a version and a kind, in the order in which warnings have them.
type Kind = (String, String, String);

/// The warnings about a policy: `status.typeChecking.expressionWarnings`.
pub(crate) fn warnings(policy: &Value, catalog: &Catalog) -> Vec<Value> {
    let spec = &policy["spec"];
    let mut schemas = Schemas { catalog, definitions: BTreeMap::new() };
    let objects: Vec<(Kind, Option<Arc<DeclType>>)> = kinds_of(&spec["matchConstraints"], catalog)
        .into_iter()
        .filter_map(|kind| schemas.declared(&kind, 1).map(|declared| (kind, declared)))
        .collect();
    let params = (!spec["paramKind"].is_null()).then(|| schemas.declared(&param_kind(&spec["paramKind"]), 2).flatten());
    let compilers: Vec<(&Kind, Compiler)> = objects
        .iter()
        .map(|(kind, object)| {
            let mut compiler = Compiler::with_types(object.as_ref(), params.as_ref().map(Option::as_ref));
            compiler.add_variables(&spec["variables"]);
            (kind, compiler)
        })
        .collect();
    let mut warnings = Vec::new();
    for (at, validation) in spec["validations"].as_array().into_iter().flatten().enumerate() {
        for field in ["expression", "messageExpression"] {
            let expression = text(validation, field);
            if expression.is_empty() && field == "messageExpression" {
                continue;
            }
            let found = compilers.iter().filter_map(|((group, version, kind), compiler)| {
                let why = compiler.check_types(expression).err()?;
                Some(format!("{}: {why}\n", GroupVersion { group, version }.with_kind(kind)))
            });
            let found: Vec<String> = found.collect();
            if !found.is_empty() {
                let path = format!("spec.validations[{at}].{field}");
                warnings.push(json!({"fieldRef": path, "warning": found.join("\n")}));
            }
        }
    }
    warnings
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or("")
}

fn param_kind(kind: &Value) -> Kind {
    let GroupVersion { group, version } = GroupVersion::parse(text(kind, "apiVersion"));
    (group.to_owned(), version.to_owned(), text(kind, "kind").to_owned())
}

/// The kinds of the resources that rules name without wildcards. Upstream: `typesToCheck`.
fn kinds_of(constraints: &Value, catalog: &Catalog) -> BTreeSet<Kind> {
    let mut kinds = BTreeSet::new();
    for rule in constraints["resourceRules"].as_array().into_iter().flatten() {
        let texts = |field: &str| {
            let mut texts: Vec<&str> = rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            texts.sort_unstable();
            texts
        };
        let (groups, versions, resources) = (texts("apiGroups"), texts("apiVersions"), texts("resources"));
        if groups.iter().chain(&versions).any(|text| text.contains('*')) {
            continue;
        }
        let mut count = 0;
        for group in groups {
            for version in &versions {
                // Of subresources nothing is known.
                for resource in resources.iter().filter(|resource| !resource.contains(['*', '/'])) {
                    for kind in resolve(catalog, group, version, resource) {
                        kinds.insert(kind);
                        count += 1;
                        if count == MAX_TYPES {
                            return kinds;
                        }
                    }
                }
            }
        }
    }
    kinds
}

/// The kinds of a resource. As in upstream's mapper, no group stands for any group.
fn resolve(catalog: &Catalog, group: &str, version: &str, resource: &str) -> Vec<Kind> {
    let is_it =
        |gvk: &crate::apiserver::types::Gvk| (group.is_empty() || *gvk.group == *group) && *gvk.version == *version;
    let found = catalog.all().filter(|served| *served.plural == *resource && is_it(&served.gvk));
    found
        .map(|served| (served.gvk.group.to_string(), served.gvk.version.to_string(), served.gvk.kind.to_string()))
        .collect()
}

/// The schemas of kinds, as OpenAPI documents have them.
struct Schemas<'c> {
    catalog: &'c Catalog,
    /// The definitions of types, by group and version; null for those that nobody serves.
    definitions: BTreeMap<(String, String), Value>,
}

impl Schemas<'_> {
    /// The type of a kind, if it has a schema, and whether that says anything. `number` makes its name unique.
    fn declared(&mut self, (group, version, kind): &Kind, number: u8) -> Option<Option<Arc<DeclType>>> {
        let key = (group.clone(), version.clone());
        let catalog = self.catalog;
        let definitions = self.definitions.entry(key).or_insert_with(|| {
            let is_served = catalog.group_version(group, version).is_some();
            if is_served { openapi_definitions(catalog, group, version) } else { Value::Null }
        });
        let wanted = json!({"group": group, "version": version, "kind": kind});
        let definitions = definitions.as_object()?;
        let is_of_kind = |schema: &&Value| {
            schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| kinds.contains(&wanted))
        };
        let schema = definitions.values().find(is_of_kind)?;
        let whole = inlined(schema, definitions, &mut Vec::new());
        Some(DeclType::of_schema(&whole, true, &format!("{kind}{number}")).map(Arc::new))
    }
}

/// The definition that a schema refers to; a reference may stand in `allOf`, where it has a description.
fn reference(schema: &Value) -> Option<&str> {
    let own = schema["$ref"].as_str();
    own.or_else(|| schema["allOf"].as_array()?.iter().find_map(reference))
}

/// A schema with what it refers to in place of references; what refers to itself is an object of which nothing is known.
/// Upstream: `populateRefs`.
fn inlined<'d>(schema: &'d Value, definitions: &'d serde_json::Map<String, Value>, open: &mut Vec<&'d str>) -> Value {
    let Some(path) = reference(schema) else { return with_parts(schema, definitions, open) };
    let name = path.rsplit('/').next().unwrap_or(path);
    if open.contains(&name) || open.len() > MAX_DEPTH {
        return json!({"type": "object"});
    }
    let Some(definition) = definitions.get(name) else { return json!({}) };
    open.push(name);
    let whole = with_parts(definition, definitions, open);
    open.pop();
    whole
}

fn with_parts<'d>(
    schema: &'d Value,
    definitions: &'d serde_json::Map<String, Value>,
    open: &mut Vec<&'d str>,
) -> Value {
    let mut whole = schema.clone();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        whole["properties"][name] = inlined(property, definitions, open);
    }
    for part in ["additionalProperties", "items"] {
        if schema[part].is_object() {
            whole[part] = inlined(&schema[part], definitions, open);
        }
    }
    // Built-in types say it by the format.
    if schema["format"] == "int-or-string" {
        whole["x-kubernetes-int-or-string"] = true.into();
    }
    whole
}
