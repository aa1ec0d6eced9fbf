//! The node's Lease: the heartbeat by which the node lifecycle controller detects a dead node.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::{backoff::Backoff, liveness::LoopProbe};

use super::heartbeat_schedule;
use crate::metrics::{Metrics, WriteKind};

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Configuration of the lease.
#[derive(Debug, Clone)]
pub(super) struct LeaseConfig {
    /// The node's name, which is the lease's too.
    pub(super) node: String,
    /// Lease duration in seconds.
    pub(super) seconds: i32,
}

impl LeaseConfig {
    /// The Lease to create, owned by the Node of this uid so that it is deleted with it.
    fn lease(&self, owner: &str, now: Timestamp) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.node.clone()),
                namespace: Some(LEASE_NAMESPACE.to_owned()),
                owner_references: Some(vec![self.owner(owner)]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.node.clone()),
                lease_duration_seconds: Some(self.seconds),
                renew_time: Some(MicroTime(now)),
                ..LeaseSpec::default()
            }),
        }
    }

    fn owner(&self, uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: uid.to_owned(),
            ..OwnerReference::default()
        }
    }

    /// The merge patch that renews the lease: the time, and whatever differs from the configuration. Its owner is
    /// unchanged while the Node is not known.
    fn renewal_patch(&self, known: Option<&Lease>, owner: Option<&str>, now: Timestamp) -> Value {
        let mut patch = json!({"spec": {"renewTime": MicroTime(now)}});
        let spec = known.and_then(|lease| lease.spec.as_ref());
        if spec.and_then(|s| s.holder_identity.as_deref()) != Some(self.node.as_str()) {
            patch["spec"]["holderIdentity"] = json!(self.node);
        }
        if spec.and_then(|s| s.lease_duration_seconds) != Some(self.seconds) {
            patch["spec"]["leaseDurationSeconds"] = json!(self.seconds);
        }
        if let Some(uid) = owner.filter(|uid| !known.is_some_and(|lease| is_owned(lease, uid))) {
            patch["metadata"] = json!({"ownerReferences": [self.owner(uid)]});
        }
        patch
    }
}

/// Whether the lease is owned by the Node of this uid alone.
fn is_owned(lease: &Lease, uid: &str) -> bool {
    matches!(lease.metadata.owner_references.as_deref(), Some([one]) if one.uid == uid)
}

/// Renews the lease until `shutdown`. `owner` is the uid of the Node in the API, `None` while it does not exist: the
/// garbage collector would delete the lease of a deleted Node again and again.
pub(super) async fn renew(
    client: Client,
    config: LeaseConfig,
    mut owner: watch::Receiver<Option<String>>,
    (heart, metrics): (LoopProbe, Arc<Metrics>),
    shutdown: CancellationToken,
) {
    let api: Api<Lease> = Api::namespaced(client, LEASE_NAMESPACE);
    let mut known: Option<Lease> = None;
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    loop {
        heart.beat();
        let uid = owner.borrow_and_update().clone();
        let wait = match try_renew(&api, &config, known.as_ref(), uid.as_deref()).await {
            Ok(lease) => {
                let version = |lease: Option<&Lease>| lease.and_then(|lease| lease.metadata.resource_version.clone());
                let (before, after) = (version(known.as_ref()), version(lease.as_ref()));
                metrics.record_write(WriteKind::Lease, &config.node, before.as_deref(), after.as_deref());
                known = lease;
                backoff.reset();
                heartbeat_schedule::renew_interval(config.seconds, heartbeat_schedule::random_fraction())
            }
            Err(error) => {
                // Someone else may have changed it.
                known = None;
                tracing::warn!(error = %windlass_kit::client::message(&error), "failed to renew node lease; retrying");
                backoff.next_delay()
            }
        };
        let due = tokio::time::sleep(wait);
        tokio::pin!(due);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return heart.end(),
                () = &mut due => break,
                changed = owner.changed() => {
                    if changed.is_err() {
                        shutdown.cancelled().await;
                        return heart.end();
                    }
                    let uid = owner.borrow_and_update().clone();
                    // The Node was recreated: take over the lease at once, before it is garbage-collected with the old
                    // one.
                    if uid.is_some_and(|uid| !known.as_ref().is_some_and(|lease| is_owned(lease, &uid))) {
                        break;
                    }
                }
            }
        }
    }
}

