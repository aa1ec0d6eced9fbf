//! Warnings for the client of a request: collected while it is handled, and sent in headers of the response, also of an
//! error.
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/filters/warning.go`.

use axum::{http::HeaderValue, response::Response};
use parking_lot::Mutex;

/// How many characters all warnings may have; above that each is cut.
const MAX_CHARS: usize = 4 * 1024;
/// How many characters of each are left then.
const MAX_CHARS_OF_ONE: usize = 256;

/// Warnings that a request collects.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    /// Adds a warning, unless it is a duplicate.
    pub fn add(&self, warning: impl Into<String>) {
        let warning = warning.into();
        let mut all = self.0.lock();
        if !all.contains(&warning) {
            all.push(warning);
        }
    }

    /// Adds several.
    pub fn extend(&self, warnings: impl IntoIterator<Item = String>) {
        warnings.into_iter().for_each(|warning| self.add(warning));
    }

    /// Writes the `Warning` headers.
    pub(in crate::apiserver) fn write(&self, response: &mut Response) {
        let all = self.0.lock();
        for told in headers(&all) {
            response.headers_mut().append("warning", told);
        }
    }
}

/// The values of the headers. They cannot contain control characters: as upstream, such warnings are dropped.
fn headers(warnings: &[String]) -> Vec<HeaderValue> {
    let told = warnings.iter().filter(|text| !text.is_empty() && !text.contains(char::is_control));
    let value = |text: &str| {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()).ok()
    };
    if told.clone().map(|text| text.chars().count()).sum::<usize>() <= MAX_CHARS {
        return told.filter_map(|text| value(text)).collect();
    }
    let mut left = MAX_CHARS;
    let mut values = Vec::new();
    for text in told {
        if left == 0 {
            break;
        }
        let cut: String = text.chars().take(MAX_CHARS_OF_ONE).collect();
        left = left.saturating_sub(cut.chars().count());
        values.extend(value(&cut));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_quoted_and_many_are_cut() {
        let texts = |warnings: &[String]| -> Vec<String> {
            let values = headers(warnings);
            values.iter().map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap()).collect()
        };
        let some = ["unknown field \"ü\\\"".to_owned(), "a\nb".to_owned(), String::new()];
        assert_eq!(texts(&some), [r#"299 - "unknown field \"ü\\\"""#]);
        let long = |size: usize| move |at: usize| format!("{at:02}{}", "ö".repeat(size - 2));
        let fitting: Vec<String> = (0..4).map(long(1024)).collect();
        assert_eq!(texts(&fitting)[3].chars().count(), 1024 + 8);
        let many: Vec<String> = (0..30).map(long(300)).collect();
        let told = texts(&many);
        assert_eq!(told.len(), 16);
        assert!(told.iter().all(|text| text.chars().count() == 256 + 8));
    }
}
