//! Lists at an earlier revision: the present with the changes of the watch window undone.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

use super::{Error, Key, Object, Store};

impl Store {
    /// The objects of a type in the order of their keys, of one namespace or all, at `revision`. A future revision
    /// means the present.
    ///
    /// # Errors
    /// [`Error::TooOld`] when changes after it were compacted.
    pub fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Vec<(Key, Arc<Object>)>, Error> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.check_compacted(resource, revision)?;
        let of = |key: &Key| namespace.is_none_or(|namespace| key.namespace == namespace);
        let present = state.resources.get(resource).into_iter().flatten().filter(|(key, _)| of(key));
        let mut objects: BTreeMap<&Key, &Arc<Object>> = present.collect();
        for (_, change) in state.watch_window.iter().rev().take_while(|(_, change)| change.object.revision > revision) {
            if change.resource != resource || !of(&change.key) {
                continue;
            }
            match &change.previous {
                Some(previous) => drop(objects.insert(&change.key, previous)),
                None => drop(objects.remove(&change.key)),
            }
        }
        Ok(objects.into_iter().map(|(key, object)| (key.clone(), Arc::clone(object))).collect())
    }
}
