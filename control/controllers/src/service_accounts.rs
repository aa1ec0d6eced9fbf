//! Every active namespace has a ServiceAccount `default` and a ConfigMap `kube-root-ca.crt`.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    metrics::{Counter, Histogram, Metrics, exponential_buckets},
    prometheus::Text,
};

use super::runtime::{
    Cache, Cached, Context, Controller, During as _, Error, Key, Outcome, Subscription, WorkQueue, error,
};

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
/// The annotation with the description of the ConfigMap.
const DESCRIBED_BY: &str = "kubernetes.io/description";
/// Upstream's description.
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

pub(crate) struct ServiceAccountsController {
    client: Client,
    namespaces: Cache<Namespace>,
    accounts: Cache<PartialObjectMeta<ServiceAccount>>,
    /// Certificates of the API server's CA; empty when no ConfigMap is wanted.
    root_ca: watch::Receiver<String>,
    queue: WorkQueue<Key>,
    metrics: Arc<PublisherMetrics>,
}

/// Metrics by upstream's names (`pkg/controller/certificates/rootcacertpublisher`).
struct PublisherMetrics {
    syncs: Counter<1>,
    duration: Histogram<1>,
}

impl Default for PublisherMetrics {
    fn default() -> Self {
        const BUCKETS: &[f64] = &exponential_buckets::<15>(0.001, 2.0);
        let (name, help) = ("root_ca_cert_publisher_sync_duration_seconds", "Time of a sync of a namespace.");
        Self {
            syncs: Counter::new("root_ca_cert_publisher_sync_total", "Syncs of namespaces.", ["code"]),
            duration: Histogram::new(name, help, ["code"], BUCKETS),
        }
    }
}

impl Metrics for PublisherMetrics {
    fn write(&self, page: &mut Text) {
        self.syncs.write(page);
        self.duration.write(page);
    }
}

impl PublisherMetrics {
    fn synced(&self, error: Option<&Error>, took: Duration) {
        let refused = |error: &Error| match error {
            Error::Api { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code.to_string()),
                _ => None,
            },
            _ => None,
        };
        let code = error.map_or_else(|| "200".to_owned(), |error| refused(error).unwrap_or_else(|| "500".to_owned()));
        self.syncs.add([&code]);
        self.duration.observe_duration([&code], took);
    }
}

impl Controller for ServiceAccountsController {
    const NAME: &'static str = "serviceaccount-controller";
    const QUEUE: &'static str = "serviceaccount";
    type Key = Key;
    type Config = watch::Receiver<String>;

    fn subscribe(context: &mut Context<Key>, root_ca: watch::Receiver<String>) -> Self {
        let namespaces = context.informer::<Namespace>();
        let accounts = context.informer::<PartialObjectMeta<ServiceAccount>>();
        let config_maps = context.informer::<PartialObjectMeta<ConfigMap>>();
        let queue = context.queue();
        let enqueue = queue.clone();
        namespaces.on_change(move |_, new| {
            if let Some(namespace) = new {
                enqueue.add(Key::new("", namespace.name_any()));
            }
        });
        enqueue_namespace(&accounts, &queue, ACCOUNT);
        enqueue_namespace(&config_maps, &queue, ROOT_CA);
        let (namespaces, accounts) = (namespaces.cache(), accounts.cache());
        Self { client: context.client(), namespaces, accounts, root_ca, queue, metrics: context.metrics().of() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let active = self.namespaces.get(&key).is_some_and(|n| is_active(&n));
        if !active {
            return Ok(Outcome::Done);
        }
        let began = Instant::now();
        let result = self.ensure(&key.name).await;
        self.metrics.synced(result.as_ref().err(), began.elapsed());
        match result {
            Err(Error::Api { ref source, .. })
                if error::is_namespace_terminating(source) || error::is_not_found(source) =>
            {
                Ok(Outcome::Done)
            }
            other => other.map(|()| Outcome::Done),
        }
    }

    /// Wakes every namespace when the CA's certificates have changed.
    async fn run(&self, shutdown: CancellationToken) {
        let mut root_ca = self.root_ca.clone();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = root_ca.changed() => {
                    if changed.is_err() {
                        // The sender is gone: the certificates no longer change.
                        return;
                    }
                    self.namespaces.all().iter().for_each(|namespace| self.queue.add(Key::new("", namespace.name_any())));
                }
            }
        }
    }
}

