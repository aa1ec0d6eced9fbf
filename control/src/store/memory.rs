//! An engine without a disk, for tests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::{Engine, Error, Record};

/// Records that outlive the store that wrote them, as long as a clone is kept.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    content: Arc<Mutex<(BTreeMap<String, Bytes>, u64)>>,
}

impl Engine for Memory {
    fn load(&mut self) -> Result<(Vec<Record>, u64), Error> {
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((content.0.iter().map(|(k, b)| Record { key: k.clone(), bytes: Some(b.clone()) }).collect(), content.1))
    }

    fn commit(&mut self, records: &[Record], revision: u64, _lazy: bool) -> Result<(), Error> {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        for record in records {
            match &record.bytes {
                Some(bytes) => content.0.insert(record.key.clone(), bytes.clone()),
                None => content.0.remove(&record.key),
            };
        }
        content.1 = revision;
        Ok(())
    }
}
