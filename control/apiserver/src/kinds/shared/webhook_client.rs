//! How a webhook is reached: by a URL or by a Service. Pure.

use super::field::Field;
use crate::apiserver::pipeline::validation::{errors::Errors, names};

/// Validates the URL of a webhook. Upstream: `ValidateWebhookURL`.
pub(crate) fn validate_url(field: &Field<'_>, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (url, here) = (field.text(), &field.path);
    if let Some(escape) = bad_escape(url) {
        let why = format!("url must be a valid URL: parse {url:?}: invalid URL escape {escape:?}{FORM}");
        return errors.required(here, &why);
    }
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    };
    let (scheme, rest) = rest.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).unwrap_or(("", rest));
    let authority = rest.strip_prefix("//").map_or("", |rest| rest.split('/').next().unwrap_or(""));
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if !scheme.eq_ignore_ascii_case("https") {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.invalid_text(here, &scheme.to_lowercase(), &why);
    }
    if host.is_empty() {
        errors.invalid_text(here, host, &format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        errors.invalid_text(here, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid_text(here, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid_text(here, query, "query parameters are not permitted in the URL");
    }
}

/// The first invalid escape of a URL: a `%` without two hexadecimal digits, and up to two characters after it.
fn bad_escape(url: &str) -> Option<String> {
    let mut rest = url;
    while let Some(at) = rest.find('%') {
        let escape: String = rest[at..].chars().take(3).collect();
        if escape.len() != 3 || !escape[1..].bytes().all(|b| b.is_ascii_hexdigit()) {
            return Some(escape);
        }
        rest = &rest[at + 1..];
    }
    None
}

/// Validates the Service of a webhook. Upstream: `ValidateWebhookService`.
pub(crate) fn validate_service(service: &Field<'_>, errors: &mut Errors) {
    // Upstream confuses the two.
    for (field, told) in [("namespace", "name"), ("name", "namespace")] {
        if service.at(field).text().is_empty() {
            service.at(told).required("", errors);
        }
    }
    let port = service.at("port");
    if let Some(why) = port.number().and_then(names::port_number) {
        port.invalid(&format!("port is not valid: {why}"), errors);
    }
    let path = service.at("path");
    let text = path.text();
    if text.is_empty() || text == "/" {
        return;
    }
    if text == "//" {
        return path.invalid("segment[0] may not be empty", errors);
    }
    if !text.starts_with('/') {
        path.invalid("must start with a '/'", errors);
    }
    let inner: String = text.chars().skip(1).collect();
    let inner = inner.strip_suffix('/').unwrap_or(&inner);
    for (at, step) in inner.split('/').enumerate() {
        if step.is_empty() {
            path.invalid(&format!("segment[{at}] may not be empty"), errors);
        } else if let Some(why) = names::subdomain(step) {
            path.invalid(&format!("segment[{at}]: {why}"), errors);
        }
    }
}
