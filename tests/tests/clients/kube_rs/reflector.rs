//! A watcher and a reflector, by list and watch and by a streaming list.

use std::collections::BTreeMap;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, reflector, watcher},
};
use serde_json::json;

use super::with_client;
use crate::server::Server;

const MAPS: usize = 30;

pub(super) fn a_reflector_follows_a_type(server: &Server) {
    let _ = server.objects("reflected");
    with_client(server, |client| async move {
        follow(&client, watcher::Config::default().labels("of=paged").page_size(7), "paged")
            .await
            .context("list and watch")?;
        follow(&client, watcher::Config::default().labels("of=streamed").streaming_lists(), "streamed")
            .await
            .context("a streaming list")
    });
}

async fn follow(client: &Client, config: watcher::Config, of: &str) -> anyhow::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "reflected");
    let map = |name: String| -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name);
        map.metadata.labels = Some([("of".to_owned(), of.to_owned())].into());
        map
    };
    for number in 0..MAPS {
        api.create(&PostParams::default(), &map(format!("{of}-{number}"))).await?;
    }
    let (store, writer) = reflector::store();
    let changes = reflector::reflector(writer, watcher(api.clone(), config)).default_backoff();
    let mut changes = std::pin::pin!(changes);
    let cached = || -> BTreeMap<String, Option<String>> {
        let value = |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("key").cloned());
        store.state().iter().map(|map| (map.name_any(), value(map))).collect()
    };
    while cached().len() < MAPS {
        changes.try_next().await?.context("the watcher has ended")?;
    }

    // Changes, deletions and creations, while the watch is open.
    for number in 0..MAPS {
        let name = format!("{of}-{number}");
        if number % 3 == 0 {
            api.delete(&name, &DeleteParams::default()).await?;
        } else {
            let patch = Patch::Merge(json!({"data": {"key": number.to_string()}}));
            api.patch(&name, &PatchParams::default(), &patch).await?;
        }
        api.create(&PostParams::default(), &map(format!("{of}-new-{number}"))).await?;
    }
    let listed = api.list(&ListParams::default().labels(&format!("of={of}"))).await?;
    let value = |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("key").cloned());
    let there: BTreeMap<_, _> = listed.iter().map(|map| (map.name_any(), value(map))).collect();
    anyhow::ensure!(there.len() == MAPS * 5 / 3, "{}", there.len());
    while cached() != there {
        changes.next().await.context("the watcher has ended")??;
    }
    Ok(())
}
