//! Usage: the Summary API, metrics and cAdvisor's REST API.

use std::{convert::Infallible, io::Write as _};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{OriginalUri, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use windlass_cadvisor::{Page, Rest};
use windlass_kit::{
    blocking::COMPUTE,
    prometheus::{self, Format},
    serve::headers,
};

use super::{ServerState, refuse};

/// Smaller pages are not compressed.
const MIN_GZIP_BYTES: usize = 1024;

/// Whether the reduced form is asked for: as upstream, by the first value of `only_cpu_and_memory` in the form or in the
/// query, and by no other word than `true`.
fn only_cpu_and_memory(query: &str, form: &[u8]) -> bool {
    let value = |text: &[u8]| {
        let mut pairs = url::form_urlencoded::parse(text);
        pairs.find(|(key, _)| key == "only_cpu_and_memory").map(|(_, value)| value.into_owned())
    };
    value(form).or_else(|| value(query.as_bytes())).is_some_and(|value| value == "true")
}

/// Usage routes, of both the secure and the read-only listener.
pub(super) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/stats/summary", get(summary).post(summary))
        .route("/metrics", get(own))
        .route("/metrics/cadvisor", get(cadvisor))
        .route("/metrics/resource", get(resource))
        .route("/metrics/probes", get(probes))
        .route("/metrics/slis", get(slis))
        .route("/api/", get(rest))
        .route("/api/{*path}", get(rest).post(rest))
}

/// The small form is requested by autoscalers and is refreshed. The full form is for dashboards: each of its numbers
/// carries the time of its sample, and a request does not wait for a new sample while the last one is recent.
async fn summary(
    State(state): State<ServerState>,
    OriginalUri(uri): OriginalUri,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let is_form = method == Method::POST
        && headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
            kind.as_bytes().split(|byte| *byte == b';').next() == Some(b"application/x-www-form-urlencoded")
        });
    let form: &[u8] = if is_form { &body } else { &[] };
    let small = only_cpu_and_memory(uri.query().unwrap_or_default(), form);
    if small {
        state.usage.refresh().await;
    }
    if let Some(ready) = state.usage.cached_summary_json(small) {
        if ready.needs_refresh {
            let usage = state.usage.clone();
            // Ready for the next request.
            drop(COMPUTE.spawn(move || usage.summary_json(small)));
        }
        return respond(&headers, "application/json", &ready.page);
    }
    on_blocking_thread(move || respond(&headers, "application/json", &state.usage.summary_json(small))).await
}

async fn cadvisor(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    let format = accepted(&headers);
    on_blocking_thread(move || metrics(&headers, format, &state.usage.cadvisor_text(format))).await
}

/// Responses of hundreds of kilobytes: rendering and compressing them on the runtime would delay other requests.
async fn on_blocking_thread(make: impl FnOnce() -> Response + Send + 'static) -> Response {
    let answer = COMPUTE.call(make).await;
    answer.unwrap_or_else(|e| refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to render the page: {e}")))
}

/// Read by metrics-server, which computes its own rates from these numbers and their times.
async fn resource(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    state.usage.refresh().await;
    let format = accepted(&headers);
    metrics(&headers, format, &state.usage.resource_text(format))
}

async fn probes(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    let format = accepted(&headers);
    metrics(&headers, format, &state.probes.page(format, start_time(&state)).into())
}

/// Every check is run for each request, so that the page shows the current state, whoever else polls health.
async fn slis(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    super::health::check_all(&state);
    let format = accepted(&headers);
    let mut page = prometheus::Text::of(format);
    state.health_checks.write(&mut page);
    metrics(&headers, format, &page.finish().into())
}

/// The agent's own metrics.
async fn own(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    let format = accepted(&headers);
    let mut page = prometheus::Text::of(format);
    super::metrics::write(&state, &mut page);
    state.usage.render_kubelet_metrics(&mut page);
    metrics(&headers, format, &page.finish().into())
}

async fn rest(
    State(state): State<ServerState>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match state.usage.rest(uri.path(), uri.query().unwrap_or_default(), &body).await {
        Ok(Rest::Page(page)) => respond(&headers, "application/json", &page.into()),
        Ok(Rest::Stream(events)) => {
            let lines = futures::stream::unfold(events, |mut events| async move {
                let line = events.next().await?;
                Some((Ok::<_, Infallible>(line), events))
            });
            ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response()
        }
        Err((code, why)) => refuse(StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), why),
    }
}

