//! An engine without a disk, for tests.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use super::{Counters, Engine, Error, Record};

/// Records that outlive the store that wrote them, as long as a clone is kept.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    content: Arc<Mutex<Content>>,
}

#[derive(Debug, Clone, Default)]
struct Content {
    records: BTreeMap<String, Bytes>,
    counters: Counters,
    /// How, and how often, the next commits and restores fail.
    fault: Option<(Fault, usize)>,
}

/// How a write of a [`Memory`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing of it is done.
    Before,
    /// All of it is done, and an error is told.
    After,
}

impl Memory {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets so many of the next writes fail.
    pub fn fail(&self, fault: Fault, times: usize) {
        self.content().fault = Some((fault, times));
    }

    /// A copy that what still writes to this one no longer reaches.
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

    fn restore(
        &mut self,
        wanted: &BTreeMap<String, Bytes>,
        served: &dyn Fn(&str) -> bool,
        counters: &Counters,
    ) -> Result<(), Error> {
        self.content().write(|content| {
            content.records.retain(|key, _| !served(key));
            content.records.extend(wanted.clone());
            content.count(counters);
        })
    }
}
