//! Which pod has which address: one file for each, made before the address is given.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    net::Ipv4Addr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
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
    cidr: (Ipv4Addr, u8),
    held: BTreeMap<Ipv4Addr, Holder>,
    /// Where the next search begins: an address that was just freed is not given at once.
    next: u32,
}

/// The node's own address among its pods: the first of the range.
pub(super) fn gateway_of(cidr: (Ipv4Addr, u8)) -> Ipv4Addr {
    Ipv4Addr::from_bits(cidr.0.to_bits() + 1)
}

impl Addresses {
    pub(super) fn open(dir: &Path, cidr: (Ipv4Addr, u8)) -> Result<Self, NetworkError> {
        let failed =
            |e: io::Error| NetworkError::new(format!("the addresses in {} could not be read", dir.display()), e);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let mut held = BTreeMap::new();
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let address = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<Ipv4Addr>().ok());
            let Some(address) = address else { continue };
            match serde_json::from_slice(&fs::read(&path).map_err(failed)?) {
                Ok(holder) => drop(held.insert(address, holder)),
                // Cut off by a crash before anybody had the address.
                Err(_) => fs::remove_file(&path).map_err(failed)?,
            }
        }
        let next = held.keys().next_back().map_or(0, |a| a.to_bits().wrapping_sub(cidr.0.to_bits()));
        Ok(Self { dir: dir.to_owned(), cidr, held, next })
    }

    pub(super) fn gateway(&self) -> Ipv4Addr {
        gateway_of(self.cidr)
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &str> {
        self.held.values().map(|h| h.pod_uid.as_str())
    }

    pub(super) fn holders(&self) -> &BTreeMap<Ipv4Addr, Holder> {
        &self.held
    }

    fn address_of(&self, pod_uid: &str) -> Option<Ipv4Addr> {
        self.held.iter().find(|(_, h)| h.pod_uid == pod_uid).map(|(a, _)| *a)
    }

    pub(super) fn allocate(&mut self, pod_uid: &str) -> Result<Ipv4Addr, NetworkError> {
        if let Some(address) = self.address_of(pod_uid) {
            return Ok(address);
        }
        let size = 1u32.checked_shl(32 - u32::from(self.cidr.1)).unwrap_or(u32::MAX);
        // Neither the network's address, nor the gateway's, nor the last.
        let usable = size.saturating_sub(3);
        let free = (0..usable)
            .map(|i| 2 + (self.next.saturating_sub(1) + i) % usable.max(1))
            .map(|offset| Ipv4Addr::from_bits(self.cidr.0.to_bits() + offset))
            .find(|a| !self.held.contains_key(a));
        let address = free.ok_or_else(|| {
            NetworkError::new(
                "no address is left for the pod",
                format!("all {usable} of {}/{} are in use", self.cidr.0, self.cidr.1),
            )
        })?;
        self.write(address, Holder { pod_uid: pod_uid.to_owned(), host_ports: Vec::new() })?;
        self.next = address.to_bits() - self.cidr.0.to_bits();
        Ok(address)
    }

    /// Notes who holds an address; gives whether its ports of the host changed.
    pub(super) fn hold(&mut self, address: Ipv4Addr, holder: Holder) -> Result<bool, NetworkError> {
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

    fn write(&mut self, address: Ipv4Addr, holder: Holder) -> Result<(), NetworkError> {
        let path = self.dir.join(address.to_string());
        let scratch = self.dir.join(format!(".{address}.new"));
        let put = || -> io::Result<()> {
            let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&scratch)?;
            file.write_all(&serde_json::to_vec(&holder)?)?;
            file.sync_data()?;
            fs::rename(&scratch, &path)
        };
        put().map_err(|e| NetworkError::new(format!("the address file {} could not be written", path.display()), e))?;
        self.held.insert(address, holder);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CIDR: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 244, 0, 0), 29);

    #[test]
    fn addresses_survive_and_are_never_given_twice() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = Addresses::open(dir.path(), CIDR).unwrap();
        let first = addresses.allocate("a").unwrap();
        assert_eq!(addresses.allocate("a").unwrap(), first);
        assert_eq!(addresses.gateway(), Ipv4Addr::new(10, 244, 0, 1));
        let mut all: Vec<Ipv4Addr> = ["b", "c", "d", "e"].iter().map(|p| addresses.allocate(p).unwrap()).collect();
        all.push(first);
        all.sort_unstable();
        assert_eq!(all.iter().map(|a| a.octets()[3]).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        assert!(addresses.allocate("f").unwrap_err().to_string().contains("in use"));
        let mut again = Addresses::open(dir.path(), CIDR).unwrap();
        assert_eq!(again.allocate("a").unwrap(), first);
        again.release("a").unwrap();
        again.release("a").unwrap();
        assert_eq!(again.allocate("f").unwrap(), first);
    }

    #[test]
    fn a_file_that_a_crash_cut_off_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("10.244.0.2"), "{\"pod").unwrap();
        let addresses = Addresses::open(dir.path(), CIDR).unwrap();
        assert_eq!(addresses.pods().count(), 0);
    }

    #[test]
    fn only_changed_ports_matter_to_the_rules() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = Addresses::open(dir.path(), CIDR).unwrap();
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
}
