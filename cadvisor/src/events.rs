//! What happened to containers: a bounded list, the oldest first.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::broadcast;

use crate::parse::oom::Kill;

/// More are not kept.
const MOST: usize = 1000;
/// Whoever looks on and falls back by more than this misses some.
const BEHIND: usize = 256;

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
    /// Of a pod's container: which.
    pub(crate) whose: Option<Whose>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whose {
    pub(crate) pod_uid: String,
    pub(crate) container: String,
}

impl Event {
    pub(crate) fn now(cgroup: &str, what: Happened) -> Self {
        Self { at: jiff::Timestamp::now(), cgroup: cgroup.to_owned(), what, whose: None }
    }
}

/// Clones share the list.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    kept: Arc<Mutex<VecDeque<Event>>>,
    tell: broadcast::Sender<Event>,
}

impl Default for Events {
    fn default() -> Self {
        Self { kept: Arc::default(), tell: broadcast::channel(BEHIND).0 }
    }
}

impl Events {
    pub(crate) fn put(&self, event: Event) {
        // Nobody may be looking on.
        let _ = self.tell.send(event.clone());
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(event);
        if all.len() > MOST {
            all.pop_front();
        }
    }

    pub(crate) fn all(&self) -> Vec<Event> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The starts of a pod's containers: their names and times.
    pub(crate) fn starts(&self, pod_uid: &str) -> Vec<(String, jiff::Timestamp)> {
        let all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pod = all.iter().filter_map(|event| match &event.what {
            Happened::Created => {
                event.whose.as_ref().filter(|whose| whose.pod_uid == pod_uid).map(|whose| (event, whose))
            }
            _ => None,
        });
        of_pod.map(|(event, whose)| (whose.container.clone(), event.at)).collect()
    }

    /// Each that is put from now on.
    pub(crate) fn to_come(&self) -> broadcast::Receiver<Event> {
        self.tell.subscribe()
    }
}
