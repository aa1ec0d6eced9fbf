//! All sampled cgroups, each in a slot, so that a result finds its cgroup without a search, and adding or removing a
//! container costs the same however many there are. Reads no file.

use std::{
    collections::{BTreeMap, HashMap},
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
    pub(super) serial: u64,
}

/// The slots of one pod.
#[derive(Debug, Default)]
struct PodSlots {
    /// Its own cgroup.
    own: Option<SlotId>,
    containers: Vec<SlotId>,
}

#[derive(Debug, Default)]
pub(super) struct CgroupSet {
    slots: Vec<Option<CgroupState>>,
    free: Vec<usize>,
    /// By container id.
    containers: HashMap<Arc<str>, SlotId>,
    /// By uid.
    pods: HashMap<Arc<str>, PodSlots>,
    /// Those with a single point, by serial, with the time of that.
    young: BTreeMap<u64, (SlotId, u64)>,
    /// The last serial that was assigned.
    last_serial: u64,
    /// How many cgroups were looked at: what a change costs.
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<usize>,
}

/// What was removed with a container.
#[derive(Debug, Default)]
pub(super) struct Removed {
    pub(super) container: Option<CgroupState>,
    /// The pod's own cgroup, with the last of its containers.
    pub(super) pod: Option<CgroupState>,
}

impl CgroupSet {
    #[allow(clippy::unused_self, reason = "tests count what a change costs")]
    fn visited(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// All of them, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &CgroupState> {
        self.slots.iter().flatten().inspect(|_| self.visited())
    }

    pub(super) fn containers(&self) -> impl Iterator<Item = &CgroupState> {
        self.all().filter(|state| matches!(state.key, Key::Container(_)))
    }

    /// One of the pods' own cgroups.
    pub(super) fn any_pod(&self) -> Option<&CgroupState> {
        let own = self.pods.values().find_map(|pod| pod.own)?;
        self.slots.get(own.place)?.as_ref()
    }

    /// All slots that are in use.
    pub(super) fn slots(&self) -> Vec<SlotId> {
        let slot = |(place, state): (usize, &Option<CgroupState>)| {
            let state = state.as_ref()?;
            Some(SlotId { of_pod: matches!(state.key, Key::Pod(_)), place, serial: state.serial })
        };
        self.slots.iter().enumerate().filter_map(slot).collect()
    }

    /// The containers of a pod and its own cgroup, or a container outside of pods by its id.
    pub(super) fn slots_of(&self, pod_uid: &str, id: &str) -> Vec<SlotId> {
        if pod_uid.is_empty() {
            return self.containers.get(id).copied().into_iter().collect();
        }
        let pod = self.pods.get(pod_uid);
        pod.into_iter().flat_map(|pod| pod.own.into_iter().chain(pod.containers.iter().copied())).collect()
    }

    /// The cgroup of a slot; `None` when it was removed meanwhile.
    pub(super) fn of(&mut self, slot: SlotId) -> Option<&mut CgroupState> {
        self.visited();
        self.slots.get_mut(slot.place)?.as_mut().filter(|state| state.serial == slot.serial)
    }

    /// Adds a container, or takes what is new about it. Returns the slot of one that has not been sampled yet, and the
    /// state that it had before it was restarted with the same id.
    pub(super) fn set(&mut self, target: &Arc<Target>) -> (Option<SlotId>, Option<CgroupState>) {
        let mut before = None;
        if let Some(slot) = self.containers.get(target.container_id.as_str()).copied()
            && let Some(known) = self.of(slot)
        {
            let owner = |target: &Target| (target.pid, target.pod_uid.clone(), target.container_name.clone());
            if owner(&known.target) == owner(target) {
                if known.target != *target {
                    known.target = Arc::clone(target);
                    // Its limits may have changed, too.
                    known.limits_due = 0;
                }
                return (None, None);
            }
            // Another process. The pod's own cgroup stays.
            before = self.take(slot);
            if let Some(pod) = before.as_ref().and_then(|state| self.pods.get_mut(state.target.pod_uid.as_str())) {
                pod.containers.retain(|own| *own != slot);
            }
        }
        let slot = self.add(false, |serial| CgroupState::of(target, serial));
        self.containers.insert(Arc::from(target.container_id.as_str()), slot);
        if !target.pod_uid.is_empty() {
            self.pods.entry(Arc::from(target.pod_uid.as_str())).or_default().containers.push(slot);
        }
        (Some(slot), before)
    }

