//! What a controller remembers of each owner, such as its last writes. It may be lost: after a start, the caches show all
//! writes.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::key::Key;

/// By owner, with the owner's UID: of another object of the same name nothing is known.
#[derive(Debug, Default)]
pub(crate) struct PerOwner<T>(Mutex<HashMap<Key, (String, T)>>);

impl<T: Default> PerOwner<T> {
    /// Reads or changes what is known of the owner with this UID.
    pub(crate) fn with<R>(&self, owner: &Key, uid: &str, f: impl FnOnce(&mut T) -> R) -> R {
        let mut all = self.0.lock();
        let (of, known) = all.entry(owner.clone()).or_default();
        if of != uid {
            (*of, *known) = (uid.to_owned(), T::default());
        }
        f(known)
    }

    /// Forgets an owner that is gone.
    pub(crate) fn forget(&self, owner: &Key) {
        self.0.lock().remove(owner);
    }
}
