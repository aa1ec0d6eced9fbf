//! A map that one owner changes and others follow by its differences: what has changed since a follower last looked, each key
//! once. The cost of a change does not grow with the map, and a follower that is slow never has to catch up with more than
//! the map's own size.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// By key: the new value, or `None` where it was removed.
pub type Differences<K, V> = BTreeMap<K, Option<V>>;

#[derive(Debug)]
struct State<K, V> {
    all: BTreeMap<K, V>,
    /// What each follower has not seen yet.
    unseen: Vec<Weak<Mutex<Differences<K, V>>>>,
}

/// The owner's side. Clones change the same map.
#[derive(Debug)]
pub struct Publisher<K, V> {
    state: Arc<Mutex<State<K, V>>>,
    changed: watch::Sender<()>,
}

impl<K, V> Clone for Publisher<K, V> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), changed: self.changed.clone() }
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> Default for Publisher<K, V> {
    fn default() -> Self {
        let state = State { all: BTreeMap::new(), unseen: Vec::new() };
        Self { state: Arc::new(Mutex::new(state)), changed: watch::Sender::new(()) }
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> Publisher<K, V> {
    /// Sets a value; one that is equal to the known one is no change, and the known one stays.
    pub fn set(&self, key: K, value: V) {
        let mut state = self.state.lock();
        if state.all.get(&key) == Some(&value) {
            return;
        }
        state.all.insert(key.clone(), value.clone());
        self.tell(state, &key, Some(&value));
    }

    /// Removes a value.
    pub fn remove<Q: Ord + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let mut state = self.state.lock();
        if let Some((key, _)) = state.all.remove_entry(key) {
            self.tell(state, &key, None);
        }
    }

    /// Sets all of these, and removes all others.
    pub fn replace(&self, all: BTreeMap<K, V>) {
        let known: Vec<K> = self.state.lock().all.keys().cloned().collect();
        known.iter().filter(|key| !all.contains_key(key)).for_each(|key| self.remove(key));
        all.into_iter().for_each(|(key, value)| self.set(key, value));
    }

    /// Applies differences of another map.
    pub fn apply(&self, differences: Differences<K, V>) {
        for (key, value) in differences {
            match value {
                Some(value) => self.set(key, value),
                None => self.remove(&key),
            }
        }
    }

    /// The readers' side.
    #[must_use]
    pub fn subscribe(&self) -> Published<K, V> {
        Published { state: Arc::clone(&self.state), changed: self.changed.subscribe() }
    }

    fn tell(&self, mut state: MutexGuard<'_, State<K, V>>, key: &K, value: Option<&V>) {
        state.unseen.retain(|unseen| {
            let Some(unseen) = unseen.upgrade() else { return false };
            unseen.lock().insert(key.clone(), value.cloned());
            true
        });
        drop(state);
        self.changed.send_replace(());
    }
}

/// The readers' side: the present map.
#[derive(Debug)]
pub struct Published<K, V> {
    state: Arc<Mutex<State<K, V>>>,
    changed: watch::Receiver<()>,
}

impl<K, V> Clone for Published<K, V> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), changed: self.changed.clone() }
    }
}

impl<K: Ord + Clone, V: Clone> Published<K, V> {
    /// The present value.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.state.lock().all.get(key).cloned()
    }

    /// All present values, in the order of their keys.
    #[must_use]
    pub fn values(&self) -> Vec<V> {
        self.state.lock().all.values().cloned().collect()
    }

    /// Whether all publishers are gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.changed.has_changed().is_err()
    }

    /// Follows the map: what it has is new at first.
    #[must_use]
    pub fn follow(&self) -> Follower<K, V> {
        let mut state = self.state.lock();
        let all = state.all.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
        let unseen = Arc::new(Mutex::new(all));
        state.unseen.push(Arc::downgrade(&unseen));
        Follower { unseen, changed: self.changed.clone() }
    }
}

/// Sees each difference once.
#[derive(Debug)]
pub struct Follower<K, V> {
    unseen: Arc<Mutex<Differences<K, V>>>,
    changed: watch::Receiver<()>,
}

impl<K: Ord, V> Follower<K, V> {
    /// What has changed since the last call, without waiting.
    #[must_use]
    pub fn take(&mut self) -> Differences<K, V> {
        self.changed.mark_unchanged();
        std::mem::take(&mut self.unseen.lock())
    }

    /// Waits for a change; `None` when all publishers are gone. Cancel-safe: no change is lost.
    pub async fn changed(&mut self) -> Option<Differences<K, V>> {
        loop {
            let unseen = self.take();
            if !unseen.is_empty() {
                return Some(unseen);
            }
            self.changed.changed().await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_follower_sees_what_has_changed_since_it_looked() {
        let publisher: Publisher<&str, u32> = Publisher::default();
        publisher.set("a", 1);
        publisher.set("b", 2);
        let published = publisher.subscribe();
        let (mut first, mut second) = (published.follow(), published.follow());
        let all = BTreeMap::from([("a", Some(1)), ("b", Some(2))]);
        assert_eq!((first.changed().await, second.take()), (Some(all.clone()), all));
        publisher.set("b", 2);
        assert!(first.take().is_empty(), "the same again is no change");
        publisher.set("b", 3);
        publisher.set("c", 4);
        publisher.set("c", 5);
        publisher.remove("a");
        publisher.remove("nothing");
        let changed = BTreeMap::from([("a", None), ("b", Some(3)), ("c", Some(5))]);
        assert_eq!(first.changed().await, Some(changed.clone()));
        assert_eq!((published.get("b"), published.get("a"), published.values()), (Some(3), None, vec![3, 5]));
        // Another map that is changed alike.
        let other: Publisher<&str, u32> = Publisher::default();
        other.set("a", 1);
        other.apply(second.take());
        assert_eq!(other.subscribe().values(), [3, 5]);
        publisher.replace(BTreeMap::from([("c", 5)]));
        assert_eq!(first.take(), BTreeMap::from([("b", None)]), "the other is as it was");
        publisher.remove("c");
        drop(publisher.clone());
        assert!(!published.is_closed());
        drop(publisher);
        assert!(published.is_closed());
        assert_eq!(first.changed().await, Some(BTreeMap::from([("c", None)])), "before the end is told");
        assert_eq!(first.changed().await, None);
        drop((first, second));
    }

    #[test]
    fn a_follower_that_is_gone_is_forgotten() {
        let publisher: Publisher<u32, u32> = Publisher::default();
        drop(publisher.subscribe().follow());
        publisher.set(1, 1);
        assert!(publisher.state.lock().unseen.is_empty());
    }
}
