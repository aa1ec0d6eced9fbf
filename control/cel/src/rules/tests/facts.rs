//! What upstream answers in its own tests of rules, replayed: `tests/data/rules`.

use serde_json::Value as Json;
use windlass_apimachinery::{
    field::{Cause, FieldError},
    schema::{Schema, ValidationRule, structural},
};

use super::super::{Findings, RuleBudget, RuleChecks, SchemaRules, compile::Scope, types::TypeInfo};
use crate::eval::PER_CALL_LIMIT;

fn facts(text: &'static str) -> impl Iterator<Item = Json> {
    text.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).expect("JSON"))
}

fn text<'a>(fact: &'a Json, name: &str) -> &'a str {
    fact[name].as_str().unwrap_or_default()
}

fn number(fact: &Json, name: &str) -> Option<u64> {
    fact[name].as_str().map(|text| text.parse().expect("a number"))
}

/// Errors as facts write them, sorted: upstream walks maps in any order.
fn written(errors: &[FieldError]) -> Vec<String> {
    let mut all: Vec<String> = errors.iter().map(|error| format!("{} {error}", error.cause.as_str())).collect();
    all.sort();
    all
}

fn texts(fact: &Json, name: &str) -> Vec<String> {
    let texts = fact[name].as_array().into_iter().flatten().filter_map(Json::as_str).map(str::to_owned);
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    texts
}

/// Facts that are not so here, by what is in them, and why.
const EXCEPTIONS: [(&str, &str); 5] = [
    ("fakeFunction('abc')", "A test of upstream's adds a function."),
    ("self.val.exists(k, self.val[k] > 1)", "Go walks maps in any order: here the second key is not the first."),
    ("self.val3 == 340282346638528859811704183484516925440.000000", "The recording has float32 values in short."),
    ("Go struct field ObjectMeta.name of type string", "The type of metadata is not known to this crate."),
    // Upstream shows its internal type with all fields.
    ("{\"ID\":", "A whole schema is shown as it was written."),
];

/// Refuses facts that differ, unless they are excused.
fn report(what: &str, rows: usize, different: &[String]) {
    let is_excused = |text: &String| {
        let plain = text.replace("\\\"", "\"");
        EXCEPTIONS.iter().any(|(part, _)| plain.contains(part))
    };
    let different: Vec<&String> = different.iter().filter(|text| !is_excused(text)).collect();
    let shown: Vec<&str> = different.iter().map(|text| text.as_str()).take(20).collect();
    assert!(different.is_empty(), "{} of {rows} {what} differ:\n{}", different.len(), shown.join("\n"));
}

#[test]
fn objects_have_upstreams_findings() {
    let (mut rows, mut different) = (0, Vec::new());
    for fact in facts(include_str!("../../../tests/data/rules/validations.jsonl")) {
        rows += 1;
        let (schema, object) = (&fact["schema"], &fact["object"]);
        let rules = SchemaRules::build(schema, fact["root"] == true);
        let limit = number(&fact, "perCall").unwrap_or(PER_CALL_LIMIT);
        let before = number(&fact, "budget").unwrap_or(10_000_000);
        let mut budget = RuleBudget::new(before, limit);
        let old = Some(&fact["old"]).filter(|old| !old.is_null());
        let ratchets = (fact["ratchets"] == true).then_some(schema);
        // What is tolerated is warned of, and nothing else differs.
        let counted = |ratchets| {
            let mut budget = RuleBudget::new(before, limit);
            let found = rules.as_ref().map(|rules| rules.validate("root", object, old, ratchets, &mut budget));
            found.map_or(0, |found| found.errors.len() + found.warnings.len())
        };
        assert_eq!(counted(Some(schema)), counted(None), "{fact}");
        let found = rules.map(|rules| rules.validate("root", object, old, ratchets, &mut budget)).unwrap_or_default();
        let Findings { errors, mut warnings } = found;
        warnings.sort();
        let spent = budget.left().map_or_else(|| "all".to_owned(), |left| (before - left).to_string());
        let (is, wanted) = (
            (written(&errors), warnings, spent),
            (texts(&fact, "errors"), texts(&fact, "warnings"), text(&fact, "spent").to_owned()),
        );
        if is != wanted {
            different.push(format!("{fact}\n  upstream {wanted:?}\n  here     {is:?}"));
        }
    }
    report("validations", rows, &different);
    assert!(rows > 1000, "{rows}");
}

#[test]
fn rules_have_upstreams_estimates() {
    let (mut rows, mut different) = (0, Vec::new());
    for fact in facts(include_str!("../../../tests/data/rules/compilations.jsonl")) {
        let schema = &fact["schema"];
        let info = TypeInfo::of(schema, fact["root"] == true);
        let Some(info) = info else {
            rows += 1;
            if text(&fact, "error").is_empty() {
                different.push(format!("{fact}\n  here there is no type"));
            }
            continue;
        };
        let scope = Scope::new(&info, schema);
        for (rule, wanted) in ValidationRule::all_of(schema).zip(fact["rules"].as_array().into_iter().flatten()) {
            rows += 1;
            let is = scope.compile(&rule);
            let is = (
                is.error.clone().unwrap_or_default(),
                is.uses_old_self,
                is.cost,
                is.cardinality,
                is.message_error.clone().unwrap_or_default(),
                is.message_cost,
                is.field_path.as_deref().unwrap_or_default().to_owned(),
            );
            let count = |name: &str| number(wanted, name).unwrap_or(0);
            let wanted = (
                text(wanted, "error").to_owned(),
                wanted["usesOldSelf"] == true,
                count("cost"),
                count("cardinality"),
                text(wanted, "messageError").to_owned(),
                count("messageCost"),
                text(wanted, "fieldPath").to_owned(),
            );
            if is != wanted {
                different.push(format!("{schema}\n  {rule:?}\n  upstream {wanted:?}\n  here     {is:?}"));
            }
        }
    }
    report("compilations", rows, &different);
    assert!(rows > 300, "{rows}");
}

#[test]
fn definitions_have_upstreams_errors() {
    let object_meta = std::sync::Arc::new(Schema::any());
    let (mut rows, mut different) = (0, Vec::new());
    for fact in facts(include_str!("../../../tests/data/rules/definitions.jsonl")) {
        rows += 1;
        let mut checks = RuleChecks::new(fact["unchanged"] == true);
        let status = fact["status"] == true;
        let found = structural::validate(&fact["schema"], "schema.openAPIV3Schema", status, &object_meta, &mut checks);
        let (is, wanted) = (written(&found), texts(&fact, "errors"));
        if is != wanted {
            let only = |one: &[String], other: &[String]| {
                one.iter().filter(|error| !other.contains(error)).cloned().collect::<Vec<_>>()
            };
            different.push(format!("{fact}\n  upstream {:?}\n  here     {:?}", only(&wanted, &is), only(&is, &wanted)));
        }
    }
    report("definitions", rows, &different);
    assert!(rows > 150, "{rows}");
}

#[test]
fn causes_are_written_as_upstreams_types() {
    assert_eq!(Cause::Internal.as_str(), "InternalError");
}
