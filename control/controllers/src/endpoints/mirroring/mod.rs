//! EndpointSlice mirroring controller: Endpoints that somebody else makes for services without a selector become
//! EndpointSlices, which alone proxies read. Upstream's `pkg/controller/endpointslicemirroring`. `plan` decides and is pure.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Endpoints, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Client, ResourceExt as _};
use windlass_kit::{
    events::{Recorder, Severity},
    object_ref,
};

use super::{
    UNHEARD,
    slices::Plan,
    writes::{Actions, write_slices},
};
use crate::runtime::{Cache, Context, Controller, Error, Index, Key, Outcome, PerOwner, SyncPoint, error};

impl crate::runtime::Cached for Endpoints {}

mod plan;
#[cfg(test)]
mod tests;

/// Reasons of events.
const INVALID_IP_ADDRESS: &str = "InvalidIPAddress";
const TOO_MANY_ADDRESSES: &str = "TooManyAddressesToMirror";

const WRITES: Actions = ["create a mirrored slice of", "update a mirrored slice of", "delete a mirrored slice of"];

/// The slices that this controller manages, by the Endpoints that they mirror.
const MIRRORS: Index<EndpointSlice> =
    Index::new("mirrored", |slice| mirrored(slice).map(|key| key.to_string()).into_iter().collect());

/// The controller, whose keys are Endpoints.
pub(crate) struct EndpointSliceMirroringController {
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
    super::managed_service(slice, plan::MANAGER)
}

impl Controller for EndpointSliceMirroringController {
    const NAME: &'static str = "endpointslice-mirroring-controller";
    const QUEUE: &'static str = "endpoint_slice_mirroring";
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

impl EndpointSliceMirroringController {
    async fn write(&self, key: &Key, uid: &str, plan: Plan) -> Result<(), Error> {
        let wrote = |_: &str, slice: Option<&EndpointSlice>| {
            if let Some(slice) = slice {
                let point = self.slices.sync_point(slice.metadata.resource_version.as_deref());
                self.written.with(key, uid, |written| *written = Some(point));
            }
        };
        write_slices(&self.client, key, &plan, WRITES, &wrote).await
    }
}
