//! Secrets as informers cache them: whole if they hold a token; of all others only the metadata.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer};
use windlass_identity::service_account_tokens::{BOOTSTRAP_SECRET_TYPE, SECRET_TYPE};

use super::cached::{Cached, trim_meta};

/// A secret.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CachedSecret {
    /// Labels and annotations of those with a token only.
    pub(crate) metadata: ObjectMeta,
    token: Option<Arc<Secret>>,
}

impl CachedSecret {
    /// The secret, if it holds the token of a service account, or one by which a node joins.
    pub(crate) fn with_token(&self) -> Option<&Secret> {
        self.token.as_deref()
    }
}

impl From<Secret> for CachedSecret {
    fn from(mut secret: Secret) -> Self {
        trim_meta(&mut secret.metadata);
        let mut metadata = secret.metadata.clone();
        let has_token = matches!(secret.type_.as_deref(), Some(SECRET_TYPE | BOOTSTRAP_SECRET_TYPE));
        if !has_token {
            (metadata.labels, metadata.annotations) = (None, None);
        }
        Self { metadata, token: has_token.then(|| Arc::new(secret)) }
    }
}

impl<'de> Deserialize<'de> for CachedSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Secret::deserialize(deserializer).map(Self::from)
    }
}

windlass_kit::decoded_form!(CachedSecret, Secret);

impl Cached for CachedSecret {}
