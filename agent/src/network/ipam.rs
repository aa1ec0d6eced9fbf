//! Address management: which pod holds which address. One file per address is written before the address is used, so
//! that none is given twice. The files do not depend on the node's current ranges.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use windlass_kit::{
    atomic_file,
    net::{Cidr, Family},
};

use super::{HostPort, NetworkError};
use crate::applied::{Applied, Proof};

/// The pod that an address is allocated to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Allocation {
    pub(super) pod_uid: String,
    #[serde(default)]
    pub(super) host_ports: Vec<HostPort>,
    /// The range that the address is of; earlier versions did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) range: Option<String>,
}

/// The holder of an address.
#[derive(Debug)]
enum Holder {
    /// A pod, and what of it is in the file.
    Pod(Applied<Allocation>),
    /// Somebody: the file cannot be read.
    Unknown,
}

/// An allocation that is in its file.
struct Saved(Allocation);

impl Proof<Allocation> for Saved {
    fn into_written(self) -> Allocation {
        self.0
    }
}

/// All addresses that are in use, of whatever range.
#[derive(Debug)]
pub(super) struct Allocations {
    dir: PathBuf,
    held: BTreeMap<IpAddr, Holder>,
}

/// A range, and where the next search for a free address starts, so that a released one is not reused at once.
#[derive(Debug)]
pub(super) struct AddressPool {
    cidr: Cidr,
    next: u128,
}

/// An address as an integer.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address at an offset from a range's base.
fn at(cidr: &Cidr, offset: u128) -> IpAddr {
    match cidr.base() {
        IpAddr::V4(base) => {
            let low = u32::try_from(offset & u128::from(u32::MAX)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(base.to_bits().wrapping_add(low)))
        }
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits().wrapping_add(offset))),
    }
}

/// The gateway address of a range: its first.
pub(super) fn gateway_of(cidr: &Cidr) -> IpAddr {
    at(cidr, 1)
}

impl AddressPool {
    pub(super) fn new(cidr: Cidr, allocations: &Allocations) -> Self {
        let last = allocations.held.keys().rfind(|address| cidr.contains(address));
        Self { cidr, next: last.map_or(0, |last| bits(*last).wrapping_sub(bits(cidr.base()))) }
    }

    pub(super) fn gateway(&self) -> IpAddr {
        gateway_of(&self.cidr)
    }

    pub(super) const fn cidr(&self) -> Cidr {
        self.cidr
    }

    pub(super) const fn family(&self) -> Family {
        self.cidr.family()
    }

    /// The address of a pod in this range; a free one is allocated to it if it has none.
    pub(super) fn allocate(&mut self, allocations: &mut Allocations, pod_uid: &str) -> Result<IpAddr, NetworkError> {
        if let Some(address) = allocations.addresses_of(pod_uid).find(|address| self.cidr.contains(address)) {
            return Ok(address);
        }
        let width = u32::from(self.family().bits() - self.cidr.length());
        let size = 1u128.checked_shl(width).unwrap_or(u128::MAX);
        // Without the network address, the gateway and the last address.
        let usable = size.saturating_sub(3);
        let first = self.next.saturating_sub(1);
        let free = (0..usable)
            .map(|i| at(&self.cidr, 2 + first.wrapping_add(i) % usable.max(1)))
            .find(|a| !allocations.held.contains_key(a));
        let address = free.ok_or_else(|| {
            NetworkError::new("no address is left for the pod", format!("all {usable} of {} are in use", self.cidr))
        })?;
        allocations.claim(address, self.allocation(pod_uid, Vec::new()))?;
        if let Err(error) = allocations.save(address) {
            allocations.held.remove(&address);
            return Err(error);
        }
        self.next = bits(address).wrapping_sub(bits(self.cidr.base()));
        Ok(address)
    }

    /// What is recorded of a pod with an address of this range.
    pub(super) fn allocation(&self, pod_uid: &str, host_ports: Vec<HostPort>) -> Allocation {
        Allocation { pod_uid: pod_uid.to_owned(), host_ports, range: Some(self.cidr.to_string()) }
    }
}

