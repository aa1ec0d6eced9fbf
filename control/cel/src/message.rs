//! What a `messageExpression` may give. Pure.

/// The longest text; upstream's `MaxEvaluatedMessageExpressionSizeBytes`.
const MAX_BYTES: usize = 5 * 1024;

/// The text of a `messageExpression`, if it can be shown: one line that is neither empty nor too long.
#[must_use]
pub fn shown_message(text: &str) -> Option<&str> {
    let text = text.trim();
    (!text.is_empty() && text.len() <= MAX_BYTES && !text.contains('\n')).then_some(text)
}
