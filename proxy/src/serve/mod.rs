//! The HTTP servers of the proxy: health, metrics, and health check node ports of Services. Reads the [`Status`] that
//! the loop writes, and may import the model; never `sync` or `apply`.

mod health_check_node_port;
mod metrics;
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
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    prometheus::Text,
    serve::{ListenAddress, serve_plain},
    slis::HealthChecks,
};

use crate::{
    config::{Error, Page},
    nfacct,
};

pub(crate) use health_check_node_port::{HealthCheckServers, LocalEndpoints};
pub(crate) use status::{PerTable, Status, SyncOutcome};

const LISTEN_RETRY_INTERVAL: Duration = Duration::from_secs(5);

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

/// `/metrics`, `/proxyMode`, `/healthz`, `/statusz`, and the configured pages.
pub(crate) fn metrics_router(status: Arc<Status>, pages: &[Page]) -> Router {
    let started = jiff::Timestamp::now();
    let further = pages.iter().cloned().fold(Router::new(), |router, page| {
        router.route(page.path, get(move || async move { ([(header::CONTENT_TYPE, page.content_type)], page.body) }))
    });
    let page = move || {
        let status = status.clone();
        async move {
            // Off the runtime's worker threads: the kernel may be slow to reply.
            let packets = windlass_kit::blocking::RULES.call(nfacct::packet_counts).await.unwrap_or_default();
            ([(header::CONTENT_TYPE, windlass_kit::prometheus::CONTENT_TYPE)], metrics::page(&status, packets))
        }
    };
    // As kube-proxy's, whose only check here is that it answers.
    let checks = Arc::new(HealthChecks::default());
    let counted = Arc::clone(&checks);
    let slis = move || {
        checks.record("ping", "healthz", true);
        let mut page = Text::new();
        checks.write(&mut page);
        async move { ([(header::CONTENT_TYPE, windlass_kit::prometheus::CONTENT_TYPE)], page.finish()) }
    };
    let healthz = move || {
        counted.record("ping", "healthz", true);
        async { "ok" }
    };
    Router::new()
        .route("/metrics", get(page))
        .route("/metrics/slis", get(slis))
        .route("/proxyMode", get(|| async { "iptables" }))
        .route("/healthz", get(healthz))
        .route("/statusz", get(move || async move { statusz(started) }))
        .merge(further)
}

/// The text of `/statusz`, as kube-proxy's.
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

/// Binds and serves until the token is cancelled. A failure to bind is retried every 5 s, unless `hard_fail` is set.
pub(crate) async fn serve(
    what: &'static str,
    address: SocketAddr,
    router: Router,
    hard_fail: bool,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let listener = loop {
        match ListenAddress::from(address).bind() {
            Ok(listener) => break listener,
            Err(source) if hard_fail => return Err(Error::Listen { what, address, source }),
            Err(error) => tracing::warn!(%error, %address, what, "failed to listen; retrying in 5 s"),
        }
        tokio::select! {
            () = tokio::time::sleep(LISTEN_RETRY_INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    };
    serve_plain(what, listener, router, shutdown).await;
    Ok(())
}
