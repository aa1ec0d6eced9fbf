//! What plugins make of the objects of some resources, kept in sync with the store: it catches up on every question, so
//! that an object counts from its write on.

use std::fmt;

use futures::FutureExt as _;
use parking_lot::Mutex;
use serde_json::Value;

use crate::store::{Error, Event, Key, Store, Watch};

/// An object as it is now; `None` once it is deleted.
pub(crate) type Apply<V> = fn(&mut V, &Key, Option<&Value>);

/// What is made of objects. Pure; follows from the objects that exist, whatever the order of their changes.
pub(crate) trait View: Default + Send + 'static {
    /// The resources that it is made of, by their names in the store, and what an object of each changes.
    const RESOURCES: &'static [(&'static str, Apply<Self>)];
}

/// A view of a store.
pub(crate) struct StoreView<V> {
    store: Store,
    current: Mutex<Option<Current<V>>>,
}

struct Current<V> {
    view: V,
    watches: Vec<(Watch, Apply<V>)>,
}

impl<V> fmt::Debug for StoreView<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreView")
    }
}

impl<V: View> StoreView<V> {
    /// A view of the objects of `store`, which are read with the first question.
    pub(crate) fn new(store: Store) -> Self {
        Self { store, current: Mutex::default() }
    }

    /// Reads the view as it is now; `None` if it is not known.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&V) -> T) -> Option<T> {
        let mut current = self.current.lock();
        if current.as_mut().is_none_or(|current| current.catch_up().is_err()) {
            *current = Current::begin(&self.store);
        }
        current.as_ref().map(|current| read(&current.view))
    }
}

impl<V: View> Current<V> {
    /// Reads all objects.
    fn begin(store: &Store) -> Option<Self> {
        let mut all = Self { view: V::default(), watches: Vec::new() };
        for (name, apply) in V::RESOURCES {
            let resource = store.resource(name);
            let (objects, revision) = store.list(resource, None);
            for object in objects {
                apply(&mut all.view, &object.key, Some(&object.value()));
            }
            all.watches.push((store.watch(resource, revision).ok()?, *apply));
        }
        all.catch_up().ok().map(|()| all)
    }

    /// Applies the changes since the last call.
    fn catch_up(&mut self) -> Result<(), Error> {
        let Self { view, watches } = self;
        for (watch, apply) in watches {
            read_changes(watch, |change| {
                let now = (!change.deleted).then(|| change.object.value());
                apply(view, &change.object.key, now.as_ref());
            })?;
        }
        Ok(())
    }
}

/// Reads the changes that are available, without waiting for more.
fn read_changes(watch: &mut Watch, mut take: impl FnMut(&Event)) -> Result<(), Error> {
    loop {
        match watch.next().now_or_never() {
            Some(Ok(changes)) => changes.iter().for_each(|event| take(event)),
            // The store is closing; the view stays valid until then.
            None | Some(Err(Error::Closed)) => return Ok(()),
            Some(Err(error)) => return Err(error),
        }
    }
}
