//! The catalog: which versions of which resources are served.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Definition, Name, Storage, Version, extension::Extension, priority::Priority};
use crate::store::Store;

/// The versions of resources in one group and version, in the order of discovery.
#[derive(Debug, Clone)]
pub struct ServedVersion {
    /// Such as `v1`.
    pub version: Name,
    /// Its place in discovery.
    pub priority: Priority,
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

/// A group version as discovery shows it.
#[derive(Debug, Clone, Copy)]
pub enum Published<'a> {
    /// This server serves it.
    Own(&'a ServedVersion),
    /// An extension API server does.
    Extension(&'a Extension),
}

impl Published<'_> {
    /// Such as `v1`.
    #[must_use]
    pub fn version(&self) -> &str {
        match self {
            Self::Own(own) => &own.version,
            Self::Extension(extension) => &extension.version,
        }
    }

    fn priority(&self) -> Priority {
        match self {
            Self::Own(own) => own.priority,
            Self::Extension(extension) => extension.priority,
        }
    }
}

/// A group as discovery shows it.
#[derive(Debug)]
pub struct PublishedGroup<'a> {
    /// The name.
    pub name: &'a str,
    /// Its versions, the preferred one first.
    pub versions: Vec<Published<'a>>,
}

impl PublishedGroup<'_> {
    fn priority(&self) -> i64 {
        self.versions.iter().map(|version| version.priority().group).max().unwrap_or_default()
    }
}

/// An immutable snapshot of what is served.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Counts the snapshots.
    pub generation: u64,
    /// The groups that this server serves itself: built-in ones as they are defined, then others by name.
    pub groups: Vec<Group>,
    /// What extension API servers serve, also in place of this server.
    pub extensions: Vec<Arc<Extension>>,
    /// Versions by group and plural.
    by_resource: HashMap<Name, HashMap<Name, Vec<Arc<Version>>>>,
    /// Versions by group and kind.
    by_kind: HashMap<Name, HashMap<Name, Vec<Arc<Version>>>>,
}

