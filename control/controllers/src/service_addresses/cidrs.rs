//! ServiceCIDRs are ready once a finalizer holds them, and go when no IPAddress is left that they alone cover.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    super::{finalizers, runtime},
    covers, ip_of, is_managed,
};
use runtime::{Cache, Context, Controller, During as _, Error, Key, Live, Outcome, Step, error};

impl crate::runtime::Cached for ServiceCIDR {}

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// Time until the cache has every address that was given before the deletion.
const DELETION_GRACE: Duration = Duration::from_secs(10);
const READY: (&str, &str, &str) = ("True", "", "Kubernetes Service CIDR is ready");
const IN_USE: (&str, &str, &str) = (
    "False",
    "Terminating",
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
);

pub(crate) struct ServiceCidrController {
    client: Client,
    cidrs: Cache<ServiceCIDR>,
    addresses: Cache<IPAddress>,
}

impl Controller for ServiceCidrController {
    const NAME: &'static str = "service-cidr-controller";
    const QUEUE: &'static str = "ipaddresses";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let cidrs = context.informer::<ServiceCIDR>();
        let addresses = context.informer::<IPAddress>();
        let (queue, cache) = (context.queue(), cidrs.cache());
        cidrs.on_change(move |old, new| {
            // One that is being deleted may wait for a range that covers its addresses, too. There are few.
            let others = cache.all().into_iter().filter(|cidr| cidr.metadata.deletion_timestamp.is_some());
            others.for_each(|cidr| queue.add(Key::of(&cidr.metadata)));
            if let Some(cidr) = new.or(old) {
                queue.add(Key::of(&cidr.metadata));
            }
        });
        let (queue, cache) = (context.queue(), cidrs.cache());
        addresses.on_change(move |old, new| {
            if let (Some(old), None) = (old, new)
                && let Some(ip) = ip_of(old)
            {
                let waiting = cache.all().into_iter().filter(|cidr| cidr.metadata.deletion_timestamp.is_some());
                waiting.filter(|cidr| covers(cidr, ip)).for_each(|cidr| queue.add(Key::of(&cidr.metadata)));
            }
        });
        Self { client: context.client(), cidrs: cidrs.cache(), addresses: addresses.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(cidr) = self.cidrs.get(&key) else { return Ok(Outcome::Done) };
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let Some(deleted) = &cidr.metadata.deletion_timestamp else {
            finalizers::hold(&api, &*cidr, FINALIZER).await?;
            set_condition(&api, &cidr, &key, READY).await?;
            return Ok(Outcome::Done);
        };
        let (all, addresses) = (self.cidrs.all(), self.addresses.all());
        if !may_go(&cidr, all.iter().map(AsRef::as_ref), addresses.iter().map(AsRef::as_ref)) {
            set_condition(&api, &cidr, &key, IN_USE).await?;
            return Ok(Outcome::Done);
        }
        let since = Timestamp::now().duration_since(deleted.0);
        let left = DELETION_GRACE.saturating_sub(Duration::try_from(since).unwrap_or_default());
        if !left.is_zero() {
            return Ok(Outcome::After(left));
        }
        let live =
            Live::list(&Api::<IPAddress>::all(self.client.clone())).await.during("look for addresses of", &key)?;
        match live.shows(|addresses| may_go(&cidr, all.iter().map(AsRef::as_ref), addresses.iter())) {
            Some(unused) => finalizers::let_go(&api, &*cidr, FINALIZER, unused).await?,
            None => return Ok(Step::waits_for(&self.addresses).into()),
        }
        Ok(Outcome::Done)
    }
}

async fn set_condition(
    api: &Api<ServiceCIDR>,
    cidr: &ServiceCIDR,
    key: &Key,
    is: (&str, &str, &str),
) -> Result<(), Error> {
    let stored = cidr.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = stored.filter(|condition| condition.type_ == "Ready");
    if ready.any(|condition| (&*condition.status, &*condition.reason, &*condition.message) == is) {
        return Ok(());
    }
    let meta = &cidr.metadata;
    let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"conditions": [condition(is)]}});
    let patched = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
    error::of_seen(patched, "set the condition of ServiceCIDR", key).map(drop)
}

fn condition((status, reason, message): (&str, &str, &str)) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": now})
}

/// Whether a ServiceCIDR may go: each address in it is in another one that stays. Pure.
pub(super) fn may_go<'a>(
    cidr: &ServiceCIDR,
    all: impl Iterator<Item = &'a ServiceCIDR>,
    mut addresses: impl Iterator<Item = &'a IPAddress>,
) -> bool {
    let others: Vec<&ServiceCIDR> = all
        .filter(|other| other.metadata.name != cidr.metadata.name && other.metadata.deletion_timestamp.is_none())
        .collect();
    !addresses.any(|address| {
        is_managed(address)
            && ip_of(address).is_some_and(|ip| covers(cidr, ip) && !others.iter().any(|other| covers(other, ip)))
    })
}
