//! EndpointSlice mirroring controller: Endpoints that somebody else makes for services without a selector become
//! EndpointSlices, which alone proxies read. Upstream's `pkg/controller/endpointslicemirroring`. `plan` decides and is pure.

use std::sync::Arc;

use futures::future::try_join_all;
use k8s_openapi::api::{
    core::v1::{Endpoints, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams},
};
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
};

use super::{
    UNHEARD,
    slices::{self, Plan},
};
use crate::controllers::runtime::{
    Cache, Context, Controller, During as _, Error, Index, Key, Outcome, PerOwner, SyncPoint, error, same_object,
};

mod plan;
#[cfg(test)]
mod tests;

/// Reasons of events.
const INVALID_IP_ADDRESS: &str = "InvalidIPAddress";
const TOO_MANY_ADDRESSES: &str = "TooManyAddressesToMirror";

/// The slices that this controller manages, by the Endpoints that they mirror.
const MIRRORS: Index<EndpointSlice> =
    Index::new("mirrored", |slice| mirrored(slice).map(|key| key.to_string()).into_iter().collect());

/// The controller, whose keys are Endpoints.
pub(crate) struct EndpointSliceMirroring {
    client: Client,
    services: Cache<Service>,
    endpoints: Cache<Endpoints>,
    slices: Cache<EndpointSlice>,
    recorder: Recorder,
    /// The last write of a slice of each.
    written: PerOwner<Option<SyncPoint>>,
}

/// The Endpoints that a slice of this controller mirrors.
fn mirrored(slice: &EndpointSlice) -> Option<Key> {
    let labels = slice.metadata.labels.as_ref()?;
    let ours = labels.get(slices::MANAGED_BY).is_some_and(|manager| manager == plan::MANAGER);
    let name = labels.get(slices::SERVICE_NAME).filter(|_| ours)?;
    Some(Key::new(slice.namespace().unwrap_or_default(), name))
}

impl Controller for EndpointSliceMirroring {
    const NAME: &'static str = "endpointslice-mirroring-controller";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let (services, endpoints, slices) =
            (context.informer::<Service>(), context.informer::<Endpoints>(), context.informer::<EndpointSlice>());
        slices.index(&MIRRORS);
        let queue = context.queue();
        services.on_change(move |old, new| {
            let mirrors =
                |service: Option<&Arc<Service>>| service.is_some_and(|service| plan::has_no_selector(service));
            if mirrors(old) != mirrors(new)
                && let Some(service) = new.or(old)
            {
                queue.add(Key::of(&service.metadata));
            }
        });
        let queue = context.queue();
        endpoints.on_change(move |old, new| {
            if let Some(object) = [old, new].into_iter().flatten().find(|object| plan::may_be_mirrored(object)) {
                queue.add(Key::of(&object.metadata));
            }
        });
        let queue = context.queue();
        slices.on_change(move |old, new| {
            [old, new].into_iter().flatten().filter_map(|slice| mirrored(slice)).for_each(|key| queue.add(key));
        });
        Self {
            recorder: context.recorder("endpoint-slice-mirroring-controller"),
            client: context.client(),
            services: services.cache(),
            endpoints: endpoints.cache(),
            slices: slices.cache(),
            written: PerOwner::default(),
        }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let is_wanted = |endpoints: &Arc<Endpoints>| {
            let service = self.services.get(&key);
            plan::may_be_mirrored(endpoints) && service.is_some_and(|service| plan::has_no_selector(&service))
        };
        let Some(endpoints) = self.endpoints.get(&key).filter(is_wanted) else {
            self.written.forget(&key);
            let delete = self.slices.by_index(&MIRRORS, &key.to_string());
            self.write(&key, "", Plan { delete, ..Plan::default() }).await?;
            return Ok(Outcome::Done);
        };
        let uid = endpoints.uid().unwrap_or_default();
        if self.written.with(&key, &uid, |written| written.is_some_and(|point| !self.slices.reached(point))) {
            return Ok(Outcome::After(UNHEARD));
        }
        let mirror = plan::reconcile(&endpoints, &self.slices.by_index(&MIRRORS, &key.to_string()));
        let warn =
            |reason, text: String| self.recorder.record(&object_ref::of(&*endpoints), Severity::Warning, reason, text);
        if mirror.invalid > 0 {
            let text = format!("Skipped {} invalid IP addresses when mirroring to EndpointSlices", mirror.invalid);
            warn(INVALID_IP_ADDRESS, text);
        }
        if mirror.skipped > mirror.invalid {
            let (most, skipped) = (plan::MAX_ADDRESSES, mirror.skipped);
            let text = format!(
                "A max of {most} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were skipped"
            );
            warn(TOO_MANY_ADDRESSES, text);
        }
        match self.write(&key, &uid, mirror.plan).await {
            Err(Error::Api { source, .. }) if error::is_namespace_terminating(&source) => Ok(Outcome::Done),
            written => written.map(|()| Outcome::Done),
        }
    }
}

impl EndpointSliceMirroring {
    async fn write(&self, key: &Key, uid: &str, plan: Plan) -> Result<(), Error> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.namespace);
        let (api, params) = (&api, &PostParams::default());
        let wrote = |slice: &EndpointSlice| {
            let point = self.slices.sync_point(slice.metadata.resource_version.as_deref());
            self.written.with(key, uid, |written| *written = Some(point));
        };
        let wrote = &wrote;
        let creates = plan.create.iter().map(|slice| async move {
            api.create(params, slice).await.map(|slice| wrote(&slice)).during("create a mirrored slice of", key)
        });
        try_join_all(creates).await?;
        let updates = plan.update.iter().map(|slice| async move {
            let replaced = api.replace(&slice.name_any(), params, slice).await;
            replaced.map(|slice| wrote(&slice)).during("update a mirrored slice of", key)
        });
        try_join_all(updates).await?;
        let deletes = plan.delete.iter().map(|slice| async move {
            let params = DeleteParams::default().preconditions(same_object(&slice.metadata));
            let deleted = api.delete(&slice.name_any(), &params).await;
            error::ignore_deleted(deleted).during("delete a mirrored slice of", key).map(drop)
        });
        try_join_all(deletes).await.map(drop)
    }
}
