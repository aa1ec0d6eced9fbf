//! Events of containers: a bounded list, oldest first.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::parse::oom::Kill;

/// Older events are dropped.
const MAX_EVENTS: usize = 1000;
/// A subscriber that falls behind by more events than this misses some.
const SUBSCRIBER_CAPACITY: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventType {
    Created,
    Deleted,
    Killed(Kill),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: jiff::Timestamp,
    pub(crate) cgroup: String,
    pub(crate) kind: EventType,
    /// The pod's container, if it is one.
    pub(crate) container: Option<ContainerRef>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerRef {
    pub(crate) pod_uid: String,
    pub(crate) name: String,
}

impl Event {
    pub(crate) fn now(cgroup: &str, kind: EventType) -> Self {
        Self { at: jiff::Timestamp::now(), cgroup: cgroup.to_owned(), kind, container: None }
    }
}

/// Clones share the list.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    list: Arc<Mutex<VecDeque<Event>>>,
    sender: broadcast::Sender<Event>,
}

impl Default for Events {
    fn default() -> Self {
        Self { list: Arc::default(), sender: broadcast::channel(SUBSCRIBER_CAPACITY).0 }
    }
}

impl Events {
    pub(crate) fn add(&self, event: Event) {
        // There may be no subscriber.
        let _ = self.sender.send(event.clone());
        let mut all = self.list.lock();
        all.push_back(event);
        if all.len() > MAX_EVENTS {
            all.pop_front();
        }
    }

    pub(crate) fn all(&self) -> Vec<Event> {
        self.list.lock().iter().cloned().collect()
    }

    /// The starts of a pod's containers: names and times.
    pub(crate) fn starts(&self, pod_uid: &str) -> Vec<(String, jiff::Timestamp)> {
        let all = self.list.lock();
        let of_pod = all.iter().filter_map(|event| match &event.kind {
            EventType::Created => event
                .container
                .as_ref()
                .filter(|container| container.pod_uid == pod_uid)
                .map(|container| (event, container)),
            _ => None,
        });
        of_pod.map(|(event, container)| (container.name.clone(), event.at)).collect()
    }

    /// Subscribes to events from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }
}
