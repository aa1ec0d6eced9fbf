//! Deletes conntrack entries of UDP services whose endpoint was removed, as kube-proxy's `CleanStaleEntries`
//! (pkg/proxy/conntrack/cleanup.go). The search runs alongside the family's task, and for the Services that changed alone,
//! so that a table of a million entries does not delay other changes.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    conntrack::{self, UdpFrontends, UdpScope},
    local_addresses::LocalAddresses,
    model::Family,
};

/// Which search for a family is requested, and which one runs. Pure.
#[derive(Debug)]
pub(super) struct Search {
    /// Requested for after the next successful write.
    wanted: Option<UdpScope>,
    running: Option<UdpScope>,
    /// The last search failed, which was logged.
    failure_reported: bool,
}

impl Search {
    /// After a start all entries are searched once.
    pub(super) const fn new() -> Self {
        Self { wanted: Some(UdpScope::all()), running: None, failure_reported: false }
    }

    /// Whether a write has to wait for the running search: it must not delete entries that are right once that write is
    /// done.
    pub(super) fn delays_write(&self) -> bool {
        matches!((&self.wanted, &self.running), (Some(wanted), Some(running)) if wanted.overlaps(running))
    }

    /// Requests a search, as endpoints or frontends may have been removed.
    pub(super) fn request(&mut self, scope: UdpScope) {
        match &mut self.wanted {
            Some(wanted) => wanted.extend(scope),
            None => self.wanted = Some(scope),
        }
    }

    /// Begins a search, if one is requested and none runs.
    pub(super) fn begin(&mut self) -> Option<UdpScope> {
        if self.running.is_some() {
            return None;
        }
        self.running = self.wanted.take();
        self.running.clone()
    }

    pub(super) fn succeeded(&mut self) {
        (self.running, self.failure_reported) = (None, false);
    }

    /// The search failed and is requested again; returns whether to log it.
    pub(super) fn failed(&mut self) -> bool {
        if let Some(scope) = self.running.take() {
            self.request(scope);
        }
        !std::mem::replace(&mut self.failure_reported, true)
    }
}

/// The result of one search.
#[derive(Debug)]
pub(super) struct SearchResult {
    pub(super) took: Duration,
    pub(super) deleted: io::Result<usize>,
}

/// Finds and deletes stale entries. Blocks.
pub(super) fn search(family: Family, frontends: &UdpFrontends) -> SearchResult {
    let started = Instant::now();
    let local = LocalAddresses::of_kernel();
    let deleted = conntrack::delete_stale(family, &frontends.destinations(), |flow| frontends.is_stale(flow, &local));
    SearchResult { took: started.elapsed(), deleted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ServiceId, UdpFrontend};

    fn of(services: &[&str], removed: &[u16]) -> UdpScope {
        UdpScope {
            services: Some(services.iter().map(|id| ServiceId::from(*id)).collect()),
            removed: removed.iter().map(|port| UdpFrontend::NodePort(*port)).collect(),
        }
    }

    #[test]
    fn a_search_that_failed_is_repeated_and_logged_once() {
        let mut search = Search::new();
        assert_eq!(search.begin(), Some(UdpScope::all()));
        search.request(of(&["ns/a"], &[3001]));
        assert_eq!(search.begin(), None, "one at a time");
        search.succeeded();
        assert_eq!(search.begin(), Some(of(&["ns/a"], &[3001])));
        assert!(search.failed());
        // Nothing changed since, and it is still repeated for the same frontends.
        assert_eq!(search.begin(), Some(of(&["ns/a"], &[3001])));
        search.request(of(&["ns/b"], &[]));
        assert!(!search.failed(), "it was logged already");
        assert_eq!(search.begin(), Some(of(&["ns/a", "ns/b"], &[3001])));
        search.succeeded();
        assert_eq!(search.begin(), None);
        // A later failure is logged again.
        search.request(of(&["ns/a"], &[]));
        assert!(search.begin().is_some() && search.failed());
    }

    #[test]
    fn a_write_waits_only_for_a_search_that_it_concerns() {
        let mut search = Search::new();
        search.begin();
        assert!(!search.delays_write(), "nothing of UDP changed");
        search.request(of(&["ns/a"], &[]));
        assert!(search.delays_write(), "all are searched");
        search.succeeded();
        search.begin();
        search.request(of(&["ns/b"], &[]));
        assert!(!search.delays_write());
        search.request(of(&["ns/a"], &[]));
        assert!(search.delays_write());
        search.succeeded();
        search.request(of(&[], &[3001]));
        search.begin();
        search.request(of(&["ns/c"], &[]));
        assert!(search.delays_write(), "it may have that frontend now");
    }
}
