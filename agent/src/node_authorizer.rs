//! Retries of requests that the Node authorizer forbids for a moment.
//!
//! A node may read what its pods use and nothing else. Each API server builds that graph from its own watch of pods and
//! nodes, so for a second or two after a pod was bound it may forbid the pod's Secrets, ConfigMaps, claims, volumes and
//! tokens (403, `no relationship found between node 'n' and this object`); with several servers the answers alternate.
//! So such requests are retried, and the error is only reported once the lag cannot explain it.

use std::time::Duration;

use tokio::time::Instant;
use windlass_kit::backoff::Backoff;

/// How long a 403 is taken for the lag of an authorizer.
pub(crate) const LAG: Duration = Duration::from_secs(3);

/// The delays between retries.
pub(crate) const fn retries() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
}

/// Whether the API answered 403, which it may not do in a moment.
pub(crate) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Retries a request while it is forbidden, for as long as the authorizer may lag.
///
/// # Errors
/// The error of the last request.
pub(crate) async fn retry_forbidden<T, Answer>(mut request: impl FnMut() -> Answer) -> kube::Result<T>
where
    Answer: Future<Output = kube::Result<T>>,
{
    let (begun, mut backoff) = (Instant::now(), retries());
    loop {
        match request().await {
            Err(error) if is_forbidden(&error) && begun.elapsed() < LAG => {
                tracing::debug!(%error, "the node authorizer does not yet know that a pod of this node uses the object; retrying");
                tokio::time::sleep(backoff.next_delay()).await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answered(code: u16) -> kube::Error {
        kube::Error::Api(Status { code, ..Status::default() }.boxed())
    }

    /// How many requests are made, and the result, when the API forbids them for `lag`, and then answers with `code`.
    async fn asked(lag: Duration, code: Option<u16>) -> (usize, kube::Result<()>) {
        let (begun, mut requests) = (Instant::now(), 0);
        let result = retry_forbidden(|| {
            requests += 1;
            let code = if begun.elapsed() < lag { Some(403) } else { code };
            std::future::ready(code.map_or(Ok(()), |code| Err(answered(code))))
        });
        let result = result.await;
        (requests, result)
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_requests_are_retried_while_the_authorizer_may_lag() {
        for (lag, code, requests, good) in [
            (0, None, 1, true),
            (1, None, 2, true),
            (1000, None, 5, true),
            (2900, None, 6, true),
            // Requests at 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s: the last of these is no lag.
            (60_000, None, 6, false),
            // A missing object is not a sign of lag.
            (0, Some(404), 1, false),
            (500, Some(500), 4, false),
        ] {
            let (asked, result) = asked(Duration::from_millis(lag), code).await;
            assert_eq!((asked, result.is_ok()), (requests, good), "{lag} ms, then {code:?}");
        }
    }
}
