//! Label selectors with expressions. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use windlass_apimachinery::selectors;

/// A selector of an object, of either form: a map, or a map with expressions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Selector<'a> {
    pairs: Option<&'a BTreeMap<String, String>>,
    expressions: &'a [LabelSelectorRequirement],
}

impl<'a> From<&'a BTreeMap<String, String>> for Selector<'a> {
    fn from(map: &'a BTreeMap<String, String>) -> Self {
        Self { pairs: Some(map), expressions: &[] }
    }
}

impl<'a> From<&'a LabelSelector> for Selector<'a> {
    fn from(selector: &'a LabelSelector) -> Self {
        Self {
            pairs: selector.match_labels.as_ref(),
            expressions: selector.match_expressions.as_deref().unwrap_or_default(),
        }
    }
}

impl<'a> Selector<'a> {
    /// The selector of an owner; an empty one would select everything, and selects nothing.
    #[must_use]
    pub fn of(selector: &'a LabelSelector) -> Option<Self> {
        Some(Self::from(selector)).filter(|selector| !selector.is_empty())
    }

    /// Whether the selector requires nothing; it matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_none_or(BTreeMap::is_empty) && self.expressions.is_empty()
    }

    /// Whether labels match; a selector that cannot be read matches nothing.
    #[must_use]
    pub fn matches(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let label = |key: &str| labels.and_then(|labels| labels.get(key));
        self.pairs().all(|(key, value)| label(key) == Some(value))
            && self.expressions.iter().all(|expression| {
                let (label, values) = (label(&expression.key), values(expression));
                match expression.operator.as_str() {
                    "In" => label.is_some_and(|label| values.contains(label)),
                    "NotIn" => !values.is_empty() && label.is_none_or(|label| !values.contains(label)),
                    "Exists" => values.is_empty() && label.is_some(),
                    "DoesNotExist" => values.is_empty() && label.is_none(),
                    _ => false,
                }
            })
    }

    /// The pairs that labels must have.
    pub fn pairs(&self) -> impl Iterator<Item = (&'a String, &'a String)> + use<'a> {
        self.pairs.into_iter().flatten()
    }

    /// A key whose value must be one of a few: of several such, the one with the fewest values.
    #[must_use]
    pub fn one_of(&self) -> Option<(&'a str, &'a [String])> {
        let all = self.expressions.iter().filter(|expression| expression.operator == "In");
        let fewest = all.min_by_key(|expression| values(expression).len())?;
        Some((&fewest.key, values(fewest)))
    }

    /// A key that labels must have, with any value.
    #[must_use]
    pub fn exists(&self) -> Option<&'a str> {
        self.expressions.iter().find(|expression| expression.operator == "Exists").map(|e| e.key.as_str())
    }
}

/// Reads a selector that is written as in queries, such as that of a scale: upstream's `ParseToLabelSelector`.
///
/// # Errors
/// What is wrong, in the API's words.
pub fn parse(text: &str) -> Result<LabelSelector, String> {
    let parsed = selectors::LabelSelector::parse(text)
        .map_err(|error| format!("couldn't parse the selector string {text:?}: {error}"))?;
    let written = parsed.to_label_selector().map_err(|error| error.to_string())?;
    serde_json::from_value(written).map_err(|error| error.to_string())
}

/// Writes a selector as in queries; without requirements it is empty.
#[must_use]
pub fn text(selector: &LabelSelector) -> String {
    serde_json::to_value(selector).map_or_else(|_| String::new(), |value| selectors::label_selector_text(&value))
}

/// A selector as Go writes it (`%+v`).
#[must_use]
pub fn go_selector(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}: {value},"));
    let expression = |LabelSelectorRequirement { key, operator, values }: &LabelSelectorRequirement| {
        let values = values.as_deref().unwrap_or_default().join(" ");
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    };
    let expressions = selector.match_expressions.iter().flatten().map(expression);
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{}}},MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
        labels.collect::<String>(),
        expressions.collect::<String>()
    )
}

fn values(expression: &LabelSelectorRequirement) -> &[String] {
    expression.values.as_deref().unwrap_or_default()
}

/// Whether a selector selects an object with these labels; one that cannot be read selects nothing.
#[must_use]
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Selector::from(selector).matches(Some(labels))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn expression() -> impl Strategy<Value = LabelSelectorRequirement> {
        let operator = prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist", "in"]);
        (0u8..4, operator, prop::collection::vec(0u8..3, 0..3)).prop_map(|(key, operator, values)| {
            LabelSelectorRequirement {
                key: format!("k{key}"),
                operator: operator.to_owned(),
                values: Some(values.iter().map(|v| format!("v{v}")).collect()),
            }
        })
    }

    fn pairs() -> impl Strategy<Value = BTreeMap<String, String>> {
        prop::collection::btree_map(0u8..4, 0u8..3, 0..4)
            .prop_map(|map| map.into_iter().map(|(k, v)| (format!("k{k}"), format!("v{v}"))).collect())
    }

    #[test]
    fn selectors_are_written_and_read() {
        for written in ["a=b", "a=b,c in (d,e),f,!g", "a notin (b)"] {
            assert_eq!(text(&parse(written).unwrap()), written);
        }
        let why = "couldn't parse the selector string \"a=b c\": found 'c', expected: ',' or 'end of string'";
        assert_eq!(parse("a=b c").unwrap_err(), why);
        assert_eq!(parse("n>5").unwrap_err(), "\"gt\" isn't supported in label selectors");
    }

    #[test]
    fn go_writes_selectors_so() {
        let selector = |value: serde_json::Value| serde_json::from_value::<LabelSelector>(value).unwrap();
        assert_eq!(go_selector(None), "nil");
        let all = selector(json!({"matchLabels": {"b": "1", "a": ""},
            "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]}));
        assert_eq!(
            go_selector(Some(&all)),
            "&LabelSelector{MatchLabels:map[string]string{a: ,b: 1,},\
         MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:c,Operator:In,Values:[x y],},},}"
        );
        let exists = selector(json!({"matchExpressions": [{"key": "e", "operator": "Exists"}]}));
        assert_eq!(
            go_selector(Some(&exists)),
            "&LabelSelector{MatchLabels:map[string]string{},\
         MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:e,Operator:Exists,Values:[],},},}"
        );
        assert_eq!(
            go_selector(Some(&LabelSelector::default())),
            "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement{},}"
        );
    }

    proptest! {
        /// Says the same as the selectors of the API's lists.
        #[test]
        fn matches_as_the_api_does(
            match_labels in pairs(),
            expressions in prop::collection::vec(expression(), 0..3),
            labels in pairs(),
        ) {
            let selector = LabelSelector { match_labels: Some(match_labels), match_expressions: Some(expressions) };
            let parsed = selectors::LabelSelector::from_label_selector(&serde_json::to_value(&selector).unwrap());
            let expected = parsed.is_ok_and(|s| s.matches_labels(&serde_json::to_value(&labels).unwrap()));
            prop_assert_eq!(selects(&selector, &labels), expected);
        }
    }
}
