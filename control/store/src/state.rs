//! The state in memory: all objects, and the history and the watchers of each resource.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Counters, Engine, Error, Event, Key, Object, Record, RelaxedDurability, ResourceId, ResourceOptions,
    dispatch::Dispatcher,
    history::{History, RevisionClock},
    object_map::ObjectMap,
};

/// All of one resource.
#[derive(Debug)]
pub(crate) struct ResourceState {
    pub(crate) name: Arc<str>,
    pub(crate) options: ResourceOptions,
    pub(crate) objects: ObjectMap,
    /// Size of all objects.
    pub(crate) object_bytes: usize,
    pub(crate) history: History,
    /// Events up to this revision may be missing in the history: a watch from here on misses nothing.
    pub(crate) compacted_revision: u64,
    pub(crate) dispatcher: Dispatcher,
    /// The latest record that was loaded.
    replayed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) revision: u64,
    /// By id.
    resources: Vec<ResourceState>,
    pub(crate) ids: HashMap<Arc<str>, ResourceId>,
    /// What all histories keep alive.
    history_bytes: usize,
    /// And may.
    superseded_bytes: usize,
    clock: RevisionClock,
    /// No resource has an earlier compacted revision.
    pub(crate) floor: u64,
    /// The first revision after an unclean end.
    unclean_start: Option<u64>,
    /// Resources whose compacted revision a restart must know of.
    pub(crate) unsynced_compactions: Vec<ResourceId>,
    /// The counters that were loaded.
    pub(crate) synced: Counters,
}

impl State {
    /// Loads the engine's records. The revision begins above every assigned one.
    pub(crate) fn load(
        resources: &[(&str, ResourceOptions)],
        engine: &mut dyn Engine,
        superseded_bytes: usize,
    ) -> Result<Self, Error> {
        let (mut state, mut last) = (Self { superseded_bytes, ..Self::default() }, Counters::default());
        for (name, _) in resources {
            state.intern(name);
        }
        let (now, unix_seconds) = (Instant::now(), unix_seconds());
        engine.load(&mut |records, counters| {
            state.compact(counters);
            for record in records {
                let age = Duration::from_secs(unix_seconds.saturating_sub(record.unix_seconds));
                state.replay(record, now.checked_sub(age).unwrap_or(now), now);
            }
            last.clone_from(counters);
        })?;
        let orderly = last.ceiling == last.revision;
        state.revision = if orderly { last.revision } else { last.ceiling + 1 };
        state.unclean_start = (!orderly).then_some(state.revision);
        state.synced = last;
        for (name, options) in resources {
            state.register(name, options.clone());
        }
        Ok(state)
    }

    /// Takes over up to where events may be missing on disk.
    fn compact(&mut self, counters: &Counters) {
        self.floor = counters.floor;
        for (name, revision) in &counters.compacted {
            let id = self.intern(name);
            if let Some(resource) = self.resource_mut(id) {
                resource.compacted_revision = resource.compacted_revision.max(*revision);
            }
        }
        for resource in &mut self.resources {
            resource.compacted_revision = resource.compacted_revision.max(counters.floor);
        }
    }

    /// Takes over one record, which was written at a time.
    fn replay(&mut self, record: Record, at: Instant, now: Instant) {
        let id = self.intern(&record.resource);
        let Some(resource) = self.resource_mut(id) else { return };
        let revision = record.object.revision;
        // A rewrite and the commits alongside it may both have a record.
        if revision <= resource.replayed {
            return;
        }
        resource.replayed = revision;
        let previous = resource.objects.get(&record.object.key).cloned();
        let object = match (record.deleted, &previous) {
            (false, _) => record.object,
            (true, Some(previous)) => Arc::new(previous.at_revision(revision)),
            // Deleted before the history begins.
            (true, None) => return,
        };
        let event = Event::new(id, object, previous, record.deleted, at, record.unix_seconds);
        resource.apply(&event);
        if revision > resource.compacted_revision {
            event.drop_frames();
            self.remember(Arc::new(event), now);
        }
    }

    pub(crate) fn resource(&self, id: ResourceId) -> Option<&ResourceState> {
        self.resources.get(id.0 as usize)
    }

    pub(crate) fn resource_mut(&mut self, id: ResourceId) -> Option<&mut ResourceState> {
        self.resources.get_mut(id.0 as usize)
    }

    pub(crate) fn get(&self, id: ResourceId, key: &Key) -> Option<&Arc<Object>> {
        self.resource(id)?.objects.get(key)
    }

