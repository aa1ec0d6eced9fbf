//! What several kinds tolerate of their stored objects. Pure.

use crate::apiserver::{FieldError, Tolerance};

/// Values in the selectors below these paths that no label can have: upstream took them once.
pub(crate) fn label_values(error: &FieldError, paths: &[&str]) -> Option<Tolerance> {
    let is_there = paths.iter().any(|path| error.field.starts_with(path));
    let is_value = error.field.contains("matchExpressions[") && error.field.contains(".values[");
    (is_there && is_value).then_some(Tolerance::Rule("values of labels in selectors"))
}

/// The rule, if an error is of a field whose path, without the numbers of items, is one of these.
pub(crate) fn rule_of(error: &FieldError, rules: &[(&str, &'static str)]) -> Option<Tolerance> {
    let mut path = String::new();
    let mut depth = 0_u32;
    for c in error.field.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            c if depth == 0 => path.push(c),
            _ => {}
        }
    }
    let (_, rule) = rules.iter().find(|(known, _)| *known == path)?;
    Some(Tolerance::Rule(rule))
}
