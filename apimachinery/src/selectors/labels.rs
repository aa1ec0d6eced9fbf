//! Label selectors: `a=b,c!=d,e in (f,g),!h,i>5`.

use serde_json::{Map, Value, json};

use super::{SelectorError, parser};

/// One condition of a selector, with the key of the label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    /// A number above this one.
    Above(String, i64),
    /// A number below this one.
    Below(String, i64),
}

/// A parsed label selector; the empty one matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// Parses the query parameter.
    ///
    /// # Errors
    /// Names the first part that does not fit.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        Ok(Self { requirements: parser::parse(text)? })
    }

    /// The selector of equality with a map, as ReplicationControllers and Services have it.
    #[must_use]
    pub fn from_map(map: &Value) -> Self {
        let pairs = map.as_object().into_iter().flatten();
        Self {
            requirements: pairs
                .map(|(k, v)| Requirement::In(k.clone(), vec![v.as_str().unwrap_or("").to_owned()]))
                .collect(),
        }
    }

    /// The selector of an object's `matchLabels` and `matchExpressions`.
    ///
    /// # Errors
    /// For an unknown operator, and for missing or surplus values.
    pub fn from_label_selector(selector: &Value) -> Result<Self, SelectorError> {
        let mut requirements = Self::from_map(&selector["matchLabels"]).requirements;
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            let all = expression["values"].as_array().into_iter().flatten();
            let values: Vec<String> = all.filter_map(Value::as_str).map(str::to_owned).collect();
            let operator = expression["operator"].as_str().unwrap_or_default();
            requirements.push(match (operator, values.is_empty()) {
                ("In", false) => Requirement::In(key, values),
                ("NotIn", false) => Requirement::NotIn(key, values),
                ("Exists", true) => Requirement::Exists(key),
                ("DoesNotExist", true) => Requirement::Absent(key),
                ("In" | "NotIn", true) => {
                    return Err(SelectorError(format!(
                        "for 'in', 'notin' operators, values set can't be empty (key {key:?})"
                    )));
                }
                ("Exists" | "DoesNotExist", false) => {
                    return Err(SelectorError(format!(
                        "values set must be empty for exists and does not exist (key {key:?})"
                    )));
                }
                _ => return Err(SelectorError(format!("{operator:?} is not a valid label selector operator"))),
            });
        }
        Ok(Self { requirements })
    }

    /// The same as `matchLabels` and `matchExpressions`.
    ///
    /// # Errors
    /// Where it compares numbers, which these cannot say.
    pub fn to_label_selector(&self) -> Result<Value, SelectorError> {
        let (mut labels, mut expressions) = (Map::new(), Vec::new());
        for requirement in &self.requirements {
            let (key, operator, values) = match requirement {
                Requirement::In(key, values) => match values.as_slice() {
                    [value] if !labels.contains_key(key) => {
                        labels.insert(key.clone(), json!(value));
                        continue;
                    }
                    _ => (key, "In", values.as_slice()),
                },
                Requirement::NotIn(key, values) => (key, "NotIn", values.as_slice()),
                Requirement::Exists(key) => (key, "Exists", [].as_slice()),
                Requirement::Absent(key) => (key, "DoesNotExist", [].as_slice()),
                Requirement::Above(..) => return Err(unsupported("gt")),
                Requirement::Below(..) => return Err(unsupported("lt")),
            };
            let mut expression = json!({"key": key, "operator": operator});
            if !values.is_empty() {
                expression["values"] = json!(values);
            }
            expressions.push(expression);
        }
        let mut selector = json!({});
        if !labels.is_empty() {
            selector["matchLabels"] = Value::Object(labels);
        }
        if !expressions.is_empty() {
            selector["matchExpressions"] = json!(expressions);
        }
        Ok(selector)
    }

    /// Whether the selector matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object's labels match.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.matches_labels(&object["metadata"]["labels"])
    }

    /// Whether a map of labels matches.
    #[must_use]
    pub fn matches_labels(&self, labels: &Value) -> bool {
        self.requirements.iter().all(|requirement| {
            let label = |key: &str| labels.get(key).and_then(Value::as_str);
            match requirement {
                Requirement::In(key, values) => label(key).is_some_and(|l| values.iter().any(|v| v == l)),
                Requirement::NotIn(key, values) => label(key).is_none_or(|l| values.iter().all(|v| v != l)),
                Requirement::Exists(key) => label(key).is_some(),
                Requirement::Absent(key) => label(key).is_none(),
                Requirement::Above(key, bound) => number(label(key)).is_some_and(|n| n > *bound),
                Requirement::Below(key, bound) => number(label(key)).is_some_and(|n| n < *bound),
            }
        })
    }
}

