//! What serves a subresource or a computed resource, as its type holds it: closed. Handlers are given requests, which lead to all
//! types; a type that knew what a handler is would import what imports it. `handlers` puts them in and takes them out.

use std::{
    any::{Any, type_name},
    fmt,
    sync::Arc,
};

/// A handler.
#[derive(Clone)]
pub struct Handler {
    of: &'static str,
    inner: Arc<dyn Any + Send + Sync>,
}

impl Handler {
    /// `handler`, which is had again by the same `T`.
    pub(crate) fn new<T: ?Sized + Send + Sync + 'static>(handler: Arc<T>) -> Self {
        Self { of: type_name::<T>(), inner: Arc::new(handler) }
    }

    /// What [`Self::new`] was given; `None` if that was another `T`.
    pub(crate) fn get<T: ?Sized + Send + Sync + 'static>(&self) -> Option<&T> {
        self.inner.downcast_ref::<Arc<T>>().map(AsRef::as_ref)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handler").field(&self.of).finish()
    }
}
