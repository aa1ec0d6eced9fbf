//! Allocates cluster IPs and node ports of services. The store's writer calls it in the order of the writes, also for
//! IPAddress and ServiceCIDR objects, so that it always knows what is taken and what may be given; the IPAddress of a
//! cluster IP is written in the transaction of its service. Allocations belong to the service's uid, so that a recreated
//! service of the same name has its own.

mod ip_address;
mod ports;
mod ranges;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::Ipv4Addr,
    ops::RangeInclusive,
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    apiserver::generate::{new_uid, random_u32},
    store::{Allocation, AllocationError, Allocator, Change, Companion, Key, Object, ResourceId, Store},
};
pub(crate) use ip_address::{IP_ADDRESSES, ip_address};
use ports::Draw;
pub(super) use ports::needs_health_check;
pub(crate) use ranges::DEFAULT_SERVICE_CIDR;
use ranges::{Range, Ranges, ServiceCidr};

const SERVICES: &str = "services";
const SERVICE_CIDRS: &str = "servicecidrs.networking.k8s.io";

/// The allocations of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Allocated {
    address: Option<Ipv4Addr>,
    ports: BTreeSet<u16>,
}

impl Allocated {
    /// The allocations that a stored service records.
    fn by(service: &Value) -> Self {
        Self { address: cluster_ip(service), ports: ports::allocated(service) }
    }
}

/// The cluster IP that a stored service has.
pub(crate) fn cluster_ip(service: &Value) -> Option<Ipv4Addr> {
    let spec = &service["spec"];
    spec["clusterIP"].as_str().filter(|_| spec["type"] != "ExternalName")?.parse().ok()
}

/// All allocations, by value and by service uid.
#[derive(Debug, PartialEq, Eq)]
struct Allocations {
    addresses: HashMap<Ipv4Addr, String>,
    ports: HashMap<u16, String>,
    services: HashMap<String, Allocated>,
    /// The addresses that have an IPAddress, of any parent.
    objects: HashSet<Ipv4Addr>,
    ranges: Ranges,
}

impl Allocations {
    fn new(configured: Range) -> Self {
        Self {
            addresses: HashMap::new(),
            ports: HashMap::new(),
            services: HashMap::new(),
            objects: HashSet::new(),
            ranges: Ranges::new(configured),
        }
    }

    /// What the store holds. Of an allocation that two services have, the first one counts.
    fn load(configured: Range, store: &Store) -> Self {
        let mut all = Self::new(configured);
        for object in store.list(store.resource(SERVICE_CIDRS), None).0 {
            all.ranges.set(&object.key.name, Some(ServiceCidr::of(&object.value())));
        }
        for object in store.list(store.resource(IP_ADDRESSES), None).0 {
            all.objects.extend(object.key.name.parse::<Ipv4Addr>());
        }
        for object in store.list(store.resource(SERVICES), None).0 {
            let (key, service) = (&object.key, object.value());
            let mut allocated = Allocated::by(&service);
            let twice = allocated.address.is_some_and(|a| all.addresses.contains_key(&a))
                || allocated.ports.iter().any(|p| all.ports.contains_key(p));
            if twice {
                tracing::warn!(
                    namespace = key.namespace,
                    service = key.name,
                    "cluster IP or node port of this service is allocated to another service too; recreate the service"
                );
                allocated.address = allocated.address.filter(|a| !all.addresses.contains_key(a));
                allocated.ports.retain(|p| !all.ports.contains_key(p));
            }
            all.set(uid_of(&service), allocated);
        }
        all
    }

    /// Replaces the allocations of a service and returns the previous ones.
    fn set(&mut self, uid: &str, allocated: Allocated) -> Allocated {
        let before = self.services.remove(uid).unwrap_or_default();
        if let Some(address) = &before.address {
            self.addresses.remove(address);
        }
        for port in &before.ports {
            self.ports.remove(port);
        }
        if allocated != Allocated::default() {
            self.addresses.extend(allocated.address.map(|address| (address, uid.to_owned())));
            self.ports.extend(allocated.ports.iter().map(|port| (*port, uid.to_owned())));
            self.services.insert(uid.to_owned(), allocated);
        }
        before
    }

    /// Records whether an address has an IPAddress and returns whether it had.
    fn set_object(&mut self, address: Ipv4Addr, exists: bool) -> bool {
        if exists { !self.objects.insert(address) } else { self.objects.remove(&address) }
    }

    fn is_taken(&self, address: Ipv4Addr) -> bool {
        self.addresses.contains_key(&address) || self.objects.contains(&address)
    }
}

/// What the allocators of the three resources share.
type SharedAllocations = Arc<Mutex<Allocations>>;

/// The ranges and their allocations.
#[derive(Debug)]
pub(crate) struct ServiceAllocator {
    ports: RangeInclusive<u16>,
    ip_addresses: ResourceId,
    allocations: SharedAllocations,
}

