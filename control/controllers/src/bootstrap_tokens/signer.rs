//! Signs the public description of the cluster, which kubeadm makes, with each token that may sign: a node that knows only its
//! token sees by the signature that it talks to the right cluster. Upstream's `Signer`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::{Map, Value, json};
use windlass_identity::bootstrap_secret::signing_token;
use windlass_kit::bootstrap::{SIGNATURE_PREFIX, Token, sign};

use super::token;
use crate::runtime::{Cache, CachedSecret, Context, Controller, During as _, Error, Index, Key, Outcome, error};

const MAP_NAMESPACE: &str = "kube-public";
const MAP: &str = "cluster-info";
/// The field that is signed.
const KUBECONFIG: &str = "kubeconfig";

/// The secrets with tokens by which nodes join.
const TOKENS: Index<CachedSecret> =
    Index::new("bootstrap token", |secret| token(secret).map(|_| String::new()).into_iter().collect());

pub(crate) struct BootstrapSigner {
    client: Client,
    secrets: Cache<CachedSecret>,
}

impl Controller for BootstrapSigner {
    const NAME: &'static str = "bootstrap-signer-controller";
    const QUEUE: &'static str = "bootstrap_signer_queue";
    const WORKERS: usize = 1;
    /// The one ConfigMap.
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let secrets = context.informer::<CachedSecret>();
        let maps = context.informer::<PartialObjectMeta<ConfigMap>>();
        secrets.index(&TOKENS);
        let map = Key::new(MAP_NAMESPACE, MAP);
        let (queue, key) = (context.queue(), map.clone());
        secrets.on_change(move |old, new| {
            if [old, new].into_iter().flatten().any(|secret| token(secret).is_some()) {
                queue.add(key.clone());
            }
        });
        let queue = context.queue();
        maps.on_change(move |_, new| {
            if new.is_some_and(|new| Key::of(&new.metadata) == map) {
                queue.add(map.clone());
            }
        });
        Self { client: context.client(), secrets: secrets.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.namespace);
        let Some(map) = api.get_opt(&key.name).await.during("read what joining nodes read", &key)? else {
            return Ok(Outcome::Done);
        };
        let now = Timestamp::now();
        let secrets = self.secrets.by_index(&TOKENS, "");
        let tokens: Vec<Token> = secrets.iter().filter_map(|secret| signing_token(token(secret)?, now)).collect();
        let data = map.data.unwrap_or_default();
        if let Some(changed) = changed(&data, &tokens) {
            let patch = json!({"metadata": {"resourceVersion": map.metadata.resource_version}, "data": changed});
            let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            error::of_seen(written, "sign what joining nodes read", &key)?;
        }
        Ok(Outcome::Done)
    }
}

/// The signatures that are missing or wrong, and those to remove; `None` if all is as it should be. Pure.
fn changed(data: &BTreeMap<String, String>, tokens: &[Token]) -> Option<Value> {
    let content = data.get(KUBECONFIG)?;
    let mut changed = Map::new();
    for name in data.keys().filter(|name| name.starts_with(SIGNATURE_PREFIX)) {
        changed.insert(name.clone(), Value::Null);
    }
    for token in tokens {
        let name = format!("{SIGNATURE_PREFIX}{}", token.id());
        let signature = sign(token, content.as_bytes());
        if data.get(&name) == Some(&signature) {
            changed.remove(&name);
        } else {
            changed.insert(name, json!(signature));
        }
    }
    (!changed.is_empty()).then_some(changed.into())
}

#[cfg(test)]
mod tests {
    use windlass_kit::bootstrap::verify;

    use super::*;

    fn map(fields: &[(&str, &str)]) -> BTreeMap<String, String> {
        fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_map_is_signed_by_each_token_and_by_no_other() {
        let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
        let tokens = [token.clone()];
        let first = changed(&map(&[("kubeconfig", "x"), ("jws-kubeconfig-fedcba", "old")]), &tokens).unwrap();
        assert_eq!(first["jws-kubeconfig-fedcba"], Value::Null);
        let signature = first["jws-kubeconfig-abcdef"].as_str().unwrap();
        verify(&token, b"x", signature).unwrap();
        let signed = map(&[("kubeconfig", "x"), ("jws-kubeconfig-abcdef", signature)]);
        assert_eq!(changed(&signed, &tokens), None);
        let other = map(&[("kubeconfig", "y"), ("jws-kubeconfig-abcdef", signature)]);
        assert_ne!(changed(&other, &tokens).unwrap()["jws-kubeconfig-abcdef"], signature);
        assert_eq!(changed(&signed, &[]), Some(json!({"jws-kubeconfig-abcdef": null})));
        assert_eq!(changed(&map(&[("jws-kubeconfig-fedcba", "old")]), &tokens), None, "nothing to sign");
    }
}
