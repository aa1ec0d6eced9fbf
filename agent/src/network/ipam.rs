//! Address management: which pod holds which address. One file per address is written before the address is used, so
//! that none is given twice.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use windlass_kit::{
    atomic_file,
    net::{Cidr, Family},
};

use super::{HostPort, NetworkError};

/// The pod that an address is allocated to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Allocation {
    pub(super) pod_uid: String,
    #[serde(default)]
    pub(super) host_ports: Vec<HostPort>,
}

#[derive(Debug)]
pub(super) struct AddressPool {
    dir: PathBuf,
    cidr: Cidr,
    allocations: BTreeMap<IpAddr, Allocation>,
    /// The offset where the next search starts, so that a released address is not reused at once.
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
    pub(super) fn open(dir: &Path, cidr: Cidr) -> Result<Self, NetworkError> {
        let failed =
            |e: io::Error| NetworkError::new(format!("the addresses in {} could not be read", dir.display()), e);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let mut allocations = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let address = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<IpAddr>().ok());
            let Some(address) = address.filter(|a| Family::of(a) == cidr.family()) else { continue };
            match serde_json::from_slice(&fs::read(&path).map_err(failed)?) {
                Ok(allocation) => drop(allocations.insert(address, allocation)),
                // Truncated by a crash, before the address was used.
                Err(_) => fs::remove_file(&path).map_err(failed)?,
            }
        }
        let next = allocations.keys().next_back().map_or(0, |a| bits(*a).wrapping_sub(bits(cidr.base())));
        Ok(Self { dir: dir.to_owned(), cidr, allocations, next })
    }

    pub(super) fn gateway(&self) -> IpAddr {
        gateway_of(&self.cidr)
    }

    pub(super) fn cidr(&self) -> Cidr {
        self.cidr
    }

    pub(super) fn family(&self) -> Family {
        self.cidr.family()
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &str> {
        self.allocations.values().map(|h| h.pod_uid.as_str())
    }

    pub(super) fn allocations(&self) -> &BTreeMap<IpAddr, Allocation> {
        &self.allocations
    }

    fn address_of(&self, pod_uid: &str) -> Option<IpAddr> {
        self.allocations.iter().find(|(_, h)| h.pod_uid == pod_uid).map(|(a, _)| *a)
    }

    pub(super) fn allocate(&mut self, pod_uid: &str) -> Result<IpAddr, NetworkError> {
        if let Some(address) = self.address_of(pod_uid) {
            return Ok(address);
        }
        let width = u32::from(self.family().bits() - self.cidr.length());
        let size = 1u128.checked_shl(width).unwrap_or(u128::MAX);
        // Without the network address, the gateway and the last address.
        let usable = size.saturating_sub(3);
        let first = self.next.saturating_sub(1);
        let free = (0..usable)
            .map(|i| at(&self.cidr, 2 + first.wrapping_add(i) % usable.max(1)))
            .find(|a| !self.allocations.contains_key(a));
        let address = free.ok_or_else(|| {
            NetworkError::new("no address is left for the pod", format!("all {usable} of {} are in use", self.cidr))
        })?;
        self.write(address, Allocation { pod_uid: pod_uid.to_owned(), host_ports: Vec::new() })?;
        self.next = bits(address).wrapping_sub(bits(self.cidr.base()));
        Ok(address)
    }

    /// Assigns an address to a pod; returns whether its host ports changed.
    pub(super) fn assign(&mut self, address: IpAddr, allocation: Allocation) -> Result<bool, NetworkError> {
        let before = self.allocations.get(&address);
        if before == Some(&allocation) {
            return Ok(false);
        }
        let changed = before.map_or(!allocation.host_ports.is_empty(), |b| b.host_ports != allocation.host_ports);
        self.write(address, allocation)?;
        Ok(changed)
    }

    /// Releases a pod's addresses; returns whether it had host ports.
    pub(super) fn release(&mut self, pod_uid: &str) -> Result<bool, NetworkError> {
        let mut had_ports = false;
        while let Some(address) = self.address_of(pod_uid) {
            let path = self.dir.join(address.to_string());
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(NetworkError::new(
                        format!("the address file {} could not be removed", path.display()),
                        e,
                    ));
                }
                _ => {}
            }
            had_ports |= self.allocations.remove(&address).is_some_and(|h| !h.host_ports.is_empty());
        }
        Ok(had_ports)
    }

    fn write(&mut self, address: IpAddr, allocation: Allocation) -> Result<(), NetworkError> {
        let path = self.dir.join(address.to_string());
        let written = serde_json::to_vec(&allocation)
            .map_err(io::Error::from)
            .and_then(|text| atomic_file::write(&path, &text, 0o600));
        written
            .map_err(|e| NetworkError::new(format!("the address file {} could not be written", path.display()), e))?;
        self.allocations.insert(address, allocation);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap()
    }

    fn last(address: &IpAddr) -> u128 {
        bits(*address) & 0xff
    }

    #[test]
    fn addresses_survive_and_are_never_given_twice() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = AddressPool::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        let first = addresses.allocate("a").unwrap();
        assert_eq!(addresses.allocate("a").unwrap(), first);
        assert_eq!(addresses.gateway().to_string(), "10.244.0.1");
        let mut all: Vec<IpAddr> = ["b", "c", "d", "e"].iter().map(|p| addresses.allocate(p).unwrap()).collect();
        all.push(first);
        all.sort_unstable();
        assert_eq!(all.iter().map(last).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        assert!(addresses.allocate("f").unwrap_err().to_string().contains("in use"));
        let mut again = AddressPool::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        assert_eq!(again.allocate("a").unwrap(), first);
        again.release("a").unwrap();
        again.release("a").unwrap();
        assert_eq!(again.allocate("f").unwrap(), first);
    }

    #[test]
    fn a_truncated_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("10.244.0.2"), "{\"pod").unwrap();
        let addresses = AddressPool::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        assert_eq!(addresses.pods().count(), 0);
    }

    #[test]
    fn only_changed_ports_matter_to_the_rules() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = AddressPool::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        let address = addresses.allocate("a").unwrap();
        let plain = Allocation { pod_uid: "a".into(), host_ports: vec![] };
        assert!(!addresses.assign(address, plain).unwrap());
        let port =
            HostPort { host_ip: None, host_port: 80, container_port: 8080, protocol: super::super::Protocol::Tcp };
        let open = Allocation { pod_uid: "a".into(), host_ports: vec![port] };
        assert!(addresses.assign(address, open.clone()).unwrap());
        assert!(!addresses.assign(address, open).unwrap());
        assert!(addresses.release("a").unwrap());
    }

    #[test]
    fn ranges_of_both_families() {
        let dir = tempfile::tempdir().unwrap();
        let mut six = AddressPool::open(dir.path(), cidr("fd00:10::/64")).unwrap();
        assert_eq!(six.gateway().to_string(), "fd00:10::1");
        assert_eq!(six.allocate("a").unwrap().to_string(), "fd00:10::2");
        assert_eq!(six.allocate("b").unwrap().to_string(), "fd00:10::3");
        let mut again = AddressPool::open(dir.path(), cidr("fd00:10::/64")).unwrap();
        assert_eq!(again.allocate("a").unwrap().to_string(), "fd00:10::2");
        assert_eq!(again.allocate("c").unwrap().to_string(), "fd00:10::4");
    }
}
