//! The state in memory: all objects, and the watch window.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Counters, Error, Event, Key, Object, Record, RelaxedDurability, ResourceId, ResourceOptions};

/// Bounds of the watch window, by number, size and age; the age is that of upstream's compaction.
const WATCH_WINDOW_EVENTS: usize = 8192;
const WATCH_WINDOW_BYTES: usize = 4 << 20;
const WATCH_WINDOW_AGE: Duration = Duration::from_secs(300);

pub(super) type Objects = BTreeMap<Key, Arc<Object>>;

/// All of one resource.
#[derive(Debug)]
pub(super) struct ResourceState {
    pub(super) name: Arc<str>,
    pub(super) options: ResourceOptions,
    pub(super) objects: Objects,
    /// The latest compacted change: a watch from here on misses nothing.
    pub(super) compacted_revision: u64,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) revision: u64,
    /// By id.
    resources: Vec<ResourceState>,
    pub(super) ids: HashMap<Arc<str>, ResourceId>,
    /// The watch window: the latest events, oldest first, with their times.
    pub(super) watch_window: VecDeque<(Instant, Event)>,
    pub(super) watch_window_bytes: usize,
    /// No resource has changed after this, unless its own state says so.
    floor: u64,
    /// The first revision after an unclean end.
    unclean_start: Option<u64>,
}

impl State {
    /// Loads the engine's records. The revision begins above every assigned one.
    pub(super) fn load(
        resources: &[(&str, ResourceOptions)],
        records: Vec<Record>,
        counters: &Counters,
    ) -> Result<Self, Error> {
        let orderly = counters.ceiling == counters.revision;
        let revision = if orderly { counters.revision } else { counters.ceiling + 1 };
        let unclean_start = (!orderly).then_some(revision);
        let mut state = Self { revision, floor: counters.floor, unclean_start, ..Self::default() };
        for (name, options) in resources {
            state.register(name, options.clone());
        }
        for (name, changed) in &counters.changed {
            let id = state.intern(name);
            if let Some(resource) = state.resource_mut(id) {
                resource.compacted_revision = resource.compacted_revision.max(*changed);
            }
        }
        for Record { key, bytes } in records {
            let Some(bytes) = bytes else { continue };
            let (name, object_key) = split_key(&key).ok_or_else(|| Error::Damaged {
                key: key.clone(),
                reason: "its key is not resource/namespace/name".to_owned(),
            })?;
            let id = state.intern(name);
            let object =
                Object::read(object_key, bytes).map_err(|reason| Error::Damaged { key: key.clone(), reason })?;
            if let Some(resource) = state.resource_mut(id) {
                resource.objects.insert(object.key.clone(), Arc::new(object));
            }
        }
        Ok(state)
    }

    pub(super) fn resource(&self, id: ResourceId) -> Option<&ResourceState> {
        self.resources.get(id.0 as usize)
    }

    fn resource_mut(&mut self, id: ResourceId) -> Option<&mut ResourceState> {
        self.resources.get_mut(id.0 as usize)
    }

    pub(super) fn objects(&self, id: ResourceId) -> Option<&Objects> {
        self.resource(id).map(|r| &r.objects)
    }

    pub(super) fn each_resource(&self) -> impl Iterator<Item = (ResourceId, &ResourceState)> {
        (0..).map(ResourceId).zip(&self.resources)
    }

    /// The id of a resource; unknown ones get one.
    pub(super) fn intern(&mut self, name: &str) -> ResourceId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let (id, name) = (ResourceId(u32::try_from(self.resources.len()).unwrap_or(u32::MAX)), Arc::<str>::from(name));
        let (options, compacted_revision) = (ResourceOptions::default(), self.floor);
        self.resources.push(ResourceState {
            name: Arc::clone(&name),
            options,
            objects: Objects::new(),
            compacted_revision,
        });
        self.ids.insert(name, id);
        id
    }

    pub(super) fn register(&mut self, name: &str, options: ResourceOptions) -> ResourceId {
        let (id, unclean_start) = (self.intern(name), self.unclean_start);
        if let Some(resource) = self.resource_mut(id) {
            // Watchers may have seen changes of such a resource that were lost.
            if let Some(start) = unclean_start
                && options.relaxed_durability != RelaxedDurability::Never
            {
                resource.compacted_revision = resource.compacted_revision.max(start);
            }
            resource.options = options;
        }
        id
    }

    /// Fails when changes of a resource after a revision were compacted.
    pub(super) fn check_compacted(&self, resource: ResourceId, after: u64) -> Result<(), Error> {
        let oldest = self.resource(resource).map_or(0, |r| r.compacted_revision);
        if after < oldest { Err(Error::TooOld { asked: after, oldest }) } else { Ok(()) }
    }

    pub(super) fn publish(&mut self, event: Event, now: Instant) {
        if let Some(resource) = self.resource_mut(event.resource) {
            if event.deleted {
                resource.objects.remove(&event.object.key);
            } else {
                resource.objects.insert(event.object.key.clone(), Arc::clone(&event.object));
            }
        }
        self.watch_window_bytes += event.object.bytes.len();
        self.watch_window.push_back((now, event));
        let beyond = |state: &Self| {
            let oldest = state.watch_window.front().is_some_and(|(at, _)| now.duration_since(*at) > WATCH_WINDOW_AGE);
            oldest || state.watch_window.len() > WATCH_WINDOW_EVENTS || state.watch_window_bytes > WATCH_WINDOW_BYTES
        };
        while beyond(self)
            && let Some((_, old)) = self.watch_window.pop_front()
        {
            self.watch_window_bytes -= old.object.bytes.len();
            if let Some(resource) = self.resource_mut(old.resource) {
                resource.compacted_revision = old.object.revision;
            }
        }
    }
}

/// `resource/namespace/name`.
pub(super) fn join_key(resource: &str, key: &Key) -> String {
    format!("{resource}/{}/{}", key.namespace, key.name)
}

/// Splits such a key.
fn split_key(key: &str) -> Option<(&str, Key)> {
    let mut parts = key.splitn(3, '/');
    let (resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some((resource, Key { namespace: namespace.to_owned(), name: name.to_owned() }))
}