/// A LabelSelector as a query parameter, in the order of its keys: `a=b,c in (d,e),!f`. Without requirements it is empty.
#[must_use]
pub fn label_selector_text(selector: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut parts: Vec<(String, String)> =
        labels.map(|(key, value)| (key.clone(), format!("{key}={}", text(value)))).collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = text(&expression["key"]);
        let mut values: Vec<String> = expression["values"].as_array().into_iter().flatten().map(text).collect();
        values.sort_unstable();
        let part = match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        };
        parts.push((key, part));
    }
    parts.sort_by(|one, other| one.0.cmp(&other.0));
    parts.into_iter().map(|(_, part)| part).collect::<Vec<_>>().join(",")
}

fn unsupported(operator: &str) -> SelectorError {
    SelectorError(format!("{operator:?} isn't supported in label selectors"))
}

fn number(label: Option<&str>) -> Option<i64> {
    label?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requirements() {
        let object = serde_json::json!({"metadata": {"labels": {"app": "web", "tier": "front", "x.y/z": ""}}});
        for (selector, matches) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app=web,tier=back", false),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("missing notin (a)", true),
            ("app", true),
            ("missing", false),
            ("!missing", true),
            ("!app", false),
            ("x.y/z=", true),
        ] {
            assert_eq!(LabelSelector::parse(selector).unwrap().matches(&object), matches, "{selector}");
        }
        for selector in ["app=a b", ",", "a,,b", "app in web", "app in (web", "=x", "a is (b)", "a=ä"] {
            assert!(LabelSelector::parse(selector).is_err(), "{selector}");
        }
    }

    #[test]
    fn selectors_as_text() {
        for (selector, text) in [
            (serde_json::json!({}), ""),
            (serde_json::json!({"matchLabels": {"b": "1", "a": ""}}), "a=,b=1"),
            (
                serde_json::json!({"matchLabels": {"b": "1"}, "matchExpressions": [
                    {"key": "c", "operator": "In", "values": ["y", "x"]}, {"key": "d", "operator": "NotIn", "values": ["x"]},
                    {"key": "a", "operator": "Exists"}, {"key": "e", "operator": "DoesNotExist"}]}),
                "a,b=1,c in (x,y),d notin (x),!e",
            ),
        ] {
            assert_eq!(label_selector_text(&selector), text);
        }
    }

    #[test]
    fn selectors_of_objects() {
        let object = serde_json::json!({"metadata": {"labels": {"app": "web", "tier": "front"}}});
        for (selector, matches) in [
            (serde_json::json!({}), true),
            (serde_json::json!({"matchLabels": {"app": "web"}}), true),
            (serde_json::json!({"matchLabels": {"app": "api"}}), false),
            (
                serde_json::json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]}),
                true,
            ),
            (
                serde_json::json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}),
                false,
            ),
            (
                serde_json::json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}, {"key": "x", "operator": "DoesNotExist"}]}),
                true,
            ),
        ] {
            assert_eq!(LabelSelector::from_label_selector(&selector).unwrap().matches(&object), matches, "{selector}");
        }
        for expression in [
            serde_json::json!({"key": "a", "operator": "In"}),
            serde_json::json!({"key": "a", "operator": "Exists", "values": ["b"]}),
            serde_json::json!({"key": "a", "operator": "Above", "values": ["b"]}),
        ] {
            assert!(
                LabelSelector::from_label_selector(&serde_json::json!({"matchExpressions": [expression]})).is_err()
            );
        }
        assert!(LabelSelector::from_map(&serde_json::json!({"app": "web"})).matches(&object));
        assert!(LabelSelector::from_map(&Value::Null).is_empty());
    }

    #[test]
    fn selectors_in_the_form_of_objects() {
        for text in ["", "a=b,c=", "a in (b,c),d notin (e),f,!g", "a=b,a=c", "a!=b"] {
            let selector = LabelSelector::parse(text).unwrap();
            let written = selector.to_label_selector().unwrap();
            let read = LabelSelector::from_label_selector(&written).unwrap();
            for labels in [
                serde_json::json!({}),
                serde_json::json!({"a": "b", "c": "", "f": ""}),
                serde_json::json!({"a": "c", "f": "", "g": ""}),
            ] {
                assert_eq!(read.matches_labels(&labels), selector.matches_labels(&labels), "{text}: {labels}");
            }
        }
        for (text, operator) in [("a=b,n>5", "gt"), ("n<5", "lt")] {
            let error = LabelSelector::parse(text).unwrap().to_label_selector().unwrap_err();
            assert_eq!(error.to_string(), format!("{operator:?} isn't supported in label selectors"));
        }
    }

    proptest! {
        #[test]
        fn written_and_read_again(pairs in prop::collection::btree_map("[a-z]{1,5}", "[a-z0-9]{0,5}", 0..4)) {
            let text = pairs.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
            let map = serde_json::json!(pairs);
            prop_assert_eq!(LabelSelector::parse(&text).unwrap(), LabelSelector::from_map(&map));
            prop_assert!(LabelSelector::from_map(&map).matches_labels(&map));
        }

        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _ = LabelSelector::parse(&text);
        }
    }
}
