//! Puts back IPAddresses that services have lost, and removes those that no service has. Nothing of the kind happens by
//! itself: both are written at once. Users may write IPAddresses too.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::Service,
    networking::v1::{IPAddress, IPAddressSpec, ParentReference, ServiceCIDR},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use windlass_kit::{
    events::{Recorder, Severity},
    net::Family,
    object_ref,
};

use super::{super::runtime, ALLOCATOR, FAMILY_LABEL, MANAGED_BY_LABEL, covers, is_managed};
use runtime::{Cache, Context, Controller, During as _, Error, Key, Outcome, error, same_object};

impl crate::runtime::Cached for IPAddress {}

/// An IPAddress may be older than its service by so much.
const GRACE: Duration = Duration::from_secs(60);

pub(crate) struct ServiceAddressRepairController {
    client: Client,
    services: Cache<Service>,
    addresses: Cache<IPAddress>,
    cidrs: Cache<ServiceCIDR>,
    recorder: Recorder,
}

/// What is wrong, as an event, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) repair: RepairAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RepairAction {
    /// Only the user can help.
    None,
    Create,
    Recreate,
    Delete,
}

impl Controller for ServiceAddressRepairController {
    const NAME: &'static str = "ipallocator-repair-controller";
    const QUEUE: &'static str = "services";
    /// A service, or an IPAddress, which has no namespace.
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let services = context.informer::<Service>();
        let addresses = context.informer::<IPAddress>();
        let cidrs = context.informer::<ServiceCIDR>();
        let queue = context.queue();
        services.on_change(move |old, new| {
            if let Some(service) = new {
                queue.add(Key::of(&service.metadata));
            }
            let had: Vec<IpAddr> = old.map(|old| cluster_ips(old).collect()).unwrap_or_default();
            let has: Vec<IpAddr> = new.map(|new| cluster_ips(new).collect()).unwrap_or_default();
            had.iter().filter(|ip| !has.contains(ip)).for_each(|ip| queue.add(Key::new("", ip.to_string())));
        });
        let queue = context.queue();
        addresses.on_change(move |old, new| {
            if let Some(address) = new {
                queue.add(Key::of(&address.metadata));
            }
            [old, new].into_iter().flatten().filter_map(|address| parent(address)).for_each(|key| queue.add(key));
        });
        Self {
            client: context.client(),
            services: services.cache(),
            addresses: addresses.cache(),
            cidrs: cidrs.cache(),
            recorder: context.recorder(Self::NAME),
        }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        if key.namespace.is_empty() { self.reconcile_address(&key).await } else { self.reconcile_service(&key).await }
    }
}

impl ServiceAddressRepairController {
    async fn reconcile_service(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(service) = self.services.get(key) else { return Ok(Outcome::Done) };
        for ip in cluster_ips(&service) {
            let address_key = Key::new("", ip.to_string());
            let address = self.addresses.get(&address_key);
            let other = address.as_deref().and_then(parent).and_then(|key| self.services.get(&key));
            if !self.cidrs.all().iter().any(|cidr| covers(cidr, ip)) {
                let family = Family::of(&ip).name();
                let text = format!(
                    "Cluster IP [{family}]: {ip} is not within any configured Service CIDR; please recreate service"
                );
                self.recorder.record(&object_ref::of(&*service), Severity::Warning, "ClusterIPOutOfRange", text);
                continue;
            }
            if check_service(&service, ip, address.as_deref(), other.as_deref()).is_none() {
                continue;
            }
            // The caches show objects of one transaction one after the other.
            let Some(service) = self.service(key).await? else { return Ok(Outcome::Done) };
            let address = self.address(&address_key).await?;
            let other = match address.as_ref().and_then(parent) {
                Some(parent) => self.service(&parent).await?,
                None => None,
            };
            if !cluster_ips(&service).any(|own| own == ip) {
                continue;
            }
            let Some(finding) = check_service(&service, ip, address.as_ref(), other.as_ref()) else { continue };
            // A missing label is put right without a word, as upstream.
            if !finding.message.is_empty() {
                self.recorder.record(&object_ref::of(&service), Severity::Warning, finding.reason, finding.message);
            }
            if finding.repair == RepairAction::Recreate
                && let Some(address) = &address
            {
                self.delete(address, &address_key).await?;
            }
            if finding.repair != RepairAction::None {
                self.create(&service, ip, &address_key).await?;
            }
        }
        Ok(Outcome::Done)
    }

    async fn reconcile_address(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(address) = self.addresses.get(key).filter(|address| is_managed(address)) else {
            return Ok(Outcome::Done);
        };
        let service = parent(&address).and_then(|key| self.services.get(&key));
        if check_address(&address, service.as_deref()).is_none() {
            return Ok(Outcome::Done);
        }
        let made = address.metadata.creation_timestamp.as_ref();
        let age = made.map(|made| Timestamp::now().duration_since(made.0));
        let left = GRACE.saturating_sub(age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default());
        if service.is_none() && !left.is_zero() {
            return Ok(Outcome::After(left));
        }
        let Some(address) = self.address(key).await? else { return Ok(Outcome::Done) };
        let service = match parent(&address) {
            Some(parent) => self.service(&parent).await?,
            None => None,
        };
        if let Some(finding) = check_address(&address, service.as_ref()).filter(|_| is_managed(&address)) {
            self.recorder.record(&object_ref::of(&address), Severity::Warning, finding.reason, finding.message);
            self.delete(&address, key).await?;
        }
        Ok(Outcome::Done)
    }

