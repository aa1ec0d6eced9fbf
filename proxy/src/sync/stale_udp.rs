//! Conntrack entries of UDP services whose endpoint is gone: looked for beside the loop, so that a table of a million
//! entries holds up no change of the other family.

use std::{
    collections::BTreeSet,
    io,
    time::{Duration, Instant},
};

use super::Loop;
use crate::{
    conntrack::{Conntrack, Frontends},
    local::LocalAddresses,
    model::{Family, UdpFrontend},
};

/// A dump that was torn by changes is tried again so many times.
const TRIES: u32 = 3;

/// What of a family is to be looked for, and whether a search is under way. Pure.
#[derive(Debug)]
pub(super) struct Work {
    /// A search is wanted after the next good write.
    wanted: bool,
    running: bool,
    /// The last search failed, and that was told.
    failed: bool,
    /// UDP frontends that are gone and were not looked at yet.
    removed: BTreeSet<UdpFrontend>,
}

impl Work {
    /// After a start all entries are looked at once.
    pub(super) const fn new() -> Self {
        Self { wanted: true, running: false, failed: false, removed: BTreeSet::new() }
    }

    pub(super) const fn is_running(&self) -> bool {
        self.running
    }

    /// Endpoints may have gone, and these frontends have.
    pub(super) fn add(&mut self, wanted: bool, removed: impl IntoIterator<Item = UdpFrontend>) {
        self.wanted |= wanted;
        self.removed.extend(removed);
    }

    /// Begins a search, if one is wanted and none runs: for which frontends that are gone.
    fn begin(&mut self) -> Option<BTreeSet<UdpFrontend>> {
        if !self.wanted || self.running {
            return None;
        }
        (self.wanted, self.running) = (false, true);
        Some(std::mem::take(&mut self.removed))
    }

    fn succeeded(&mut self) {
        (self.running, self.failed) = (false, false);
    }

    /// It is made again, also for the frontends that it was for; whether that is news.
    fn broke_off(&mut self, removed: BTreeSet<UdpFrontend>) -> bool {
        (self.running, self.wanted) = (false, true);
        self.removed.extend(removed);
        !std::mem::replace(&mut self.failed, true)
    }
}

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
    let local = LocalAddresses::of_kernel();
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
        let Some(removed) = family.stale_udp.begin() else { return };
        let mut frontends = Frontends::of(&self.model, name, external_ips);
        frontends.add_removed(removed.iter().copied(), external_ips);
        // Behind a prefix the connections are those of another namespace.
        if frontends.is_empty() || !self.own_namespace {
            return family.stale_udp.succeeded();
        }
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
                for family in self.families.iter_mut().filter(|family| family.stale_udp.is_running()) {
                    family.stale_udp.broke_off(BTreeSet::new());
                }
                return;
            }
        };
        let Some(family) = self.families.iter_mut().find(|family| family.family() == pass.family) else { return };
        match pass.deleted {
            Ok(count) => {
                family.stale_udp.succeeded();
                if let Some(status) = self.status.lock().families.get_mut(&pass.family) {
                    status.forgotten += count as u64;
                    status.conntrack.observe(pass.took);
                }
            }
            Err(error) => {
                if family.stale_udp.broke_off(pass.removed) {
                    tracing::warn!(%error, "stale UDP connections cannot be forgotten: clients may go on talking to endpoints that are gone; load the kernel module nf_conntrack_netlink");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_failed_is_made_again_and_told_once() {
        let gone = UdpFrontend::NodePort(3001);
        let mut work = Work::new();
        assert_eq!(work.begin(), Some(BTreeSet::new()));
        work.add(true, [gone]);
        assert_eq!(work.begin(), None, "one at a time");
        work.succeeded();
        assert_eq!(work.begin(), Some(BTreeSet::from([gone])));
        assert!(work.broke_off(BTreeSet::from([gone])));
        // Nothing changed since, and it is tried all the same, for the same frontends.
        assert_eq!(work.begin(), Some(BTreeSet::from([gone])));
        assert!(!work.broke_off(BTreeSet::from([gone])), "it was told already");
        assert_eq!(work.begin(), Some(BTreeSet::from([gone])));
        work.succeeded();
        assert_eq!(work.begin(), None);
        // A later failure is news again.
        work.add(true, []);
        assert!(work.begin().is_some() && work.broke_off(BTreeSet::new()));
    }
}
