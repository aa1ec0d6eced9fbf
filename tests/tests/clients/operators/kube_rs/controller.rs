//! The controller: a cache is a Deployment of its size and a ConfigMap with its memory.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{
        Controller,
        controller::Action,
        events::{Event, EventType, Recorder, Reporter},
        finalizer::{self, finalizer},
        watcher,
    },
};
use serde_json::{Value, json};

use super::cache::{Cache, CacheStatus};

/// The manager of the fields, and the label of what the operator makes.
pub(super) const MANAGER: &str = "cache-operator";
pub(super) const FINALIZER: &str = "operators.example.com/farewell";

type Error = finalizer::Error<kube::Error>;

struct Context {
    client: Client,
    recorder: Recorder,
}

/// Follows caches until it is dropped.
pub(super) async fn run(client: Client, me: &str) {
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(me.to_owned()) };
    let context = Context { client: client.clone(), recorder: Recorder::new(client.clone(), reporter) };
    let managed = || watcher::Config::default().labels("app.kubernetes.io/managed-by=cache-operator");
    Controller::new(Api::<Cache>::all(client.clone()), watcher::Config::default())
        .owns(Api::<Deployment>::all(client.clone()), managed())
        .owns(Api::<ConfigMap>::all(client), managed())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(200)), Arc::new(context))
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(cache: Arc<Cache>, context: Arc<Context>) -> Result<Action, Error> {
    let namespace = cache.namespace().unwrap_or_default();
    let caches: Api<Cache> = Api::namespaced(context.client.clone(), &namespace);
    finalizer(&caches, FINALIZER, cache, |event| async {
        match event {
            finalizer::Event::Apply(cache) => apply(&cache, &context).await?,
            finalizer::Event::Cleanup(cache) => {
                let farewell = json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": format!("farewell-{}", cache.name_any())},
                    "data": {"replicas": cache.spec.replicas.to_string()}});
                let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
                let name = format!("farewell-{}", cache.name_any());
                maps.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(farewell)).await?;
            }
        }
        Ok(Action::await_change())
    })
    .await
}

async fn apply(cache: &Cache, context: &Context) -> Result<(), kube::Error> {
    let (name, namespace) = (cache.name_any(), cache.namespace().unwrap_or_default());
    let params = PatchParams::apply(MANAGER).force();
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
    maps.patch(&format!("{name}-settings"), &params, &Patch::Apply(settings(cache))).await?;
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), &namespace);
    let deployment = deployments.patch(&name, &params, &Patch::Apply(deployment(cache))).await?;

    let generation = cache.metadata.generation.unwrap_or(0);
    let status = CacheStatus {
        replicas: deployment.status.and_then(|status| status.replicas).unwrap_or(0),
        selector: format!("cache={name}"),
        observed_generation: generation,
    };
    if cache.status.as_ref() == Some(&status) {
        return Ok(());
    }
    if cache.status.as_ref().is_none_or(|last| last.observed_generation != generation) {
        let event = Event {
            type_: EventType::Normal,
            reason: "Reconciled".to_owned(),
            note: Some(format!("{} replicas with {} each", cache.spec.replicas, cache.spec.memory.limit)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        context.recorder.publish(&event, &cache.object_ref(&())).await?;
    }
    let caches: Api<Cache> = Api::namespaced(context.client.clone(), &namespace);
    let change =
        json!({"apiVersion": cache.api_version, "kind": cache.kind, "metadata": {"name": name}, "status": status});
    caches.patch_status(&name, &params, &Patch::Apply(change)).await?;
    Ok(())
}

/// The metadata of a child.
fn child(cache: &Cache, name: &str) -> Value {
    let owner: Vec<_> = cache.controller_owner_ref(&()).into_iter().collect();
    json!({"name": name, "ownerReferences": owner, "labels": {"app.kubernetes.io/managed-by": MANAGER}})
}

fn settings(cache: &Cache) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": child(cache, &format!("{}-settings", cache.name_any())),
        "data": {"memory": cache.spec.memory.limit, "tier": cache.spec.tier}})
}

fn deployment(cache: &Cache) -> Value {
    let labels = json!({"cache": cache.name_any()});
    let container = json!({"name": "cache", "image": "none",
        "resources": {"limits": {"memory": cache.spec.memory.limit}}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": child(cache, &cache.name_any()),
        "spec": {"replicas": cache.spec.replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}})
}
