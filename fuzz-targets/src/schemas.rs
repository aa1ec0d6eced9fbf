//! Schemas of custom resources and objects of them: reading and validating never panics, and the stored form is stable.

use std::sync::{Arc, LazyLock};

use windlass_apimachinery::{
    decode::{ContentType, decode},
    effort::Effort,
    schema::{Schema, canonicalize, check, default, drop_invalid_fields, structural, validate},
};
use windlass_cel::{RuleBudget, RuleChecks, SchemaRules};

/// What rules may cost here: more only takes longer.
const BUDGET: RuleBudget = RuleBudget::new(200_000, 50_000);
/// And what patterns may take.
const EFFORT: u64 = 1_000_000;

static OBJECT_META: LazyLock<Arc<Schema>> =
    LazyLock::new(|| windlass_control::kinds::types::schema("meta/v1.ObjectMeta"));

// The text is a JSON list of the schema, the object and the object that was stored before.
pub(crate) fn run(text: &[u8]) {
    let Ok(decoded) = decode(text, ContentType::Json) else { return };
    let (openapi, object, old) = (&decoded.value[0], &decoded.value[1], &decoded.value[2]);
    let refused = !structural::validate(openapi, "schema", true, &OBJECT_META, &mut RuleChecks::new(false)).is_empty();
    let schema = structural::read(openapi, &OBJECT_META);
    let mut once = object.clone();
    drop_invalid_fields(&schema, &mut once);
    canonicalize(&schema, &mut once);
    default(&schema, &mut once);
    let _ = validate(&schema, &once, Some(old), &mut Effort::new(EFFORT));
    let _ = validate(&schema, object, None, &mut Effort::new(EFFORT));
    if let Some(rules) = SchemaRules::compile(openapi, true) {
        let _ = rules.validate("", &once, None, None, &mut { BUDGET });
        let ratcheted = rules.validate("", &once, Some(old), Some(openapi), &mut { BUDGET });
        let strict = rules.validate("", &once, Some(old), None, &mut { BUDGET });
        assert_eq!(
            ratcheted.errors.len() + ratcheted.warnings.len(),
            strict.errors.len(),
            "tolerance decides nothing else"
        );
    }
    if !refused {
        assert!(check(&schema, &once, "X").unknown.is_empty(), "an unknown field is left: {once}");
        let mut twice = once.clone();
        canonicalize(&schema, &mut twice);
        default(&schema, &mut twice);
        assert_eq!(once, twice, "the stored form is stable");
    }
}
