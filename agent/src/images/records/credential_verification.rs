//! Which images of the store a pod must present credentials for. Pure.

use windlass_kit::objects::image::Reference;

/// When pods must present credentials for an image that is in the store: `imagePullCredentialsVerificationPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PullVerificationPolicy {
    /// Never.
    Never,
    /// For images that this node has pulled; those that were preloaded are free to use.
    #[default]
    NotPreloaded,
    /// For all but these repositories; a prefix ends in `/*`.
    NotListed(Vec<String>),
    /// For all images.
    Always,
}

impl PullVerificationPolicy {
    /// Parses the policy and its allowlist, which belongs to one of the policies.
    ///
    /// # Errors
    /// When either is not valid.
    pub fn read(policy: &str, list: &[String]) -> Result<Self, String> {
        let read = match policy {
            "NeverVerify" => Self::Never,
            "NeverVerifyPreloadedImages" => Self::NotPreloaded,
            "AlwaysVerify" => Self::Always,
            "NeverVerifyAllowlistedImages" => {
                return match list.iter().find(|pattern| !is_pattern(pattern)) {
                    None => Ok(Self::NotListed(list.to_vec())),
                    Some(wrong) => Err(format!(
                        "preloadedImagesVerificationAllowlist {wrong:?} is neither an image without tag and digest, nor a prefix that ends in /*"
                    )),
                };
            }
            other => {
                return Err(format!(
                    "imagePullCredentialsVerificationPolicy {other:?} is none of NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages and AlwaysVerify"
                ));
            }
        };
        if list.is_empty() {
            return Ok(read);
        }
        Err("preloadedImagesVerificationAllowlist is set, which imagePullCredentialsVerificationPolicy \
             NeverVerifyAllowlistedImages alone reads"
            .to_owned())
    }

    /// Whether a pod must present credentials for an image, given whether this node has pulled it.
    pub(super) fn requires_verification(&self, image: &Reference, pulled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::NotPreloaded => pulled,
            Self::Always => true,
            Self::NotListed(list) => {
                let name = image.repository();
                !list.iter().any(|one| one.strip_suffix('*').map_or(*one == name, |start| name.starts_with(start)))
            }
        }
    }
}

fn is_pattern(text: &str) -> bool {
    match text.strip_suffix("/*") {
        Some(start) => !start.is_empty() && !start.contains(['*', ' ']),
        None => Reference::parse(text).is_some_and(|image| image.repository() == text),
    }
}
