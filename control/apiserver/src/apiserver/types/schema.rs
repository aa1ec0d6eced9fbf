//! The fields of a version's objects. Pure.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use serde_json::Value;
use windlass_apimachinery::{
    effort::Effort,
    field::FieldError,
    schema::{self, FieldProblems, Schema, structural},
};
use windlass_cel::{Findings, RuleBudget, SchemaRules};

use super::Name;

/// Where a schema comes from.
#[derive(Debug, Clone)]
enum Origin {
    /// A type that is known when the program is built.
    BuiltIn,
    /// A CustomResourceDefinition.
    Custom(Arc<Custom>),
}

#[derive(Debug)]
struct Custom {
    /// The `openAPIV3Schema`.
    source: Value,
    /// Compiled when the first object is validated: a definition may have hundreds.
    rules: OnceLock<Option<SchemaRules>>,
}

/// The schema of a version.
#[derive(Debug, Clone)]
pub struct TypeSchema {
    kind: Name,
    node: Arc<Schema>,
    origin: Origin,
}

impl TypeSchema {
    /// The schema of a built-in type.
    #[must_use]
    pub fn built_in(kind: Name, node: Arc<Schema>) -> Self {
        Self { kind, node, origin: Origin::BuiltIn }
    }

    /// The schema of a custom resource: `source` is the `openAPIV3Schema` of its version, `object_meta` the type of
    /// `metadata`.
    #[must_use]
    pub fn custom(kind: Name, source: &Value, object_meta: &Arc<Schema>) -> Self {
        let node = Arc::new(structural::read(source, object_meta));
        let custom = Custom { source: source.clone(), rules: OnceLock::new() };
        Self { kind, node, origin: Origin::Custom(Arc::new(custom)) }
    }

    /// The description of the type.
    #[must_use]
    pub fn node(&self) -> &Arc<Schema> {
        &self.node
    }

    /// The `openAPIV3Schema` of a custom resource.
    #[must_use]
    pub fn as_custom(&self) -> Option<&Value> {
        match &self.origin {
            Origin::BuiltIn => None,
            Origin::Custom(custom) => Some(&custom.source),
        }
    }

    /// Whether the type is known when the program is built.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        matches!(self.origin, Origin::BuiltIn)
    }

    /// Fields that the type does not have, and values of the wrong type. Of custom objects only the metadata has a type that
    /// clients decode; other values are checked by [`Self::validate`].
    #[must_use]
    pub fn check(&self, value: &Value) -> FieldProblems {
        schema::check(&self.node, value, &self.kind)
    }

    /// Brings an object to its stored form. Of built-in types unknown fields and omitted empty values are removed,
    /// quantities and times are canonical; custom objects are pruned and get the defaults of the schema.
    pub fn prune(&self, value: &mut Value) {
        if self.is_built_in() {
            schema::canonicalize(&self.node, value);
        } else {
            self.make_types_fit(value);
            schema::prune(&self.node, value);
            schema::default(&self.node, value);
        }
    }

    /// A field that upstream's type always writes, as it is when nobody has set it.
    #[must_use]
    pub fn unset(&self, field: &str) -> Option<Value> {
        schema::unset(&self.node, field)
    }

    /// Brings the metadata of a custom object to a form that all clients can decode; most have it.
    fn make_types_fit(&self, value: &mut Value) {
        if !schema::types_fit(&self.node, value) {
            schema::drop_invalid_fields(&self.node, value);
            schema::canonicalize_types(&self.node, value);
        }
    }

    /// The form in which equal objects have equal values.
    #[must_use]
    pub fn canonical<'a>(&self, value: &'a Value) -> Cow<'a, Value> {
        if self.is_built_in() { schema::canonical(&self.node, value) } else { Cow::Borrowed(value) }
    }

    /// Whether two objects are equal to the type.
    #[must_use]
    pub fn same(&self, one: &Value, other: &Value) -> bool {
        self.same_except(&[], one, other)
    }

    /// Whether two objects are equal to the type but for some of their fields.
    #[must_use]
    pub fn same_except(&self, except: &[&str], one: &Value, other: &Value) -> bool {
        if self.is_built_in() {
            return schema::same_except(&self.node, except, one, other);
        }
        let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return one == other };
        let is_compared = |field: &(&String, &Value)| !except.contains(&field.0.as_str());
        one.iter().filter(is_compared).eq(other.iter().filter(is_compared))
    }

    /// Removes fields that the type cannot decode and returns their paths.
    pub fn drop_invalid_fields(&self, value: &mut Value) -> Vec<String> {
        schema::drop_invalid_fields(&self.node, value)
    }

    /// Validates an object by the schema; built-in types have none. What regular expressions take is taken from `effort`: with
    /// too little of it the errors are not all there are.
    #[must_use]
    pub fn validate(&self, object: &Value, old: Option<&Value>, effort: &mut Effort) -> Vec<FieldError> {
        if self.is_built_in() { Vec::new() } else { schema::validate(&self.node, object, old, effort) }
    }

    /// The same of an object of which only the status has changed.
    #[must_use]
    pub fn validate_status(&self, object: &Value, old: &Value, effort: &mut Effort) -> Vec<FieldError> {
        if self.is_built_in() { Vec::new() } else { schema::validate_status(&self.node, object, old, effort) }
    }

    /// Whether rules can be evaluated at once: they are compiled, or there are none.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        match &self.origin {
            Origin::BuiltIn => true,
            Origin::Custom(custom) => custom.rules.get().is_some(),
        }
    }

    /// Whether objects are validated by rules, `x-kubernetes-validations`. Compiles them.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.rules().is_some()
    }

    fn rules(&self) -> Option<(&SchemaRules, &Value)> {
        let Origin::Custom(custom) = &self.origin else { return None };
        let rules = custom.rules.get_or_init(|| SchemaRules::compile(&custom.source, true)).as_ref();
        rules.map(|rules| (rules, &custom.source))
    }

    /// What the rules of the schema say of an object in which nothing else is wrong. Of what has not changed since `old` there
    /// are only warnings.
    #[must_use]
    pub fn validate_rules(&self, object: &Value, old: Option<&Value>, budget: &mut RuleBudget) -> Findings {
        let Some((rules, schema)) = self.rules() else { return Findings::default() };
        rules.validate("", object, old, Some(schema), budget)
    }

    /// Whether clients of the type can decode an object: of a custom one its metadata, which all clients decode.
    ///
    /// # Errors
    /// Why they could not: the first value that its field cannot hold.
    pub fn check_decodable(&self, value: &Value) -> Result<(), String> {
        if schema::types_fit(&self.node, value) {
            return Ok(());
        }
        schema::check(&self.node, value, &self.kind).wrong.into_iter().next().map_or(Ok(()), Err)
    }

    /// Prunes an object that was converted to the version of the schema, without filling in defaults.
    pub fn prune_alone(&self, value: &mut Value) {
        if !self.is_built_in() {
            schema::prune(&self.node, value);
        }
    }

    /// Prunes a stored object and fills in defaults, where the schema may have changed since it was written. Metadata that
    /// clients could not decode is left out, as upstream does with what it reads from etcd: one object must not cost the
    /// list of all.
    pub fn complete_stored(&self, value: &mut Value) {
        if !self.is_built_in() {
            self.prune(value);
        }
    }
}
