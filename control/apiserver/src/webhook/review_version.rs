//! What reviews of admission and of conversion have in common: their versions, and what makes an answer one. Pure.

use windlass_apimachinery::group_version::GroupVersion;

/// A version of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReviewVersion {
    V1,
    /// Answers need neither the type nor the uid of the review.
    V1Beta1,
}

impl ReviewVersion {
    /// The first of the versions that a webhook reads that is known here.
    pub(crate) fn first_known<'a>(versions: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        versions.into_iter().find_map(|version| match version {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        })
    }

    /// Of the reviews of a group.
    pub(crate) fn api_version(self, group: &str) -> String {
        let version = if self == Self::V1 { "v1" } else { "v1beta1" };
        GroupVersion { group, version }.to_string()
    }

    /// Whether an answer has the type of the review: `wanted` is its group and kind.
    ///
    /// # Errors
    /// In upstream's words, when it has not.
    pub(crate) fn check_type(self, wanted: (&str, &str), api_version: &str, kind: &str) -> Result<(), String> {
        let (group, wanted_kind) = wanted;
        let wanted = self.api_version(group);
        if self == Self::V1Beta1 || (api_version, kind) == (wanted.as_str(), wanted_kind) {
            return Ok(());
        }
        let shown = |api_version: &str, kind: &str| GroupVersion::parse(api_version).with_kind(kind);
        Err(format!("expected webhook response of {}, got {}", shown(&wanted, wanted_kind), shown(api_version, kind)))
    }

    /// Whether an answer is to the review of this uid.
    ///
    /// # Errors
    /// In upstream's words, when it is not.
    pub(crate) fn check_uid(self, uid: &str, answered: &str) -> Result<(), String> {
        if self == Self::V1Beta1 || answered == uid {
            return Ok(());
        }
        Err(format!("expected response.uid={uid:?}, got {answered:?}"))
    }
}
