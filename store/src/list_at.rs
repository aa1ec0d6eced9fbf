//! Lists at an earlier revision: the present with the changes of the watch window undone.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

use super::{Error, Key, Object, ResourceId, Store};

impl Store {
    /// The objects of a resource in the order of their keys, of one namespace or all, at `revision`. A future revision
    /// means the present.
    ///
    /// # Errors
    /// [`Error::TooOld`] when changes after it were compacted.
    pub fn list_at(
        &self,
        resource: ResourceId,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Object>>, Error> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.check_compacted(resource, revision)?;
        let of = |key: &Key| namespace.is_none_or(|namespace| key.namespace == namespace);
        let present = state.objects(resource).into_iter().flatten().filter(|(key, _)| of(key));
        let mut objects: BTreeMap<&Key, &Arc<Object>> = present.collect();
        for (_, event) in state.watch_window.iter().rev().take_while(|(_, event)| event.object.revision > revision) {
            if event.resource != resource || !of(&event.object.key) {
                continue;
            }
            match &event.previous {
                Some(previous) => drop(objects.insert(&event.object.key, previous)),
                None => drop(objects.remove(&event.object.key)),
            }
        }
        Ok(objects.into_values().cloned().collect())
    }
}
