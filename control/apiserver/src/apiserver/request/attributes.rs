//! What is authorized and recorded of a request: upstream's `authorizer.Attributes`. Pure.

/// What a user wants to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes<'a> {
    /// The verb; in lower case the method of a request that is about no resource.
    pub verb: &'a str,
    /// Whether the request is about a resource.
    pub is_resource: bool,
    /// The path.
    pub path: &'a str,
    /// The API group.
    pub group: &'a str,
    /// The version.
    pub version: &'a str,
    /// The plural name.
    pub resource: &'a str,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// The namespace; empty for all and for cluster-scoped resources.
    pub namespace: &'a str,
    /// The name; empty for all.
    pub name: &'a str,
    /// The field selector, as the query has it.
    pub field_selector: &'a str,
}

impl Attributes<'_> {
    /// The value that the field selector requires of a field.
    #[must_use]
    pub fn selected(&self, field: &str) -> Option<&str> {
        exact(self.field_selector, field)
    }
}

/// The value that a selector requires of a field, if it can be parsed.
pub(in crate::apiserver) fn exact<'a>(selector: &'a str, field: &str) -> Option<&'a str> {
    let mut found = None;
    for part in selector.split(',').filter(|part| !part.is_empty()) {
        if part.contains("!=") {
            continue;
        }
        let (name, value) = part.split_once("==").or_else(|| part.split_once('='))?;
        if name == field && found.is_none() {
            found = Some(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_values_of_fields() {
        for (selector, found) in [
            ("spec.nodeName=n", Some("n")),
            ("a=b,spec.nodeName==n", Some("n")),
            ("spec.nodeName!=n", None),
            ("nonsense", None),
            ("spec.nodeName=n,nonsense", None),
            ("", None),
        ] {
            assert_eq!(exact(selector, "spec.nodeName"), found, "{selector}");
        }
    }
}
