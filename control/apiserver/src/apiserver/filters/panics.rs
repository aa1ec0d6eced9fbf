//! What becomes of a request whose handler panics: an answer with status 500, a line in the log and in the audit log, and a
//! request that is counted. A bug costs one request, and not the task of a client in this process nor the other requests
//! of a connection. The store has its own threads, and what is shared keeps no lock that a panic would leave half-done.

use std::{any::Any, io, panic::AssertUnwindSafe};

use axum::body::{Body, Bytes};
use futures::{FutureExt as _, Stream, StreamExt as _};

use crate::apiserver::request::error::ApiError;

/// What a future gives, or how it panicked.
pub(in crate::apiserver) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| text_of(&*panic))
}

/// A body of pieces. Where one panics it breaks off: what was sent is no whole answer.
pub(in crate::apiserver) fn body(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    let caught = AssertUnwindSafe(pieces).catch_unwind();
    Body::from_stream(caught.map(|piece| {
        piece.map_err(|panic| {
            tracing::error!(
                why = text_of(&*panic),
                "making an answer has panicked; this is a bug of windlass, please report it"
            );
            io::Error::other("making the answer has panicked")
        })
    }))
}

/// The answer for a request whose handler has panicked, which is logged. Queries may hold secrets and are not logged.
pub(in crate::apiserver) fn answer(method: &axum::http::Method, path: &str, why: &str) -> ApiError {
    tracing::error!(%method, path, why, "the handler of a request has panicked; this is a bug of windlass, please report it");
    ApiError::internal("this request caused the API server to panic. Look in the logs for details.")
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
