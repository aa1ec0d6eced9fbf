//! What the cluster's DNS counts, under CoreDNS's names where the meaning is the same.

use std::{net::SocketAddr, time::Duration};

use hickory_proto::{op::ResponseCode, rr::RecordType};
use windlass_kit::{
    metrics::{Counter, Histogram, exponential_buckets},
    prometheus::{Kind, Text},
};

use super::message::Transport;

/// CoreDNS's buckets of durations, in seconds (`plugin.SlimTimeBuckets`).
const DURATIONS: &[f64] = &exponential_buckets::<16>(0.000_25, 2.0);
/// Those of the time from a change of endpoints to its record.
const PROGRAMMING: &[f64] = &exponential_buckets::<20>(0.001, 2.0);
/// The server as CoreDNS names its own.
const SERVER: &str = "dns://:53";

/// All counts.
#[derive(Debug)]
pub(super) struct Metrics {
    requests: Counter<5>,
    responses: Counter<4>,
    durations: Histogram<2>,
    hits: Counter<3>,
    misses: Counter<2>,
    forwarded: Counter<3>,
    forward_durations: Histogram<3>,
    probe_failures: Counter<2>,
    rejects: Counter<0>,
    programming: Histogram<1>,
    refused_sources: Counter<1>,
}

impl Metrics {
    pub(super) const fn new() -> Self {
        Self {
            requests: Counter::new(
                "coredns_dns_requests_total",
                "Counter of DNS requests made per zone, protocol and family.",
                ["server", "zone", "proto", "family", "type"],
            ),
            responses: Counter::new(
                "coredns_dns_responses_total",
                "Counter of response status codes.",
                ["server", "zone", "rcode", "plugin"],
            ),
            durations: Histogram::new(
                "coredns_dns_request_duration_seconds",
                "Histogram of the time (in seconds) each request took per zone.",
                ["server", "zone"],
                DURATIONS,
            ),
            hits: Counter::new("coredns_cache_hits_total", "The count of cache hits.", ["server", "type", "zones"]),
            misses: Counter::new("coredns_cache_misses_total", "The count of cache misses.", ["server", "zones"]),
            forwarded: Counter::new(
                "coredns_forward_requests_total",
                "Counter of requests that other name servers were asked.",
                ["to", "rcode", "proto"],
            ),
            forward_durations: Histogram::new(
                "coredns_proxy_request_duration_seconds",
                "Histogram of the time each request took.",
                ["proxy_name", "to", "rcode"],
                DURATIONS,
            ),
            probe_failures: Counter::new(
                "coredns_proxy_healthcheck_failures_total",
                "Counter of the number of failed healthchecks.",
                ["proxy_name", "to"],
            ),
            rejects: Counter::new(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
                [],
            ),
            programming: Histogram::new(
                "coredns_kubernetes_dns_programming_duration_seconds",
                "Histogram of the time (in seconds) it took to program a dns instance.",
                ["service_kind"],
                PROGRAMMING,
            ),
            refused_sources: Counter::new(
                "windlass_dns_refused_sources_total",
                "Packets and connections from outside of the cluster, which are not answered.",
                ["proto"],
            ),
        }
    }

    /// Counts a request and its response.
    pub(super) fn request(
        &self,
        zone: &str,
        transport: Transport,
        from: SocketAddr,
        kind: RecordType,
        code: ResponseCode,
        took: Duration,
    ) {
        let family = if from.ip().to_canonical().is_ipv4() { "1" } else { "2" };
        self.requests.add([SERVER, zone, transport.name(), family, &type_label(kind)]);
        self.response(zone, code);
        self.durations.observe_duration([SERVER, zone], took);
    }

    /// Counts the response to what is no request.
    pub(super) fn response(&self, zone: &str, code: ResponseCode) {
        let plugin = if zone == "." { "forward" } else { "kubernetes" };
        self.responses.add([SERVER, zone, &code_label(code), plugin]);
    }

    pub(super) fn cached(&self, is_hit: bool, is_negative: bool) {
        if is_hit {
            self.hits.add([SERVER, if is_negative { "denial" } else { "success" }, "."]);
        } else {
            self.misses.add([SERVER, "."]);
        }
    }

    /// Counts a question to another server; without a code and the time that it took there was no answer.
    pub(super) fn forwarded(&self, to: SocketAddr, answer: Option<(ResponseCode, Duration)>, transport: Transport) {
        let to = to.to_string();
        let code = answer.map_or_else(|| "TIMEOUT".to_owned(), |(code, _)| code_label(code));
        self.forwarded.add([&to, &code, transport.name()]);
        if let Some((_, took)) = answer {
            self.forward_durations.observe_duration(["forward", &to, &code], took);
        }
    }

    pub(super) fn probe_failed(&self, server: SocketAddr) {
        self.probe_failures.add(["forward", &server.to_string()]);
    }

    pub(super) fn rejected(&self) {
        self.rejects.add([]);
    }

    pub(super) fn programmed(&self, seconds: f64) {
        self.programming.observe(["headless_with_selector"], seconds);
    }

    pub(super) fn refused_source(&self, transport: Transport) {
        self.refused_sources.add([transport.name()]);
    }

    /// Writes all families; `entries` are the answers that are kept.
    pub(super) fn write(&self, page: &mut Text, entries: usize) {
        self.requests.write(page);
        self.responses.write(page);
        self.durations.write(page);
        self.hits.write(page);
        self.misses.write(page);
        page.family("coredns_cache_entries", "The number of elements in the cache.", Kind::Gauge);
        #[allow(clippy::cast_precision_loss, reason = "a number of answers")]
        page.sample("coredns_cache_entries", &[("server", SERVER), ("zones", ".")], entries as f64);
        self.forwarded.write(page);
        self.forward_durations.write(page);
        self.probe_failures.write(page);
        self.rejects.write(page);
        self.programming.write(page);
        self.refused_sources.write(page);
    }
}

/// CoreDNS's labels: types that are rare are one, so that clients cannot make any number of series.
fn type_label(kind: RecordType) -> String {
    use RecordType as T;
    let is_usual = matches!(
        kind,
        T::A | T::AAAA
            | T::CNAME
            | T::DNSKEY
            | T::DS
            | T::HTTPS
            | T::MX
            | T::NS
            | T::NSEC
            | T::NSEC3
            | T::PTR
            | T::RRSIG
            | T::SOA
            | T::SRV
            | T::SVCB
            | T::TXT
            | T::ANY
    );
    if is_usual { kind.to_string() } else { "other".to_owned() }
}

/// As CoreDNS writes codes.
fn code_label(code: ResponseCode) -> String {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::BADVERS => "BADVERS",
        other => return u16::from(other).to_string(),
    }
    .to_owned()
}
