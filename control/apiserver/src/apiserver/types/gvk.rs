//! Group, version and kind. Pure.

use std::borrow::Cow;

use windlass_apimachinery::group_version::GroupVersion;

/// A name that is known when the program is built, or came with a CustomResourceDefinition.
pub type Name = Cow<'static, str>;

/// Group (empty for core), version and kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// The API group, empty for the core group.
    pub group: Name,
    /// The version, such as `v1`.
    pub version: Name,
    /// The kind, such as `ConfigMap`.
    pub kind: Name,
}

impl Gvk {
    /// A kind that is known when the program is built.
    #[must_use]
    pub const fn of(group: &'static str, version: &'static str, kind: &'static str) -> Self {
        Self { group: Cow::Borrowed(group), version: Cow::Borrowed(version), kind: Cow::Borrowed(kind) }
    }

    /// `v1`, or `group/version`.
    #[must_use]
    pub fn api_version(&self) -> String {
        GroupVersion { group: &self.group, version: &self.version }.to_string()
    }
}
