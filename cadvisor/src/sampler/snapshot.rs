//! From cgroups that were read to the next snapshot: costs what has changed, and shares the rest with the one before.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use windlass_kit::moment::Moment;

use super::{Sampler, cgroup_set::SlotId, cgroup_state::CgroupState, oom_kills::OomKills};
use crate::{
    events::{Event, EventType},
    model::{Node, Row, Snapshot, SystemRow},
    source,
};

impl Sampler {
    /// Publishes what is known.
    pub(super) fn publish(&mut self, node: Arc<Node>, system: Arc<Vec<SystemRow>>, mono_ns: u64) {
        self.take_kills();
        for slot in std::mem::take(&mut self.touched) {
            self.place_row(slot);
        }
        self.snapshot.send_replace(Arc::new(Snapshot {
            moment: Moment { wall: jiff::Timestamp::now(), mono_ns },
            machine: Arc::clone(&self.machine),
            node,
            rows: self.rows.clone(),
            pods: self.pods.clone(),
            system,
            all_pods: self.all_pods.clone(),
            runtime_cgroups: Arc::clone(&self.runtime_cgroups),
            devices: Arc::clone(&self.devices),
        }));
    }

    /// Brings a cgroup's row into the next snapshot, or takes it out.
    fn place_row(&mut self, slot: SlotId) {
        self.cgroups.note_age(slot);
        let Some(state) = self.cgroups.of(slot) else { return };
        add_oom_kills(state, &self.oom_kills);
        let row = state.row.clone();
        if let Some(row) = &row {
            name_devices(&mut self.devices, row, &self.config.root);
        }
        match (slot.of_pod, row) {
            (false, Some(row)) => self.rows.insert_at(&mut state.spot, row),
            (false, None) => self.rows.remove(&state.target),
            (true, Some(row)) => {
                let id = Arc::clone(state.key.id());
                self.pods.insert_at(&mut state.spot, |known| Arc::ptr_eq(known, &id), || Arc::clone(&id), row);
            }
            (true, None) => {
                self.pods.remove(&**state.key.id());
            }
        }
        if slot.of_pod && state.files.is_none() && !state.in_flight {
            self.cgroups.remove_pod(slot);
        }
    }

    /// The machine's disks have their names already; what else a container has touched is looked up.
    pub(super) fn name_disks(&mut self, node: &Node) {
        for disk in &node.disks {
            let number = (disk.major, disk.minor);
            if self.devices.get(&number) != Some(&disk.name) {
                Arc::make_mut(&mut self.devices).insert(number, disk.name.clone());
            }
        }
    }

    /// Counts the OOM kills that the kernel has logged; the rows of those that have more are touched.
    fn take_kills(&mut self) {
        for kill in self.kernel.kills() {
            self.oom_kills.add_logged(&kill.cgroup);
            self.events.add(Event::now(&kill.cgroup.clone(), EventType::Killed(kill)));
        }
        for (pod, name) in self.oom_kills.take_changed() {
            self.touched.extend(self.cgroups.slots_of(&pod, &name));
        }
    }
}

fn name_devices(devices: &mut Arc<BTreeMap<(u32, u32), String>>, row: &Row, root: &Path) {
    for device in &row.sample.block {
        let number = (device.major, device.minor);
        if !devices.contains_key(&number)
            && let Some(name) = source::block_device_name(root, device.major, device.minor)
        {
            Arc::make_mut(devices).insert(number, name);
        }
    }
}

/// Sets the OOM kills of all runs of a container, of which its cgroup has only those of the present run.
fn add_oom_kills(state: &mut CgroupState, oom_kills: &OomKills) {
    let kills = oom_kills.of(&state.target);
    let counts = |row: &Row| row.sample.memory.is_some_and(|memory| memory.oom_kills < Some(kills));
    if kills > 0
        && let Some(row) = state.row.as_mut().filter(|row| counts(row))
        && let Some(memory) = &mut Arc::make_mut(row).sample.memory
    {
        memory.oom_kills = Some(kills);
    }
}
