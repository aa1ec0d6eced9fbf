//! A lock per key: operations on one key are serialized without blocking those on others.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Locks by key; a key that is neither held nor waited for is soon freed.
#[derive(Debug)]
pub(crate) struct KeyedLock<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> KeyedLock<K> {
    /// Waits for the lock of this key.
    pub(crate) async fn lock(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock();
            all.retain(|_, lock| lock.strong_count() > 0);
            let known = all.get(&key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::default();
                all.insert(key, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_key_waits_and_another_does_not() {
        let locks = KeyedLock::default();
        let held = locks.lock("a").await;
        assert!(locks.lock("a").now_or_never().is_none());
        assert!(locks.lock("b").now_or_never().is_some());
        drop(held);
        assert!(locks.lock("a").now_or_never().is_some());
        let _last = locks.lock("c").await;
        assert_eq!(locks.0.lock().len(), 1);
    }
}
