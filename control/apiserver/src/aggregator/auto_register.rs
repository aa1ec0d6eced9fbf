//! The APIServices of what this server serves itself: of the built-in groups, as they must be at a start, and of custom
//! resources, always. `kubectl get apiservice v1.GROUP` finds one for every version that is served.
//!
//! Upstream: `k8s.io/kube-aggregator/pkg/controllers/autoregister`, and `crdregistration` of kube-apiserver.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{
    Client,
    api::{DeleteParams, DynamicObject, PostParams, Preconditions},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Aggregator, FIELD_MANAGER, api_services};
use crate::{
    apiserver::types::Catalog,
    store::{Error, Object},
};

/// Says that an APIService is as this server wants it: always, or at a start. Others are left alone.
const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
const ALWAYS: &str = "true";
const ON_START: &str = "onstart";
/// Groups without an APIService: that of these objects themselves, and one that is an aggregated API elsewhere, whose APIService
/// belongs to who installs one: a chart refuses to take over ours.
const UNREGISTERED: [&str; 2] = ["apiregistration.k8s.io", "metrics.k8s.io"];
/// The pause before a failed write is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long it takes at most until what an event was lost of is seen.
const RESYNC_INTERVAL: Duration = Duration::from_secs(3600);

/// Whether the process has just begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Start,
    Later,
}

/// What is done with an APIService.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Nothing,
    Create,
    Update,
    Delete,
}

/// The APIServices of what a catalog serves itself, by their names.
fn wanted(catalog: &Catalog) -> BTreeMap<String, Value> {
    let versions = catalog.groups.iter().flat_map(|group| group.versions.iter().map(move |version| (group, version)));
    let versions = versions.filter(|(group, _)| !UNREGISTERED.contains(&&*group.name));
    let all = versions.map(|(group, version)| {
        let is_custom = version.resources.iter().any(|one| !one.spec.schema.is_built_in());
        let mut spec = json!({
            "version": version.version, "groupPriorityMinimum": version.priority.group,
            "versionPriority": version.priority.version,
        });
        if !group.name.is_empty() {
            spec["group"] = json!(group.name);
        }
        let name = format!("{}.{}", version.version, group.name);
        let label = if is_custom { ALWAYS } else { ON_START };
        let object = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": name, "labels": {LABEL: label}}, "spec": spec,
        });
        (name, object)
    });
    all.collect()
}

/// Upstream's table (`checkAPIService`), but that one of a built-in group is created again whenever it is missing, and that one
/// with a service is not deleted because an earlier version of this server had created it without.
fn decide(wanted: Option<&Value>, current: Option<&Value>, when: When) -> Action {
    let Some(current) = current else { return if wanted.is_some() { Action::Create } else { Action::Nothing } };
    let is_due = match current["metadata"]["labels"][LABEL].as_str() {
        Some(ALWAYS) => true,
        Some(ON_START) => when == When::Start,
        _ => false,
    };
    match wanted {
        _ if !is_due => Action::Nothing,
        None if current["metadata"]["labels"][LABEL] == ON_START && current["spec"]["service"].is_object() => {
            Action::Nothing
        }
        None => Action::Delete,
        Some(wanted) if wanted["spec"] == current["spec"] => Action::Nothing,
        Some(_) => Action::Update,
    }
}

/// Brings all APIServices to what is wanted.
///
/// # Errors
/// The first that is no conflict.
pub(super) async fn sync(aggregator: &Aggregator, client: &Client, when: When) -> Result<(), kube::Error> {
    let wanted = wanted(&aggregator.api.catalogs().current());
    let stored = aggregator.store().list(aggregator.resource(), None).0;
    let stored: BTreeMap<&str, &Arc<Object>> = stored.iter().map(|object| (object.key.name.as_str(), object)).collect();
    let services = api_services(client);
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    for (name, object) in &stored {
        let current = object.value();
        let done = match decide(wanted.get(*name), Some(&current), when) {
            Action::Nothing | Action::Create => continue,
            Action::Delete => {
                let uid = current["metadata"]["uid"].as_str().map(str::to_owned);
                let own = Preconditions { uid, resource_version: None };
                let only_own = DeleteParams { preconditions: Some(own), ..DeleteParams::default() };
                services.delete(name, &only_own).await.map(drop)
            }
            Action::Update => {
                let mut changed = current;
                changed["spec"] = wanted.get(*name).map(|wanted| wanted["spec"].clone()).unwrap_or_default();
                let changed: DynamicObject = serde_json::from_value(changed).map_err(kube::Error::SerdeError)?;
                services.replace(name, &parameters, &changed).await.map(drop)
            }
        };
        // Deleted or changed meanwhile: its event follows.
        ignoring(&[404, 409], done)?;
    }
    for (name, object) in wanted.iter().filter(|(name, _)| !stored.contains_key(name.as_str())) {
        tracing::debug!(name, "creating APIService");
        let object: DynamicObject = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
        ignoring(&[409], services.create(&parameters, &object).await.map(drop))?;
    }
    Ok(())
}

