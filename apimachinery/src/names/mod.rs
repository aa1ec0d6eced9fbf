//! Names of objects and labels: each check gives upstream's words for what is wrong, or nothing
//! (`k8s.io/apimachinery/pkg/util/validation`). Pure.

#[cfg(test)]
mod tests;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const DNS1035_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

/// Upstream counts bytes and says so of keys and values of labels alone.
fn no_more_than(bytes: usize, unit: &str) -> String {
    format!("must be no more than {bytes} {unit}")
}

fn is_label(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_name(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.bytes().all(fine) && end(text.as_bytes().first()) && end(text.as_bytes().last())
}

/// A label of a DNS name that begins with a letter, as names of Services and kinds.
#[must_use]
pub fn dns1035_label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some(no_more_than(63, "characters"));
    }
    let fine = is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase());
    (!fine).then(|| DNS1035_LABEL.to_owned())
}

/// A label of a DNS name.
#[must_use]
pub fn label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some(no_more_than(63, "characters"));
    }
    // A name with dots gets the message about dots.
    let why = || if subdomain(text).is_none() { "must not contain dots" } else { LABEL };
    (!is_label(text)).then(|| why().to_owned())
}

/// A DNS name.
#[must_use]
pub fn subdomain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some(no_more_than(253, "characters"));
    }
    (!text.split('.').all(is_label)).then(|| SUBDOMAIN.to_owned())
}

/// A label's key, an annotation's key, a finalizer: a name with or without a domain before it.
#[must_use]
pub fn qualified(text: &str) -> Option<String> {
    qualified_problems(text).into_iter().next()
}

/// All that is wrong with a key of a label.
#[must_use]
pub fn qualified_problems(text: &str) -> Vec<String> {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(p, n)| (Some(p), n));
    if name.contains('/') {
        let rule = QUALIFIED.trim_start_matches("name part ");
        return vec![format!(
            "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )];
    }
    let of_prefix = match prefix {
        Some("") => Some("prefix part must be non-empty".to_owned()),
        Some(prefix) if prefix.len() > 253 => Some(format!("prefix part {}", no_more_than(253, "bytes"))),
        Some(prefix) => subdomain(prefix).map(|why| format!("prefix part {why}")),
        None => None,
    };
    let of_length = match name.len() {
        0 => Some("name part must be non-empty".to_owned()),
        64.. => Some(format!("name part {}", no_more_than(63, "bytes"))),
        _ => None,
    };
    let of_name = (!is_name(name)).then(|| QUALIFIED.to_owned());
    [of_prefix, of_length, of_name].into_iter().flatten().collect()
}

/// A label's value.
#[must_use]
pub fn label_value(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some(no_more_than(63, "bytes"));
    }
    (!text.is_empty() && !is_name(text)).then(|| LABEL_VALUE.to_owned())
}

/// What stands between the slashes of a path: names of roles, and of objects that others refer to.
#[must_use]
pub fn path_segment(text: &str) -> Option<String> {
    match text {
        "." | ".." => Some(format!("may not be '{text}'")),
        _ => {
            let found = ['/', '%'].iter().filter(|c| text.contains(**c));
            let found: Vec<String> = found.map(|c| format!("may not contain '{c}'")).collect();
            (!found.is_empty()).then(|| found.join("; "))
        }
    }
}
