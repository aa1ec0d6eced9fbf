//! Namespace controller: deletes the content of terminating namespaces, pods first, then removes the finalizer.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Namespace, NamespaceCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::runtime::{
    Cache, CachedPod, Context, Controller, During as _, Error, Key, Outcome, error,
    rest_mapper::{Kind, RestMapper},
};

impl crate::runtime::Cached for Namespace {}

const FINALIZER: &str = "kubernetes";
/// Interval of checks for remaining content (upstream's estimate).
const CONTENT_RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The remaining objects of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Remaining {
    resource: String,
    count: usize,
    /// The number of objects for each finalizer.
    finalizers: Vec<(String, usize)>,
}

pub(crate) struct NamespaceController {
    client: Client,
    namespaces: Cache<Namespace>,
    pods: Cache<CachedPod>,
}

impl Controller for NamespaceController {
    const NAME: &'static str = "namespace-controller";
    const QUEUE: &'static str = "namespace";
    /// Mostly they wait.
    const WORKERS: usize = 10;
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (namespaces, pods) = (context.informer::<Namespace>(), context.informer::<CachedPod>());
        let enqueue = context.queue();
        namespaces.on_change(move |_, new| {
            if let Some(namespace) = new
                && namespace.metadata.deletion_timestamp.is_some()
            {
                enqueue.add(Key::of(&namespace.metadata));
            }
        });
        // The last pod of a terminating namespace.
        let (enqueue, all, left) = (context.queue(), namespaces.cache(), pods.cache());
        pods.on_change(move |old, new| {
            if let (Some(pod), None) = (old, new) {
                let key = Key::new("", pod.namespace().unwrap_or_default());
                if left.is_namespace_empty(&key.name)
                    && all.get(&key).is_some_and(|n| n.metadata.deletion_timestamp.is_some())
                {
                    enqueue.add(key);
                }
            }
        });
        Self { client: context.client(), namespaces: namespaces.cache(), pods: pods.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        if self.namespaces.get(&key).is_none() {
            return Ok(Outcome::Done);
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let Some(namespace) = api.get_opt(&key.name).await.during("read namespace", &key)? else {
            return Ok(Outcome::Done);
        };
        let ours = namespace.spec.iter().flat_map(|s| s.finalizers.iter().flatten()).any(|f| f == FINALIZER);
        if namespace.metadata.deletion_timestamp.is_none() || !ours {
            return Ok(Outcome::Done);
        }
        let phase = namespace.status.as_ref().and_then(|s| s.phase.as_deref());
        if phase != Some("Terminating") {
            let patch = json!({"metadata": {"uid": namespace.uid()}, "status": {"phase": "Terminating"}});
            let written = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            error::ignore_deleted(written).during("mark as terminating namespace", &key)?;
        }
        let kinds = RestMapper::discover(&self.client).await.during("list what is in namespace", &key)?;
        let mut failures: Vec<String> = Vec::new();
        let remaining = self.delete_content(&key.name, &kinds, &mut failures).await;
        if remaining.is_empty() && failures.is_empty() && kinds.failed.is_empty() {
            self.finalize(&api, &namespace).await?;
            return Ok(Outcome::Done);
        }
        let discovery: Vec<String> = kinds.failed.iter().map(|(gv, why)| format!("{gv}: {why}")).collect();
        let wanted = conditions(&namespace, &discovery, &failures, &remaining, Timestamp::now());
        if let Some(conditions) = wanted {
            let patch = json!({"metadata": {"uid": namespace.uid()}, "status": {"conditions": conditions}});
            let written = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            error::ignore_deleted(written).during("say what is left in namespace", &key)?;
        }
        Ok(Outcome::After(self.estimate(&key.name)))
    }
}

impl NamespaceController {
    /// Deletes the content and returns what remains.
    async fn delete_content(&self, namespace: &str, kinds: &RestMapper, failures: &mut Vec<String>) -> Vec<Remaining> {
        let content = |kind: &&std::sync::Arc<Kind>| kind.namespaced && kind.has(&["list", "delete"]);
        let is_pods = |kind: &Kind| kind.resource.group.is_empty() && kind.resource.plural == "pods";
        let (pods, others): (Vec<_>, Vec<_>) = kinds.all.iter().filter(content).partition(|kind| is_pods(kind));
        let mut remaining = Vec::new();
        for stage in [pods, others] {
            for kind in stage {
                match self.delete_content_of_kind(namespace, kind).await {
                    Ok(Some(left)) => remaining.push(left),
                    Ok(None) => {}
                    Err(error) => failures.push(format!("{}: {}", kind.group_resource(), error::message(&error))),
                }
            }
            // The objects that pods use stay until the pods are deleted.
            if !remaining.is_empty() || !failures.is_empty() {
                break;
            }
        }
        remaining
    }

