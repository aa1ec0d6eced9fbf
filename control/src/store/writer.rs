//! The thread that owns writing: it gathers what is waiting, checks it, puts it on disk in one
//! transaction, shows it to readers and answers.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, mpsc},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{oneshot, watch as tokio_watch};

use super::{Change, Engine, Error, Expected, Key, Object, Record, State, Write};

#[derive(Debug)]
pub(super) struct Request {
    pub(super) write: Write,
    pub(super) answer: oneshot::Sender<Result<Arc<Object>, Error>>,
}

/// Writes that share one transaction at most.
const BATCH: usize = 256;
/// Changes that are kept for watches, by number, by size and by age; the last is that of upstream's compaction.
const RECENT: usize = 8192;
const RECENT_BYTES: usize = 4 << 20;
const RECENT_AGE: Duration = Duration::from_secs(300);

struct Accepted {
    change: Change,
    record: Record,
    answer: oneshot::Sender<Result<Arc<Object>, Error>>,
}

pub(super) fn run(
    mut engine: Box<dyn Engine>,
    state: &RwLock<State>,
    requests: &mpsc::Receiver<Request>,
    tell: &tokio_watch::Sender<u64>,
) {
    // What was last told of a write that failed: the next ones fail alike.
    let mut told: Option<String> = None;
    while let Ok(first) = requests.recv() {
        let batch = std::iter::once(first).chain(requests.try_iter().take(BATCH - 1));
        let (accepted, revision, lazy) = check(batch, state);
        if accepted.is_empty() {
            continue;
        }
        let records: Vec<Record> = accepted.iter().map(|a| a.record.clone()).collect();
        if let Err(error) = engine.commit(&records, revision, lazy) {
            let words = error.to_string();
            if told.as_ref() != Some(&words) {
                tracing::error!(%error, "a write could not be put on disk; nothing of it was done");
            }
            told = Some(words);
            for Accepted { answer, .. } in accepted {
                let _ = answer.send(Err(error.clone()));
            }
            continue;
        }
        if told.take().is_some() {
            tracing::info!("writes can be put on disk again");
        }
        let mut answers = Vec::with_capacity(accepted.len());
        {
            let now = Instant::now();
            let mut state = state.write().unwrap_or_else(PoisonError::into_inner);
            for Accepted { change, answer, .. } in accepted {
                answers.push((answer, Arc::clone(&change.object)));
                show(&mut state, change, now);
            }
            state.revision = revision;
        }
        tell.send_replace(revision);
        for (answer, object) in answers {
            let _ = answer.send(Ok(object));
        }
    }
}

/// Sorts out which writes may happen, each seeing those before it. Refused ones are answered at once.
fn check(batch: impl Iterator<Item = Request>, state: &RwLock<State>) -> (Vec<Accepted>, u64, bool) {
    let state = state.read().unwrap_or_else(PoisonError::into_inner);
    let mut pending: HashMap<(&'static str, Key), Option<Arc<Object>>> = HashMap::new();
    let (mut accepted, mut revision, mut lazy) = (Vec::new(), state.revision, true);
    for Request { write, answer } in batch {
        let slot = (write.resource, write.key.clone());
        let current = match pending.get(&slot) {
            Some(object) => object.clone(),
            None => state.resources.get(write.resource).and_then(|o| o.get(&write.key)).cloned(),
        };
        let holds = match (write.expected, &current) {
            (Expected::Absent, None) => true,
            (Expected::Revision(wanted), Some(object)) => object.revision == wanted,
            _ => false,
        };
        if !holds {
            let _ = answer.send(Err(Error::Conflict));
            continue;
        }
        revision += 1;
        lazy &= write.lazy;
        let deleted = write.value.is_none();
        let value = write.value.unwrap_or_else(|| current.as_ref().map(|o| o.value()).unwrap_or_default());
        let object = Arc::new(Object { revision, bytes: encode(value, revision) });
        let key = format!("{}/{}/{}", write.resource, write.key.namespace, write.key.name);
        let record = Record { key, bytes: (!deleted).then(|| object.bytes.clone()) };
        pending.insert(slot, (!deleted).then(|| Arc::clone(&object)));
        let change = Change { resource: write.resource, key: write.key, object, previous: current, deleted };
        accepted.push(Accepted { change, record, answer });
    }
    (accepted, revision, lazy)
}

fn encode(mut value: Value, revision: u64) -> Bytes {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
    }
    // Kept for as long as the object is: without the room that writing it took.
    serde_json::to_vec(&value).unwrap_or_default().into_boxed_slice().into()
}

pub(super) fn show(state: &mut State, change: Change, now: Instant) {
    let objects = state.resources.entry(change.resource).or_default();
    if change.deleted {
        objects.remove(&change.key);
    } else {
        objects.insert(change.key.clone(), Arc::clone(&change.object));
    }
    state.recent_bytes += change.object.bytes.len();
    state.recent.push_back((now, change));
    let beyond = |state: &State| {
        let oldest = state.recent.front().is_some_and(|(at, _)| now.duration_since(*at) > RECENT_AGE);
        oldest || state.recent.len() > RECENT || state.recent_bytes > RECENT_BYTES
    };
    while beyond(state)
        && let Some((_, old)) = state.recent.pop_front()
    {
        state.recent_bytes -= old.object.bytes.len();
        state.forgotten = old.object.revision;
    }
}

/// `resource/namespace/name`; `None` for types that are not served.
pub(super) fn split_key(key: &str, resources: &[&'static str]) -> Option<(&'static str, Key)> {
    let mut parts = key.splitn(3, '/');
    let (resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let resource = resources.iter().find(|r| **r == resource)?;
    Some((resource, Key { namespace: namespace.to_owned(), name: name.to_owned() }))
}