fn start_time(state: &ServerState) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "milliseconds of this century fit")]
    let now = jiff::Timestamp::now().as_millisecond() as f64 / 1e3;
    (now - state.node_info.started.elapsed().as_secs_f64()).floor()
}

fn accepted(headers: &HeaderMap) -> Format {
    let ranges: Vec<String> = headers::items(headers, header::ACCEPT.as_str()).collect();
    Format::accepted(&ranges.join(","))
}

fn metrics(headers: &HeaderMap, format: Format, page: &Page) -> Response {
    respond(headers, format.content_type(), page)
}

/// Whether a client accepts gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers::items(headers, header::ACCEPT_ENCODING.as_str()).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = matches!(parts.next(), Some("gzip" | "x-gzip"));
        let refused = parts.filter_map(|p| p.strip_prefix("q=")).any(|q| q.parse() == Ok(0.0_f32));
        named && !refused
    })
}

fn respond(headers: &HeaderMap, kind: &'static str, page: &Page) -> Response {
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let vary = (header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    let wanted = page.as_ref().len() >= MIN_GZIP_BYTES && accepts_gzip(headers);
    match wanted.then(|| page.packed(gzip)).flatten() {
        Some(small) => {
            let coding = (header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            ([kind, vary, coding], Bytes::from_owner(small)).into_response()
        }
        None => ([kind, vary], Bytes::from_owner(page.clone())).into_response(),
    }
}

fn gzip(page: &[u8]) -> Option<Vec<u8>> {
    let mut packer = flate2::write::GzEncoder::new(Vec::with_capacity(page.len() / 8), flate2::Compression::fast());
    packer.write_all(page).and_then(|()| packer.finish()).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_reduced_summary_is_asked_for_by_one_word() {
        for (query, form, small) in [
            ("only_cpu_and_memory=true", "", true),
            ("a=b&only_cpu_and_memory=true", "", true),
            ("only_cpu_and_memory=1", "", false),
            ("only_cpu_and_memory=", "", false),
            ("only_cpu_and_memory=True", "", false),
            ("", "", false),
            ("", "only_cpu_and_memory=true", true),
            ("only_cpu_and_memory=true", "only_cpu_and_memory=false", false),
        ] {
            assert_eq!(only_cpu_and_memory(query, form.as_bytes()), small, "{query} {form}");
        }
    }

    fn with(encoding: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(encoding))])
    }

    #[tokio::test]
    async fn pages_are_packed_for_those_who_take_it() {
        let page = "a_metric 1\n".repeat(500);
        for (encoding, is_packed) in
            [("", false), ("gzip", true), ("deflate, gzip;q=0.5", true), ("gzip;q=0", false), ("br", false)]
        {
            let answer = respond(&with(encoding), "text/plain", &page.clone().into());
            assert_eq!(answer.headers().contains_key(header::CONTENT_ENCODING), is_packed, "{encoding}");
            assert_eq!(answer.headers()[header::VARY], "Accept, Accept-Encoding");
            let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            if is_packed {
                let mut found = String::new();
                flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut found).unwrap();
                assert_eq!(found, page);
            } else {
                assert_eq!(body, page.as_bytes());
            }
        }
        let small = respond(&with("gzip"), "text/plain", &b"a 1\n".to_vec().into());
        assert!(!small.headers().contains_key(header::CONTENT_ENCODING));
    }
}
