//! An engine without a disk, for tests.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{super::Error, Counters, Engine, Record};

/// An engine in memory. Its records outlive the store that wrote them, as long as a clone exists.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    content: Arc<Mutex<Content>>,
}

#[derive(Debug, Clone, Default)]
struct Content {
    records: Vec<Record>,
    counters: Counters,
    /// Number of records and counters after the last commit that succeeded, while another has failed.
    acknowledged: Option<(usize, Counters)>,
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
        let content = Content { fault: None, acknowledged: None, ..self.content().clone() };
        Self { content: Arc::new(Mutex::new(content)) }
    }

    /// Forgets all events: watchers of the next store must list again.
    pub fn compact(&self) {
        let mut content = self.content();
        content.counters.floor = content.counters.revision;
        content.counters.compacted.clear();
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
}

impl Engine for Memory {
    fn load(&mut self, each: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), Error> {
        let content = self.content().clone();
        each(content.records, &content.counters);
        Ok(())
    }

    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), Error> {
        let mut content = self.content();
        let before = (content.records.len(), content.counters.clone());
        let written = content.write(|content| {
            content.records.extend_from_slice(records);
            content.counters.merge(counters);
        });
        if written.is_err() {
            content.acknowledged.get_or_insert(before);
        }
        written
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.content().write(|content| {
            if let Some((length, counters)) = content.acknowledged.take() {
                content.records.truncate(length);
                content.counters = counters;
            }
        })
    }
}