    /// Removes a container, and its pod's own cgroup with the last one of the pod.
    pub(super) fn remove(&mut self, id: &str) -> Removed {
        let Some(slot) = self.containers.remove(id) else { return Removed::default() };
        let container = self.take(slot);
        let uid = container.as_ref().map_or("", |state| &state.target.pod_uid);
        let mut pod = None;
        if let Some(slots) = self.pods.get_mut(uid) {
            slots.containers.retain(|own| *own != slot);
            if slots.containers.is_empty() {
                pod = self.pods.remove(uid).and_then(|slots| slots.own);
            }
        }
        Removed { container, pod: pod.and_then(|slot| self.take(slot)) }
    }

    /// Adds the pod-level cgroup of a pod that has containers, unless it exists.
    pub(super) fn add_pod(&mut self, uid: &str, make: impl FnOnce(Key, u64) -> CgroupState) -> Option<SlotId> {
        let (uid, slots) = self.pods.get_key_value(uid).filter(|(_, slots)| slots.own.is_none())?;
        debug_assert!(!slots.containers.is_empty(), "a pod without containers is forgotten");
        let key = Key::Pod(Arc::clone(uid));
        let slot = self.add(true, |serial| make(key.clone(), serial));
        self.pods.get_mut(key.id())?.own = Some(slot);
        Some(slot)
    }

    /// Removes a pod's own cgroup; the next container of the pod opens its cgroup again.
    pub(super) fn remove_pod(&mut self, slot: SlotId) -> Option<CgroupState> {
        let state = self.take(slot)?;
        if let Some(slots) = self.pods.get_mut(state.key.id()) {
            slots.own = None;
        }
        Some(state)
    }

