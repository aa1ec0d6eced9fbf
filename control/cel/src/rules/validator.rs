//! The compiled rules of a schema; upstream's `Validator`.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value as Json;
use windlass_apimachinery::{MAX_DEPTH, schema::ValidationRule};

use super::{
    compile::{CompiledRule, Scope},
    types::TypeInfo,
};
use crate::decl::{DeclType, escape};

/// The rules of a schema, compiled, in the shape of the schema: parts without rules are left out. Of what objects are not to
/// be stored because of them, see [`SchemaRules::validate`].
#[derive(Debug)]
pub struct SchemaRules {
    pub(super) root: Node,
}

/// The rules of a value and of what is inside.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) rules: Box<[(ValidationRule, CompiledRule)]>,
    /// The type of the value. Without one no rule can be evaluated.
    pub(super) declared: Option<Arc<DeclType>>,
    /// Whether a rule compares with the old value.
    pub(super) uses_old_self: bool,
    /// The type, as the schema writes it.
    pub(super) type_name: Box<str>,
    /// By what old and new items of a list are matched.
    pub(super) list_map_keys: Box<[Box<str>]>,
    pub(super) items: Option<Box<Self>>,
    pub(super) properties: BTreeMap<Box<str>, Self>,
    pub(super) additional: Option<Box<Self>>,
    pub(super) all_of: Vec<Self>,
}

impl SchemaRules {
    /// Compiles the rules of a structural schema, whose values are objects of the API if `is_resource_root` says so. Nothing
    /// if there are none.
    ///
    /// A rule that does not compile refuses every value: the definition was to be refused for it.
    #[must_use]
    pub fn compile(schema: &Json, is_resource_root: bool) -> Option<Self> {
        if has_rules(schema, 0) { Self::build(schema, is_resource_root) } else { None }
    }

    /// The same of a schema that has rules, be they in junctors.
    pub(super) fn build(schema: &Json, is_resource_root: bool) -> Option<Self> {
        let info = TypeInfo::of(schema, is_resource_root);
        node(schema, schema, info.as_ref(), 0).map(|root| Self { root })
    }
}

/// Whether a value itself has rules.
pub(super) fn has_own_rules(schema: &Json) -> bool {
    schema["x-kubernetes-validations"].as_array().is_some_and(|rules| !rules.is_empty())
}

/// Whether a schema has rules where they have an effect; those in junctors alone have none, as upstream.
pub(super) fn has_rules(schema: &Json, depth: usize) -> bool {
    if depth > MAX_DEPTH || !schema.is_object() {
        return false;
    }
    has_own_rules(schema)
        || has_rules(&schema["items"], depth + 1)
        || has_rules(&schema["additionalProperties"], depth + 1)
        || schema["properties"].as_object().into_iter().flatten().any(|(_, inside)| has_rules(inside, depth + 1))
}

pub(super) fn is_embedded(schema: &Json) -> bool {
    schema["x-kubernetes-embedded-resource"] == true
}

/// The keys of a list of type map.
pub(super) fn list_map_keys(schema: &Json) -> impl Iterator<Item = &str> {
    let is_map = schema["type"] == "array" && schema["x-kubernetes-list-type"] == "map";
    let keys = schema["x-kubernetes-list-map-keys"].as_array().filter(|_| is_map);
    keys.into_iter().flatten().filter_map(Json::as_str)
}

/// The node of `validation`, whose rules are those of `schema` or of a member of its `allOf`.
fn node(validation: &Json, schema: &Json, info: Option<&TypeInfo>, depth: usize) -> Option<Node> {
    if depth > MAX_DEPTH {
        return None;
    }
    let scope = info.map(|info| Scope::new(info, schema));
    let compile = |rule: ValidationRule| {
        let compiled = scope.as_ref().map(|scope| scope.compile(&rule)).unwrap_or_default();
        (rule, compiled)
    };
    let rules: Box<[_]> = ValidationRule::all_of(validation).map(compile).collect();
    let inside = |word: &str| {
        let (validation, schema) = (&validation[word], &schema[word]);
        let both = validation.is_object() && schema.is_object();
        let element = info.and_then(TypeInfo::element);
        both.then(|| node(validation, schema, element.as_ref(), depth + 1)).flatten().map(Box::new)
    };
    let mut properties = BTreeMap::new();
    for (name, validation) in validation["properties"].as_object().into_iter().flatten() {
        let Some(schema) = schema["properties"].get(name) else { continue };
        // What expressions cannot name has a type of its own; what has no type is left out.
        let own = match escape(name) {
            Some(_) => info.and_then(|info| info.property(name)),
            None => TypeInfo::of(schema, is_embedded(schema)),
        };
        if own.is_some()
            && let Some(inside) = node(validation, schema, own.as_ref(), depth + 1)
        {
            properties.insert(name.as_str().into(), inside);
        }
    }
    let all_of = validation["allOf"].as_array().into_iter().flatten();
    let found = Node {
        uses_old_self: rules.iter().any(|(_, compiled)| compiled.uses_old_self),
        rules,
        declared: info.map(|info| Arc::clone(&info.declared)),
        type_name: schema["type"].as_str().unwrap_or_default().into(),
        list_map_keys: list_map_keys(schema).map(Box::from).collect(),
        items: inside("items"),
        additional: inside("additionalProperties"),
        properties,
        all_of: all_of.filter_map(|member| node(member, schema, info, depth + 1)).collect(),
    };
    let is_empty = found.rules.is_empty()
        && found.items.is_none()
        && found.additional.is_none()
        && found.properties.is_empty()
        && found.all_of.is_empty();
    (!is_empty).then_some(found)
}
