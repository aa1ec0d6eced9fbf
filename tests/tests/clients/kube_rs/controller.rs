//! A controller that owns objects, with a finalizer.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        Controller,
        controller::Action,
        finalizer::{self, finalizer},
        watcher,
    },
};
use serde_json::json;

use super::with_client;
use crate::server::Server;

const PLACE: &str = "controlled";
const FINALIZER: &str = "clients.example.com/kept";
const MAPS: usize = 10;

type Error = finalizer::Error<kube::Error>;

pub(super) fn a_controller_reconciles(server: &Server) {
    let _ = server.objects(PLACE);
    with_client(server, |client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), PLACE);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), PLACE);
        let config = watcher::Config::default().labels("kept=yes");
        let controller = Controller::new(maps.clone(), config.clone())
            .owns(secrets.clone(), watcher::Config::default())
            .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(100)), Arc::new(client))
            .for_each(|_| std::future::ready(()));
        tokio::select! {
            () = controller => anyhow::bail!("the controller has ended"),
            done = drive(&maps, &secrets) => done,
        }
    });
}

/// Each map has a secret of its name and value, until the map is removed; a deleted map leaves a trace first.
async fn reconcile(map: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, Error> {
    let maps: Api<ConfigMap> = Api::namespaced((*client).clone(), PLACE);
    let secrets: Api<Secret> = Api::namespaced((*client).clone(), PLACE);
    let traces = maps.clone();
    finalizer(&maps, FINALIZER, map, |event| async move {
        match event {
            finalizer::Event::Apply(map) => {
                let value = map.data.clone().unwrap_or_default().remove("key").unwrap_or_default();
                let owner = map.controller_owner_ref(&()).into_iter().collect::<Vec<_>>();
                let secret = json!({
                    "apiVersion": "v1", "kind": "Secret", "stringData": {"key": value},
                    "metadata": {"name": map.name_any(), "ownerReferences": owner},
                });
                let params = PatchParams::apply("keeper").force();
                secrets.patch(&map.name_any(), &params, &Patch::Apply(secret)).await?;
            }
            finalizer::Event::Cleanup(map) => {
                let gone = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gone"},
                    "data": {map.name_any(): "cleaned up"}});
                let params = PatchParams::apply(&map.name_any());
                traces.patch("gone", &params, &Patch::Apply(gone)).await?;
            }
        }
        Ok(Action::await_change())
    })
    .await
}

async fn drive(maps: &Api<ConfigMap>, secrets: &Api<Secret>) -> anyhow::Result<()> {
    let name = |number: usize| format!("kept-{number}");
    for number in 0..MAPS {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name(number));
        map.metadata.labels = Some([("kept".to_owned(), "yes".to_owned())].into());
        map.data = Some([("key".to_owned(), "one".to_owned())].into());
        maps.create(&PostParams::default(), &map).await?;
    }
    have(secrets, "one", MAPS).await;
    for number in 0..MAPS {
        let patch = Patch::Merge(json!({"data": {"key": "two"}}));
        maps.patch(&name(number), &PatchParams::default(), &patch).await?;
    }
    have(secrets, "two", MAPS).await;
    // What is owned comes back.
    secrets.delete(&name(0), &DeleteParams::default()).await?;
    have(secrets, "two", MAPS).await;
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("kept=yes")).await?;
    // Owned objects go with their owners, by garbage collection.
    have(secrets, "two", 0).await;
    let gone = maps.get("gone").await?.data.context("what was cleaned up")?;
    anyhow::ensure!(gone.len() == MAPS, "{gone:?}");
    anyhow::ensure!(maps.list(&ListParams::default().labels("kept=yes")).await?.items.is_empty());
    Ok(())
}

/// Waits until there are this many secrets, all with this value.
async fn have(secrets: &Api<Secret>, value: &str, count: usize) {
    loop {
        let all = secrets.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        let holds = |secret: &Secret| secret.data.as_ref().is_some_and(|data| data["key"].0 == value.as_bytes());
        let owned: Vec<&Secret> = all.iter().filter(|secret| secret.name_any().starts_with("kept-")).collect();
        if owned.len() == count && owned.into_iter().all(holds) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
