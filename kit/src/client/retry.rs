//! When a request is retried below its caller: only on the server's Retry-After. Callers have their own back-off, which
//! must not wait for another one below it. client-go's `WithRetry`.

use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode, header::RETRY_AFTER};
use kube::client::Body;
use tokio::time::Sleep;
use tower::{BoxError, retry::Policy};

use super::connections::copy;

/// The most retries of one request (client-go's).
const MAX_RETRIES: u32 = 10;

/// The retries that a request has left, and the time that may pass in waits for them: after that, it has taken as long as any
/// request may.
#[derive(Debug, Clone)]
pub(super) struct RetryAfter {
    retries: u32,
    patience: Duration,
}

impl RetryAfter {
    pub(super) const fn new(patience: Duration) -> Self {
        Self { retries: MAX_RETRIES, patience }
    }

    /// How long to wait before an answer is asked for again; `None` to give it to the caller.
    fn wait(&mut self, status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
        if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
            return None;
        }
        let seconds = std::str::from_utf8(headers.get(RETRY_AFTER)?.as_bytes()).ok()?.trim().parse().ok()?;
        let wait = Duration::from_secs(seconds);
        self.retries = self.retries.checked_sub(1)?;
        self.patience = self.patience.checked_sub(wait)?;
        Some(wait)
    }
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for RetryAfter {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Request<Body>, answer: &mut Result<Response<B>, BoxError>) -> Option<Sleep> {
        let answer = answer.as_ref().ok()?;
        self.wait(answer.status(), answer.headers()).map(tokio::time::sleep)
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        copy(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_when_is_asked_again() {
        let wait = |code: u16, after: Option<&str>| {
            let headers = after.map(|after| (RETRY_AFTER, after.parse().unwrap())).into_iter().collect();
            RetryAfter::new(Duration::from_secs(60)).wait(StatusCode::from_u16(code).unwrap(), &headers)
        };
        let second = Some(Duration::from_secs(1));
        for (code, after, expected) in [
            (429, Some("1"), second),
            (503, Some("1"), second),
            (500, Some("1"), second),
            (503, None, None),
            (504, None, None),
            (429, None, None),
            (404, Some("1"), None),
            (200, Some("1"), None),
            (503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), None),
            (503, Some("-1"), None),
            (503, Some("61"), None),
        ] {
            assert_eq!(wait(code, after), expected, "{code} {after:?}");
        }
    }

    #[test]
    fn a_request_ends() {
        let headers = [(RETRY_AFTER, "1".parse().unwrap())].into_iter().collect();
        let mut policy = RetryAfter::new(Duration::from_secs(60));
        let waits = || policy.wait(StatusCode::SERVICE_UNAVAILABLE, &headers);
        assert_eq!(std::iter::from_fn(waits).count(), 10);
    }
}
