//! The images of static pods in the API, by which people see them there. The API's word on them changes nothing: one
//! that is deleted comes back, one that shows another manifest is replaced.

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

use super::{FullName, read::content};
use crate::pods::spec;

/// What the dispatcher knows of static pods and of their images.
#[derive(Debug, Clone, Default)]
pub(crate) struct Images {
    /// Static pods that run, or else are to run, by name.
    pub(crate) wanted: BTreeMap<FullName, Arc<Pod>>,
    /// What the API has.
    pub(crate) found: BTreeMap<FullName, Arc<Pod>>,
}

#[derive(Debug, Clone, PartialEq)]
enum Change {
    Create(Arc<Pod>),
    /// Namespace, name, uid.
    Delete(FullName, Option<String>),
}

/// Whether `mirror` shows `pod`.
pub(crate) fn shows(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.deletion_timestamp.is_none()
        && spec::annotation(mirror, spec::MIRROR) == Some(spec::uid(pod))
        && content(mirror) == content(pod)
}

/// What must be done in the API, where the Node has this uid.
fn changes(images: &Images, node: &str) -> Vec<Change> {
    let delete = |name: &FullName, mirror: &Pod| Change::Delete(name.clone(), mirror.metadata.uid.clone());
    // One that an earlier Node of this name owns goes with it.
    let owned = |mirror: &Pod| mirror.metadata.owner_references.iter().flatten().any(|owner| owner.uid == node);
    let right = |name, mirror: &Pod| owned(mirror) && images.wanted.get(name).is_some_and(|pod| shows(mirror, pod));
    let wrong = images.found.iter().filter(|(name, mirror)| !right(*name, mirror));
    let missing = images.wanted.iter().filter(|(name, _)| !images.found.contains_key(*name));
    wrong
        .map(|(name, mirror)| delete(name, mirror))
        .chain(missing.map(|(_, pod)| Change::Create(Arc::clone(pod))))
        .collect()
}

/// The image of a static pod, owned by the node.
fn mirror_of(pod: &Pod, node: &Node) -> Pod {
    let mut mirror = pod.clone();
    let uid = mirror.metadata.uid.take().unwrap_or_default();
    mirror.metadata.generation = None;
    mirror.metadata.annotations.get_or_insert_default().insert(spec::MIRROR.to_owned(), uid);
    mirror.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    if let Some(spec) = &mut mirror.spec {
        // The API refuses images with an account: they have none of its tokens.
        spec.service_account_name = None;
        spec.service_account = None;
    }
    mirror.status = None;
    mirror
}

/// Keeps the images as `images` wants them, until `shutdown`.
pub(crate) async fn keep(
    client: Client,
    mut node: watch::Receiver<Option<Arc<Node>>>,
    mut images: watch::Receiver<Images>,
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
    loop {
        let now = images.borrow_and_update().clone();
        let owner = node.borrow_and_update().clone();
        let uid = owner.as_ref().and_then(|node| node.metadata.uid.clone());
        let mut failed = false;
        // Without a Node there is nobody to own them.
        for (change, owner) in uid.iter().flat_map(|uid| changes(&now, uid)).zip(owner.iter().cycle()) {
            if let Err(error) = make(&client, &change, owner).await {
                failed = true;
                tracing::warn!(%error, "the image of a static pod could not be kept in the API; the pod goes on, and it is tried again");
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
            changed = images.changed() => if changed.is_err() { return },
            () = another(&mut node, uid.as_deref()) => backoff.reset(),
            () = retry => {}
        }
    }
}

/// Waits for a Node of another uid; it changes otherwise all the time.
async fn another(node: &mut watch::Receiver<Option<Arc<Node>>>, uid: Option<&str>) {
    loop {
        match node.changed().await {
            Ok(()) if node.borrow_and_update().as_ref().and_then(|n| n.metadata.uid.as_deref()) != uid => return,
            Ok(()) => {}
            Err(_) => std::future::pending().await,
        }
    }
}

async fn make(client: &Client, change: &Change, node: &Node) -> Result<(), kube::Error> {
    let done = match change {
        Change::Create(pod) => {
            let api: Api<Pod> = Api::namespaced(client.clone(), spec::namespace(pod));
            api.create(&PostParams::default(), &mirror_of(pod, node)).await.map(|_| ())
        }
        Change::Delete((namespace, name), uid) => {
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
        // The watch is about to tell what is there already, or gone.
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
        Arc::new(super::super::read::pods(Path::new("a.yaml"), &text, "n").pods.remove(0))
    }

    #[test]
    fn images_follow_their_pods() {
        let (old, new) = (pod("x"), pod("z"));
        let name = super::super::full_name(&old);
        let node: Node = serde_json::from_str(r#"{"metadata":{"name":"n","uid":"node-uid"}}"#).unwrap();
        let mut mirror = mirror_of(&old, &node);
        assert!(spec::is_mirror(&mirror) && shows(&mirror, &old) && !shows(&mirror, &new));
        assert_eq!(mirror.metadata.owner_references.as_ref().unwrap()[0].uid, "node-uid");
        mirror.metadata.uid = Some("m".into());
        let images = |wanted: Option<&Arc<Pod>>, found: Option<&Pod>| Images {
            wanted: wanted.map(|p| (name.clone(), Arc::clone(p))).into_iter().collect(),
            found: found.map(|p| (name.clone(), Arc::new(p.clone()))).into_iter().collect(),
        };
        let delete = Change::Delete(name.clone(), Some("m".into()));
        let changes = |images: &Images| changes(images, "node-uid");
        assert_eq!(changes(&images(Some(&old), Some(&mirror))), []);
        let anew = super::changes(&images(Some(&old), Some(&mirror)), "another-uid");
        assert_eq!(anew, std::slice::from_ref(&delete), "the Node was made anew");
        assert_eq!(changes(&images(Some(&old), None)), [Change::Create(Arc::clone(&old))]);
        assert_eq!(changes(&images(Some(&new), Some(&mirror))), std::slice::from_ref(&delete));
        assert_eq!(changes(&images(None, Some(&mirror))), std::slice::from_ref(&delete));
        // Somebody deletes it: it goes at once, to come back.
        mirror.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(changes(&images(Some(&old), Some(&mirror))), [delete]);
    }
}
