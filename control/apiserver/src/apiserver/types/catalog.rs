//! The catalog: which versions of which resources are served.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Definition, Name, Version};
use crate::store::Store;

/// The versions of resources in one group and version, in the order of discovery.
#[derive(Debug, Clone)]
pub struct ServedVersion {
    /// Such as `v1`.
    pub version: Name,
    /// One for each resource.
    pub resources: Vec<Arc<Version>>,
}

/// A group.
#[derive(Debug, Clone)]
pub struct Group {
    /// The name, empty for the core group.
    pub name: Name,
    /// Its versions, the preferred one first.
    pub versions: Vec<ServedVersion>,
}

/// An immutable snapshot of what is served.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Counts the snapshots.
    pub generation: u64,
    /// The groups in the order of discovery: built-in ones as they are defined, then others by name.
    pub groups: Vec<Group>,
    /// Versions by group and plural.
    by_resource: HashMap<Name, HashMap<Name, Vec<Arc<Version>>>>,
    /// Versions by group and kind.
    by_kind: HashMap<Name, HashMap<Name, Vec<Arc<Version>>>>,
}

impl Catalog {
    fn new(generation: u64, all: impl Iterator<Item = Arc<Version>>) -> Self {
        let mut catalog = Self { generation, ..Self::default() };
        let mut groups: Vec<Group> = Vec::new();
        for version in all {
            let by_resource = catalog.by_resource.entry(version.gvk.group.clone()).or_default();
            by_resource.entry(version.plural.clone()).or_default().push(Arc::clone(&version));
            let by_kind = catalog.by_kind.entry(version.gvk.group.clone()).or_default();
            by_kind.entry(version.gvk.kind.clone()).or_default().push(Arc::clone(&version));
            let name = &version.gvk.group;
            let at = groups.iter().position(|group| group.name == *name).unwrap_or_else(|| {
                groups.push(Group { name: name.clone(), versions: Vec::new() });
                groups.len() - 1
            });
            let versions = &mut groups[at].versions;
            match versions.iter_mut().find(|v| v.version == version.gvk.version) {
                Some(found) => found.resources.push(version),
                None => versions.push(ServedVersion { version: version.gvk.version.clone(), resources: vec![version] }),
            }
        }
        for group in &mut groups {
            group.versions.sort_by(|a, b| compare_versions(&a.version, &b.version));
        }
        catalog.groups = groups;
        catalog
    }

    /// The version of a resource by its place in paths.
    #[must_use]
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Version>> {
        self.by_resource.get(group)?.get(plural)?.iter().find(|v| v.gvk.version == version)
    }

    /// The versions of a kind.
    #[must_use]
    pub fn of_kind(&self, group: &str, kind: &str) -> &[Arc<Version>] {
        self.by_kind.get(group).and_then(|kinds| kinds.get(kind)).map_or(&[], Vec::as_slice)
    }

    /// A group by its name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// What is served in a group and version.
    #[must_use]
    pub fn group_version(&self, group: &str, version: &str) -> Option<&ServedVersion> {
        self.group(group)?.versions.iter().find(|v| v.version == version)
    }

    /// All versions of all resources.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Version>> {
        self.groups.iter().flat_map(|group| &group.versions).flat_map(|version| &version.resources)
    }
}

/// The order of versions: GA before beta before alpha, the highest number first, other names last.
fn priority(version: &str) -> (u8, Reverse<u64>, Reverse<u64>, String) {
    let last = || (3, Reverse(0), Reverse(0), version.to_owned());
    let Some(rest) = version.strip_prefix('v') else { return last() };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (Ok(major), tail) = (rest[..digits].parse::<u64>(), &rest[digits..]) else { return last() };
    let ranked = |rank: u8, minor: &str| match minor.parse::<u64>() {
        Ok(minor) => (rank, Reverse(major), Reverse(minor), String::new()),
        Err(_) => last(),
    };
    match tail {
        "" => (0, Reverse(major), Reverse(0), String::new()),
        tail => match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
            (Some(minor), _) => ranked(1, minor),
            (_, Some(minor)) => ranked(2, minor),
            _ => last(),
        },
    }
}

/// Compares versions by upstream's order of preference.
#[must_use]
pub fn compare_versions(one: &str, other: &str) -> Ordering {
    priority(one).cmp(&priority(other))
}

/// The parts that the catalog is made of.
#[derive(Debug, Default)]
struct Parts {
    generation: u64,
    built_in: Vec<Arc<Version>>,
    /// Versions of custom resources, by the name of their definition.
    custom: BTreeMap<String, Vec<Arc<Version>>>,
}

/// The current catalog, which changes as definitions of custom resources come and go.
#[derive(Debug)]
pub struct Catalogs {
    store: Store,
    current: ArcSwap<Catalog>,
    parts: Mutex<Parts>,
    generation_tx: watch::Sender<u64>,
}

impl Catalogs {
    /// The catalog of the built-in resources.
    #[must_use]
    pub fn new(store: &Store, definitions: Vec<Definition>) -> Self {
        let built_in: Vec<Arc<Version>> = definitions.into_iter().flat_map(|one| one.install(store)).collect();
        let catalog = Catalog::new(1, built_in.iter().cloned());
        let parts = Parts { generation: 1, built_in, custom: BTreeMap::new() };
        Self {
            store: store.clone(),
            current: ArcSwap::from_pointee(catalog),
            parts: Mutex::new(parts),
            generation_tx: watch::Sender::new(1),
        }
    }

    /// The current snapshot.
    #[must_use]
    pub fn current(&self) -> Arc<Catalog> {
        self.current.load_full()
    }

    /// The generation of the current snapshot, for those who follow it.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation_tx.subscribe()
    }

    /// Serves the resource of a definition, in place of what was served for it before.
    pub fn put(&self, name: &str, definition: Definition) {
        let versions = definition.install(&self.store);
        self.change(|parts| drop(parts.custom.insert(name.to_owned(), versions)));
    }

    /// Serves the resource of a definition no longer.
    pub fn remove(&self, name: &str) {
        self.change(|parts| drop(parts.custom.remove(name)));
    }

    fn change(&self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.parts.lock();
        change(&mut parts);
        parts.generation += 1;
        let mut custom: Vec<&Arc<Version>> = parts.custom.values().flatten().collect();
        custom.sort_by(|a, b| (&a.gvk.group, &a.plural).cmp(&(&b.gvk.group, &b.plural)));
        let all = parts.built_in.iter().chain(custom).cloned();
        self.current.store(Arc::new(Catalog::new(parts.generation, all)));
        let generation = parts.generation;
        drop(parts);
        self.generation_tx.send_replace(generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_upstream_orders_them() {
        let mut versions = vec![
            "foo10",
            "v1alpha1",
            "v10",
            "v2",
            "v11alpha2",
            "v1",
            "v3beta1",
            "foo1",
            "v11beta2",
            "v12alpha1",
            "v10beta3",
        ];
        versions.sort_by_key(|version| priority(version));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v11beta2",
                "v10beta3",
                "v3beta1",
                "v12alpha1",
                "v11alpha2",
                "v1alpha1",
                "foo1",
                "foo10"
            ]
        );
    }
}