impl ServiceAllocator {
    /// Loads the allocations of the stored services.
    pub(crate) fn new((first, length): (Ipv4Addr, u8), ports: RangeInclusive<u16>, store: &Store) -> Self {
        let allocations = Allocations::load(Range::new(first, length), store);
        let ip_addresses = store.resource(IP_ADDRESSES);
        Self { ports, ip_addresses, allocations: Arc::new(Mutex::new(allocations)) }
    }

    /// What hears of IPAddress objects.
    pub(crate) fn ip_addresses(&self) -> Arc<dyn Allocator> {
        Arc::new(IpAddresses(Arc::clone(&self.allocations)))
    }

    /// What hears of ServiceCIDR objects.
    pub(crate) fn service_cidrs(&self) -> Arc<dyn Allocator> {
        Arc::new(ServiceCidrs(Arc::clone(&self.allocations)))
    }

    /// Fills in what a service lacks without allocating it.
    pub(super) fn dry_run(&self, service: &mut Value) -> Result<(), AllocationError> {
        let uid = uid_of(service).to_owned();
        self.plan(&self.allocations.lock(), &uid, service, true).map(drop)
    }

    /// Whether the allocations are exactly those of the stored objects, and the allocated addresses and node ports.
    #[cfg(test)]
    pub(crate) fn allocated(&self, store: &Store) -> (bool, BTreeSet<Ipv4Addr>, BTreeSet<u16>) {
        let allocations = self.allocations.lock();
        let wanted = Allocations::load(allocations.ranges.configured(), store);
        (
            *allocations == wanted,
            allocations.addresses.keys().copied().collect(),
            allocations.ports.keys().copied().collect(),
        )
    }

    /// Fills in what a service lacks and returns its allocations.
    fn plan(
        &self,
        allocations: &Allocations,
        uid: &str,
        service: &mut Value,
        is_dry_run: bool,
    ) -> Result<Allocated, AllocationError> {
        if service["spec"]["type"] == "ExternalName" {
            return Ok(Allocated::default());
        }
        let before = allocations.services.get(uid).cloned().unwrap_or_default();
        let address = plan_address(allocations, &before, service, is_dry_run)?;
        let shown = address.map_or_else(|| "None".to_owned(), |a| a.to_string());
        service["spec"]["clusterIP"] = json!(shown);
        service["spec"]["clusterIPs"] = json!([shown]);
        let draw = if is_dry_run { Draw::DryRun } else { Draw::Random(&random_u32) };
        let is_taken = |port| allocations.ports.get(&port).is_some_and(|owner| owner != uid);
        let ports = ports::plan(&self.ports, &before.ports, &is_taken, draw, service)?;
        Ok(Allocated { address, ports })
    }

    /// Writes the IPAddress of an address that a service has from now on.
    fn take(&self, service: &Key, address: Ipv4Addr) -> Result<Companion, AllocationError> {
        let no_uid =
            |error: crate::apiserver::ApiError| AllocationError { field: String::new(), detail: error.to_string() };
        let object = ip_address::stored(service, address, &new_uid().map_err(no_uid)?);
        Ok(self.record(address, |found| if found.is_some() { Change::Keep } else { Change::Put(object) }))
    }

    /// Deletes the IPAddress of an address that a service no longer has.
    fn release(&self, service: Key, address: Ipv4Addr) -> Companion {
        let shared = Arc::clone(&self.allocations);
        self.record(address, move |found| {
            let change = ip_address::released(&service, found);
            let stays = found.is_some() && !matches!(change, Change::Delete);
            shared.lock().set_object(address, stays);
            change
        })
    }

    fn record(&self, address: Ipv4Addr, change: impl FnOnce(Option<&Object>) -> Change + Send + 'static) -> Companion {
        let key = Key { namespace: String::new(), name: address.to_string() };
        Companion { resource: self.ip_addresses, key, decide: Box::new(change) }
    }
}

fn plan_address(
    allocations: &Allocations,
    before: &Allocated,
    service: &Value,
    is_dry_run: bool,
) -> Result<Option<Ipv4Addr>, AllocationError> {
    let wanted = service["spec"]["clusterIP"].as_str().unwrap_or("");
    if wanted == "None" {
        return Ok(None);
    }
    if wanted.is_empty() {
        // As upstream, which looks for no free one.
        if let Some(range) = allocations.ranges.first().filter(|_| is_dry_run) {
            return Ok(Some(range.network()));
        }
        let full = || invalid("spec.clusterIPs", &json!([]), "failed to allocate a serviceIP: range is full");
        let next = allocations.ranges.next(random_u32(), |address| allocations.is_taken(address));
        return next.map(Some).ok_or_else(full);
    }
    let invalid_value =
        |why: &str| invalid("spec.clusterIPs", &json!([wanted]), &format!("failed to allocate IP {wanted}: {why}"));
    let address: Option<Ipv4Addr> = wanted.parse().ok();
    // A service keeps its address when the range is reconfigured.
    if address.is_some() && address == before.address {
        return Ok(address);
    }
    let address = address.filter(|address| allocations.ranges.gives(*address));
    let address = address.ok_or_else(|| match allocations.ranges.first() {
        Some(range) if is_dry_run => invalid_value(&format!(
            "the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {range}"
        )),
        _ => invalid_value("the provided network does not match the current range"),
    })?;
    if allocations.is_taken(address) {
        return Err(invalid_value("provided IP is already allocated"));
    }
    Ok(Some(address))
}

