//! What this process counts of its requests to an API, under the names of upstream's client library. One for the whole
//! process, as there.
//!
//! Upstream: `k8s.io/component-base/metrics/prometheus/restclient`.

use std::time::Duration;

use crate::{
    metrics::{Counter, Histogram},
    prometheus::Text,
};

/// The host of an API in this process, which is reached without a socket.
pub const IN_PROCESS: &str = "in-process";

/// Upstream's buckets, in seconds.
const DURATIONS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

static REQUESTS: Counter<3> =
    Counter::new("rest_client_requests_total", "Requests to the API, by how they ended.", ["code", "host", "method"]);
static DURATION: Histogram<2> = Histogram::new(
    "rest_client_request_duration_seconds",
    "How long requests to the API took, until the answer's headers.",
    ["host", "verb"],
    DURATIONS,
);

/// Counts a request; `code` is `None` without a response.
pub fn record(host: &str, method: &str, code: Option<u16>, took: Duration) {
    let code = code.map(|code| code.to_string());
    REQUESTS.add([code.as_deref().unwrap_or("<error>"), host, method]);
    DURATION.observe_duration([host, method], took);
}

/// Writes the families.
pub fn write(page: &mut Text) {
    REQUESTS.write(page);
    DURATION.write(page);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_with_and_without_an_answer() {
        record("test:6443", "GET", Some(200), Duration::from_millis(50));
        record("test:6443", "GET", None, Duration::from_secs(61));
        let mut page = Text::new();
        write(&mut page);
        let page = page.finish();
        for line in [
            r#"rest_client_requests_total{code="200",host="test:6443",method="GET"} 1"#,
            r#"rest_client_requests_total{code="<error>",host="test:6443",method="GET"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="test:6443",verb="GET",le="0.1"} 1"#,
            r#"rest_client_request_duration_seconds_count{host="test:6443",verb="GET"} 2"#,
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