/// Renews the lease, or creates it; `None` while there is neither a lease nor a Node to own it.
async fn try_renew(
    api: &Api<Lease>,
    config: &LeaseConfig,
    known: Option<&Lease>,
    owner: Option<&str>,
) -> kube::Result<Option<Lease>> {
    let patch = config.renewal_patch(known, owner, Timestamp::now());
    match api.patch(&config.node, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(answer)) if answer.code == 404 => match owner {
            Some(uid) => api.create(&PostParams::default(), &config.lease(uid, Timestamp::now())).await.map(Some),
            None => Ok(None),
        },
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use windlass_kit::{
        client::{Access, Limits},
        liveness::Heartbeats,
    };

    use super::*;

    fn lease_config() -> LeaseConfig {
        LeaseConfig { node: "n".to_owned(), seconds: 40 }
    }

    #[test]
    fn renewals_correct_what_differs() {
        let now: Timestamp = "2026-01-01T00:00:00.5Z".parse().unwrap();
        let time = "2026-01-01T00:00:00.500000Z";
        let lease = lease_config().lease("u", now);
        let only_time = json!({"spec": {"renewTime": time}});
        assert_eq!(lease_config().renewal_patch(Some(&lease), Some("u"), now), only_time);
        assert_eq!(lease_config().renewal_patch(Some(&lease), None, now), only_time, "who owns it is not known");
        let again = lease_config().renewal_patch(Some(&lease), Some("u2"), now);
        assert_eq!(again["metadata"]["ownerReferences"][0]["uid"], "u2");
        let mut other = lease.clone();
        other.spec = Some(LeaseSpec { holder_identity: Some("x".into()), ..LeaseSpec::default() });
        assert_eq!(
            lease_config().renewal_patch(Some(&other), Some("u"), now),
            json!({"spec": {"renewTime": time, "holderIdentity": "n", "leaseDurationSeconds": 40}})
        );
        let unseen = lease_config().renewal_patch(None, Some("u"), now);
        assert_eq!(
            (&unseen["spec"]["holderIdentity"], &unseen["metadata"]["ownerReferences"][0]["uid"]),
            (&json!("n"), &json!("u"))
        );
    }

    /// The API server's machine vanishes, and another takes its address: the lease must be renewed long before the
    /// kernel gives the old connection up.
    #[tokio::test]
    async fn the_lease_is_renewed_after_a_request_without_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = kube::Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let _ = rustls::crypto::ring::default_provider().install_default();
        let limits = Limits { response: Duration::from_millis(300), ..Limits::HEARTBEAT };
        let (shutdown, heartbeats) = (CancellationToken::new(), Heartbeats::default());
        let heart = heartbeats.begin("node lease", "", Duration::from_secs(300));
        let (_tell, owner) = watch::channel(Some("u".to_owned()));
        let (client, parts) = (Access::new(config).unwrap().client(limits), (heart, Arc::default()));
        let renewing = tokio::spawn(renew(client, lease_config(), owner, parts, shutdown.clone()));
        let (swallowed, _) = listener.accept().await.unwrap();
        let second = tokio::time::timeout(Duration::from_secs(20), listener.accept()).await;
        let (mut second, _) = second.expect("the first request is still waited for").unwrap();
        let mut request = vec![0; 4096];
        let length = second.read(&mut request).await.unwrap();
        assert!(
            request[..length].starts_with(b"PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n")
        );
        let lease = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n"}}"#;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{lease}", lease.len());
        second.write_all(answer.as_bytes()).await.unwrap();
        shutdown.cancel();
        renewing.await.unwrap();
        drop(swallowed);
    }
}
