//! What is in memory: all objects, and the changes that can still be told.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Change, Counters, Deferred, Error, Key, Object, Record, StoredType};

/// Changes that are kept for watches, by number, by size and by age; the last is that of upstream's compaction.
const RECENT: usize = 8192;
const RECENT_BYTES: usize = 4 << 20;
const RECENT_AGE: Duration = Duration::from_secs(300);

pub(super) type Objects = BTreeMap<Key, Arc<Object>>;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) revision: u64,
    pub(super) resources: HashMap<&'static str, Objects>,
    /// The latest changes, oldest first, each with when it was made.
    pub(super) recent: VecDeque<(Instant, Change)>,
    pub(super) recent_bytes: usize,
    /// The latest change of each type that can no longer be told: who has seen it misses nothing of that type.
    pub(super) compacted: HashMap<&'static str, u64>,
}

impl State {
    /// As the engine kept it. Begins above every revision that was ever given.
    pub(super) fn load(types: &[StoredType], records: Vec<Record>, counters: &Counters) -> Result<Self, Error> {
        let orderly = counters.ceiling == counters.revision;
        let revision = if orderly { counters.revision } else { counters.ceiling + 1 };
        let mut state = Self { revision, ..Self::default() };
        for kept in types {
            state.resources.insert(kept.name, Objects::new());
            let changed = counters.changed.get(kept.name).copied().unwrap_or(0).max(counters.floor);
            // Somebody may have seen changes of such a type that are on no disk.
            let lost = !orderly && kept.deferred != Deferred::Never;
            state.compacted.insert(kept.name, if lost { revision } else { changed });
        }
        for Record { key, bytes } in records {
            let (Some((resource, name)), Some(bytes)) = (split_key(&key, types), bytes) else { continue };
            let object = Object::read(bytes).map_err(|reason| Error::Damaged { key, reason })?;
            state.resources.entry(resource).or_default().insert(name, Arc::new(object));
        }
        Ok(state)
    }

    /// Whether all changes of a type after a revision can be told.
    pub(super) fn check_age(&self, resource: &str, after: u64) -> Result<(), Error> {
        let oldest = self.compacted.get(resource).copied().unwrap_or(0);
        if after < oldest { Err(Error::TooOld { asked: after, oldest }) } else { Ok(()) }
    }

    pub(super) fn show(&mut self, change: Change, now: Instant) {
        let objects = self.resources.entry(change.resource).or_default();
        if change.deleted {
            objects.remove(&change.key);
        } else {
            objects.insert(change.key.clone(), Arc::clone(&change.object));
        }
        self.recent_bytes += change.object.bytes.len();
        self.recent.push_back((now, change));
        let beyond = |state: &Self| {
            let oldest = state.recent.front().is_some_and(|(at, _)| now.duration_since(*at) > RECENT_AGE);
            oldest || state.recent.len() > RECENT || state.recent_bytes > RECENT_BYTES
        };
        while beyond(self)
            && let Some((_, old)) = self.recent.pop_front()
        {
            self.recent_bytes -= old.object.bytes.len();
            self.compacted.insert(old.resource, old.object.revision);
        }
    }
}

/// `resource/namespace/name`.
pub(super) fn join_key(resource: &str, key: &Key) -> String {
    format!("{resource}/{}/{}", key.namespace, key.name)
}

/// The parts of such a key; `None` for types that are not served.
fn split_key(key: &str, types: &[StoredType]) -> Option<(&'static str, Key)> {
    let mut parts = key.splitn(3, '/');
    let (resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let kept = types.iter().find(|t| t.name == resource)?;
    Some((kept.name, Key { namespace: namespace.to_owned(), name: name.to_owned() }))
}