    fn add(&mut self, of_pod: bool, make: impl FnOnce(u64) -> CgroupState) -> SlotId {
        self.last_serial += 1;
        let state = make(self.last_serial);
        let place = self.free.pop().unwrap_or(self.slots.len());
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = Some(state);
        } else {
            self.slots.push(Some(state));
        }
        SlotId { of_pod, place, serial: self.last_serial }
    }

    fn take(&mut self, slot: SlotId) -> Option<CgroupState> {
        self.of(slot)?;
        self.free.push(slot.place);
        self.young.remove(&slot.serial);
        self.slots.get_mut(slot.place)?.take()
    }

    /// Notes whether a cgroup has a single point, and so no rate. One that fails or was removed must not cause polling.
    pub(super) fn note_age(&mut self, slot: SlotId) {
        let is_young = |t: &&mut CgroupState| t.history.len() == 1 && t.files.is_some() && !t.failure_logged;
        let young = self.of(slot).filter(is_young);
        match young.and_then(|state| state.history.points().last().map(|point| point.mono_ns)) {
            Some(mono_ns) => drop(self.young.insert(slot.serial, (slot, mono_ns))),
            None => drop(self.young.remove(&slot.serial)),
        }
    }

    /// When the first of those that have a single point was read.
    pub(super) fn oldest_young(&self) -> Option<u64> {
        self.young.values().map(|(_, mono_ns)| *mono_ns).min()
    }

    /// Those that have a single point, read at this time or before.
    pub(super) fn young_until(&self, until_ns: u64) -> Vec<SlotId> {
        self.young.values().filter(|(_, mono_ns)| *mono_ns <= until_ns).map(|(slot, _)| *slot).collect()
    }

    /// Starts the reads of these cgroups, except those in flight. Those that were late before come last.
    pub(super) fn start_reads(
        &mut self,
        slots: Vec<SlotId>,
        mono_ns: u64,
        totals: &Arc<Totals>,
    ) -> Vec<(SlotId, ReadJob)> {
        let mut jobs = Vec::with_capacity(slots.len());
        let mut late = Vec::new();
        for slot in slots {
            let Some(state) = self.of(slot).filter(|state| !state.in_flight) else { continue };
            let to = if state.late { &mut late } else { &mut jobs };
            to.push((slot, state.start_read(mono_ns, totals)));
        }
        jobs.append(&mut late);
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(id: &str, pod: &str) -> Arc<Target> {
        let (container_id, pod_name, pod_uid) = (id.to_owned(), pod.to_owned(), pod.to_owned());
        Arc::new(Target { container_id, pod_name, pod_uid, ..Target::default() })
    }

    fn set(cgroups: &mut CgroupSet, targets: &[(&str, &str)]) {
        targets.iter().for_each(|(id, pod)| drop(cgroups.set(&target(id, pod))));
    }

    fn pod_of(cgroups: &mut CgroupSet, uid: &str) -> Option<SlotId> {
        cgroups.add_pod(uid, |key, serial| CgroupState::new(key, serial, Arc::default()))
    }

    fn ids(cgroups: &CgroupSet) -> Vec<String> {
        let mut ids: Vec<String> = cgroups.all().map(|t| t.key.id().to_string()).collect();
        ids.sort();
        ids
    }

    fn start(cgroups: &mut CgroupSet) -> Vec<SlotId> {
        let slots = cgroups.slots();
        cgroups.start_reads(slots, 0, &Arc::default()).into_iter().map(|(slot, _)| slot).collect()
    }

    #[test]
    fn answers_find_their_owners_wherever_those_are_by_then() {
        let mut cgroups = CgroupSet::default();
        set(&mut cgroups, &[("c", "two"), ("a", "two"), ("b", "one")]);
        let (one, two) = (pod_of(&mut cgroups, "one").unwrap(), pod_of(&mut cgroups, "two").unwrap());
        assert_eq!((pod_of(&mut cgroups, "two"), pod_of(&mut cgroups, "none")), (None, None));
        let jobs = start(&mut cgroups);
        assert_eq!(jobs.len(), 5);
        assert!(start(&mut cgroups).is_empty(), "all are under way");
        let again = Arc::new(Target { pid: 7, ..Target::clone(&target("a", "two")) });
        let (slot, before) = cgroups.set(&again);
        assert!(slot.is_some() && before.is_some_and(|t| **t.key.id() == *"a"));
        let removed = cgroups.remove("b");
        assert!(removed.container.is_some_and(|t| **t.key.id() == *"b"));
        assert!(removed.pod.is_some_and(|t| **t.key.id() == *"one"), "its last container is gone");
        set(&mut cgroups, &[("0", "one"), ("c", "two"), ("9", "")]);
        assert_eq!(ids(&cgroups), ["0", "9", "a", "c", "two"]);
        let mut found: Vec<String> =
            jobs.iter().filter_map(|slot| cgroups.of(*slot).map(|t| t.key.id().to_string())).collect();
        found.sort();
        assert_eq!(found, ["c", "two"], "b and its pod are removed, a is another by now");
        assert!(cgroups.of(one).is_none());
        assert_eq!(cgroups.slots_of("two", "").len(), 3);
        assert_eq!((cgroups.slots_of("", "9").len(), cgroups.slots_of("", "none").len()), (1, 0));
        assert!(cgroups.remove_pod(two).is_some() && cgroups.any_pod().is_none());
        assert!(pod_of(&mut cgroups, "two").is_some_and(|slot| slot != two), "opened again");
        for id in ["0", "9", "a", "c"] {
            cgroups.remove(id);
        }
        assert!(ids(&cgroups).is_empty() && cgroups.pods.is_empty() && cgroups.containers.is_empty());
        assert!(cgroups.slots.len() <= 6, "slots are used again");
    }

    #[test]
    fn what_was_late_comes_last() {
        let mut cgroups = CgroupSet::default();
        set(&mut cgroups, &[("a", ""), ("b", ""), ("c", "")]);
        let slots = cgroups.slots();
        cgroups.of(slots[0]).unwrap().late = true;
        let order: Vec<usize> = start(&mut cgroups).into_iter().map(|slot| slot.place).collect();
        assert_eq!(order, [1, 2, 0]);
    }
}
