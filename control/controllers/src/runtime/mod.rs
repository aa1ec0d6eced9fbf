//! What all controllers are built from: shared informers with indexes, work queues with metrics, discovery, and the
//! supervision of controllers. Imports no controller and names no type but for what caches keep of it (`cached`).
//! `index`, `preconditions`, `selector_index`, `step`, `cached` and the state of work queues are pure.

mod cached;
pub(crate) mod cached_node;
pub(crate) mod cached_pod;
mod cached_requests;
mod cached_secret;
mod controller;
mod discovery;
pub(crate) mod error;
mod expectations;
mod index;
mod informer;
mod informers;
mod key;
mod live;
mod per_owner;
mod preconditions;
pub(crate) mod rest_mapper;
mod selector_index;
mod status_writer;
mod step;
#[cfg(test)]
mod tests;
mod workqueue;

pub(crate) use cached::Cached;
pub(crate) use cached_node::CachedNode;
pub(crate) use cached_pod::{CachedContainerStatus, CachedPod, PodAnnotation};
pub(crate) use cached_secret::CachedSecret;
pub(crate) use controller::{Context, Controller, Controllers, Subscription};
pub(crate) use discovery::Discovery;
pub(crate) use error::During;
pub use error::Error;
pub(crate) use expectations::{CACHE_PATIENCE, Expectations};
pub(crate) use index::Index;
pub(crate) use informer::{Cache, Life, MetadataSource, SyncPoint};
pub(crate) use informers::Informers;
pub(crate) use key::Key;
pub(crate) use live::{Live, Proof};
pub(crate) use per_owner::PerOwner;
pub(crate) use preconditions::{same_object, same_version};
pub(crate) use selector_index::SelectorIndex;
pub(crate) use status_writer::StatusWriter;
pub(crate) use step::Step;
pub(crate) use windlass_kit::fan_out::bounded_join;
pub(crate) use workqueue::{Outcome, WorkQueue};
