//! Removes tokens by which nodes joined when they expire. Upstream's `TokenCleaner`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::DeleteParams};
use windlass_identity::bootstrap_secret::{Life, life};

use super::token;
use crate::runtime::{Cache, CachedSecret, Context, Controller, During as _, Error, Key, Outcome, error, same_version};

pub(crate) struct BootstrapTokenCleaner {
    client: Client,
    secrets: Cache<CachedSecret>,
}

impl Controller for BootstrapTokenCleaner {
    const NAME: &'static str = "token-cleaner-controller";
    const QUEUE: &'static str = "token_cleaner";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let secrets = context.informer::<CachedSecret>();
        secrets.queue_where(context.queue(), |secret| token(secret).is_some());
        Self { client: context.client(), secrets: secrets.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let cached = self.secrets.get(&key);
        let Some(secret) = cached.as_deref().and_then(token) else { return Ok(Outcome::Done) };
        match life(secret, Timestamp::now()) {
            Life::WithoutEnd => Ok(Outcome::Done),
            Life::For(left) => Ok(Outcome::After(left)),
            Life::Over => {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
                // One that somebody has just prolonged stays.
                let params = DeleteParams::default().preconditions(same_version(&secret.metadata));
                error::ignore_deleted(api.delete(&key.name, &params).await).during("delete the expired token", &key)?;
                Ok(Outcome::Done)
            }
        }
    }
}
