//! `apiVersion`, read and written in one place. Pure.

use std::fmt;

/// A group and a version, as in `apps/v1`; upstream's `schema.GroupVersion`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupVersion<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// Such as `v1`.
    pub version: &'a str,
}

impl<'a> GroupVersion<'a> {
    /// The parts of an `apiVersion`: `v1` is of the core group. What has more than one slash keeps the others in its version,
    /// which no type has.
    #[must_use]
    pub fn parse(api_version: &'a str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group, version }
    }

    /// With a kind, as Go shows it: upstream's `GroupVersionKind.String`.
    #[must_use]
    pub fn with_kind(&self, kind: &str) -> String {
        format!("{}/{}, Kind={kind}", self.group, self.version)
    }
}

/// The `apiVersion`: `v1`, or `group/version`.
impl fmt::Display for GroupVersion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(self.version) } else { write!(f, "{}/{}", self.group, self.version) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_versions() {
        for (text, group, version) in [
            ("v1", "", "v1"),
            ("apps/v1", "apps", "v1"),
            ("", "", ""),
            ("a/b/c", "a", "b/c"),
            ("a.b/v2beta1", "a.b", "v2beta1"),
        ] {
            let parsed = GroupVersion::parse(text);
            assert_eq!(parsed, GroupVersion { group, version });
            assert_eq!(parsed.to_string(), text);
        }
        assert_eq!(GroupVersion::parse("v1").with_kind("Pod"), "/v1, Kind=Pod");
        assert_eq!(GroupVersion::parse("apps/v1").with_kind("Deployment"), "apps/v1, Kind=Deployment");
    }
}