    async fn service(&self, key: &Key) -> Result<Option<Service>, Error> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        api.get_opt(&key.name).await.during("read Service", key)
    }

    async fn address(&self, key: &Key) -> Result<Option<IPAddress>, Error> {
        let api: Api<IPAddress> = Api::all(self.client.clone());
        api.get_opt(&key.name).await.during("read IPAddress", key)
    }

    async fn create(&self, service: &Service, ip: IpAddr, key: &Key) -> Result<(), Error> {
        let api: Api<IPAddress> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), &new_address(service, ip)).await {
            Err(error) if error::is_already_exists(&error) => Ok(()),
            made => made.map(drop).during("create IPAddress", key),
        }
    }

    async fn delete(&self, address: &IPAddress, key: &Key) -> Result<(), Error> {
        let api: Api<IPAddress> = Api::all(self.client.clone());
        let params = DeleteParams::default().preconditions(same_object(&address.metadata));
        match api.delete(&key.name, &params).await {
            // Another one has taken its place.
            Err(error) if error::is_conflict(&error) => Ok(()),
            deleted => error::ignore_deleted(deleted).map(drop).during("delete IPAddress", key),
        }
    }
}

/// The cluster IPs of a service.
fn cluster_ips(service: &Service) -> impl Iterator<Item = IpAddr> + '_ {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() != Some("ExternalName"));
    let all = spec.and_then(|spec| spec.cluster_ips.as_ref()).into_iter().flatten();
    all.filter_map(|ip| ip.parse().ok())
}

/// The service that is the parent of an address.
fn parent(address: &IPAddress) -> Option<Key> {
    let parent = &address.spec.parent_ref;
    let is_service = parent.group.as_deref().is_none_or(str::is_empty) && parent.resource == "services";
    is_service.then(|| Key::new(parent.namespace.as_deref().unwrap_or(""), &parent.name))
}

fn new_address(service: &Service, ip: IpAddr) -> IPAddress {
    let labels = [(FAMILY_LABEL, Family::of(&ip).name()), (MANAGED_BY_LABEL, ALLOCATOR)];
    IPAddress {
        metadata: ObjectMeta {
            name: Some(ip.to_string()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        spec: IPAddressSpec {
            parent_ref: ParentReference {
                group: None,
                resource: "services".to_owned(),
                namespace: service.namespace(),
                name: service.name_any(),
            },
        },
    }
}

/// What is wrong with the IPAddress of a service's address; `other` is the service that it refers to. Pure.
pub(super) fn check_service(
    service: &Service,
    ip: IpAddr,
    address: Option<&IPAddress>,
    other: Option<&Service>,
) -> Option<Finding> {
    const REASON: &str = "ClusterIPNotAllocated";
    let (family, namespace, name) =
        (Family::of(&ip).name(), service.namespace().unwrap_or_default(), service.name_any());
    let found = |reason, message: String, repair| Some(Finding { reason, message, repair });
    let Some(address) = address else {
        let message = format!("Cluster IP [{family}]: {ip} is not allocated; repairing");
        return found(REASON, message, RepairAction::Create);
    };
    let wrong =
        format!("the ClusterIP [{family}]: {ip} for Service {namespace}/{name} has a wrong reference; cleaning up");
    let Some(parent) = parent(address) else { return found(REASON, wrong, RepairAction::Recreate) };
    if parent != Key::of(&service.metadata) {
        let Some(other) = other else { return found(REASON, wrong, RepairAction::Recreate) };
        let message = format!("Cluster IP [{family}]:{ip} was assigned to multiple services; please recreate service");
        // A service that does not have the address loses it by the check of the address.
        let is_taken = cluster_ips(other).any(|own| own == ip);
        return is_taken.then_some(Finding {
            reason: "ClusterIPAlreadyAllocated",
            message,
            repair: RepairAction::None,
        });
    }
    let has_labels = is_managed(address) && address.labels().get(FAMILY_LABEL).is_some_and(|label| label == family);
    if has_labels { None } else { found(REASON, String::new(), RepairAction::Recreate) }
}

/// What is wrong with an IPAddress that the allocator manages; `service` is its parent. Pure.
pub(super) fn check_address(address: &IPAddress, service: Option<&Service>) -> Option<Finding> {
    let name = address.name_any();
    let found = |reason, message| Some(Finding { reason, message, repair: RepairAction::Delete });
    let Some(key) = parent(address) else {
        let message = format!("IPAddress {name} appears to have been modified, not referencing a Service: cleaning up");
        return found("IPAddressNotAllocated", message);
    };
    let of = format!("IPAddress: {name} for Service {}/{}", key.namespace, key.name);
    let Some(service) = service else {
        return found("IPAddressNotAllocated", format!("{of} appears to have leaked: cleaning up"));
    };
    let is_own = cluster_ips(service).any(|ip| ip.to_string() == name);
    if is_own { None } else { found("IPAddressWrongReference", format!("{of} has a wrong reference; cleaning up")) }
}
