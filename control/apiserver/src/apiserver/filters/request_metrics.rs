//! What the API server counts of requests, under upstream's names, labels and buckets, which dashboards and alerts ask
//! for. A request is counted once what it is about has been found in the catalog, so that clients cannot make any number
//! of series.
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/metrics`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::HttpBody as _,
    http::{HeaderMap, Method, header},
    response::Response,
};
use windlass_kit::{
    metrics::{Counter, Gauge, Histogram, Metrics, exponential_buckets},
    prometheus::Text,
    serve::{LongRunning, headers},
};

use crate::apiserver::request::{
    body_guard::holding,
    error::ApiError,
    request_info::{RequestInfo, RequestOptions},
};

/// Upstream's `APIServerComponent`.
const COMPONENT: &str = "apiserver";
/// The clients that are named: components of a control plane that call themselves so.
const SYSTEM_CLIENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// Subresources that connect to something, whatever the method.
const CONNECTS: [&str; 5] = ["log", "exec", "portforward", "attach", "proxy"];
/// Upstream's buckets of durations in seconds, which its service level objectives are about.
const DURATIONS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
const SLI_DURATIONS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
const SIZES: &[f64] = &exponential_buckets::<7>(1000.0, 10.0);
/// Upstream's buckets of the time that client certificates have left, in seconds: from half an hour to a year.
const EXPIRATIONS: &[f64] = &[
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// All families.
#[derive(Debug)]
pub(in crate::apiserver) struct RequestMetrics {
    requests: Counter<10>,
    durations: Histogram<8>,
    sli_durations: Histogram<7>,
    sizes: Histogram<7>,
    long_running: Gauge<7>,
    terminations: Counter<8>,
    certificates: Histogram<0>,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self {
            requests: Counter::new(
                "apiserver_request_total",
                "Requests that have been answered.",
                [
                    "verb",
                    "dry_run",
                    "group",
                    "version",
                    "resource",
                    "subresource",
                    "scope",
                    "component",
                    "code",
                    "system_client",
                ],
            ),
            durations: Histogram::new(
                "apiserver_request_duration_seconds",
                "How long requests took, from their headers to the answer's; of those that last, to their end.",
                ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"],
                DURATIONS,
            ),
            sli_durations: Histogram::new(
                "apiserver_request_sli_duration_seconds",
                "The same without dry runs, and without the time that others are waited for.",
                ["verb", "group", "version", "resource", "subresource", "scope", "component"],
                SLI_DURATIONS,
            ),
            sizes: Histogram::new(
                "apiserver_response_sizes",
                "Bytes of the answers to GET and LIST.",
                ["verb", "group", "version", "resource", "subresource", "scope", "component"],
                SIZES,
            ),
            long_running: Gauge::new(
                "apiserver_longrunning_requests",
                "Watches and other requests that last.",
                ["verb", "group", "version", "resource", "subresource", "scope", "component"],
            ),
            terminations: Counter::new(
                "apiserver_request_terminations_total",
                "Requests that were refused because there are too many.",
                ["verb", "group", "version", "resource", "subresource", "scope", "component", "code"],
            ),
            certificates: Histogram::new(
                "apiserver_client_certificate_expiration_seconds",
                "For how long the certificates that requests came with are still good.",
                [],
                EXPIRATIONS,
            ),
        }
    }
}

impl Metrics for RequestMetrics {
    fn write(&self, page: &mut Text) {
        self.requests.write(page);
        self.durations.write(page);
        self.sli_durations.write(page);
        self.sizes.write(page);
        self.long_running.write(page);
        self.terminations.write(page);
        self.certificates.write(page);
    }
}

impl RequestMetrics {
    /// A request came with a certificate that is good until `ends`, in seconds since 1970.
    pub(in crate::apiserver) fn certificate(&self, ends: i64) {
        #[allow(clippy::cast_precision_loss, reason = "seconds of this century")]
        self.certificates.observe([], (ends - jiff::Timestamp::now().as_second()) as f64);
    }

    /// A health check was answered at a path that is known.
    pub(in crate::apiserver) fn health(&self, path: &str, code: u16, took: Duration) {
        let labels = ["GET", "", "", "", "", path, "", ""];
        self.requests.add(["GET", "", "", "", "", path, "", "", &code.to_string(), ""]);
        self.durations.observe_duration(labels, took);
    }
}

/// What is counted of one request.
#[derive(Debug)]
pub(in crate::apiserver) struct Measured {
    metrics: Arc<RequestMetrics>,
    received: Instant,
    labels: Labels,
}

/// The values of labels that do not depend on the answer.
#[derive(Debug, Clone)]
struct Labels {
    verb: &'static str,
    dry_run: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    system_client: &'static str,
}

impl Measured {
    /// A request that is about something that is served.
    pub(in crate::apiserver) fn new(
        metrics: &Arc<RequestMetrics>,
        received: Instant,
        (info, options): (&RequestInfo, &RequestOptions),
        (method, headers): (&Method, &HeaderMap),
    ) -> Self {
        let scope = scope_of(info);
        let agent = headers::shown(headers, header::USER_AGENT.as_str());
        let client = agent.split_once('/').map_or("", |(name, _)| name);
        let labels = Labels {
            verb: verb_of(info, method, headers, scope),
            dry_run: if options.dry_run { "All" } else { "" },
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope,
            system_client: SYSTEM_CLIENTS.into_iter().find(|known| *known == client).unwrap_or_default(),
        };
        Self { metrics: Arc::clone(metrics), received, labels }
    }

    /// Counts a request that was refused.
    pub(in crate::apiserver) fn refused(&self, error: &ApiError) {
        if error.is_overload() {
            let Labels { verb, group, version, resource, subresource, scope, .. } = &self.labels;
            let code = error.code.to_string();
            self.metrics.terminations.add([verb, group, version, resource, subresource, scope, COMPONENT, &code]);
        }
        self.count(error.code);
    }

    /// Counts a request that was answered; one that lasts when its answer has ended.
    pub(in crate::apiserver) fn answered(self, response: Response) -> Response {
        let code = response.status().as_u16();
        if response.extensions().get::<LongRunning>().is_none() {
            if matches!(self.labels.verb, "GET" | "LIST")
                && let Some(bytes) = response.body().size_hint().exact()
            {
                #[allow(clippy::cast_precision_loss, reason = "sizes of answers")]
                self.metrics.sizes.observe(self.labels.seven(), bytes as f64);
            }
            self.count(code);
            return response;
        }
        self.metrics.long_running.add(self.labels.seven(), 1);
        holding(response, Lasting { measured: self, code })
    }

    fn count(&self, code: u16) {
        let Labels { verb, dry_run, group, version, resource, subresource, scope, system_client } = &self.labels;
        let mut digits = [0; 3];
        let code = code_text(code, &mut digits);
        let took = self.received.elapsed();
        self.metrics.requests.add([
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
            COMPONENT,
            code,
            system_client,
        ]);
        let labels = [verb, *dry_run, group, version, resource, subresource, scope, COMPONENT];
        self.metrics.durations.observe_duration(labels, took);
        if dry_run.is_empty() {
            self.metrics.sli_durations.observe_duration(self.labels.seven(), took);
        }
    }
}

impl Labels {
    fn seven(&self) -> [&str; 7] {
        let Self { verb, group, version, resource, subresource, scope, .. } = self;
        [verb, group, version, resource, subresource, scope, COMPONENT]
    }
}

/// A code of three digits, without memory of its own.
fn code_text(code: u16, digits: &mut [u8; 3]) -> &str {
    for (digit, unit) in digits.iter_mut().zip([100, 10, 1]) {
        *digit = b'0' + u8::try_from(code / unit % 10).unwrap_or_default();
    }
    std::str::from_utf8(digits).unwrap_or_default()
}

/// Upstream's `CleanScope`.
fn scope_of(info: &RequestInfo) -> &'static str {
    match info {
        info if !info.path_name.is_empty() || info.verb == "create" => "resource",
        info if !info.namespace.is_empty() => "namespace",
        info if info.is_resource => "cluster",
        _ => "",
    }
}

/// Upstream's `cleanVerb`.
fn verb_of(info: &RequestInfo, method: &Method, headers: &HeaderMap, scope: &str) -> &'static str {
    if CONNECTS.contains(&info.subresource.as_str()) {
        return "CONNECT";
    }
    match method.as_str() {
        "GET" | "HEAD" if info.verb == "watch" => "WATCH",
        "GET" | "HEAD" if scope == "resource" => "GET",
        "GET" | "HEAD" => "LIST",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" if headers::shown(headers, header::CONTENT_TYPE.as_str()).starts_with("application/apply-patch+") => {
            "APPLY"
        }
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

/// A request that lasts, until it is dropped.
struct Lasting {
    measured: Measured,
    code: u16,
}

impl Drop for Lasting {
    fn drop(&mut self) {
        self.measured.metrics.long_running.add(self.measured.labels.seven(), -1);
        self.measured.count(self.code);
    }
}