impl ServiceAccountsController {
    async fn ensure(&self, namespace: &str) -> Result<(), Error> {
        if self.accounts.get(&Key::new(namespace, ACCOUNT)).is_none() {
            let account = ServiceAccount {
                metadata: ObjectMeta { name: Some(ACCOUNT.to_owned()), ..ObjectMeta::default() },
                ..ServiceAccount::default()
            };
            let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
            match api.create(&PostParams::default(), &account).await {
                Err(error) if error::is_already_exists(&error) => {}
                other => drop(other.during("create the default service account in namespace", &namespace)?),
            }
        }
        let root_ca = self.root_ca.borrow().clone();
        if root_ca.is_empty() {
            return Ok(());
        }
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let data = BTreeMap::from([("ca.crt".to_owned(), root_ca)]);
        match api.get_opt(ROOT_CA).await.during("read the root CA ConfigMap in namespace", &namespace)? {
            Some(present) => {
                if let Some(patch) = mend(&present, &data) {
                    let patched = api.patch(ROOT_CA, &PatchParams::default(), &Patch::Merge(patch)).await;
                    error::ignore_deleted(patched).during("update the root CA ConfigMap in namespace", &namespace)?;
                }
            }
            None => {
                let description = (DESCRIBED_BY.to_owned(), DESCRIPTION.to_owned());
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(ROOT_CA.to_owned()),
                        annotations: Some(BTreeMap::from([description])),
                        ..ObjectMeta::default()
                    },
                    data: Some(data),
                    ..ConfigMap::default()
                };
                match api.create(&PostParams::default(), &map).await {
                    Err(error) if error::is_already_exists(&error) => {}
                    other => drop(other.during("create the root CA ConfigMap in namespace", &namespace)?),
                }
            }
        }
        Ok(())
    }
}

/// The patch of a map that is to hold this data and nothing else, and its description; `None` for one that does. Pure.
fn mend(present: &ConfigMap, data: &BTreeMap<String, String>) -> Option<Value> {
    let described = present.annotations().get(DESCRIBED_BY).is_some_and(|text| !text.is_empty());
    if present.data.as_ref() == Some(data) && described {
        return None;
    }
    let mut patch = json!({"data": data});
    for other in present.data.iter().flatten().map(|(key, _)| key).filter(|key| !data.contains_key(*key)) {
        patch["data"][other] = Value::Null;
    }
    if !described {
        patch["metadata"] = json!({"annotations": {DESCRIBED_BY: DESCRIPTION}});
    }
    Some(patch)
}

fn is_active(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_none()
        && namespace.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Terminating")
}

/// Wakes the namespace of each changed object called `name`.
fn enqueue_namespace<K: Cached>(informer: &Subscription<K>, queue: &WorkQueue<Key>, name: &'static str) {
    let queue = queue.clone();
    informer.on_change(move |old: Option<&Arc<K>>, new| {
        if let Some(object) = new.or(old)
            && object.meta().name.as_deref() == Some(name)
        {
            queue.add(Key::new("", object.namespace().unwrap_or_default()));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_holds_the_ca_and_nothing_else() {
        let data = BTreeMap::from([("ca.crt".to_owned(), "PEM".to_owned())]);
        let described = json!({"annotations": {DESCRIBED_BY: DESCRIPTION}});
        let mended = |metadata: Value, held: Value| {
            mend(&serde_json::from_value(json!({"metadata": metadata, "data": held})).unwrap(), &data)
        };
        assert_eq!(mended(described.clone(), json!({"ca.crt": "PEM"})), None);
        let patch = json!({"data": {"ca.crt": "PEM", "other": null}});
        assert_eq!(mended(described, json!({"ca.crt": "PEM", "other": "x"})), Some(patch));
        let patch = json!({"data": {"ca.crt": "PEM"}, "metadata": {"annotations": {DESCRIBED_BY: DESCRIPTION}}});
        assert_eq!(mended(json!({}), json!({"ca.crt": "OLD"})), Some(patch));
    }
}
