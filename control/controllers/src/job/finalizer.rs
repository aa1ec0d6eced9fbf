//! Takes the tracking finalizer off pods.

use std::{collections::HashSet, sync::Arc};

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::pod::{TRACKING, is_tracked, uid};
use crate::{
    finalizers::with_finalizer,
    runtime::{CachedPod, bounded_join, error},
};

/// Takes the finalizer off pods; returns the UIDs of those that do not have it any more, and the first failure. A pod that
/// has changed meanwhile keeps it, which is no failure.
pub(crate) async fn remove(api: &Api<CachedPod>, pods: &[Arc<CachedPod>]) -> (HashSet<String>, Option<kube::Error>) {
    let (mut removed, mut failure) = (HashSet::new(), None);
    for (pod, result) in bounded_join(pods.iter().map(|pod| async move { (pod, remove_one(api, pod).await) })).await {
        match result {
            Ok(true) => drop(removed.insert(uid(pod).to_owned())),
            Ok(false) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    (removed, failure)
}

async fn remove_one(api: &Api<CachedPod>, pod: &CachedPod) -> Result<bool, kube::Error> {
    if !is_tracked(pod) {
        return Ok(true);
    }
    let patch = json!({"metadata": {
        "uid": pod.metadata.uid,
        "resourceVersion": pod.metadata.resource_version,
        "finalizers": with_finalizer(&pod.metadata, TRACKING, false),
    }});
    match api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(true),
        Err(error) if error::is_not_found(&error) => Ok(true),
        Err(error) if error::is_conflict(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
