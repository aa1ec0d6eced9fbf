//! The history of an owner's pod templates as ControllerRevisions, which StatefulSets and DaemonSets have. Imports no
//! controller; `revisions` is pure and may not import tokio or kube's client.

use std::{fmt, marker::PhantomData, sync::Arc};

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use windlass_kit::objects::label_selector::Selector;

use super::{
    indexes::{owned_or_ownerless, owner_or_namespace},
    pod_control::{Claim, Claimant, Namespaced, claim, queue_controllers, take_over},
    pods,
    runtime::{Cache, Context, During as _, Error, Index, Key, PerOwner, SyncPoint, error, same_object},
};

mod revisions;
#[cfg(test)]
mod tests;

pub(crate) use revisions::template;
use revisions::{Choice, choose, is_of, new_revision, sort, surplus};

impl crate::runtime::Cached for ControllerRevision {}

/// Revisions that are kept if the owner does not say how many.
const LIMIT: i32 = 10;
/// Names that other revisions have are tried this often in one run.
const COLLISIONS: usize = 10;

const REVISIONS_BY_OWNER: Index<ControllerRevision> = Index::new("owner", owner_or_namespace);

/// The revisions of one owner.
#[derive(Debug)]
pub(crate) struct Revisions {
    /// In the order of their numbers; the last one is of the owner's template.
    pub(crate) all: Vec<Arc<ControllerRevision>>,
    /// The one of the owner's template.
    pub(crate) update: Arc<ControllerRevision>,
    /// How many names were another revision's, for the owner's status.
    pub(crate) collisions: Option<i32>,
}

/// What is known of an owner's history.
#[derive(Debug)]
pub(crate) enum Synced {
    Known(Revisions),
    /// The cache does not show the last revision that was written. Of what it shows, the next one would get a number that
    /// another one has, and the one that pods have would not be found.
    Behind,
    /// Nothing is made in a terminating namespace.
    Terminating,
}

/// The histories of the owners of one kind.
pub(crate) struct History<O> {
    client: Client,
    revisions: Cache<ControllerRevision>,
    /// The last revision of each owner that was written.
    written: PerOwner<Option<SyncPoint>>,
    /// The key of the label that holds a revision's hash.
    label: &'static str,
    kind: PhantomData<fn(&O)>,
}

impl<O> fmt::Debug for History<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}

impl<O: Namespaced> History<O> {
    /// Uses the informer of revisions; their changes queue their owners.
    pub(crate) fn subscribe(context: &mut Context<Key>, label: &'static str) -> Self {
        let informer = context.informer::<ControllerRevision>();
        let queue = context.queue();
        informer.index(&REVISIONS_BY_OWNER).on_change(move |old, new| {
            queue_controllers::<O, ControllerRevision>(&queue, old, new);
        });
        let (client, revisions) = (context.client(), informer.cache());
        Self { client, revisions, written: PerOwner::default(), label, kind: PhantomData }
    }

    fn api(&self, namespace: &str) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Forgets an owner that is gone.
    pub(crate) fn forget(&self, owner: &Key) {
        self.written.forget(owner);
    }