impl Allocations {
    /// Reads all files.
    ///
    /// # Errors
    /// When the directory cannot be listed: then it is not known which addresses are in use. That of a file which
    /// cannot be read is.
    pub(super) fn open(dir: &Path) -> Result<Self, NetworkError> {
        let mut this = Self { dir: dir.to_owned(), held: BTreeMap::new() };
        for family in Family::BOTH {
            let dir = this.dir_of(family);
            let failed = |e: io::Error| {
                NetworkError::new(format!("the addresses of pods in {} could not be read", dir.display()), e)
            };
            atomic_file::make_dir(&dir, 0o700).map_err(failed)?;
            for entry in fs::read_dir(&dir).map_err(failed)? {
                let path = entry.map_err(failed)?.path();
                let address = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<IpAddr>().ok());
                if let Some(address) = address.filter(|a| Family::of(a) == family) {
                    this.held.insert(address, read(&path));
                }
            }
        }
        Ok(this)
    }

    fn dir_of(&self, family: Family) -> PathBuf {
        match family {
            Family::V4 => self.dir.clone(),
            Family::V6 => self.dir.join("v6"),
        }
    }

    fn file_of(&self, address: IpAddr) -> PathBuf {
        self.dir_of(Family::of(&address)).join(address.to_string())
    }

    fn pods_with_addresses(&self) -> impl Iterator<Item = (IpAddr, &Allocation)> {
        self.held.iter().filter_map(|(address, holder)| match holder {
            Holder::Pod(allocation) => Some((*address, allocation.wanted())),
            Holder::Unknown => None,
        })
    }

    /// All pods that have addresses.
    pub(super) fn pods(&self) -> BTreeSet<String> {
        self.pods_with_addresses().map(|(_, allocation)| allocation.pod_uid.clone()).collect()
    }

    /// The pods with addresses of other ranges than these.
    pub(super) fn pods_outside(&self, ranges: &[Cidr]) -> BTreeSet<String> {
        let foreign =
            self.pods_with_addresses().filter(|(address, of)| is_foreign(&range_of(*address, Some(of)), ranges));
        foreign.map(|(_, allocation)| allocation.pod_uid.clone()).collect()
    }

    fn addresses_of(&self, pod_uid: &str) -> impl Iterator<Item = IpAddr> {
        self.pods_with_addresses().filter(move |(_, of)| of.pod_uid == pod_uid).map(|(address, _)| address)
    }

    /// The host ports of all pods of a family, by their target address.
    pub(super) fn host_ports(&self, family: Family) -> BTreeMap<IpAddr, Vec<HostPort>> {
        let with_ports = self.pods_with_addresses().filter(|(_, allocation)| !allocation.host_ports.is_empty());
        with_ports
            .filter(|(address, _)| Family::of(address) == family)
            .map(|(address, allocation)| (address, allocation.host_ports.clone()))
            .collect()
    }

    /// The ranges of all addresses in use; an address outside any known range counts as a range by itself.
    pub(super) fn ranges(&self) -> BTreeSet<Cidr> {
        let range = |(address, holder): (&IpAddr, &Holder)| match holder {
            Holder::Pod(allocation) => range_of(*address, Some(allocation.wanted())),
            Holder::Unknown => range_of(*address, None),
        };
        self.held.iter().map(range).collect()
    }

    /// An address is a pod's, in memory alone until it is [saved](Self::save); returns what was recorded of it before.
    ///
    /// # Errors
    /// When it is another pod's.
    pub(super) fn claim(
        &mut self,
        address: IpAddr,
        allocation: Allocation,
    ) -> Result<Option<Allocation>, NetworkError> {
        match self.held.get_mut(&address) {
            Some(Holder::Pod(known)) if known.wanted().pod_uid != allocation.pod_uid => Err(NetworkError::new(
                format!("the address {address} could not be given to the pod"),
                format!("the pod with the uid {} has it; delete one of both", known.wanted().pod_uid),
            )),
            Some(Holder::Pod(known)) => Ok(Some(known.want(allocation))),
            Some(Holder::Unknown) | None => {
                self.held.insert(address, Holder::Pod(Applied::new(allocation)));
                Ok(None)
            }
        }
    }

    /// Writes what is known of an address into its file.
    pub(super) fn save(&mut self, address: IpAddr) -> Result<(), NetworkError> {
        let path = self.file_of(address);
        let Some(Holder::Pod(allocation)) = self.held.get_mut(&address) else { return Ok(()) };
        let Some(pending) = allocation.pending().cloned() else { return Ok(()) };
        let saved = write(&path, pending)
            .map_err(|e| NetworkError::new(format!("the address file {} could not be written", path.display()), e))?;
        allocation.record(saved);
        Ok(())
    }

    /// A pod's host ports are not wanted any more; its addresses stay its own. In memory alone.
    pub(super) fn close_host_ports(&mut self, pod_uid: &str) {
        for holder in self.held.values_mut() {
            if let Holder::Pod(known) = holder
                && known.wanted().pod_uid == pod_uid
            {
                let without = Allocation { host_ports: Vec::new(), ..known.wanted().clone() };
                known.want(without);
            }
        }
    }

    /// A pod's addresses are free.
    pub(super) fn release(&mut self, pod_uid: &str) -> Result<(), NetworkError> {
        let addresses: Vec<IpAddr> = self.addresses_of(pod_uid).collect();
        for address in addresses {
            let path = self.file_of(address);
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    let attempt = format!("the address file {} could not be removed", path.display());
                    return Err(NetworkError::new(attempt, e));
                }
                _ => drop(self.held.remove(&address)),
            }
        }
        Ok(())
    }
}

