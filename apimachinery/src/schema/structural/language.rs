//! The language of `x-kubernetes-validations`, which is another crate's.

use serde_json::Value;

use crate::field::FieldError;

/// What the validation of a schema asks of the language of its rules.
pub trait RuleLanguage {
    /// What the rules of a node say of its own default. The default is at `path`; `is_resource_root` says whether the node is
    /// an object of the API, the root or an embedded one.
    fn check_default(&mut self, schema: &Value, is_resource_root: bool, path: &str) -> Vec<FieldError>;

    /// Whether checks of defaults have cost so much that there are no more of them.
    fn is_exhausted(&self) -> bool;

    /// What is wrong with the rules of a structural schema. `is_sound` says whether nothing else is wrong with the schema at a
    /// path and below: other rules cannot be compiled.
    fn check_rules(&mut self, schema: &Value, path: &str, is_sound: &dyn Fn(&str) -> bool) -> Vec<FieldError>;
}

/// Passes rules over.
impl RuleLanguage for () {
    fn check_default(&mut self, _schema: &Value, _is_resource_root: bool, _path: &str) -> Vec<FieldError> {
        Vec::new()
    }

    fn is_exhausted(&self) -> bool {
        false
    }

    fn check_rules(&mut self, _schema: &Value, _path: &str, _is_sound: &dyn Fn(&str) -> bool) -> Vec<FieldError> {
        Vec::new()
    }
}
