//! What the proxy tells about itself over HTTP: health, metrics, and the health of single services
//! for load balancers. Reads the [`Status`] that the loop keeps; decides nothing.

mod metrics;
mod service_health;
mod status;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::serve_plain;

use crate::{
    config::{Error, Page},
    nfacct,
};

pub(crate) use service_health::{LocalHealth, ServiceHealth};
pub(crate) use status::{Outcome, Status};

const RETRY: Duration = Duration::from_secs(5);

fn json(code: StatusCode, body: String) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    (code, headers, body).into_response()
}

/// `/healthz` and `/livez`.
pub(crate) fn health_router(status: Arc<Status>) -> Router {
    let answer = |status: Arc<Status>, eligibility: bool| async move {
        let (ok, body) = status.health(eligibility, jiff::Timestamp::now());
        json(if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, body)
    };
    let for_live = status.clone();
    Router::new()
        .route("/healthz", get(move || answer(status.clone(), true)))
        .route("/livez", get(move || answer(for_live.clone(), false)))
}

/// `/metrics`, `/proxyMode`, `/healthz`, `/statusz`, and pages that others wrote.
pub(crate) fn metrics_router(status: Arc<Status>, pages: &[Page]) -> Router {
    let started = jiff::Timestamp::now();
    let about = pages.iter().cloned().fold(Router::new(), |router, page| {
        router.route(page.path, get(move || async move { ([(header::CONTENT_TYPE, page.content_type)], page.body) }))
    });
    let page = move || {
        let status = status.clone();
        async move {
            // The kernel is asked off the runtime's threads: it may be long in answering.
            let packets = tokio::task::spawn_blocking(nfacct::packets).await.unwrap_or_default();
            ([(header::CONTENT_TYPE, windlass_kit::expo::CONTENT_TYPE)], metrics::page(&status, packets))
        }
    };
    Router::new()
        .route("/metrics", get(page))
        .route("/proxyMode", get(|| async { "iptables" }))
        .route("/healthz", get(|| async { "ok" }))
        .route("/statusz", get(move || async move { statusz(started) }))
        .merge(about)
}

/// What upstream tells of a running process.
fn statusz(started: jiff::Timestamp) -> String {
    let up = jiff::Timestamp::now().duration_since(started).as_secs();
    format!(
        "\nwindlass proxy statusz\nWarning: This endpoint is not meant to be machine parseable.\n\n\
         Started: {started}\nUp: {} hr {:02} min {:02} sec\nBinary version: {}\n",
        up / 3600,
        up / 60 % 60,
        up % 60,
        env!("CARGO_PKG_VERSION")
    )
}

/// Binds and serves until the token is cancelled; a port that is taken is tried again each 5 s,
/// unless `hard` says that this is an error.
pub(crate) async fn serve(
    what: &'static str,
    address: SocketAddr,
    router: Router,
    hard: bool,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(source) if hard => return Err(Error::Listen { what, address, source }),
            Err(error) => tracing::warn!(%error, %address, what, "cannot listen; trying again in 5 s"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    };
    serve_plain(what, listener, router, shutdown).await;
    Ok(())
}
