//! The state in memory: all objects, and the watch window.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Change, Counters, Error, Key, Object, Record, RelaxedDurability, StoredType};

/// Bounds of the watch window, by number, size and age; the age is that of upstream's compaction.
const WATCH_WINDOW_CHANGES: usize = 8192;
const WATCH_WINDOW_BYTES: usize = 4 << 20;
const WATCH_WINDOW_AGE: Duration = Duration::from_secs(300);

pub(super) type Objects = BTreeMap<Key, Arc<Object>>;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) revision: u64,
    pub(super) resources: HashMap<&'static str, Objects>,
    /// The watch window: the latest changes, oldest first, with their times.
    pub(super) watch_window: VecDeque<(Instant, Change)>,
    pub(super) watch_window_bytes: usize,
    /// The latest compacted change of each type: a watch from here on misses nothing of that type.
    pub(super) compacted_revision: HashMap<&'static str, u64>,
}

impl State {
    /// Loads the engine's records. The revision begins above every assigned one.
    pub(super) fn load(types: &[StoredType], records: Vec<Record>, counters: &Counters) -> Result<Self, Error> {
        let orderly = counters.ceiling == counters.revision;
        let revision = if orderly { counters.revision } else { counters.ceiling + 1 };
        let mut state = Self { revision, ..Self::default() };
        for stored_type in types {
            state.resources.insert(stored_type.name, Objects::new());
            let changed = counters.changed.get(stored_type.name).copied().unwrap_or(0).max(counters.floor);
            // Watchers may have seen changes of such a type that were lost.
            let lost = !orderly && stored_type.relaxed_durability != RelaxedDurability::Never;
            state.compacted_revision.insert(stored_type.name, if lost { revision } else { changed });
        }
        for Record { key, bytes } in records {
            let (Some((resource, name)), Some(bytes)) = (split_key(&key, types), bytes) else { continue };
            let object = Object::read(bytes).map_err(|reason| Error::Damaged { key, reason })?;
            state.resources.entry(resource).or_default().insert(name, Arc::new(object));
        }
        Ok(state)
    }

    /// Fails when changes of a type after a revision were compacted.
    pub(super) fn check_compacted(&self, resource: &str, after: u64) -> Result<(), Error> {
        let oldest = self.compacted_revision.get(resource).copied().unwrap_or(0);
        if after < oldest { Err(Error::TooOld { asked: after, oldest }) } else { Ok(()) }
    }

    pub(super) fn publish(&mut self, change: Change, now: Instant) {
        let objects = self.resources.entry(change.resource).or_default();
        if change.deleted {
            objects.remove(&change.key);
        } else {
            objects.insert(change.key.clone(), Arc::clone(&change.object));
        }
        self.watch_window_bytes += change.object.bytes.len();
        self.watch_window.push_back((now, change));
        let beyond = |state: &Self| {
            let oldest = state.watch_window.front().is_some_and(|(at, _)| now.duration_since(*at) > WATCH_WINDOW_AGE);
            oldest || state.watch_window.len() > WATCH_WINDOW_CHANGES || state.watch_window_bytes > WATCH_WINDOW_BYTES
        };
        while beyond(self)
            && let Some((_, old)) = self.watch_window.pop_front()
        {
            self.watch_window_bytes -= old.object.bytes.len();
            self.compacted_revision.insert(old.resource, old.object.revision);
        }
    }
}

/// `resource/namespace/name`.
pub(super) fn join_key(resource: &str, key: &Key) -> String {
    format!("{resource}/{}/{}", key.namespace, key.name)
}

/// Splits such a key; `None` for types that are not served.
fn split_key(key: &str, types: &[StoredType]) -> Option<(&'static str, Key)> {
    let mut parts = key.splitn(3, '/');
    let (resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let stored_type = types.iter().find(|t| t.name == resource)?;
    Some((stored_type.name, Key { namespace: namespace.to_owned(), name: name.to_owned() }))
}
