//! Which pod has which address: one file for each, made before the address is given.

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

/// Who holds an address.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Holder {
    pub(super) pod_uid: String,
    #[serde(default)]
    pub(super) host_ports: Vec<HostPort>,
}

#[derive(Debug)]
pub(super) struct Addresses {
    dir: PathBuf,
    cidr: Cidr,
    held: BTreeMap<IpAddr, Holder>,
    /// Where the next search begins: an address that was just freed is not given at once.
    next: u128,
}

/// An address as a number.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address at a distance from a range's base.
fn at(cidr: &Cidr, offset: u128) -> IpAddr {
    match cidr.base() {
        IpAddr::V4(base) => {
            let low = u32::try_from(offset & u128::from(u32::MAX)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(base.to_bits().wrapping_add(low)))
        }
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits().wrapping_add(offset))),
    }
}

/// The node's own address among its pods: the first of the range.
pub(super) fn gateway_of(cidr: &Cidr) -> IpAddr {
    at(cidr, 1)
}

impl Addresses {
    pub(super) fn open(dir: &Path, cidr: Cidr) -> Result<Self, NetworkError> {
        let failed =
            |e: io::Error| NetworkError::new(format!("the addresses in {} could not be read", dir.display()), e);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let mut held = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let address = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<IpAddr>().ok());
            let Some(address) = address.filter(|a| Family::of(a) == cidr.family()) else { continue };
            match serde_json::from_slice(&fs::read(&path).map_err(failed)?) {
                Ok(holder) => drop(held.insert(address, holder)),
                // Cut off by a crash before anybody had the address.
                Err(_) => fs::remove_file(&path).map_err(failed)?,
            }
        }
        let next = held.keys().next_back().map_or(0, |a| bits(*a).wrapping_sub(bits(cidr.base())));
        Ok(Self { dir: dir.to_owned(), cidr, held, next })
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
        self.held.values().map(|h| h.pod_uid.as_str())
    }

    pub(super) fn holders(&self) -> &BTreeMap<IpAddr, Holder> {
        &self.held
    }

    fn address_of(&self, pod_uid: &str) -> Option<IpAddr> {
        self.held.iter().find(|(_, h)| h.pod_uid == pod_uid).map(|(a, _)| *a)
    }

    pub(super) fn allocate(&mut self, pod_uid: &str) -> Result<IpAddr, NetworkError> {
        if let Some(address) = self.address_of(pod_uid) {
            return Ok(address);
        }
        let width = u32::from(self.family().bits() - self.cidr.length());
        let size = 1u128.checked_shl(width).unwrap_or(u128::MAX);
        // Neither the network's address, nor the gateway's, nor the last.
        let usable = size.saturating_sub(3);
        let first = self.next.saturating_sub(1);
        let free = (0..usable)
            .map(|i| at(&self.cidr, 2 + first.wrapping_add(i) % usable.max(1)))
            .find(|a| !self.held.contains_key(a));
        let address = free.ok_or_else(|| {
            NetworkError::new("no address is left for the pod", format!("all {usable} of {} are in use", self.cidr))
        })?;
        self.write(address, Holder { pod_uid: pod_uid.to_owned(), host_ports: Vec::new() })?;
        self.next = bits(address).wrapping_sub(bits(self.cidr.base()));
        Ok(address)
    }

    /// Notes who holds an address; gives whether its ports of the host changed.
    pub(super) fn hold(&mut self, address: IpAddr, holder: Holder) -> Result<bool, NetworkError> {
        let before = self.held.get(&address);
        if before == Some(&holder) {
            return Ok(false);
        }
        let changed = before.map_or(!holder.host_ports.is_empty(), |b| b.host_ports != holder.host_ports);
        self.write(address, holder)?;
        Ok(changed)
    }

    /// Frees a pod's addresses; gives whether it had ports of the host.
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
            had_ports |= self.held.remove(&address).is_some_and(|h| !h.host_ports.is_empty());
        }
        Ok(had_ports)
    }

    fn write(&mut self, address: IpAddr, holder: Holder) -> Result<(), NetworkError> {
        let path = self.dir.join(address.to_string());
        let written = serde_json::to_vec(&holder)
            .map_err(io::Error::from)
            .and_then(|text| atomic_file::write(&path, &text, 0o600));
        written
            .map_err(|e| NetworkError::new(format!("the address file {} could not be written", path.display()), e))?;
        self.held.insert(address, holder);
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
        let mut addresses = Addresses::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        let first = addresses.allocate("a").unwrap();
        assert_eq!(addresses.allocate("a").unwrap(), first);
        assert_eq!(addresses.gateway().to_string(), "10.244.0.1");
        let mut all: Vec<IpAddr> = ["b", "c", "d", "e"].iter().map(|p| addresses.allocate(p).unwrap()).collect();
        all.push(first);
        all.sort_unstable();
        assert_eq!(all.iter().map(last).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        assert!(addresses.allocate("f").unwrap_err().to_string().contains("in use"));
        let mut again = Addresses::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        assert_eq!(again.allocate("a").unwrap(), first);
        again.release("a").unwrap();
        again.release("a").unwrap();
        assert_eq!(again.allocate("f").unwrap(), first);
    }

    #[test]
    fn a_file_that_a_crash_cut_off_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("10.244.0.2"), "{\"pod").unwrap();
        let addresses = Addresses::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        assert_eq!(addresses.pods().count(), 0);
    }

    #[test]
    fn only_changed_ports_matter_to_the_rules() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = Addresses::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        let address = addresses.allocate("a").unwrap();
        let plain = Holder { pod_uid: "a".into(), host_ports: vec![] };
        assert!(!addresses.hold(address, plain).unwrap());
        let port =
            HostPort { host_ip: None, host_port: 80, container_port: 8080, protocol: super::super::Protocol::Tcp };
        let open = Holder { pod_uid: "a".into(), host_ports: vec![port] };
        assert!(addresses.hold(address, open.clone()).unwrap());
        assert!(!addresses.hold(address, open).unwrap());
        assert!(addresses.release("a").unwrap());
    }

    #[test]
    fn ranges_of_both_families() {
        let dir = tempfile::tempdir().unwrap();
        let mut six = Addresses::open(dir.path(), cidr("fd00:10::/64")).unwrap();
        assert_eq!(six.gateway().to_string(), "fd00:10::1");
        assert_eq!(six.allocate("a").unwrap().to_string(), "fd00:10::2");
        assert_eq!(six.allocate("b").unwrap().to_string(), "fd00:10::3");
        let mut again = Addresses::open(dir.path(), cidr("fd00:10::/64")).unwrap();
        assert_eq!(again.allocate("a").unwrap().to_string(), "fd00:10::2");
        assert_eq!(again.allocate("c").unwrap().to_string(), "fd00:10::4");
    }
}
