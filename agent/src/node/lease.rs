//! The node's lease: the heartbeat by which controllers tell a dead node from a slow one.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{backoff::Backoff, heartbeat::Heart};

use crate::metrics::{Metrics, Written};

/// How often it is renewed, and for how long each time counts; upstream's.
const LEASE_EVERY: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;
const LEASES: &str = "kube-node-lease";

/// Renews the lease until `shutdown`.
pub(super) async fn renew(
    client: Client,
    node: Node,
    (heart, metrics): (Heart, Arc<Metrics>),
    shutdown: CancellationToken,
) {
    let api: Api<Lease> = Api::namespaced(client, LEASES);
    let name = node.metadata.name.clone().unwrap_or_default();
    let spec = |at: Timestamp| LeaseSpec {
        holder_identity: Some(name.clone()),
        lease_duration_seconds: Some(LEASE_SECONDS),
        renew_time: Some(MicroTime(at)),
        ..LeaseSpec::default()
    };
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
    let mut version = None;
    loop {
        heart.beat();
        let patch = serde_json::json!({"spec": spec(Timestamp::now())});
        let renewed = match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(answer)) if answer.code == 404 => {
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    owner_references: Some(vec![owner.clone()]),
                    ..ObjectMeta::default()
                };
                api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec(Timestamp::now())) }).await
            }
            other => other,
        };
        let wait = match renewed {
            Ok(lease) => {
                let before = std::mem::replace(&mut version, lease.metadata.resource_version);
                metrics.wrote(Written::Lease, &name, before.as_deref(), version.as_deref());
                backoff.reset();
                LEASE_EVERY
            }
            Err(error) => {
                tracing::warn!(%error, "the node's lease could not be renewed; it is tried again");
                backoff.next_delay()
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return heart.end(),
            () = tokio::time::sleep(wait) => {}
        }
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
        heartbeat::Heartbeats,
    };

    use super::*;

    /// The API server's machine vanishes, and another takes its address: the lease must be renewed long before the
    /// kernel gives the old connection up.
    #[tokio::test]
    async fn the_lease_is_renewed_though_the_api_has_swallowed_a_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = kube::Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let _ = rustls::crypto::ring::default_provider().install_default();
        let limits = Limits { answer: Duration::from_millis(300), ..Limits::HEARTBEAT };
        let (shutdown, heartbeats) = (CancellationToken::new(), Heartbeats::default());
        let heart = heartbeats.begin("node lease", "", Duration::from_secs(300));
        let node = serde_json::from_str(r#"{"metadata":{"name":"n","uid":"u"}}"#).unwrap();
        let renewing = tokio::spawn(renew(
            Access::new(config).unwrap().client(limits),
            node,
            (heart, Arc::default()),
            shutdown.clone(),
        ));
        let (swallowed, _) = listener.accept().await.unwrap();
        let second = tokio::time::timeout(Duration::from_secs(20), listener.accept()).await;
        let (mut second, _) = second.expect("the first request is still waited for").unwrap();
        let mut asked = vec![0; 4096];
        let length = second.read(&mut asked).await.unwrap();
        assert!(asked[..length].starts_with(b"PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"));
        let lease = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n"}}"#;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{lease}", lease.len());
        second.write_all(answer.as_bytes()).await.unwrap();
        shutdown.cancel();
        renewing.await.unwrap();
        drop(swallowed);
    }
}
