//! The mirror pods of static pods in the API, which show them to clients. Changes of a mirror pod do not affect its
//! static pod: one that is deleted is created again, one of another manifest is replaced.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::backoff::Backoff;

use super::{FullName, manifest::manifest_hash};
use crate::pods::lifecycle::spec;

/// The desired and the actual mirror pods.
#[derive(Debug, Clone, Default)]
pub(crate) struct MirrorPods {
    /// Static pods that run, or are to run, by name.
    pub(crate) wanted: BTreeMap<FullName, Arc<Pod>>,
    /// The mirror pods that the API has.
    pub(crate) found: BTreeMap<FullName, Arc<Pod>>,
}

#[derive(Debug, Clone, PartialEq)]
enum MirrorChange {
    Create(Arc<Pod>),
    /// Name and uid of the mirror pod.
    Delete(FullName, Option<String>),
}

/// Whether `mirror` is the mirror pod of `pod` and of its manifest.
pub(crate) fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.deletion_timestamp.is_none()
        && spec::annotation(mirror, spec::CONFIG_MIRROR_ANNOTATION) == Some(spec::uid(pod))
        && manifest_hash(mirror) == manifest_hash(pod)
}

/// The requests that are missing; `node` is the uid of the Node, which owns mirror pods.
fn changes(pods: &MirrorPods, node: &str) -> Vec<MirrorChange> {
    let delete = |name: &FullName, mirror: &Pod| MirrorChange::Delete(name.clone(), mirror.metadata.uid.clone());
    // A mirror pod of an earlier Node of this name is garbage collected with it.
    let owned = |mirror: &Pod| mirror.metadata.owner_references.iter().flatten().any(|owner| owner.uid == node);
    let right =
        |name, mirror: &Pod| owned(mirror) && pods.wanted.get(name).is_some_and(|pod| is_mirror_of(mirror, pod));
    let wrong = pods.found.iter().filter(|(name, mirror)| !right(*name, mirror));
    let missing = pods.wanted.iter().filter(|(name, _)| !pods.found.contains_key(*name));
    wrong
        .map(|(name, mirror)| delete(name, mirror))
        .chain(missing.map(|(_, pod)| MirrorChange::Create(Arc::clone(pod))))
        .collect()
}

/// The mirror pod of a static pod, owned by the node.
fn mirror_pod_of(pod: &Pod, node: &Node) -> Pod {
    let mut mirror = pod.clone();
    let uid = mirror.metadata.uid.take().unwrap_or_default();
    mirror.metadata.generation = None;
    mirror.metadata.annotations.get_or_insert_default().insert(spec::CONFIG_MIRROR_ANNOTATION.to_owned(), uid);
    mirror.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    if let Some(spec) = &mut mirror.spec {
        // The API rejects mirror pods with a service account: they get none of its tokens.
        spec.service_account_name = None;
        spec.service_account = None;
    }
    mirror.status = None;
    mirror
}

/// Creates and deletes mirror pods until `shutdown`.
pub(crate) async fn run(
    client: Client,
    mut node: watch::Receiver<Option<Arc<Node>>>,
    mut pods: watch::Receiver<MirrorPods>,
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
    loop {
        let now = pods.borrow_and_update().clone();
        let owner = node.borrow_and_update().clone();
        let uid = owner.as_ref().and_then(|node| node.metadata.uid.clone());
        let mut failed = false;
        // Without a Node there is no owner.
        for (change, owner) in uid.iter().flat_map(|uid| changes(&now, uid)).zip(owner.iter().cycle()) {
            if let Err(error) = apply(&client, &change, owner).await {
                failed = true;
                tracing::warn!(error = %windlass_kit::client::message(&error), "failed to create or delete mirror pod; static pod keeps running, retrying");
            }
        }
        if !failed {
            backoff.reset();
        }
        let retry = async {
            if failed { tokio::time::sleep(backoff.next_delay()).await } else { std::future::pending().await }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = pods.changed() => if changed.is_err() { return },
            () = node_recreated(&mut node, uid.as_deref()) => backoff.reset(),
            () = retry => {}
        }
    }
}

/// Waits for a Node of another uid; other changes of it are frequent.
async fn node_recreated(node: &mut watch::Receiver<Option<Arc<Node>>>, uid: Option<&str>) {
    loop {
        match node.changed().await {
            Ok(()) if node.borrow_and_update().as_ref().and_then(|n| n.metadata.uid.as_deref()) != uid => return,
            Ok(()) => {}
            Err(_) => std::future::pending().await,
        }
    }
}

async fn apply(client: &Client, change: &MirrorChange, node: &Node) -> Result<(), kube::Error> {
    let done = match change {
        MirrorChange::Create(pod) => {
            let api: Api<Pod> = Api::namespaced(client.clone(), spec::namespace(pod));
            api.create(&PostParams::default(), &mirror_pod_of(pod, node)).await.map(|_| ())
        }
        MirrorChange::Delete((namespace, name), uid) => {
            let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions { uid: uid.clone(), resource_version: None }),
                ..DeleteParams::default()
            };
            api.delete(name, &params).await.map(|_| ())
        }
    };
    match done {
        // The watch is about to show that it exists already, or no longer.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn pod(image: &str) -> Arc<Pod> {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        );
        Arc::new(super::super::manifest::pods(Path::new("a.yaml"), &text, "n").pods.remove(0))
    }

    #[test]
    fn mirror_pods_follow_their_static_pods() {
        let (old, new) = (pod("x"), pod("z"));
        let name = super::super::full_name(&old);
        let node: Node = serde_json::from_str(r#"{"metadata":{"name":"n","uid":"node-uid"}}"#).unwrap();
        let mut mirror = mirror_pod_of(&old, &node);
        assert!(spec::is_mirror_pod(&mirror) && is_mirror_of(&mirror, &old) && !is_mirror_of(&mirror, &new));
        assert_eq!(mirror.metadata.owner_references.as_ref().unwrap()[0].uid, "node-uid");
        mirror.metadata.uid = Some("m".into());
        let mirrors = |wanted: Option<&Arc<Pod>>, found: Option<&Pod>| MirrorPods {
            wanted: wanted.map(|p| (name.clone(), Arc::clone(p))).into_iter().collect(),
            found: found.map(|p| (name.clone(), Arc::new(p.clone()))).into_iter().collect(),
        };
        let delete = MirrorChange::Delete(name.clone(), Some("m".into()));
        let changes = |pods: &MirrorPods| changes(pods, "node-uid");
        assert_eq!(changes(&mirrors(Some(&old), Some(&mirror))), []);
        let recreated = super::changes(&mirrors(Some(&old), Some(&mirror)), "another-uid");
        assert_eq!(recreated, std::slice::from_ref(&delete), "the Node was recreated");
        assert_eq!(changes(&mirrors(Some(&old), None)), [MirrorChange::Create(Arc::clone(&old))]);
        assert_eq!(changes(&mirrors(Some(&new), Some(&mirror))), std::slice::from_ref(&delete));
        assert_eq!(changes(&mirrors(None, Some(&mirror))), std::slice::from_ref(&delete));
        // A client deletes it: it is deleted at once, to be created again.
        mirror.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(changes(&mirrors(Some(&old), Some(&mirror))), [delete]);
    }
}
