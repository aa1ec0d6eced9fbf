//! Conntrack entries of UDP services whose endpoint is gone: looked for beside the loop, so that a table of a million
//! entries holds up no change of the other family.

use std::{
    collections::{BTreeSet, HashSet},
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::Loop;
use crate::{
    conntrack::{Conntrack, Frontends},
    inspect::node_addresses,
    model::{Family, UdpFrontend},
};

/// A dump that was torn by changes is tried again so many times.
const TRIES: u32 = 3;

/// One search that ended.
#[derive(Debug)]
pub(super) struct Pass {
    family: Family,
    took: Duration,
    removed: BTreeSet<UdpFrontend>,
    deleted: io::Result<usize>,
}

/// Finds and deletes the entries; how many there were. Blocks.
fn delete_stale(family: Family, frontends: &Frontends) -> io::Result<usize> {
    let local: HashSet<IpAddr> = node_addresses().into_iter().collect();
    let mut conntrack = Conntrack::open()?;
    let mut tries = 0;
    let stale = loop {
        match conntrack.udp(family, |flow| frontends.is_stale(flow, &local)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted && tries < TRIES => tries += 1,
            other => break other?,
        }
    };
    conntrack.forget(&stale)
}

impl Loop {
    /// Starts a search for a family, if one is wanted. Its next write waits for the end: what a search takes for stale
    /// must not be what that write makes right.
    pub(super) fn find_stale_udp(&mut self, i: usize) {
        let external_ips = self.config.external_ips;
        let family = &mut self.families[i];
        let name = family.family();
        if !self.own_namespace {
            family.removed_udp.clear();
            return;
        }
        if !family.udp || family.udp_running {
            return;
        }
        family.udp = false;
        let removed = std::mem::take(&mut family.removed_udp);
        let mut frontends = Frontends::of(&self.model, name, external_ips);
        frontends.add_removed(removed.iter().copied(), external_ips);
        if frontends.is_empty() {
            return;
        }
        family.udp_running = true;
        self.stale_udp.spawn_blocking(move || {
            let started = Instant::now();
            let deleted = delete_stale(name, &frontends);
            Pass { family: name, took: started.elapsed(), removed, deleted }
        });
    }

    /// Notes how a search went; one that failed is made again at the next look around.
    pub(super) fn stale_udp_ended(&mut self, pass: Result<Pass, tokio::task::JoinError>) {
        let pass = match pass {
            Ok(pass) => pass,
            Err(error) => {
                tracing::error!(%error, "the search for stale UDP connections broke off");
                for family in self.families.iter_mut().filter(|family| family.udp_running) {
                    (family.udp, family.udp_running) = (true, false);
                }
                return;
            }
        };
        let Some(family) = self.families.iter_mut().find(|family| family.family() == pass.family) else { return };
        family.udp_running = false;
        match pass.deleted {
            Ok(count) => {
                family.udp_failed = false;
                if let Some(status) = self.status.lock().families.get_mut(&pass.family) {
                    status.forgotten += count as u64;
                    status.conntrack.observe(pass.took);
                }
            }
            Err(error) => {
                family.udp = true;
                family.removed_udp.extend(pass.removed);
                if !std::mem::replace(&mut family.udp_failed, true) {
                    tracing::warn!(%error, "stale UDP connections cannot be forgotten: clients may go on talking to endpoints that are gone; load the kernel module nf_conntrack_netlink");
                }
            }
        }
    }
}
