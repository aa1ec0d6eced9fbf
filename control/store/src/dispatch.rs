//! Who is woken by an event: the watchers of its resource, and of these only those whose scope it touches.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::watch as tokio_watch;

use super::{Event, Index, Key, Object, index::values_of};

/// The part of a resource that a watcher follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All objects.
    All,
    /// Those of a namespace.
    Namespace(String),
    /// One object.
    Object(Key),
    /// Those whose indexed field, by its number in the options of the resource, has a value.
    Index(usize, String),
}

impl Scope {
    /// Whether an object belongs to it.
    pub(crate) fn has_object(&self, object: &Object, indexes: &[Index]) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(namespace) => object.key.namespace == *namespace,
            Self::Object(one) => object.key == *one,
            Self::Index(at, value) => object.has_index_value(indexes, *at, value),
        }
    }

    /// Whether an event is about it: the object belongs to it, or did before.
    pub(crate) fn has(&self, event: &Event, indexes: &[Index]) -> bool {
        // The key of an object never changes.
        let previous = event.previous.as_ref().filter(|_| matches!(self, Self::Index(..)));
        self.has_object(&event.object, indexes) || previous.is_some_and(|object| self.has_object(object, indexes))
    }
}

/// The watchers of one scope.
#[derive(Debug)]
struct Topic {
    wake: tokio_watch::Sender<()>,
    /// The latest event of this scope that has left the history, if it did so since the topic exists.
    forgotten: u64,
    /// The revision at which the topic was made.
    since: u64,
    /// The events of this scope after that, as long as they are in the history: who is woken by one of a thousand writes
    /// does not look at the others. Empty for [`Scope::All`], whose events are the history.
    events: VecDeque<Arc<Event>>,
}

/// The watchers of one resource by their scope.
#[derive(Debug, Default)]
pub(crate) struct Dispatcher {
    topics: HashMap<Scope, Topic>,
    /// Number of topics at which those without watchers are dropped.
    sweep_at: usize,
}

impl Dispatcher {
    /// Adds a watcher; `compacted` is the compacted revision of the resource, `now` that of the store.
    pub(crate) fn subscribe(&mut self, scope: &Scope, compacted: u64, now: u64) -> tokio_watch::Receiver<()> {
        if self.topics.len() >= self.sweep_at {
            self.topics.retain(|_, topic| topic.wake.receiver_count() > 0);
            self.sweep_at = (self.topics.len() * 2).max(16);
        }
        let new =
            || Topic { wake: tokio_watch::Sender::new(()), forgotten: compacted, since: now, events: VecDeque::new() };
        self.topics.entry(scope.clone()).or_insert_with(new).wake.subscribe()
    }

    fn each_scope(event: &Event, indexes: &[Index]) -> Vec<Scope> {
        let key = &event.object.key;
        let mut scopes = vec![Scope::All, Scope::Namespace(key.namespace.clone()), Scope::Object(key.clone())];
        for object in event.previous.iter().chain([&event.object]).filter(|_| !indexes.is_empty()) {
            let values = object.index_values.get_or_init(|| values_of(indexes, &object.bytes));
            let of = values.iter().enumerate().map(|(at, value)| Scope::Index(at, value.to_string()));
            scopes.extend(of);
        }
        scopes
    }

    /// An event was added to the history.
    pub(crate) fn remember(&mut self, event: &Arc<Event>, indexes: &[Index]) {
        if self.topics.is_empty() {
            return;
        }
        for scope in Self::each_scope(event, indexes).into_iter().filter(|scope| *scope != Scope::All) {
            let Some(topic) = self.topics.get_mut(&scope) else { continue };
            // The scopes of an object's states before and after may be the same.
            if topic.events.back().is_none_or(|last| last.object.revision < event.object.revision) {
                topic.events.push_back(Arc::clone(event));
            }
        }
    }

    /// The events of a scope after a revision; `None` where only the history has them all.
    pub(crate) fn events(&self, scope: &Scope, after: u64) -> Option<impl Iterator<Item = &Arc<Event>>> {
        let topic = self.topics.get(scope).filter(|topic| *scope != Scope::All && after >= topic.since)?;
        Some(topic.events.range(topic.events.partition_point(|event| event.object.revision <= after)..))
    }

    /// Wakes whom an event concerns.
    pub(crate) fn wake(&self, event: &Event, indexes: &[Index]) {
        if self.topics.is_empty() {
            return;
        }
        for scope in Self::each_scope(event, indexes) {
            if let Some(topic) = self.topics.get(&scope) {
                topic.wake.send_replace(());
            }
        }
    }

    /// An event has left the history.
    pub(crate) fn forget(&mut self, event: &Event, indexes: &[Index]) {
        if self.topics.is_empty() {
            return;
        }
        for scope in Self::each_scope(event, indexes) {
            if let Some(topic) = self.topics.get_mut(&scope) {
                topic.forgotten = event.object.revision;
                topic.events.pop_front_if(|oldest| oldest.object.revision <= event.object.revision);
            }
        }
    }

    /// The latest event of a scope that watchers can no longer read.
    pub(crate) fn forgotten(&self, scope: &Scope) -> Option<u64> {
        self.topics.get(scope).map(|topic| topic.forgotten)
    }
}