    /// The id of a resource; unknown ones get one.
    pub(crate) fn intern(&mut self, name: &str) -> ResourceId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let (id, name) = (ResourceId(u32::try_from(self.resources.len()).unwrap_or(u32::MAX)), Arc::<str>::from(name));
        self.resources.push(ResourceState {
            name: Arc::clone(&name),
            options: ResourceOptions::default(),
            objects: ObjectMap::default(),
            object_bytes: 0,
            history: History::default(),
            compacted_revision: self.floor,
            dispatcher: Dispatcher::default(),
            replayed: 0,
        });
        self.ids.insert(name, id);
        id
    }

    pub(crate) fn register(&mut self, name: &str, options: ResourceOptions) -> ResourceId {
        let (id, unclean_start) = (self.intern(name), self.unclean_start);
        if let Some(resource) = self.resource_mut(id) {
            // Watchers may have seen changes of such a resource that were lost.
            if let Some(start) = unclean_start
                && options.relaxed_durability != RelaxedDurability::Never
            {
                resource.compacted_revision = resource.compacted_revision.max(start);
                self.unsynced_compactions.push(id);
            }
        }
        if let Some(resource) = self.resource_mut(id) {
            // A later registration without indexes keeps them.
            let indexes = if options.indexes.is_empty() {
                std::mem::take(&mut resource.options.indexes)
            } else {
                options.indexes
            };
            resource.options = ResourceOptions { indexes, ..options };
        }
        id
    }

    /// Fails when changes of a resource after a revision were compacted.
    pub(crate) fn check_compacted(&self, resource: ResourceId, after: u64) -> Result<(), Error> {
        let oldest = self.resource(resource).map_or(self.floor, |r| r.compacted_revision);
        if after < oldest { Err(Error::TooOld { asked: after, oldest }) } else { Ok(()) }
    }

    /// Fails when a list of a resource at a revision cannot be given any more, or is too old to be.
    pub(crate) fn check_listable(&self, resource: ResourceId, at: u64, now: Instant) -> Result<(), Error> {
        self.check_compacted(resource, at)?;
        let oldest = self.clock.oldest(now);
        if at < oldest { Err(Error::TooOld { asked: at, oldest }) } else { Ok(()) }
    }

    pub(crate) fn publish(&mut self, event: &Arc<Event>, now: Instant) {
        self.clock.note(event.object.revision, now);
        if let Some(resource) = self.resource_mut(event.resource) {
            resource.apply(event);
            self.remember(Arc::clone(event), now);
        }
    }

    /// Adds an event to its history, and drops what histories must not keep.
    fn remember(&mut self, event: Arc<Event>, now: Instant) {
        let Some(resource) = self.resources.get_mut(event.resource.0 as usize) else { return };
        let before = resource.history.bytes();
        resource.dispatcher.remember(&event, &resource.options.indexes);
        resource.history.push(event);
        while let Some(old) = resource.history.pop_aged(now) {
            resource.forget(&old);
        }
        self.history_bytes = self.history_bytes + resource.history.bytes() - before;
        while self.history_bytes > self.superseded_bytes
            && let Some(largest) = self.resources.iter_mut().max_by_key(|r| r.history.bytes())
        {
            let before = largest.history.bytes();
            let Some(old) = largest.history.pop() else { return };
            largest.forget(&old);
            self.history_bytes -= before - largest.history.bytes();
        }
    }

    /// What all objects and histories occupy, about.
    pub(crate) fn live_bytes(&self) -> usize {
        self.history_bytes + self.resources.iter().map(|r| r.object_bytes).sum::<usize>()
    }

    /// All that a restart needs: the states before the histories, and their events. The revisions up to which events may
    /// be missing come with it.
    pub(crate) fn records(&self) -> (Vec<Record>, Counters) {
        let (mut records, mut counters) = (Vec::new(), Counters { floor: self.floor, ..Counters::default() });
        for resource in &self.resources {
            let record = |object: &Arc<Object>, deleted, unix_seconds| Record {
                resource: Arc::clone(&resource.name),
                object: Arc::clone(object),
                deleted,
                unix_seconds,
            };
            let first = resource.history.iter().next().map_or(u64::MAX, |event| event.object.revision);
            let unchanged = resource.objects.iter().filter(|object| object.revision < first);
            records.extend(unchanged.map(|object| record(object, false, 0)));
            for event in resource.history.iter() {
                // Later ones are objects of other events.
                let base = event.previous.iter().filter(|previous| previous.revision < first);
                records.extend(base.map(|previous| record(previous, false, 0)));
                records.push(record(&event.object, event.deleted, event.unix_seconds));
            }
            counters.compacted.insert(resource.name.to_string(), resource.compacted_revision);
        }
        records.sort_by_key(|record| record.object.revision);
        (records, counters)
    }
}

impl ResourceState {
    fn apply(&mut self, event: &Event) {
        let replaced = if event.deleted {
            self.objects.remove(&event.object.key)
        } else {
            self.object_bytes += event.object.bytes.len();
            self.objects.insert(Arc::clone(&event.object))
        };
        self.object_bytes -= replaced.map_or(0, |object| object.bytes.len());
    }

    /// An event has left the history.
    fn forget(&mut self, event: &Event) {
        self.compacted_revision = self.compacted_revision.max(event.object.revision);
        self.dispatcher.forget(event, &self.options.indexes);
    }
}

pub(crate) fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
