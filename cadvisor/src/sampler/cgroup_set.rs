//! All sampled cgroups, each in a slot, so that a result finds its cgroup without a search. Reads no file.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    cgroup_state::{CgroupState, Key},
    reading::ReadJob,
};
use crate::{config::Target, source::Totals};

/// Identifies the slot of a read. A cgroup that reuses the slot has another serial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotId {
    pub(super) of_pod: bool,
    place: usize,
    serial: u64,
}

#[derive(Debug, Default)]
pub(super) struct CgroupSet {
    /// In the order of rows: by namespace, pod, container and id.
    containers: Vec<CgroupState>,
    /// Pods' own cgroups, in the order in which they were found.
    pods: Vec<CgroupState>,
    /// The last serial that was assigned.
    last_serial: u64,
}

fn order(state: &CgroupState) -> (&str, &str, &str, &str) {
    let s = &state.target;
    (&s.pod_namespace, &s.pod_name, &s.container_name, &s.container_id)
}

impl CgroupSet {
    pub(super) fn containers(&self) -> impl Iterator<Item = &CgroupState> {
        self.containers.iter()
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &CgroupState> {
        self.pods.iter()
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut CgroupState> {
        self.containers.iter_mut().chain(&mut self.pods)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &CgroupState> {
        self.containers.iter().chain(&self.pods)
    }

    /// The cgroup of a slot; `None` when it was removed meanwhile.
    pub(super) fn of(&mut self, slot: SlotId) -> Option<&mut CgroupState> {
        let among = if slot.of_pod { &mut self.pods } else { &mut self.containers };
        let is = |state: &CgroupState| state.serial == slot.serial;
        let place = if among.get(slot.place).is_some_and(is) { slot.place } else { among.iter().position(is)? };
        among.get_mut(place)
    }

    /// Replaces the list of containers; returns those that are not in it.
    pub(super) fn set_targets(&mut self, list: &[Target]) -> Vec<CgroupState> {
        let mut wanted: HashMap<&str, &Target> = list.iter().map(|s| (s.container_id.as_str(), s)).collect();
        let is_removed = |state: &mut CgroupState| !wanted.contains_key(state.target.container_id.as_str());
        let removed = self.containers.extract_if(.., is_removed).collect();
        for known in &mut self.containers {
            let Some(target) = wanted.remove(known.target.container_id.as_str()) else { continue };
            if known.target.pid != target.pid {
                // Another process: the container was restarted with the same id.
                self.last_serial += 1;
                *known = CgroupState::of(target, self.last_serial);
            } else if *known.target != *target {
                known.target = Arc::new(target.clone());
                // Its limits may have changed, too.
                known.limits_due = 0;
            }
        }
        for target in wanted.into_values() {
            self.last_serial += 1;
            self.containers.push(CgroupState::of(target, self.last_serial));
        }
        self.containers.sort_by(|a, b| order(a).cmp(&order(b)));
        let uids: HashSet<&str> = list.iter().map(|s| s.pod_uid.as_str()).collect();
        self.pods.retain(|pod| uids.contains(&**pod.key.id()));
        removed
    }

    /// Adds a pod's own cgroup, unless it is there.
    pub(super) fn add_pod(&mut self, uid: &str, make: impl FnOnce(Key, u64) -> CgroupState) -> Option<SlotId> {
        if self.pods.iter().any(|pod| **pod.key.id() == *uid) {
            return None;
        }
        self.last_serial += 1;
        self.pods.push(make(Key::Pod(Arc::from(uid)), self.last_serial));
        Some(SlotId { of_pod: true, place: self.pods.len() - 1, serial: self.last_serial })
    }

    /// Removes pods' own cgroups; the next container of the pod opens its cgroup again.
    pub(super) fn remove_pods(&mut self, removed: impl Fn(&CgroupState) -> bool) {
        self.pods.retain(|pod| !removed(pod));
    }

    /// Starts the reads of the selected cgroups, except those in flight. Those that were late before come last.
    pub(super) fn start_reads(
        &mut self,
        mono_ns: u64,
        totals: &Arc<Totals>,
        chosen: impl Fn(&CgroupState) -> bool,
    ) -> Vec<(SlotId, ReadJob)> {
        let mut jobs = Vec::with_capacity(self.containers.len() + self.pods.len());
        let mut late = Vec::new();
        for (of_pod, among) in [(false, &mut self.containers), (true, &mut self.pods)] {
            for (place, state) in among.iter_mut().enumerate().filter(|(_, t)| !t.in_flight && chosen(t)) {
                let slot = SlotId { of_pod, place, serial: state.serial };
                let to = if state.late { &mut late } else { &mut jobs };
                to.push((slot, state.start_read(mono_ns, totals)));
            }
        }
        jobs.append(&mut late);
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(id: &str, pod: &str) -> Target {
        Target { container_id: id.to_owned(), pod_name: pod.to_owned(), pod_uid: pod.to_owned(), ..Target::default() }
    }

    fn pod_of(cgroups: &mut CgroupSet, uid: &str) -> Option<SlotId> {
        cgroups.add_pod(uid, |key, serial| CgroupState::new(key, serial, Arc::default()))
    }

    #[test]
    fn answers_find_their_owners_wherever_those_are_by_then() {
        let mut cgroups = CgroupSet::default();
        cgroups.set_targets(&[target("c", "two"), target("a", "two"), target("b", "one")]);
        let ids = |cgroups: &CgroupSet| cgroups.containers().map(|t| t.key.id().to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&cgroups), ["b", "a", "c"]);
        let (one, two) = (pod_of(&mut cgroups, "one").unwrap(), pod_of(&mut cgroups, "two").unwrap());
        assert_eq!(pod_of(&mut cgroups, "two"), None);
        let jobs: Vec<SlotId> =
            cgroups.start_reads(0, &Arc::default(), |_| true).into_iter().map(|(slot, _)| slot).collect();
        assert_eq!(jobs.len(), 5);
        assert!(cgroups.start_reads(0, &Arc::default(), |_| true).is_empty(), "all are under way");
        let again = Target { pid: 7, ..target("a", "two") };
        let removed = cgroups.set_targets(&[target("0", "one"), again, target("c", "two"), target("9", "zero")]);
        assert_eq!(removed.iter().map(|t| &**t.key.id()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(ids(&cgroups), ["0", "a", "c", "9"]);
        let found: Vec<Option<String>> =
            jobs.iter().map(|slot| cgroups.of(*slot).map(|t| t.key.id().to_string())).collect();
        let found: Vec<Option<&str>> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, [None, None, Some("c"), Some("one"), Some("two")], "b is removed, a is another by now");
        cgroups.remove_pods(|pod| **pod.key.id() == *"one");
        assert!(cgroups.of(one).is_none() && cgroups.of(two).is_some_and(|t| **t.key.id() == *"two"));
        let all: Vec<&str> = cgroups.all().map(|t| &**t.key.id()).collect();
        assert_eq!(all, ["0", "a", "c", "9", "two"]);
        cgroups.set_targets(&[]);
        assert!(cgroups.of(two).is_none() && cgroups.all_mut().next().is_none());
    }

    #[test]
    fn what_was_late_comes_last() {
        let mut cgroups = CgroupSet::default();
        cgroups.set_targets(&[target("a", ""), target("b", ""), target("c", "")]);
        cgroups.all_mut().find(|t| **t.key.id() == *"a").unwrap().late = true;
        let jobs = cgroups.start_reads(0, &Arc::default(), |_| true);
        let order: Vec<usize> = jobs.into_iter().map(|(slot, _)| slot.place).collect();
        assert_eq!(order, [1, 2, 0]);
    }
}
