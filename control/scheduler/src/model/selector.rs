//! Label selectors that are compared and used as keys. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use windlass_kit::objects::label_selector;

/// A label selector with a text that is the same for selectors that are written the same.
#[derive(Debug, Clone)]
pub(crate) struct Selector {
    /// `None` selects nothing (upstream's `labels.Nothing`).
    of: Option<Arc<LabelSelector>>,
    text: Arc<str>,
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Selector {}

impl Selector {
    pub(crate) fn of(selector: Option<&LabelSelector>) -> Self {
        let mut text = String::new();
        if let Some(selector) = selector {
            for (key, value) in selector.match_labels.iter().flatten() {
                text.push_str(&format!("{key}={value},"));
            }
            for LabelSelectorRequirement { key, operator, values } in selector.match_expressions.iter().flatten() {
                let mut values = values.clone().unwrap_or_default();
                values.sort();
                text.push_str(&format!("{key} {operator} ({}),", values.join("|")));
            }
        } else {
            text.push('!');
        }
        Self { of: selector.map(|selector| Arc::new(selector.clone())), text: text.into() }
    }

    /// Selects objects with all of these labels.
    pub(crate) fn of_labels(labels: BTreeMap<String, String>) -> Self {
        Self::of(Some(&LabelSelector { match_labels: Some(labels), match_expressions: None }))
    }

    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.of.as_ref().is_some_and(|selector| label_selector::selects(selector, labels))
    }

    /// Whether it requires nothing and selects everything (upstream's `Selector.Empty`).
    pub(crate) fn is_empty(&self) -> bool {
        self.of.as_ref().is_some_and(|selector| label_selector::Selector::from(&**selector).is_empty())
    }

    /// Selects what both select.
    pub(crate) fn and(&self, other: &LabelSelector) -> Self {
        let mut both = LabelSelector::clone(self.of.as_deref().unwrap_or(&LabelSelector::default()));
        let pairs = other.match_labels.iter().flatten();
        // Two values of one key select nothing, which a map could not say.
        let mut requirements: Vec<_> = pairs.map(|(key, value)| equals(key, value)).collect();
        requirements.extend(other.match_expressions.iter().flatten().cloned());
        if !requirements.is_empty() {
            both.match_expressions.get_or_insert_default().append(&mut requirements);
        }
        Self::of(Some(&both))
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// The requirement that a label has a value.
pub(super) fn equals(key: &str, value: &str) -> LabelSelectorRequirement {
    LabelSelectorRequirement { key: key.to_owned(), operator: "In".to_owned(), values: Some(vec![value.to_owned()]) }
}