impl Allocator for ServiceAllocator {
    fn allocate(&self, new: Option<&mut Value>, current: Option<&Object>) -> Result<Allocation, AllocationError> {
        let mut allocations = self.allocations.lock();
        let (uid, key, allocated) = match (new, current) {
            (Some(service), _) => {
                let uid = uid_of(service).to_owned();
                let allocated = self.plan(&allocations, &uid, service, false)?;
                (uid, key_of(service), allocated)
            }
            (None, Some(deleted)) => (uid_of(&deleted.value()).to_owned(), deleted.key.clone(), Allocated::default()),
            (None, None) => return Ok(Allocation::default()),
        };
        let address = allocated.address;
        let taken = address.filter(|_| allocations.services.get(&uid).and_then(|before| before.address) != address);
        let taking = taken.map(|address| self.take(&key, address)).transpose()?;
        let before = allocations.set(&uid, allocated);
        let released = before.address.filter(|before| Some(*before) != address);
        let releasing = released.map(|address| self.release(key, address));
        // What the companions change, as it was.
        let was = |address: Ipv4Addr| (address, allocations.objects.contains(&address));
        let objects: Vec<(Ipv4Addr, bool)> = taken.into_iter().chain(released).map(was).collect();
        allocations.objects.extend(taken);
        let shared = Arc::clone(&self.allocations);
        let rollback = move || {
            let mut allocations = shared.lock();
            allocations.set(&uid, before);
            for (address, existed) in objects {
                allocations.set_object(address, existed);
            }
        };
        let companions = releasing.into_iter().chain(taking).collect();
        Ok(Allocation { rollback: Some(Box::new(rollback)), companions })
    }
}

/// Hears of each write of an IPAddress.
#[derive(Debug)]
struct IpAddresses(SharedAllocations);

impl Allocator for IpAddresses {
    fn allocate(&self, new: Option<&mut Value>, current: Option<&Object>) -> Result<Allocation, AllocationError> {
        let exists = new.is_some();
        let name = match (&new, current) {
            (Some(object), _) => object["metadata"]["name"].as_str().unwrap_or(""),
            (None, Some(deleted)) => deleted.key.name.as_str(),
            (None, None) => "",
        };
        let Ok(address) = name.parse::<Ipv4Addr>() else { return Ok(Allocation::default()) };
        let existed = self.0.lock().set_object(address, exists);
        let shared = Arc::clone(&self.0);
        let rollback = move || {
            shared.lock().set_object(address, existed);
        };
        Ok(Allocation { rollback: Some(Box::new(rollback)), companions: Vec::new() })
    }
}

/// Hears of each write of a ServiceCIDR.
#[derive(Debug)]
struct ServiceCidrs(SharedAllocations);

impl Allocator for ServiceCidrs {
    fn allocate(&self, new: Option<&mut Value>, current: Option<&Object>) -> Result<Allocation, AllocationError> {
        let name = match (&new, current) {
            (Some(object), _) => object["metadata"]["name"].as_str().unwrap_or("").to_owned(),
            (None, Some(deleted)) => deleted.key.name.clone(),
            (None, None) => return Ok(Allocation::default()),
        };
        let cidr = new.map(|object| ServiceCidr::of(object));
        let before = self.0.lock().ranges.set(&name, cidr);
        let shared = Arc::clone(&self.0);
        let rollback = move || drop(shared.lock().ranges.set(&name, before));
        Ok(Allocation { rollback: Some(Box::new(rollback)), companions: Vec::new() })
    }
}

fn invalid(field: &str, value: &Value, why: &str) -> AllocationError {
    AllocationError { field: field.to_owned(), detail: format!("Invalid value: {value}: {why}") }
}

fn uid_of(service: &Value) -> &str {
    service["metadata"]["uid"].as_str().unwrap_or("")
}

fn key_of(service: &Value) -> Key {
    let text = |field: &str| service["metadata"][field].as_str().unwrap_or("").to_owned();
    Key { namespace: text("namespace"), name: text("name") }
}
