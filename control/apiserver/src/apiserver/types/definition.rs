//! A resource with its versions, as it is put into the catalog.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use windlass_apimachinery::group_version::GroupVersion;

use super::{Gvk, Resource, Storage, Version, VersionSpec, conversion_cache::ConversionCache};
use crate::store::{ResourceOptions, Store};

/// A resource and its served versions, before it is installed.
#[derive(Debug)]
pub struct Definition {
    /// The resource.
    pub resource: Resource,
    /// The served versions, the preferred one first.
    pub versions: Vec<VersionSpec>,
}

impl Definition {
    /// A resource of one version, which is stored as it is served.
    #[must_use]
    pub fn single(resource: Resource, version: VersionSpec) -> Self {
        let stored = version.name.clone();
        Self::of(resource, vec![version], &stored)
    }

    /// A resource with several versions, one of which is stored.
    #[must_use]
    pub fn of(mut resource: Resource, versions: Vec<VersionSpec>, stored: &str) -> Self {
        if let Storage::Store { api_version, .. } = &mut resource.storage
            && api_version.is_empty()
        {
            *api_version = GroupVersion { group: &resource.group, version: stored }.to_string();
        }
        Self { resource, versions }
    }

    /// Registers the resource in the store and gives its versions.
    pub(in crate::apiserver) fn install(self, store: &Store) -> Vec<Arc<Version>> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let Self { mut resource, versions } = self;
        if let Storage::Store { name, .. } = &resource.storage {
            let options =
                ResourceOptions { relaxed_durability: resource.relaxed_durability, ..ResourceOptions::default() };
            let id = store.register(name, options);
            if let Some(allocator) = resource.strategy.allocator() {
                store.set_allocator(id, allocator);
            }
            resource.id = Some(id);
        }
        let resource = Arc::new(resource);
        let version = |spec: VersionSpec| {
            let gvk = Gvk { group: resource.group.clone(), version: spec.name.clone(), kind: resource.kind.clone() };
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            Arc::new(Version { resource: Arc::clone(&resource), gvk, spec, serial, cache: ConversionCache::default() })
        };
        versions.into_iter().map(version).collect()
    }
}
