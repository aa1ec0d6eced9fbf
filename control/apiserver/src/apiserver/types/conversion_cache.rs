//! What webhooks have made of stored objects. A webhook is asked before objects are read, since reading does not wait:
//! [`Version::conversions`](super::Version::conversions) gives what [`Version::decode`](super::Version::decode) needs.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};
use windlass_kit::lru::Lru;

use super::{
    ConversionError, Converter,
    conversion::{restore_revision, take_revision},
};
use crate::store::{Key, Object};

/// The bytes of the stored objects whose conversions a version keeps: a change is converted once for all who watch.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// One state of an object.
type State = (Key, u64);

fn state_of(object: &Object) -> State {
    (object.key.clone(), object.revision)
}

/// Stored objects in a version that is not the one in which they are stored, by a webhook. Most versions need none.
#[derive(Debug, Clone, Default)]
pub struct Conversions {
    /// Which version they are for.
    serial: u64,
    objects: HashMap<State, Arc<Value>>,
}

impl Conversions {
    /// For objects that no webhook converts.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    pub(super) fn get(&self, serial: u64, object: &Object) -> Option<&Value> {
        if self.objects.is_empty() || self.serial != serial {
            return None;
        }
        self.objects.get(&state_of(object)).map(AsRef::as_ref)
    }
}

/// The conversion of one state of an object. Whoever converts it holds the lock: others wait for what comes of it.
#[derive(Debug, Default)]
enum Kept {
    #[default]
    Nothing,
    Converted(Arc<Value>),
    /// Why the last attempt has failed, and when: whoever has waited for it has no better answer.
    Failed(ConversionError, Instant),
}

/// The conversions of a version that were used last.
pub(super) struct ConversionCache {
    kept: Mutex<Lru<State, Arc<AsyncMutex<Kept>>>>,
}

impl Default for ConversionCache {
    fn default() -> Self {
        Self { kept: Mutex::new(Lru::new(MAX_KEPT_BYTES)) }
    }
}

impl fmt::Debug for ConversionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConversionCache")
    }
}

/// Makes the form of stored objects that a webhook is sent, and completes what it answers.
pub(super) trait Stages: Sync {
    fn before(&self, object: &Object) -> Result<Value, ConversionError>;
    fn after(&self, converted: &mut Value);
}

impl ConversionCache {
    fn entry(&self, object: &Object) -> Arc<AsyncMutex<Kept>> {
        Arc::clone(self.kept.lock().entry(&state_of(object), object.bytes.len(), Arc::default))
    }

    /// The objects in the version `to` with the number `serial`; those that are not known are converted in one call.
    pub(super) async fn convert(
        &self,
        converter: &dyn Converter,
        stages: &dyn Stages,
        mut objects: Vec<Arc<Object>>,
        (to, serial): (&str, u64),
    ) -> Result<Conversions, ConversionError> {
        let began = Instant::now();
        // In one order, so that nobody waits for whom he keeps waiting.
        objects.sort_by(|a, b| (&a.key, a.revision).cmp(&(&b.key, b.revision)));
        objects.dedup_by(|a, b| a.key == b.key && a.revision == b.revision);
        let mut done = HashMap::with_capacity(objects.len());
        let mut missing = Vec::new();
        for object in &objects {
            let kept = self.entry(object).lock_owned().await;
            match &*kept {
                Kept::Converted(converted) => drop(done.insert(state_of(object), Arc::clone(converted))),
                Kept::Failed(why, at) if *at >= began => return Err(why.clone()),
                Kept::Failed(..) | Kept::Nothing => missing.push((object, kept)),
            }
        }
        if !missing.is_empty() {
            let objects: Vec<&Arc<Object>> = missing.iter().map(|(object, _)| *object).collect();
            match call(converter, stages, &objects, to).await {
                Ok(converted) => {
                    for ((object, mut kept), converted) in missing.into_iter().zip(converted) {
                        *kept = Kept::Converted(Arc::clone(&converted));
                        done.insert(state_of(object), converted);
                    }
                }
                Err(why) => {
                    // Of a list one object alone may be wrong.
                    if why.is_of_all || missing.len() == 1 {
                        let now = Instant::now();
                        missing.into_iter().for_each(|(_, mut kept)| *kept = Kept::Failed(why.clone(), now));
                    }
                    return Err(why);
                }
            }
        }
        Ok(Conversions { serial, objects: done })
    }
}

async fn call(
    converter: &dyn Converter,
    stages: &dyn Stages,
    objects: &[&Arc<Object>],
    to: &str,
) -> Result<Vec<Arc<Value>>, ConversionError> {
    let mut values: Vec<Value> = objects.iter().map(|object| stages.before(object)).collect::<Result<_, _>>()?;
    let revisions: Vec<Option<Value>> = values.iter_mut().map(take_revision).collect();
    let mut converted = converter.convert(values, to).await?;
    for (one, revision) in converted.iter_mut().zip(revisions) {
        restore_revision(one, revision);
        stages.after(one);
    }
    Ok(converted.into_iter().map(Arc::new).collect())
}
