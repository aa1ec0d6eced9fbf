//! What pods request of a resource: upstream's `calculateRequests`. Pure.

use std::{collections::BTreeMap, sync::Arc};

use crate::runtime::{CachedPod, cached_pod::CachedContainer};

/// Thousandths by the name of the pod.
pub(super) type Requests<'a> = BTreeMap<&'a str, i64>;

/// Of one container if it is named, else of the pod as a whole where it has requests, else of all its containers.
///
/// # Errors
/// Names the container that requests none.
pub(super) fn calculate_requests<'a>(
    pods: &'a [Arc<CachedPod>],
    container: Option<&str>,
    resource: &str,
) -> Result<Requests<'a>, String> {
    let request = |pod: &'a Arc<CachedPod>| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let whole = pod.spec.as_ref().and_then(|spec| spec.requests.as_ref()).filter(|_| container.is_none());
        let request = match whole {
            Some(requests) => requests
                .milli(resource)
                .or_else(|| any_of_containers(pod, resource))
                .ok_or_else(|| format!("missing pod-level request for {resource} in Pod {name}"))?,
            None => of_containers(pod, name, container, resource)?,
        };
        Ok((name, request))
    };
    pods.iter().map(request).collect()
}

/// The containers that run with the pod: of initial ones, the cache keeps sidecars only.
fn containers(pod: &CachedPod) -> impl Iterator<Item = &CachedContainer> {
    pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
}

/// What those containers request that request any.
fn any_of_containers(pod: &CachedPod, resource: &str) -> Option<i64> {
    let requests = containers(pod).filter_map(|one| one.requests.as_ref()?.milli(resource));
    requests.reduce(i64::saturating_add)
}

/// `calculatePodRequestsFromContainers`.
fn of_containers(pod: &CachedPod, name: &str, container: Option<&str>, resource: &str) -> Result<i64, String> {
    let mut wanted = containers(pod).filter(|one| container.is_none_or(|container| *container == *one.name)).peekable();
    if let (None, Some(container)) = (wanted.peek(), container) {
        return Err(format!("container {container} not found in Pod {name}"));
    }
    wanted.try_fold(0_i64, |sum, one| {
        let request = one.requests.as_ref().and_then(|requests| requests.milli(resource));
        let missing = || format!("missing request for {resource} in container {} of Pod {name}", one.name);
        request.map(|request| sum.saturating_add(request)).ok_or_else(missing)
    })
}
