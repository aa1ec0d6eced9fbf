//! Removes tokens by which nodes joined when they expire. Upstream's `TokenCleaner`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::DeleteParams};

use crate::{
    bootstrap_secret::{Life, is_token, life},
    controllers::runtime::{Cache, Context, Controller, During as _, Error, Key, Outcome, error, same_version},
};

pub(crate) struct BootstrapTokenCleaner {
    client: Client,
    secrets: Cache<Secret>,
}

impl Controller for BootstrapTokenCleaner {
    const NAME: &'static str = "token-cleaner-controller";
    const QUEUE: &'static str = "token_cleaner";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let secrets = context.informer::<Secret>();
        secrets.queue_where(context.queue(), is_token);
        Self { client: context.client(), secrets: secrets.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(secret) = self.secrets.get(&key).filter(|secret| is_token(secret)) else { return Ok(Outcome::Done) };
        match life(&secret, Timestamp::now()) {
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
