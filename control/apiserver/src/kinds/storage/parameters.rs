//! The parameters of classes. Pure.

use crate::{apiserver::pipeline::validation::errors::Errors, kinds::shared::field::Field};

const MAX_PARAMETERS: usize = 512;
const MAX_BYTES: usize = 256 * 1024;

/// Validates the parameters of a class; `needed` says that there must be some.
pub(super) fn validate(parameters: &Field<'_>, needed: bool, errors: &mut Errors) {
    if parameters.len() > MAX_PARAMETERS {
        return errors.too_long(&parameters.path, MAX_PARAMETERS);
    }
    let mut total = 0;
    for (key, value) in parameters.entries() {
        if key.is_empty() {
            errors.invalid_text(&parameters.path, "", "field can not be empty.");
        }
        total += key.len() + value.text().len();
    }
    if total > MAX_BYTES {
        errors.too_long(&parameters.path, MAX_BYTES);
    }
    if needed && parameters.is_empty() {
        parameters.required("must contain at least one key/value pair", errors);
    }
}
