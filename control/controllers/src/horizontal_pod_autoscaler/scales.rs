//! Reads and writes the `scale` of whatever is scaled: upstream's `scaleForResourceMappings`, with the kinds that
//! discovery knows in place of its `RESTMapper`.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::autoscaling::{v1::Scale, v2::CrossVersionObjectReference},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::objects::label_selector;

use super::{messages, server_errors};
use crate::runtime::{
    Discovery, error,
    rest_mapper::{Kind, group_of},
};

/// Tries of a write that others are faster than, and the time between two (client-go's `DefaultRetry`).
const CONFLICT_TRIES: u32 = 5;
const CONFLICT_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct Scales {
    client: Client,
    discovery: Discovery,
}

/// A scale that was read, and where it is written.
pub(super) struct Found {
    api: Api<DynamicObject>,
    name: String,
    scale: Scale,
    /// That of the pods; `None` where the scale has none.
    selector: Option<LabelSelector>,
}

impl Found {
    /// The replicas that it asks for.
    pub(super) fn wanted(&self) -> i32 {
        self.scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0)
    }

    /// The replicas that there are.
    pub(super) fn present(&self) -> i32 {
        self.scale.status.as_ref().map_or(0, |status| status.replicas)
    }

    /// The selector of the pods, if there is one.
    pub(super) fn selector(&self) -> Option<&LabelSelector> {
        self.selector.as_ref()
    }

    /// Asks for another size. While a Deployment is rolled out, it changes all the time: when it has changed since its scale
    /// was read, that is read again. Upstream's `RetryOnConflict`.
    ///
    /// # Errors
    /// Why it was refused, for an event.
    pub(super) async fn resize(&self, size: i32) -> Result<(), String> {
        let mut scale = self.scale.clone();
        let mut tries = 1;
        loop {
            scale.spec.get_or_insert_default().replicas = Some(size);
            match self.api.replace_scale(&self.name, &PostParams::default(), &scale).await {
                Err(refused) if error::is_conflict(&refused) && tries < CONFLICT_TRIES => {
                    tokio::time::sleep(CONFLICT_INTERVAL).await;
                    if let Ok(latest) = self.api.get_scale(&self.name).await {
                        scale = latest;
                    }
                    tries += 1;
                }
                written => return written.map(drop).map_err(|error| server_errors::text(&error)),
            }
        }
    }
}

impl Scales {
    pub(super) fn new(client: Client, discovery: Discovery) -> Self {
        Self { client, discovery }
    }

    /// Waits for the first discovery.
    pub(super) async fn prepare(&self, shutdown: &CancellationToken) {
        let _ = shutdown.run_until_cancelled(self.discovery.clone().next()).await;
    }

    /// A kind by its group, in the version that is served.
    ///
    /// # Errors
    /// That it is not served, in upstream's words.
    pub(super) fn kind(&self, api_version: &str, kind: &str) -> Result<Arc<Kind>, String> {
        let found = self.discovery.latest().and_then(|kinds| kinds.find(api_version, kind));
        found.ok_or_else(|| format!("no matches for kind {kind:?} in group {:?}", group_of(api_version)))
    }

    /// Reads the scale of a target.
    ///
    /// # Errors
    /// Why it cannot be read, for an event.
    pub(super) async fn read(&self, namespace: &str, target: &CrossVersionObjectReference) -> Result<Found, String> {
        let kind = self.kind(target.api_version.as_deref().unwrap_or_default(), &target.kind)?;
        let api = kind.api(&self.client, namespace);
        let scale = api.get_scale(&target.name).await.map_err(|error| server_errors::text(&error))?;
        let text = scale.status.as_ref().and_then(|status| status.selector.as_deref()).filter(|text| !text.is_empty());
        let selector = text.map(label_selector::parse).transpose().map_err(|why| messages::bad_scale(&why))?;
        Ok(Found { api, name: target.name.clone(), scale, selector })
    }
}
