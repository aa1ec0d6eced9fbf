//! Releases pods whose Job is gone or has ended: no other controller removes their tracking finalizer.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use kube::{Api, Client, Resource as _, ResourceExt as _};

use super::{CONTROLLER, finalizer, pod::is_tracked};
use crate::{
    finished_jobs,
    indexes::PODS_BY_CONTROLLER,
    pods,
    runtime::{Cache, CachedPod, Context, Controller, During as _, Error, Key, Outcome},
};

/// The controller, whose keys are pods.
pub(crate) struct OrphanPodController {
    client: Client,
    jobs: Cache<Job>,
    pods: Cache<CachedPod>,
}

impl Controller for OrphanPodController {
    const NAME: &'static str = "job_orphan_pod";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (informer, jobs) = (context.informer::<CachedPod>(), context.informer::<Job>());
        informer.index(&PODS_BY_CONTROLLER);
        let cache = jobs.cache();
        informer.queue_where(context.queue(), move |pod| may_be_orphan(&cache, pod));
        let (queue, cache) = (context.queue(), informer.cache());
        jobs.on_change(move |old, new| {
            let ended = |job: &&Arc<Job>| new.is_none() || finished_jobs::finished(job).is_some();
            let uid = new.or(old).filter(ended).and_then(|job| job.uid());
            let pods = uid.map(|uid| cache.by_index(&PODS_BY_CONTROLLER, &uid)).unwrap_or_default();
            pods.iter().filter(|pod| is_tracked(pod)).for_each(|pod| queue.add(Key::of(&pod.metadata)));
        });
        Self { client: context.client(), jobs: jobs.cache(), pods: informer.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(pod) = self.pods.get(&key).filter(|pod| may_be_orphan(&self.jobs, pod)) else {
            return Ok(Outcome::Done);
        };
        if let Some(owner) = pods::controller_of(&pod.metadata) {
            let of = Key::new(&*key.namespace, &*owner.name);
            if self.jobs.get(&of).is_none_or(|job| job.metadata.uid.as_deref() != Some(&*owner.uid)) {
                // The cache may be behind.
                let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
                let fresh = api.get_metadata_opt(&owner.name).await.during("read", &of)?;
                if fresh.is_some_and(|job| job.uid().as_deref() == Some(&*owner.uid)) {
                    return Err(Error::Changed(of.to_string()));
                }
            }
        }
        let api: Api<CachedPod> = Api::namespaced(self.client.clone(), &key.namespace);
        let (removed, failure) = finalizer::remove(&api, std::slice::from_ref(&pod)).await;
        match failure {
            Some(failure) => Err(failure).during("free", &key),
            None if removed.is_empty() => Err(Error::Changed(key.to_string())),
            None => Ok(Outcome::Done),
        }
    }
}

/// Whether a pod has the finalizer, and no Job that will take it off.
fn may_be_orphan(jobs: &Cache<Job>, pod: &CachedPod) -> bool {
    if !is_tracked(pod) {
        return false;
    }
    let Some(owner) = pods::controller_of(&pod.metadata) else { return true };
    if owner.kind != Job::kind(&()) || owner.api_version != Job::api_version(&()) {
        return false;
    }
    let job = jobs.get(&Key::new(pod.namespace().unwrap_or_default(), &*owner.name));
    match job.filter(|job| job.metadata.uid.as_deref() == Some(&*owner.uid)) {
        None => true,
        Some(job) => {
            let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
            manager.is_none_or(|name| name == CONTROLLER) && finished_jobs::finished(&job).is_some()
        }
    }
}