    /// Adopts what matches, and makes the template the newest revision. For an owner that is not terminating.
    ///
    /// # Errors
    /// When the API refuses, or a revision has changed meanwhile.
    pub(crate) async fn sync(
        &self,
        owner: &O,
        selector: Selector<'_>,
        template: &PodTemplateSpec,
        collisions: Option<i32>,
    ) -> Result<Synced, Error> {
        let (key, uid) = (Key::of(owner.meta()), owner.uid().unwrap_or_default());
        let is_shown = |written: &mut Option<SyncPoint>| written.is_none_or(|point| self.revisions.reached(point));
        if !self.written.with(&key, &uid, is_shown) {
            return Ok(Synced::Behind);
        }
        let found = owned_or_ownerless(&self.revisions, &REVISIONS_BY_OWNER, &key.namespace, &uid);
        let claimant = Claimant { uid: &uid, deleting: false, selector };
        let claimed = claim(&claimant, &found, |revision| revision.metadata.deletion_timestamp.is_none());
        let Claim { ours: mut all, adopt, release } = claimed;
        take_over(&self.client, owner, &adopt, &[]).await?;
        // A revision stays its owner's, whatever its labels are.
        all.extend(adopt.into_iter().chain(release));
        sort(&mut all);
        let (update, collisions) = match choose(&all, template) {
            Choice::Newest(revision) => (revision, collisions),
            Choice::Renumber(revision, number) => (self.renumber(&key, &revision, number).await?, collisions),
            Choice::Create(number) => match self.create(owner, &key, template, number, collisions).await? {
                Some(created) => created,
                None => return Ok(Synced::Terminating),
            },
        };
        let point = self.revisions.sync_point(update.metadata.resource_version.as_deref());
        self.written.with(&key, &uid, |written| *written = Some(point));
        all.retain(|revision| revision.metadata.name != update.metadata.name);
        all.push(Arc::clone(&update));
        Ok(Synced::Known(Revisions { all, update, collisions }))
    }

    async fn renumber(
        &self,
        key: &Key,
        revision: &ControllerRevision,
        number: i64,
    ) -> Result<Arc<ControllerRevision>, Error> {
        let meta = &revision.metadata;
        let patch = json!({
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "revision": number,
        });
        let api = self.api(&key.namespace);
        let written = api.patch(&revision.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
        let written = error::ignore_deleted(written).during("renumber a revision of", key)?;
        written.map(Arc::new).ok_or_else(|| Error::Changed(revision.name_any()))
    }

    /// Creates a revision; where its name is another revision's, one more collision gives another name. `None` in a
    /// terminating namespace.
    async fn create(
        &self,
        owner: &O,
        key: &Key,
        template: &PodTemplateSpec,
        number: i64,
        mut collisions: Option<i32>,
    ) -> Result<Option<(Arc<ControllerRevision>, Option<i32>)>, Error> {
        let api = self.api(&key.namespace);
        for _ in 0..COLLISIONS {
            let revision = new_revision(owner, template, number, self.label, collisions);
            match api.create(&PostParams::default(), &revision).await {
                Ok(created) => return Ok(Some((Arc::new(created), collisions))),
                Err(error) if error::is_namespace_terminating(&error) => return Ok(None),
                Err(error) if error::is_already_exists(&error) => {
                    let known = api.get_opt(&revision.name_any()).await.during("read a revision of", key)?;
                    // Made before, and not in the cache yet.
                    let ours = |known: &ControllerRevision| {
                        pods::is_controlled_by(&known.metadata, owner.meta()) && is_of(known, template)
                    };
                    match known {
                        Some(known) if ours(&known) => return Ok(Some((Arc::new(known), collisions))),
                        Some(_) => collisions = Some(collisions.unwrap_or(0).saturating_add(1)),
                        None => {}
                    }
                }
                Err(error) => return Err(error).during("create a revision of", key),
            }
        }
        Err(Error::Changed(key.to_string()))
    }

    /// Deletes the oldest revisions beyond `limit`, the owner's `revisionHistoryLimit`, that are not live.
    ///
    /// # Errors
    /// When the API refuses.
    pub(crate) async fn truncate(
        &self,
        owner: &O,
        revisions: &Revisions,
        is_live: impl Fn(&ControllerRevision) -> bool,
        limit: Option<i32>,
    ) -> Result<(), Error> {
        let limit = usize::try_from(limit.unwrap_or(LIMIT)).unwrap_or(0);
        let key = Key::of(owner.meta());
        let api = self.api(&key.namespace);
        for revision in surplus(&revisions.all, is_live, limit) {
            let params = DeleteParams::default().preconditions(same_object(&revision.metadata));
            let deleted = api.delete(&revision.name_any(), &params).await;
            error::ignore_deleted(deleted).during("delete a revision of", &key)?;
        }
        Ok(())
    }
}
