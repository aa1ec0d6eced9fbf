//! What is known at a node of a schema whose rules are checked; upstream's `CELSchemaContext`.

use std::cell::OnceCell;

use serde_json::Value as Json;

use super::{
    types::TypeInfo,
    validator::{has_own_rules, is_embedded},
};

/// A step into a schema.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step<'a> {
    Property(&'a str),
    Element,
}

/// A node, with those around it.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) schema: &'a Json,
    parent: Option<(&'a Self, Step<'a>)>,
    /// Whether the node or one around has rules.
    has_rules: bool,
    /// How often the value can be in an object, as limits around it say; nothing if one is missing.
    pub(super) cardinality: Option<u64>,
    /// The list or map around, whose old and new elements cannot be matched.
    pub(super) uncorrelatable: Option<&'a str>,
    info: OnceCell<Result<Info, &'static str>>,
}

/// The type of a node, if values of it have one.
pub(super) type Info = Option<TypeInfo>;

impl<'a> Context<'a> {
    pub(super) fn root(schema: &'a Json) -> Self {
        Self {
            schema,
            parent: None,
            has_rules: has_own_rules(schema),
            cardinality: Some(1),
            uncorrelatable: None,
            info: OnceCell::new(),
        }
    }

    /// The node one step further in. `uncorrelatable` is the path of this one if its elements cannot be matched.
    pub(super) fn child(&'a self, schema: &'a Json, step: Step<'a>, uncorrelatable: Option<&'a str>) -> Self {
        let cardinality = self.cardinality.zip(max_elements(self.schema));
        Self {
            schema,
            parent: Some((self, step)),
            has_rules: self.has_rules || has_own_rules(schema),
            cardinality: cardinality.map(|(outer, inner)| outer.saturating_mul(inner)),
            uncorrelatable: self.uncorrelatable.or(uncorrelatable),
            info: OnceCell::new(),
        }
    }

    /// The type of the node: of the one around if that knows it, else of its own schema, which costs more.
    ///
    /// # Errors
    /// Expressions cannot see values of the schema, or of one around.
    pub(super) fn info(&self) -> Result<&Info, &'static str> {
        self.info.get_or_init(|| self.find_info()).as_ref().map_err(|why| *why)
    }

    fn find_info(&self) -> Result<Info, &'static str> {
        if let Some((parent, step)) = self.parent
            && parent.has_rules
            && let Some(around) = parent.info()?
        {
            match step {
                Step::Property(name) => {
                    if let Some(found) = around.property(name) {
                        return Ok(Some(found));
                    }
                }
                Step::Element => return Ok(around.element()),
            }
        }
        match TypeInfo::of(self.schema, self.parent.is_none() || is_embedded(self.schema)) {
            Some(found) => Ok(Some(found)),
            None => Err("unable to convert structural schema to CEL declarations"),
        }
    }
}

/// How many elements a value has at most; nothing if no limit says.
fn max_elements(schema: &Json) -> Option<u64> {
    let limit = |word: &str| schema[word].as_i64().map(|limit| u64::try_from(limit).unwrap_or(0));
    match schema["type"].as_str() {
        Some("object") if !schema["additionalProperties"].is_null() => limit("maxProperties"),
        Some("array") => limit("maxItems"),
        _ => Some(1),
    }
}
