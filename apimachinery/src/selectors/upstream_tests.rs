//! Selectors of upstream's own tests.

use serde_json::{Value, json};
use windlass_fixtures::facts::{json_of, rows, text_of};

use super::{
    FieldSelector, LabelSelector, SelectableField,
    fields::{operator, split, unescaped},
    labels::Requirement,
    parser,
};

static LABELS: &str = include_str!("../../../facts/label_selectors.tsv");
static FIELDS: &str = include_str!("../../../facts/field_selectors.tsv");

/// A requirement in upstream's words, its values in the order of the alphabet and each once.
fn told(requirement: &Requirement) -> Value {
    let list = |values: &[String]| {
        let mut values = values.to_vec();
        values.sort();
        values.dedup();
        json!(values)
    };
    match requirement {
        Requirement::In(key, values) => json!([key, "in", list(values)]),
        Requirement::NotIn(key, values) => json!([key, "notin", list(values)]),
        Requirement::Exists(key) => json!([key, "exists", []]),
        Requirement::Absent(key) => json!([key, "!", []]),
        Requirement::Above(key, number) => json!([key, "gt", [number.to_string()]]),
        Requirement::Below(key, number) => json!([key, "lt", [number.to_string()]]),
    }
}

/// Upstream's requirements with one operator for one meaning.
fn expected(mut requirements: Value) -> Value {
    for requirement in requirements.as_array_mut().unwrap() {
        match requirement[1].as_str().unwrap() {
            "=" | "==" => requirement[1] = json!("in"),
            "!=" => requirement[1] = json!("notin"),
            _ => {}
        }
    }
    requirements
}

/// A requirement as a text.
fn written(requirement: &Value) -> String {
    let (key, operator) = (requirement[0].as_str().unwrap(), requirement[1].as_str().unwrap());
    let values: Vec<&str> = requirement[2].as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect();
    match operator {
        "exists" => key.to_owned(),
        "!" => format!("!{key}"),
        "gt" => format!("{key}>{}", values[0]),
        "lt" => format!("{key}<{}", values[0]),
        "=" | "==" | "!=" => format!("{key}{operator}{}", values[0]),
        operator => format!("{key} {operator} ({})", values.join(",")),
    }
}

fn labels_hold(row: &[&str]) {
    match *row {
        ["TestSelectorParse", text, verdict] => {
            assert_eq!(LabelSelector::parse(&text_of(text)).is_ok(), verdict == "good", "{text}");
        }
        ["TestSelectorMatches", text, labels, matches] => {
            let selector = LabelSelector::parse(&text_of(text)).unwrap();
            assert_eq!(selector.matches_labels(&json_of(labels)), matches == "true", "{text} {labels}");
        }
        ["TestSetSelectorParser", text, "bad"] => assert!(LabelSelector::parse(&text_of(text)).is_err(), "{text}"),
        ["TestSetSelectorParser", text, requirements] => {
            let found = parser::parse(&text_of(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
            let mut found: Vec<Value> = found.iter().map(told).collect();
            // Upstream sorts them by their keys.
            found.sort_by_key(|requirement| requirement[0].as_str().map(str::to_owned));
            if requirements != "null" {
                assert_eq!(Value::Array(found), expected(json_of(requirements)), "{text}");
            }
        }
        ["TestRequirementSelectorMatching", labels, requirements, matches] => {
            let parts: Vec<String> = json_of(requirements).as_array().unwrap().iter().map(written).collect();
            let selector = LabelSelector::parse(&parts.join(",")).unwrap();
            assert_eq!(selector.matches_labels(&json_of(labels)), matches == "true", "{labels} {requirements}");
        }
        ["TestRequirementConstructor", requirement, verdict] => {
            let text = written(&json_of(requirement));
            assert_eq!(LabelSelector::parse(&text).is_ok(), verdict == "good", "{text}");
        }
        _ => panic!("{row:?}"),
    }
}

/// As upstream's parser, which knows no fields.
fn parses(text: &str, fields: &Value) -> Option<bool> {
    let names = ["x", "y", "z", "notin", "foo", "baz", "complex", "foobar"].map(SelectableField::path);
    let selector = FieldSelector::parse(text, Some(&names)).ok()?;
    Some(selector.matches_values(|field| fields[field].as_str().unwrap_or_default()))
}

fn fields_hold(row: &[&str]) {
    match *row {
        ["TestSelectorParse", text, verdict] => {
            assert_eq!(parses(&text_of(text), &Value::Null).is_some(), verdict == "good", "{text}");
        }
        ["TestSelectorMatches", text, fields, matches] => {
            assert_eq!(parses(&text_of(text), &json_of(fields)), Some(matches == "true"), "{text} {fields}");
        }
        ["TestSplitTerms", text, terms] => {
            let text = text_of(text);
            let found = if text.is_empty() { Vec::new() } else { split(&text) };
            assert_eq!(json!(found), json_of(terms), "{text}");
        }
        ["TestSplitTerm", term, "bad"] => assert_eq!(operator(&text_of(term)), None, "{term}"),
        ["TestSplitTerm", term, field, sign, value] => {
            let value = text_of(value);
            assert_eq!(operator(&text_of(term)), Some((field, sign != "!=", &*value)), "{term}");
        }
        ["TestEscapeValue", escaped, "bad"] => assert!(unescaped(&text_of(escaped)).is_err(), "{escaped}"),
        ["TestEscapeValue", escaped, value] => {
            assert_eq!(unescaped(&text_of(escaped)), Ok(text_of(value)), "{escaped}");
        }
        _ => panic!("{row:?}"),
    }
}

#[test]
fn labels_are_selected_as_upstreams_tests_say() {
    let seen = rows(LABELS).inspect(|row| labels_hold(row)).count();
    assert!(seen > 90, "{seen}");
}

#[test]
fn fields_are_selected_as_upstreams_tests_say() {
    let seen = rows(FIELDS).inspect(|row| fields_hold(row)).count();
    assert!(seen > 50, "{seen}");
}
