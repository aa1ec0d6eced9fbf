//! Every type, by discovery, without types of Rust.

use anyhow::Context as _;
use futures::TryStreamExt as _;
use kube::{
    Api, Client,
    api::{
        DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
    },
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use serde_json::{Value, json};

use super::{has_code, with_client};
use crate::server::Server;

pub(super) fn every_type(server: &Server) {
    let objects = server.objects("kube-rs");
    with_client(server, |client| async move {
        for object in objects {
            let what = format!("{} {}", object["apiVersion"], object["kind"]);
            one_type(&client, object).await.with_context(|| what)?;
        }
        Ok(())
    });
}

async fn one_type(client: &Client, object: Value) -> anyhow::Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let gvk = GroupVersionKind::try_from(object.types.as_ref().context("a type")?)?;
    let (resource, capabilities) = discovery::pinned_kind(client, &gvk).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => {
            Api::namespaced_with(client.clone(), object.metadata.namespace.as_deref().context("namespaced")?, &resource)
        }
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let name = object.metadata.name.clone().context("a name")?;
    let before = api.list(&ListParams::default().limit(1)).await?.metadata.resource_version.context("a version")?;

    let created = api.create(&PostParams::default(), &object).await?;
    let label = |value: &str| json!({"metadata": {"labels": {"changed": value}}});
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(label("yes"))).await?;
    anyhow::ensure!(patched.metadata.labels.as_ref().is_some_and(|l| l["changed"] == "yes"), "{patched:?}");
    let mut stale = created.clone();
    stale.metadata.labels = Some([("changed".to_owned(), "no".to_owned())].into());
    anyhow::ensure!(
        has_code(&api.replace(&name, &PostParams::default(), &stale).await, 409),
        "an old version was taken"
    );
    let preconditions = Preconditions { uid: Some("other".to_owned()), resource_version: None };
    let wrong = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    anyhow::ensure!(has_code(&api.delete(&name, &wrong).await, 409), "another object was deleted");
    api.delete(&name, &DeleteParams::default()).await?;

    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(30);
    let mut events = std::pin::pin!(api.watch(&params, &before).await?);
    let mut seen = Vec::new();
    while let Some(event) = events.try_next().await? {
        let (word, changed) = match event {
            WatchEvent::Added(changed) => ("added", changed),
            WatchEvent::Modified(changed) => ("modified", changed),
            WatchEvent::Deleted(changed) => ("deleted", changed),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => anyhow::bail!("{status:?}"),
        };
        anyhow::ensure!(changed.metadata.uid == created.metadata.uid, "{changed:?}");
        seen.push(word);
        if word == "deleted" {
            break;
        }
    }
    let between = seen.get(1..seen.len().saturating_sub(1)).unwrap_or_default();
    anyhow::ensure!(seen.first() == Some(&"added") && seen.last() == Some(&"deleted"), "{seen:?}");
    anyhow::ensure!(!between.is_empty() && between.iter().all(|word| *word == "modified"), "{seen:?}");
    anyhow::ensure!(api.get_opt(&name).await?.is_none(), "{name} is still there");
    Ok(())
}
