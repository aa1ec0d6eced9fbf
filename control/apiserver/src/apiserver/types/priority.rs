//! The order of groups and their versions in discovery. Pure.

/// The place of a group version in discovery: the higher, the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// Of the group among all groups. Of several versions the highest counts.
    pub group: i64,
    /// Of the version in its group.
    pub version: i64,
}

impl Priority {
    /// That of custom resources: lower than those of most built-in groups.
    pub const CUSTOM: Self = Self { group: 1000, version: 100 };
}
