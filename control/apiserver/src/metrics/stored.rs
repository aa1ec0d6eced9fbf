//! What usage needs of stored pods and nodes, decoded once for each revision: lists of usage are asked for by every
//! autoscaler, and most of a pod's JSON has nothing to do with it. Pure.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::store::{Key, Object};

/// More entries than this, and than twice as many as at the last sweep, are swept.
const SWEEP_ABOVE: usize = 1024;

/// A stored pod or node.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) uid: String,
    /// The node of a pod; empty before it has one.
    pub(crate) node: String,
    /// Its name, namespace and labels, in the form of an object.
    pub(crate) object: Value,
}

impl Measured {
    fn of(stored: &Object) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Whole {
            metadata: Metadata,
            spec: Spec,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Metadata {
            uid: String,
            labels: Option<Map<String, Value>>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Spec {
            node_name: Option<String>,
        }
        let Whole { metadata, spec } = serde_json::from_slice(&stored.bytes).unwrap_or_default();
        let Key { namespace, name } = &stored.key;
        let mut shown = json!({"name": name});
        if !namespace.is_empty() {
            shown["namespace"] = json!(namespace);
        }
        if let Some(labels) = metadata.labels {
            shown["labels"] = Value::Object(labels);
        }
        Self { uid: metadata.uid, node: spec.node_name.unwrap_or_default(), object: json!({"metadata": shown}) }
    }
}

/// The decoded objects of one resource.
#[derive(Debug, Default)]
pub(crate) struct MeasuredCache(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// With the revision that was decoded.
    by_key: HashMap<Key, (u64, Arc<Measured>)>,
    swept: usize,
}

impl MeasuredCache {
    /// A stored object, decoded.
    pub(crate) fn of(&self, stored: &Object) -> Arc<Measured> {
        let mut entries = self.0.lock();
        if let Some((revision, known)) = entries.by_key.get(&stored.key)
            && *revision == stored.revision
        {
            return Arc::clone(known);
        }
        let measured = Arc::new(Measured::of(stored));
        entries.by_key.insert(stored.key.clone(), (stored.revision, Arc::clone(&measured)));
        measured
    }

    /// Drops objects that exist no longer, now and then.
    pub(crate) fn sweep(&self, exists: impl Fn(&Key) -> bool) {
        let mut entries = self.0.lock();
        if entries.by_key.len() > SWEEP_ABOVE.max(entries.swept.saturating_mul(2)) {
            entries.by_key.retain(|key, _| exists(key));
            entries.swept = entries.by_key.len();
        }
    }
}