    async fn delete_content_of_kind(&self, namespace: &str, kind: &Kind) -> Result<Option<Remaining>, kube::Error> {
        let api = kind.api(&self.client, namespace);
        let all = ListParams::default();
        let found = api.list_metadata(&all).await?;
        if found.items.is_empty() {
            return Ok(None);
        }
        if kind.has(&["deletecollection"]) {
            api.delete_collection(&DeleteParams::background(), &all).await?;
        } else {
            for object in found.items {
                error::ignore_deleted(api.delete(&object.name_any(), &DeleteParams::background()).await)?;
            }
        }
        let left = api.list_metadata(&all).await?.items;
        if left.is_empty() {
            return Ok(None);
        }
        let mut finalizers = std::collections::BTreeMap::<String, usize>::new();
        for finalizer in left.iter().flat_map(|o| o.metadata.finalizers.iter().flatten()) {
            *finalizers.entry(finalizer.clone()).or_default() += 1;
        }
        Ok(Some(Remaining {
            // Upstream writes the dot for the core group, too.
            resource: format!("{}.{}", kind.resource.plural, kind.resource.group),
            count: left.len(),
            finalizers: finalizers.into_iter().collect(),
        }))
    }

    /// Half of the pods' longest grace period, as upstream; an earlier deletion enqueues the namespace.
    fn estimate(&self, namespace: &str) -> Duration {
        let grace = self
            .pods
            .in_namespace(namespace)
            .iter()
            .filter_map(|p| p.metadata.deletion_grace_period_seconds.and_then(|s| u64::try_from(s).ok()))
            .max();
        grace.map_or(CONTENT_RECHECK_INTERVAL, |seconds| {
            Duration::from_secs(seconds / 2 + 1).min(Duration::from_secs(60))
        })
    }

    async fn finalize(&self, api: &Api<Namespace>, namespace: &Namespace) -> Result<(), Error> {
        let mut changed = namespace.clone();
        if let Some(finalizers) = changed.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
            finalizers.retain(|f| f != FINALIZER);
        }
        changed.metadata.managed_fields = None;
        let name = namespace.name_any();
        let done = api.replace_subresource("finalize", &name, &PostParams::default(), &changed).await;
        match done {
            Err(error) if error::is_not_found(&error) => Ok(()),
            Err(error) if error::is_conflict(&error) => Err(Error::Changed(format!("namespace {name}"))),
            other => other.map(drop).during("let go namespace", &name),
        }
    }
}

