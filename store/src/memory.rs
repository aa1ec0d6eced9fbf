//! An engine without a disk, for tests.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use super::{Counters, Engine, Error, Record};

/// An engine in memory. Its records outlive the store that wrote them, as long as a clone exists.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    content: Arc<Mutex<Content>>,
}

#[derive(Debug, Clone, Default)]
struct Content {
    records: BTreeMap<String, Bytes>,
    counters: Counters,
    /// How, and for how many operations, commits and restores fail.
    fault: Option<(Fault, usize)>,
}

/// An injected failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails without effect.
    Before,
    /// The operation takes effect and fails.
    After,
}

impl Memory {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next `times` operations fail.
    pub fn fail(&self, fault: Fault, times: usize) {
        self.content().fault = Some((fault, times));
    }

    /// A copy that further writes do not reach.
    #[must_use]
    pub fn copy(&self) -> Self {
        let content = Content { fault: None, ..self.content().clone() };
        Self { content: Arc::new(Mutex::new(content)) }
    }
}

impl Content {
    fn write(&mut self, apply: impl FnOnce(&mut Self)) -> Result<(), Error> {
        let fault = self.fault.and_then(|(fault, times)| Some((fault, times.checked_sub(1)?)));
        self.fault = fault;
        let fault = fault.map(|(fault, _)| fault);
        if fault != Some(Fault::Before) {
            apply(self);
        }
        let failed = |_| Error::Disk { path: PathBuf::new(), attempt: "written", reason: "a fault".to_owned() };
        fault.map(failed).map_or(Ok(()), Err)
    }

    fn count(&mut self, counters: &Counters) {
        let mut changed = std::mem::take(&mut self.counters.changed);
        changed.extend(counters.changed.clone());
        self.counters = Counters { changed, ..*counters };
    }
}

impl Engine for Memory {
    fn load(&mut self) -> Result<(Vec<Record>, Counters), Error> {
        let content = self.content();
        let records = content.records.iter().map(|(k, b)| Record { key: k.clone(), bytes: Some(b.clone()) }).collect();
        Ok((records, content.counters.clone()))
    }

    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error> {
        self.content().write(|content| {
            for record in records {
                match &record.bytes {
                    Some(bytes) => content.records.insert(record.key.clone(), bytes.clone()),
                    None => content.records.remove(&record.key),
                };
            }
            content.count(counters);
        })
    }

    fn restore(&mut self, wanted: &BTreeMap<String, Bytes>, counters: &Counters) -> Result<(), Error> {
        self.content().write(|content| {
            content.records.clone_from(wanted);
            content.count(counters);
        })
    }
}