/// Without the errors that say that another has done it already.
fn ignoring(codes: &[u16], done: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match done {
        Err(kube::Error::Api(status)) if codes.contains(&status.code) => Ok(()),
        done => done,
    }
}

/// Keeps the APIServices until `shutdown`. `client` has all rights.
pub(super) async fn run(aggregator: &Aggregator, client: &Client, shutdown: &CancellationToken) {
    let (store, mut served) = (aggregator.store(), aggregator.api.catalogs().served_types());
    'listing: while let Ok(mut watch) = store.watch(aggregator.resource(), store.revision()) {
        loop {
            served.mark_unchanged();
            let synced = sync(aggregator, client, When::Later).await;
            let pause = match &synced {
                Ok(()) => RESYNC_INTERVAL,
                Err(error) => {
                    tracing::warn!(error = %windlass_kit::client::message(error), "failed to keep the APIServices of this server; retrying");
                    RETRY_INTERVAL
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                changed = served.changed() => if changed.is_err() { return },
                events = watch.next() => match events {
                    Ok(_) => {}
                    Err(Error::Closed) => return,
                    Err(error) => {
                        tracing::warn!(%error, "watch of APIServices was too slow; listing again");
                        continue 'listing;
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::api;

    /// Upstream's table (`TestCheckAPIService`).
    #[test]
    fn what_is_managed_is_kept() {
        let object = |label: Option<&str>, priority: i64| json!({"metadata": {"labels": label.map(|label| json!({LABEL: label}))}, "spec": {"groupPriorityMinimum": priority}});
        let (always, on_start) = (object(Some(ALWAYS), 1), object(Some(ON_START), 1));
        let mut claimed = on_start.clone();
        claimed["spec"]["service"] = json!({"name": "s"});
        for (wanted, current, at_start, later) in [
            (None, None, Action::Nothing, Action::Nothing),
            (Some(&on_start), None, Action::Create, Action::Create),
            (Some(&always), None, Action::Create, Action::Create),
            // Somebody else's.
            (None, Some(object(None, 2)), Action::Nothing, Action::Nothing),
            (Some(&on_start), Some(object(None, 2)), Action::Nothing, Action::Nothing),
            (Some(&always), Some(object(None, 2)), Action::Nothing, Action::Nothing),
            (None, Some(object(Some(ON_START), 2)), Action::Delete, Action::Nothing),
            (None, Some(claimed.clone()), Action::Nothing, Action::Nothing),
            (Some(&on_start), Some(claimed), Action::Update, Action::Nothing),
            (Some(&on_start), Some(object(Some(ON_START), 2)), Action::Update, Action::Nothing),
            (Some(&always), Some(object(Some(ON_START), 2)), Action::Update, Action::Nothing),
            (None, Some(object(Some(ALWAYS), 2)), Action::Delete, Action::Delete),
            (Some(&on_start), Some(object(Some(ALWAYS), 2)), Action::Update, Action::Update),
            (Some(&always), Some(object(Some(ALWAYS), 2)), Action::Update, Action::Update),
            (Some(&always), Some(object(Some(ALWAYS), 1)), Action::Nothing, Action::Nothing),
        ] {
            for (when, action) in [(When::Start, at_start), (When::Later, later)] {
                assert_eq!(decide(wanted, current.as_ref(), when), action, "{wanted:?} {current:?} {when:?}");
            }
        }
    }

    #[test]
    fn each_group_version_has_its_priority() {
        let all = wanted(&api().catalogs().current());
        for (name, priorities) in [
            ("v1.", (18_000, 1)),
            ("v1.apps", (17_800, 15)),
            ("v2.autoscaling", (17_500, 30)),
            ("v1.autoscaling", (17_500, 15)),
            ("v1.networking.k8s.io", (17_200, 15)),
        ] {
            let spec = &all[name]["spec"];
            let found = (spec["groupPriorityMinimum"].as_i64().unwrap(), spec["versionPriority"].as_i64().unwrap());
            assert_eq!(found, priorities, "{name}");
        }
        assert!(!all.contains_key("v1beta1.metrics.k8s.io") && !all.contains_key("v1.apiregistration.k8s.io"));
    }
}