/// The five conditions of a terminating namespace, or `None` when they are unchanged.
fn conditions(
    namespace: &Namespace,
    discovery: &[String],
    failures: &[String],
    remaining: &[Remaining],
    now: Timestamp,
) -> Option<Vec<NamespaceCondition>> {
    let old = namespace.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let counts: Vec<String> =
        remaining.iter().map(|r| format!("{} has {} resource instances", r.resource, r.count)).collect();
    let mut finalizers = std::collections::BTreeMap::<&str, usize>::new();
    for (name, count) in remaining.iter().flat_map(|r| &r.finalizers) {
        *finalizers.entry(name).or_default() += count;
    }
    let waiting: Vec<String> = finalizers.iter().map(|(name, n)| format!("{name} in {n} resource instances")).collect();
    let list = |items: &[String], bad: &str, good: &str| {
        if items.is_empty() { good.to_owned() } else { format!("{bad}{}", items.join(", ")) }
    };
    let table = [
        (
            "NamespaceDeletionDiscoveryFailure",
            ("DiscoveryFailed", "ResourcesDiscovered"),
            !discovery.is_empty(),
            discovery_message(discovery),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            ("GroupVersionParsingFailed", "ParsedGroupVersions"),
            false,
            "All legacy kube types successfully parsed".to_owned(),
        ),
        (
            "NamespaceDeletionContentFailure",
            ("ContentDeletionFailed", "ContentDeleted"),
            !failures.is_empty(),
            list(
                failures,
                "Failed to delete all resource types: ",
                "All content successfully deleted, may be waiting on finalization",
            ),
        ),
        (
            "NamespaceContentRemaining",
            ("SomeResourcesRemain", "ContentRemoved"),
            !counts.is_empty(),
            list(&counts, "Some resources are remaining: ", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            ("SomeFinalizersRemain", "ContentHasNoFinalizers"),
            !waiting.is_empty(),
            list(
                &waiting,
                "Some content in the namespace has finalizers remaining: ",
                "All content-preserving finalizers finished",
            ),
        ),
    ];
    let mut new: Vec<NamespaceCondition> =
        old.iter().filter(|c| !table.iter().any(|(kind, ..)| c.type_ == *kind)).cloned().collect();
    for (kind, (bad, good), failed, message) in table {
        let status = if failed { "True" } else { "False" };
        let before = old.iter().find(|c| c.type_ == kind);
        let since = before.filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
        new.push(NamespaceCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(if failed { bad } else { good }.to_owned()),
            message: Some(message),
            last_transition_time: since.or(Some(Time(now))),
        });
    }
    let same = new.len() == old.len() && new.iter().all(|c| old.contains(c));
    (!same).then_some(new)
}

/// What could not be discovered, in client-go's words.
fn discovery_message(failed: &[String]) -> String {
    if failed.is_empty() {
        return "All resources successfully discovered".to_owned();
    }
    let groups = failed.join(", ");
    let number = failed.len();
    format!(
        "Discovery failed for some groups, {number} failing: unable to retrieve the complete list of server APIs: {groups}"
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NamespaceStatus;

    use super::*;

    #[test]
    fn conditions_report_remaining_content() {
        let mut namespace = Namespace::default();
        let remaining =
            [Remaining { resource: "pods.".into(), count: 1, finalizers: vec![("example.com/keep".into(), 1)] }];
        let now = Timestamp::UNIX_EPOCH;
        let written = conditions(&namespace, &[], &[], &remaining, now).unwrap();
        let text = |kind: &str| {
            let found = written.iter().find(|c| c.type_ == kind).unwrap();
            (found.status.as_str(), found.message.as_deref().unwrap())
        };
        assert_eq!(
            text("NamespaceContentRemaining"),
            ("True", "Some resources are remaining: pods. has 1 resource instances")
        );
        assert_eq!(
            text("NamespaceFinalizersRemaining"),
            (
                "True",
                "Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances"
            )
        );
        assert_eq!(text("NamespaceDeletionDiscoveryFailure"), ("False", "All resources successfully discovered"));
        let failed = ["a.example/v1: it is down".to_owned(), "b.example/v1: so is it".to_owned()];
        assert_eq!(
            discovery_message(&failed),
            "Discovery failed for some groups, 2 failing: unable to retrieve the complete list of server APIs: a.example/v1: it is down, b.example/v1: so is it"
        );
        namespace.status = Some(NamespaceStatus { conditions: Some(written), ..NamespaceStatus::default() });
        let later = Timestamp::from_second(9).unwrap();
        assert_eq!(conditions(&namespace, &[], &[], &remaining, later), None);
    }
}
