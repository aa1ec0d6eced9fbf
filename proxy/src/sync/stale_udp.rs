//! Deletes conntrack entries of UDP services whose endpoint was removed, as kube-proxy's `CleanStaleEntries`
//! (pkg/proxy/conntrack/cleanup.go). The search runs beside the loop, so that a table of a million entries does not
//! delay changes of the other family.

use std::{
    collections::BTreeSet,
    io,
    time::{Duration, Instant},
};

use super::Loop;
use crate::{
    conntrack::{self, UdpFrontends},
    local_addresses::LocalAddresses,
    model::{Family, UdpFrontend},
};

/// Whether a search for a family is requested or running, and for which removed frontends. Pure.
#[derive(Debug)]
pub(super) struct Search {
    /// A search is requested for after the next successful write.
    wanted: bool,
    running: bool,
    /// The last search failed, which was logged.
    failure_reported: bool,
    /// Removed UDP frontends that were not searched for yet.
    removed: BTreeSet<UdpFrontend>,
}

impl Search {
    /// After a start all entries are searched once.
    pub(super) const fn new() -> Self {
        Self { wanted: true, running: false, failure_reported: false, removed: BTreeSet::new() }
    }

    pub(super) const fn is_running(&self) -> bool {
        self.running
    }

    /// Requests a search if endpoints may have been removed; `removed` are removed frontends.
    pub(super) fn request(&mut self, wanted: bool, removed: impl IntoIterator<Item = UdpFrontend>) {
        self.wanted |= wanted;
        self.removed.extend(removed);
    }

    /// Begins a search, if one is requested and none runs; returns the removed frontends to search for.
    fn begin(&mut self) -> Option<BTreeSet<UdpFrontend>> {
        if !self.wanted || self.running {
            return None;
        }
        (self.wanted, self.running) = (false, true);
        Some(std::mem::take(&mut self.removed))
    }

    fn succeeded(&mut self) {
        (self.running, self.failure_reported) = (false, false);
    }

    /// The search failed and is requested again, for the same frontends; returns whether to log it.
    fn failed(&mut self, removed: BTreeSet<UdpFrontend>) -> bool {
        (self.running, self.wanted) = (false, true);
        self.removed.extend(removed);
        !std::mem::replace(&mut self.failure_reported, true)
    }
}

/// The result of one search.
#[derive(Debug)]
pub(super) struct SearchResult {
    family: Family,
    took: Duration,
    removed: BTreeSet<UdpFrontend>,
    deleted: io::Result<usize>,
}

/// Finds and deletes stale entries; returns their number. Blocks.
fn delete_stale(family: Family, frontends: &UdpFrontends) -> io::Result<usize> {
    let local = LocalAddresses::of_kernel();
    conntrack::delete_stale(family, |flow| frontends.is_stale(flow, &local))
}

impl Loop {
    /// Starts a search for a family, if one is requested. The next write of the family waits for its end: the search
    /// must not delete entries that are right once that write is done.
    pub(super) fn find_stale_udp(&mut self, i: usize) {
        let external_ips = self.config.external_ips;
        let family = &mut self.families[i];
        let name = family.family();
        let Some(removed) = family.stale_udp.begin() else { return };
        let mut frontends = UdpFrontends::of(&self.model, name, external_ips);
        frontends.add_removed(removed.iter().copied(), external_ips);
        // With a command prefix the conntrack table is that of another network namespace.
        if frontends.is_empty() || !self.own_netns {
            return family.stale_udp.succeeded();
        }
        self.stale_udp.spawn_blocking(move || {
            let started = Instant::now();
            let deleted = delete_stale(name, &frontends);
            SearchResult { family: name, took: started.elapsed(), removed, deleted }
        });
    }

    /// Records the result of a search; one that failed is repeated with the next periodic sync.
    pub(super) fn stale_udp_ended(&mut self, result: Result<SearchResult, tokio::task::JoinError>) {
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                tracing::error!(%error, "search for stale UDP conntrack entries panicked (bug); retrying");
                for family in self.families.iter_mut().filter(|family| family.stale_udp.is_running()) {
                    family.stale_udp.failed(BTreeSet::new());
                }
                return;
            }
        };
        let Some(family) = self.families.iter_mut().find(|family| family.family() == result.family) else { return };
        match result.deleted {
            Ok(count) => {
                family.stale_udp.succeeded();
                if let Some(status) = self.status.lock().families.get_mut(&result.family) {
                    status.deleted_conntrack_entries += count as u64;
                    status.conntrack.observe(result.took);
                }
            }
            Err(error) => {
                if family.stale_udp.failed(result.removed) {
                    tracing::warn!(%error, "failed to delete stale UDP conntrack entries, clients may still send to removed endpoints; load the kernel module nf_conntrack_netlink; retrying");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_failed_is_repeated_and_logged_once() {
        let gone = UdpFrontend::NodePort(3001);
        let mut search = Search::new();
        assert_eq!(search.begin(), Some(BTreeSet::new()));
        search.request(true, [gone]);
        assert_eq!(search.begin(), None, "one at a time");
        search.succeeded();
        assert_eq!(search.begin(), Some(BTreeSet::from([gone])));
        assert!(search.failed(BTreeSet::from([gone])));
        // Nothing changed since, and it is repeated all the same, for the same frontends.
        assert_eq!(search.begin(), Some(BTreeSet::from([gone])));
        assert!(!search.failed(BTreeSet::from([gone])), "it was logged already");
        assert_eq!(search.begin(), Some(BTreeSet::from([gone])));
        search.succeeded();
        assert_eq!(search.begin(), None);
        // A later failure is logged again.
        search.request(true, []);
        assert!(search.begin().is_some() && search.failed(BTreeSet::new()));
    }
}
