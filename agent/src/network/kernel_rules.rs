//! The pod network's rules in the kernel: which are wanted, which were written, and whether another program has changed
//! them since. Only one task writes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::{Duration, Instant},
};

use windlass_kit::{blocking::NETWORK, net::Family, netlink::Netlink, nf_tables};

use super::{
    NetworkError,
    host_ports::{UdpHostPorts, UdpPort},
    iptables::{self, Rules},
};
use crate::applied::Applied;

/// How often nf_tables is asked whether anything has changed: one system call, as often as for the rules of services.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How often the rules are compared where nothing counts changes, in legacy tables.
const COMPARE_INTERVAL: Duration = Duration::from_secs(30);
/// And where something does.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// A comparison that was made.
#[derive(Debug)]
struct Comparison {
    /// The generation of nf_tables before it, if all was as wanted then.
    generation: Option<u32>,
    begun: Instant,
    took: Duration,
}

/// Whether the rules are to be compared. Where others change rules all the time they are not compared each time. Pure.
fn is_due(last: Option<&Comparison>, generation: Option<u32>, now: Instant) -> bool {
    let Some(last) = last else { return true };
    let since = now.saturating_duration_since(last.begun);
    match generation {
        Some(generation) => {
            let changed = last.generation != Some(generation);
            since >= FULL_CHECK_INTERVAL || (changed && since >= last.took * 20)
        }
        None => since >= COMPARE_INTERVAL,
    }
}

#[derive(Debug, Default)]
pub(super) struct KernelRules {
    /// The rules of each family that the node has had since the start; `None` if it no longer has the family.
    families: BTreeMap<Family, Applied<Option<Rules>>>,
    /// UDP host ports that lead elsewhere than before, whose conntrack entries were not looked at since.
    moved: BTreeMap<Family, BTreeSet<UdpPort>>,
    compared: Option<Comparison>,
    /// Whether iptables writes into nf_tables, once it has said so.
    nf_tables: Option<bool>,
}

impl KernelRules {
    /// These are wanted from now on, and none of other families.
    pub(super) fn want(&mut self, mut wanted: BTreeMap<Family, Rules>) {
        for (family, state) in &mut self.families {
            let rules = wanted.remove(family);
            let ports = |rules: Option<&Rules>| rules.map(|r| UdpHostPorts::of(&r.host_ports)).unwrap_or_default();
            let now = ports(rules.as_ref());
            let before = state.want(rules);
            self.moved.entry(*family).or_default().extend(now.changed_since(&ports(before.as_ref())));
        }
        for (family, rules) in wanted {
            // What happened before the start is not known.
            self.moved.insert(family, UdpHostPorts::of(&rules.host_ports).ports());
            self.families.insert(family, Applied::new(Some(rules)));
        }
    }

    /// Whether something has to be written.
    pub(super) fn is_pending(&self) -> bool {
        self.families.values().any(|state| state.pending().is_some())
    }

    /// Writes what is not in the kernel as it is wanted.
    ///
    /// # Errors
    /// The first failure; the other family is written anyway.
    pub(super) async fn write(&mut self) -> Result<(), NetworkError> {
        let mut all = Ok(());
        for (family, state) in &mut self.families {
            let Some(rules) = state.pending().cloned() else { continue };
            match iptables::write(*family, rules).await {
                Ok(written) => state.record(written),
                Err(error) => {
                    state.forget();
                    all = all.and(Err(error));
                }
            }
        }
        all
    }

    /// Compares the kernel's rules with those that were written, if anybody may have changed them; returns what differs,
    /// which [`write`](Self::write) mends.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(super) async fn compare(&mut self) -> Result<Vec<String>, NetworkError> {
        let begun = Instant::now();
        let generation = self.generation().await;
        if !is_due(self.compared.as_ref(), generation, begun) {
            return Ok(Vec::new());
        }
        let (mut found, mut result) = (Vec::new(), Ok(()));
        for (family, state) in &mut self.families {
            let Some(Some(rules)) = state.applied() else { continue };
            match iptables::differences(*family, rules).await {
                Ok(differing) if differing.is_empty() => {}
                Ok(differing) => {
                    state.forget();
                    found.extend(differing);
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        let good = found.is_empty() && result.is_ok();
        let generation = generation.filter(|_| good);
        self.compared = Some(Comparison { generation, begun, took: begun.elapsed() });
        result.map(|()| found)
    }

    /// The generation of nf_tables, if that is where the rules are.
    async fn generation(&mut self) -> Option<u32> {
        if self.nf_tables.is_none()
            && let Some(family) = self.families.keys().next()
        {
            self.nf_tables = iptables::is_nf_tables(*family).await.ok();
        }
        if self.nf_tables != Some(true) {
            return None;
        }
        let query = || nf_tables::generation(&mut Netlink::netfilter()?);
        NETWORK.run(query, io::Error::other).await.ok()
    }

    /// The UDP host ports whose conntrack entries must be looked at now, with where they lead; those of families whose
    /// rules are not written yet follow when they are.
    pub(super) fn take_moved(&mut self) -> Vec<(Family, BTreeSet<UdpPort>, UdpHostPorts)> {
        let mut out = Vec::new();
        for (family, state) in &self.families {
            if state.pending().is_some() {
                continue;
            }
            let ports = self.moved.remove(family).unwrap_or_default();
            if !ports.is_empty() {
                let all = state.wanted().as_ref().map(|rules| UdpHostPorts::of(&rules.host_ports)).unwrap_or_default();
                out.push((*family, ports.clone(), all.only(&ports)));
            }
        }
        out
    }

    /// They could not be looked at.
    pub(super) fn put_back(&mut self, family: Family, ports: BTreeSet<UdpPort>) {
        self.moved.entry(family).or_default().extend(ports);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_due_after_foreign_changes_or_time() {
        let begun = Instant::now();
        let last = |generation| Comparison { generation, begun, took: Duration::from_millis(100) };
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert!(is_due(None, Some(1), begun), "nothing is known");
        for (known, generation, seconds, due) in [
            (Some(1), Some(1), 5, false),
            (Some(1), Some(2), 5, true),
            // It took a tenth of a second: not more than a twentieth of the time is for this.
            (Some(1), Some(2), 1, false),
            // What was not as wanted, or not known, is looked at again.
            (None, Some(2), 5, true),
            (Some(1), Some(1), 3599, false),
            (Some(1), Some(1), 3600, true),
            // Nothing counts changes.
            (None, None, 29, false),
            (None, None, 30, true),
        ] {
            let found = is_due(Some(&last(known)), generation, after(seconds));
            assert_eq!(found, due, "{known:?} {generation:?} after {seconds} s");
        }
    }
}