impl Catalog {
    fn new(priority_of: PriorityOf, all: impl Iterator<Item = Arc<Version>>) -> Self {
        let mut catalog = Self::default();
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
                None => {
                    let is_built_in = version.spec.schema.is_built_in();
                    let gvk = &version.gvk;
                    let priority = if is_built_in { priority_of(&gvk.group, &gvk.version) } else { Priority::CUSTOM };
                    versions.push(ServedVersion { version: gvk.version.clone(), priority, resources: vec![version] });
                }
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

    /// What an extension API server serves in a group and version.
    #[must_use]
    pub fn extension(&self, group: &str, version: &str) -> Option<&Arc<Extension>> {
        self.extensions.iter().find(|extension| extension.group == group && extension.version == version)
    }

    /// All groups but the core one in the order of discovery, with their versions, each by who serves it.
    #[must_use]
    pub fn published(&self) -> Vec<PublishedGroup<'_>> {
        let named = self.groups.iter().filter(|group| !group.name.is_empty());
        let own = named.flat_map(|group| group.versions.iter().map(move |version| (&*group.name, version)));
        let own = own.filter(|(group, version)| self.extension(group, &version.version).is_none());
        let own = own.map(|(group, version)| (group, Published::Own(version)));
        let others = self.extensions.iter().map(|one| (one.group.as_str(), Published::Extension(one)));
        let mut by_name: BTreeMap<&str, Vec<Published<'_>>> = BTreeMap::new();
        for (group, version) in own.chain(others) {
            by_name.entry(group).or_default().push(version);
        }
        let mut all: Vec<PublishedGroup<'_>> =
            by_name.into_iter().map(|(name, versions)| PublishedGroup { name, versions }).collect();
        for group in &mut all {
            group.versions.sort_by(|one, other| {
                let by_priority = other.priority().version.cmp(&one.priority().version);
                by_priority.then_with(|| compare_versions(one.version(), other.version()))
            });
        }
        // Those of one priority stay in the order of their names.
        all.sort_by_key(|group| Reverse(group.priority()));
        all
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

/// The places of the built-in group versions in discovery.
pub(in crate::apiserver) type PriorityOf = fn(&str, &str) -> Priority;

/// The parts that the catalog is made of.
#[derive(Debug)]
struct Parts {
    generation: u64,
    built_in: Vec<Arc<Version>>,
    extensions: Vec<Arc<Extension>>,
    /// Versions of custom resources, by the name of their definition.
    custom: BTreeMap<String, Vec<Arc<Version>>>,
}

/// The current catalog, which changes as definitions of custom resources come and go.
#[derive(Debug)]
pub struct Catalogs {
    store: Store,
    priority_of: PriorityOf,
    current: ArcSwap<Catalog>,
    parts: Mutex<Parts>,
    generation_tx: watch::Sender<u64>,
    /// The last generation that [`Change::Types`] made.
    types_tx: watch::Sender<u64>,
}

/// What a new catalog has that the last one had not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Other types, or some with other verbs: who follows all of them, as the garbage collector does, asks again.
    Types,
    /// Schemas, columns, categories or short names of the same types.
    Details,
}

/// Whether a client that follows all types finds the same in both (upstream's `RESTMapping` and verbs).
fn are_same_types(one: &[Arc<Version>], other: &[Arc<Version>]) -> bool {
    fn stored(version: &Version) -> Option<&str> {
        match &version.storage {
            Storage::Store { api_version, .. } => Some(api_version),
            Storage::Virtual(_) => None,
        }
    }
    let is_same = |(a, b): (&Arc<Version>, &Arc<Version>)| {
        let subresources = |version: &Version| -> Vec<_> {
            version.spec.subresources.iter().map(|one| (one.name.to_string(), one.verbs.to_vec())).collect()
        };
        (&a.gvk, &a.plural, a.namespaced, stored(a)) == (&b.gvk, &b.plural, b.namespaced, stored(b))
            && a.discovered_verbs() == b.discovered_verbs()
            && subresources(a) == subresources(b)
    };
    one.len() == other.len() && one.iter().zip(other).all(is_same)
}

impl Catalogs {
    /// The catalog of the built-in resources.
    #[must_use]
    pub fn new(store: &Store, definitions: Vec<Definition>, priority_of: PriorityOf) -> Self {
        let built_in: Vec<Arc<Version>> = definitions.into_iter().flat_map(|one| one.install(store)).collect();
        let catalog = Catalog { generation: 1, ..Catalog::new(priority_of, built_in.iter().cloned()) };
        let extensions = Vec::new();
        let parts = Parts { generation: 1, built_in, extensions, custom: BTreeMap::new() };
        Self {
            store: store.clone(),
            priority_of,
            current: ArcSwap::from_pointee(catalog),
            parts: Mutex::new(parts),
            generation_tx: watch::Sender::new(1),
            types_tx: watch::Sender::new(1),
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

    /// Changes when other types are served, or some with other verbs: for those who follow all types and ask for each
    /// of them then, which a new schema is no reason for.
    #[must_use]
    pub fn served_types(&self) -> watch::Receiver<u64> {
        self.types_tx.subscribe()
    }

    /// Serves the resource of a definition, in place of what was served for it before.
    pub fn put(&self, name: &str, definition: Definition) {
        let versions = definition.install(&self.store);
        self.change(|parts| {
            let is_same = parts.custom.get(name).is_some_and(|before| are_same_types(before, &versions));
            parts.custom.insert(name.to_owned(), versions);
            if is_same { Change::Details } else { Change::Types }
        });
    }

    /// Serves the resource of a definition no longer.
    pub fn remove(&self, name: &str) {
        self.change(|parts| {
            parts.custom.remove(name);
            Change::Types
        });
    }

    /// What extension API servers serve from now on.
    pub fn set_extensions(&self, extensions: Vec<Arc<Extension>>) {
        if self.parts.lock().extensions != extensions {
            self.change(|parts| {
                parts.extensions = extensions;
                Change::Types
            });
        }
    }

    fn change(&self, change: impl FnOnce(&mut Parts) -> Change) {
        let mut parts = self.parts.lock();
        let change = change(&mut parts);
        parts.generation += 1;
        let mut custom: Vec<&Arc<Version>> = parts.custom.values().flatten().collect();
        custom.sort_by(|a, b| (&a.gvk.group, &a.plural).cmp(&(&b.gvk.group, &b.plural)));
        let all = parts.built_in.iter().chain(custom).cloned();
        let catalog = Catalog {
            generation: parts.generation,
            extensions: parts.extensions.clone(),
            ..Catalog::new(self.priority_of, all)
        };
        self.current.store(Arc::new(catalog));
        let generation = parts.generation;
        drop(parts);
        if change == Change::Types {
            self.types_tx.send_replace(generation);
        }
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
