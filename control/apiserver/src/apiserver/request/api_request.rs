//! One request: what it says, whom it acts as, and what is collected for its answer.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Method, Uri},
};
use http_body_util::{BodyExt as _, Limited};
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::{self, BodyError, BodyStreaming, headers};

use super::{
    audit::Audit,
    error::{ApiError, ApiResult},
    negotiation::Accept,
    request_info::{RequestInfo, RequestOptions},
    user::{Credentials, User},
    warnings::Warnings,
};
use crate::{
    apiserver::{
        Api,
        filters::{limits::Class, request_metrics::Measured},
    },
    store::Store,
};

/// The longest time that a write may take, as upstream's (`requestTimeoutUpperBound`).
const MAX_WRITE_TIME: Duration = Duration::from_secs(34);

/// The longest time that a request may take which does not last, as upstream's (`--request-timeout`).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// One request.
#[derive(Debug)]
pub struct ApiRequest {
    pub(crate) api: Api,
    /// Whom the request acts as.
    pub(crate) user: User,
    pub(in crate::apiserver) credentials: Credentials,
    /// What is recorded of the request.
    pub(crate) audit: Audit,
    /// By what it is known there.
    pub(in crate::apiserver) audit_id: String,
    /// What the client is warned of.
    pub(crate) warnings: Warnings,
    pub(in crate::apiserver) class: Class,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) accept: Accept,
    pub(crate) content_type: String,
    pub(crate) headers: HeaderMap,
    /// The client's address; `None` for one in this process.
    pub(in crate::apiserver) client: Option<IpAddr>,
    /// The client's connection, for the handler that upgrades it.
    pub(in crate::apiserver) upgrade: Mutex<Option<OnUpgrade>>,
    pub(in crate::apiserver) body_streaming: BodyStreaming,
    pub(in crate::apiserver) received: Instant,
    /// The time that the client gives the request, if it does not last.
    pub(in crate::apiserver) timeout: Option<Duration>,
}

impl ApiRequest {
    /// The store.
    pub(crate) fn store(&self) -> &Store {
        self.api.store()
    }

    /// Whether the caller was authenticated by a client certificate.
    fn is_by_certificate(&self) -> bool {
        self.credentials == Credentials::Certificate
    }

    /// The client's connection, once.
    fn take_upgrade(&self) -> Option<OnUpgrade> {
        self.upgrade.lock().take()
    }

    /// The client's connection, if the request asks to upgrade it.
    ///
    /// # Errors
    /// When a page of another origin uses the client certificate of its browser.
    pub(crate) fn requested_upgrade(&self) -> Result<Option<OnUpgrade>, ApiError> {
        let asks = headers::items(&self.headers, "connection").any(|word| word.eq_ignore_ascii_case("upgrade"));
        let upgrade = self.take_upgrade().filter(|_| asks);
        if upgrade.is_some() && self.is_by_certificate() && !serve::is_own_origin(&self.headers) {
            let why = "a page of another origin may not use the client certificate of its browser here";
            return Err(ApiError::new(403, "Forbidden", why));
        }
        Ok(upgrade)
    }

    /// The body is passed on as it arrives: the limits of bodies that are collected do not hold for it.
    pub(in crate::apiserver) fn begin_streaming(&self) {
        self.body_streaming.begin();
    }

    /// Ends upgraded connections.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.api.inner.closing
    }

    /// Reads the body.
    ///
    /// # Errors
    /// When it is too large or does not arrive.
    pub(in crate::apiserver) async fn body(&self, body: Body, max_bytes: usize) -> Result<Bytes, ApiError> {
        let collected = Limited::new(body, max_bytes).collect().await;
        collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                return ApiError::new(
                    413,
                    "RequestEntityTooLarge",
                    format!("Request entity too large: limit is {max_bytes}"),
                );
            }
            match BodyError::of(error.as_ref()) {
                Some(BodyError::Timeout) => ApiError::new(408, "Timeout", BodyError::Timeout.to_string()),
                Some(BodyError::Busy) => ApiError::too_many_requests(),
                None => ApiError::bad_request(format!("the body could not be read: {error}")),
            }
        })
    }

    /// When a write is answered at the latest: webhooks are called no longer than that.
    pub(in crate::apiserver) fn write_deadline(&self) -> tokio::time::Instant {
        self.within(MAX_WRITE_TIME)
    }

    /// When a request that does not last is answered at the latest.
    pub(in crate::apiserver) fn deadline(&self) -> tokio::time::Instant {
        self.within(REQUEST_TIMEOUT)
    }

    /// After this time, or the time that the client gives the request, if that is less.
    fn within(&self, most: Duration) -> tokio::time::Instant {
        let limit = self.timeout.map_or(most, |timeout| timeout.min(most));
        (self.received + limit).into()
    }

    /// The answer, if it is there in the time that the client gives the request. What has been begun may still be done, as
    /// upstream.
    pub(in crate::apiserver) async fn in_time(&self, answer: impl Future<Output = ApiResult>) -> ApiResult {
        if self.timeout.is_none() {
            return answer.await;
        }
        let answered = tokio::time::timeout_at(self.deadline(), answer).await;
        answered.unwrap_or_else(|_| Err(ApiError::timed_out()))
    }

    /// Whether a part of this process has sent the request, or the agent of a node in it.
    pub(in crate::apiserver) fn is_of_own_component(&self) -> bool {
        self.class == Class::InProcess
    }

    /// What is counted of the request, which is about something that is served.
    pub(in crate::apiserver) fn measured(&self, info: &RequestInfo, options: &RequestOptions) -> Measured {
        Measured::new(&self.api.inner.requests, self.received, (info, options), (&self.method, &self.headers))
    }
}
