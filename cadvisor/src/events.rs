//! What happened to containers: a bounded list, the oldest first.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use crate::parse::oom::Kill;

/// More are not kept.
const MOST: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Happened {
    Created,
    Deleted,
    Killed(Kill),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: jiff::Timestamp,
    pub(crate) cgroup: String,
    pub(crate) what: Happened,
}

impl Event {
    pub(crate) fn now(cgroup: &str, what: Happened) -> Self {
        Self { at: jiff::Timestamp::now(), cgroup: cgroup.to_owned(), what }
    }
}

/// Clones share the list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Events(Arc<Mutex<VecDeque<Event>>>);

impl Events {
    pub(crate) fn put(&self, event: Event) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(event);
        if all.len() > MOST {
            all.pop_front();
        }
    }

    pub(crate) fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