/// The range that an address was given out of, or the address alone where that is not known.
fn range_of(address: IpAddr, allocation: Option<&Allocation>) -> Cidr {
    let range = allocation.and_then(|allocation| allocation.range.as_deref()).and_then(Cidr::parse);
    range.unwrap_or_else(|| Cidr::host(address))
}

/// Whether a range in use is neither one of `ranges` nor an address within one.
pub(super) fn is_foreign(used: &Cidr, ranges: &[Cidr]) -> bool {
    let is_address = used.length() == used.family().bits();
    !ranges.iter().any(|range| range == used || (is_address && range.contains(&used.base())))
}

fn write(path: &Path, allocation: Allocation) -> io::Result<Saved> {
    atomic_file::write(path, &serde_json::to_vec(&allocation)?, 0o600)?;
    Ok(Saved(allocation))
}

fn read(path: &Path) -> Holder {
    let text = fs::read(path).map_err(|e| e.to_string());
    let allocation = text.and_then(|text| serde_json::from_slice::<Allocation>(&text).map_err(|e| e.to_string()));
    match allocation {
        Ok(allocation) => {
            let mut known = Applied::new(allocation.clone());
            known.record(Saved(allocation));
            Holder::Pod(known)
        }
        Err(error) => {
            tracing::warn!(
                file = %path.display(),
                error,
                "failed to read which pod has an address; nobody else gets it, and a pod that still has it writes the file again; if none has, delete the file and restart"
            );
            Holder::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Protocol, *};

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap()
    }

    fn last(address: &IpAddr) -> u128 {
        bits(*address) & 0xff
    }

    fn open(dir: &Path, range: &str) -> (Allocations, AddressPool) {
        let allocations = Allocations::open(dir).unwrap();
        let pool = AddressPool::new(cidr(range), &allocations);
        (allocations, pool)
    }

    #[test]
    fn addresses_survive_and_are_never_given_twice() {
        let dir = tempfile::tempdir().unwrap();
        let (mut all, mut pool) = open(dir.path(), "10.244.0.0/29");
        let first = pool.allocate(&mut all, "a").unwrap();
        assert_eq!(pool.allocate(&mut all, "a").unwrap(), first);
        assert_eq!(pool.gateway().to_string(), "10.244.0.1");
        let mut given: Vec<IpAddr> = ["b", "c", "d", "e"].iter().map(|p| pool.allocate(&mut all, p).unwrap()).collect();
        given.push(first);
        given.sort_unstable();
        assert_eq!(given.iter().map(last).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        assert!(pool.allocate(&mut all, "f").unwrap_err().to_string().contains("in use"));
        let (mut all, mut pool) = open(dir.path(), "10.244.0.0/29");
        assert_eq!(pool.allocate(&mut all, "a").unwrap(), first);
        all.release("a").unwrap();
        all.release("a").unwrap();
        assert_eq!(pool.allocate(&mut all, "f").unwrap(), first);
    }

    /// A file of zeros is what a loss of power may leave of one that was in use.
    #[test]
    fn an_address_whose_file_cannot_be_read_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let address: IpAddr = "10.244.0.2".parse().unwrap();
        for content in ["{\"pod", "", "\0\0\0\0\0\0\0\0"] {
            fs::write(dir.path().join("10.244.0.2"), content).unwrap();
            let (mut all, mut pool) = open(dir.path(), "10.244.0.0/29");
            assert_eq!(last(&pool.allocate(&mut all, "other").unwrap()), 3, "{content:?}");
            assert_eq!(all.pods(), BTreeSet::from(["other".to_owned()]));
            assert!(all.ranges().contains(&Cidr::host(address)), "it is in use");
            all.release("other").unwrap();
            // The pod that runs with it, by its sandbox's label.
            all.claim(address, pool.allocation("old", Vec::new())).unwrap();
            all.save(address).unwrap();
            let (mut all, mut pool) = open(dir.path(), "10.244.0.0/29");
            assert_eq!(pool.allocate(&mut all, "old").unwrap(), address);
            all.release("old").unwrap();
        }
    }

    #[test]
    fn a_file_has_what_was_saved_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let (mut all, mut pool) = open(dir.path(), "10.244.0.0/29");
        let address = pool.allocate(&mut all, "a").unwrap();
        let port = HostPort { host_ip: None, host_port: 80, container_port: 8080, protocol: Protocol::Tcp };
        let before = all.claim(address, pool.allocation("a", vec![port.clone()])).unwrap();
        assert_eq!(before, Some(pool.allocation("a", Vec::new())));
        assert_eq!(all.host_ports(Family::V4).len(), 1);
        assert_eq!(open(dir.path(), "10.244.0.0/29").0.host_ports(Family::V4).len(), 0);
        all.save(address).unwrap();
        assert_eq!(open(dir.path(), "10.244.0.0/29").0.host_ports(Family::V4)[&address], [port]);
        assert!(all.claim(address, pool.allocation("b", Vec::new())).unwrap_err().to_string().contains("uid a has it"));
        all.close_host_ports("a");
        assert_eq!((all.host_ports(Family::V4).len(), all.pods().len()), (0, 1));
        // A full disk, or none: the address is free only when its file is gone.
        fs::remove_file(dir.path().join(address.to_string())).unwrap();
        fs::create_dir(dir.path().join(address.to_string())).unwrap();
        assert!(all.release("a").is_err());
        assert_eq!(all.pods().len(), 1);
    }

    /// The files of a range that the node had before are neither addresses of the present one nor free.
    #[test]
    fn addresses_are_of_their_range() {
        let dir = tempfile::tempdir().unwrap();
        let (mut all, mut old) = open(dir.path(), "10.244.0.0/29");
        let first = old.allocate(&mut all, "a").unwrap();
        fs::write(dir.path().join("10.200.0.9"), "{\"pod_uid\":\"earlier\"}").unwrap();
        let (mut all, mut new) = open(dir.path(), "10.244.1.0/29");
        assert_eq!(new.allocate(&mut all, "a").unwrap().to_string(), "10.244.1.2");
        assert_eq!(new.allocate(&mut all, "b").unwrap().to_string(), "10.244.1.3");
        let ranges = ["10.200.0.9/32", "10.244.0.0/29", "10.244.1.0/29"].map(cidr);
        assert_eq!(all.ranges(), BTreeSet::from(ranges));
        assert_eq!(all.addresses_of("a").count(), 2);
        all.release("a").unwrap();
        assert!(!dir.path().join(first.to_string()).exists());
    }

    #[test]
    fn ranges_of_both_families() {
        let dir = tempfile::tempdir().unwrap();
        let (mut all, mut six) = open(dir.path(), "fd00:10::/64");
        assert_eq!(six.gateway().to_string(), "fd00:10::1");
        assert_eq!(six.allocate(&mut all, "a").unwrap().to_string(), "fd00:10::2");
        assert_eq!(six.allocate(&mut all, "b").unwrap().to_string(), "fd00:10::3");
        assert!(dir.path().join("v6/fd00:10::2").exists());
        let (mut all, mut six) = open(dir.path(), "fd00:10::/64");
        assert_eq!(six.allocate(&mut all, "a").unwrap().to_string(), "fd00:10::2");
        assert_eq!(six.allocate(&mut all, "c").unwrap().to_string(), "fd00:10::4");
    }
}
