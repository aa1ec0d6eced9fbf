//! Keeps the policy in sync with the store: it catches up on every question, so that a role counts from its write on.

use parking_lot::Mutex;

use super::Policy;
use crate::{
    plugin::authorizer::node::read_changes,
    store::{Error, Event, Key, Store, Watch},
};

/// What a resource of the group is to the policy.
type Apply = fn(&mut Policy, &Key, Option<&serde_json::Value>);

const RESOURCES: [(&str, Apply); 4] = [
    ("clusterroles.rbac.authorization.k8s.io", Policy::set_role),
    ("roles.rbac.authorization.k8s.io", Policy::set_role),
    ("clusterrolebindings.rbac.authorization.k8s.io", Policy::set_binding),
    ("rolebindings.rbac.authorization.k8s.io", Policy::set_binding),
];

/// The policy of a store.
#[derive(Debug)]
pub(crate) struct SyncedPolicy {
    store: Store,
    synced: Mutex<Option<Synced>>,
}

#[derive(Debug)]
struct Synced {
    policy: Policy,
    watches: Vec<(Watch, Apply)>,
}

impl SyncedPolicy {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, synced: Mutex::default() }
    }

    /// Reads the policy as it is now; `None` if it is not known.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Policy) -> T) -> Option<T> {
        let mut synced = self.synced.lock();
        if synced.as_mut().is_none_or(|synced| synced.catch_up().is_err()) {
            *synced = Synced::begin(&self.store);
        }
        synced.as_ref().map(|synced| read(&synced.policy))
    }
}

impl Synced {
    /// Reads all roles and bindings.
    fn begin(store: &Store) -> Option<Self> {
        let mut all = Self { policy: Policy::default(), watches: Vec::new() };
        for (name, apply) in RESOURCES {
            let resource = store.resource(name);
            let (objects, revision) = store.list(resource, None);
            for object in objects {
                apply(&mut all.policy, &object.key, Some(&object.value()));
            }
            all.watches.push((store.watch(resource, revision).ok()?, apply));
        }
        all.catch_up().ok().map(|()| all)
    }

    /// Applies the changes since the last call.
    fn catch_up(&mut self) -> Result<(), Error> {
        let Self { policy, watches } = self;
        for (watch, apply) in watches {
            read_changes(watch, |change: &Event| {
                let now = (!change.deleted).then(|| change.object.value());
                apply(policy, &change.object.key, now.as_ref());
            })?;
        }
        Ok(())
    }
}
