//! Subresources that are served by code of their own, and those that pass everything on.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use axum::body::Bytes;

use super::proxy::Locate;
use crate::apiserver::{
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        request_info::RequestOptions,
        target::Target,
    },
    types::{Gvk, Handler, Serves, Subresource},
};

/// A subresource with a handler of its own.
#[async_trait]
pub trait SubresourceHandler: Send + Sync + fmt::Debug {
    /// Whether it upgrades connections: a GET needs the right to create as well.
    fn connects(&self) -> bool {
        false
    }

    /// Whether its responses may last: they are not limited, and of any media type.
    fn is_long_running(&self) -> bool {
        self.connects()
    }

    /// Handles a request that is authorized.
    async fn handle(&self, request: &ApiRequest, target: &Target, options: &RequestOptions, body: &Bytes) -> ApiResult;
}

impl Serves {
    /// By a handler of its own.
    pub(crate) fn custom(handler: impl SubresourceHandler + 'static) -> Self {
        Self::Custom(Handler::new::<dyn SubresourceHandler>(Arc::new(handler)))
    }
}

impl Subresource {
    /// `proxy`, whose options have this kind.
    #[must_use]
    pub fn proxy(options: &'static str, locate: impl Locate + 'static) -> Self {
        let verbs = ["create", "delete", "get", "patch", "update"];
        let locate = Handler::new::<dyn Locate>(Arc::new(locate));
        Self::of_kind("proxy", Gvk::of("", "v1", options), &verbs, Serves::Proxy(locate))
    }

    /// Its own handler; `None` if what it serves is the object or a part of it.
    ///
    /// # Errors
    /// When it was made with another kind of handler.
    pub(crate) fn handler(&self) -> Result<Option<&dyn SubresourceHandler>, ApiError> {
        match &self.serves {
            Serves::Custom(handler) => handler.get().map(Some).ok_or_else(|| self.without_handler()),
            _ => Ok(None),
        }
    }

    /// What finds where its requests are passed on to; `None` if they are not.
    ///
    /// # Errors
    /// When it was made with another kind of handler.
    pub(crate) fn locate(&self) -> Result<Option<&dyn Locate>, ApiError> {
        match &self.serves {
            Serves::Proxy(locate) => locate.get().map(Some).ok_or_else(|| self.without_handler()),
            _ => Ok(None),
        }
    }

    fn without_handler(&self) -> ApiError {
        ApiError::internal(format!("{:?} serves no {}", self.serves, self.name))
    }
}
