//! What the Node authorizer refuses for a moment.
//!
//! A node may read what its pods use and nothing else. Each API server follows pods and nodes by itself to know which that
//! is, so for a second or two after a pod was bound it may refuse the pod's Secrets, ConfigMaps, claims, volumes and
//! tokens (403, `no relationship found between node 'n' and this object`); with several servers the answers alternate.
//! So a refusal is asked again, and told to nobody as long as it may be of that kind.

use std::time::Duration;

use tokio::time::Instant;
use windlass_kit::backoff::Backoff;

/// How long a refusal is nobody's business.
pub(crate) const LAG: Duration = Duration::from_secs(3);

/// When what was refused is asked again: soon, and never later than a person would.
pub(crate) const fn retries() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
}

/// Whether the API refused something that it may allow in a moment.
pub(crate) fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Asks until the answer is another than a refusal, or a refusal that has lasted too long to come of a lag.
///
/// # Errors
/// Those of the last request.
pub(crate) async fn past_lag<T, Answer>(mut ask: impl FnMut() -> Answer) -> kube::Result<T>
where
    Answer: Future<Output = kube::Result<T>>,
{
    let (begun, mut backoff) = (Instant::now(), retries());
    loop {
        match ask().await {
            Err(error) if is_refusal(&error) && begun.elapsed() < LAG => {
                tracing::debug!(%error, "the API does not know yet that a pod of this node uses an object; it is asked again");
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

    /// How often is asked, and what comes of it, when the API refuses for `lag`, and then answers with `code`.
    async fn asked(lag: Duration, code: Option<u16>) -> (usize, kube::Result<()>) {
        let (begun, mut times) = (Instant::now(), 0);
        let result = past_lag(|| {
            times += 1;
            let code = if begun.elapsed() < lag { Some(403) } else { code };
            std::future::ready(code.map_or(Ok(()), |code| Err(answered(code))))
        });
        let result = result.await;
        (times, result)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_asked_again_for_as_long_as_the_authorizer_may_lag() {
        for (lag, code, times, good) in [
            (0, None, 1, true),
            (1, None, 2, true),
            (1000, None, 5, true),
            (2900, None, 6, true),
            // Asked at 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s: the last of these is no lag.
            (60_000, None, 6, false),
            // What is not there is not there.
            (0, Some(404), 1, false),
            (500, Some(500), 4, false),
        ] {
            let (asked, result) = asked(Duration::from_millis(lag), code).await;
            assert_eq!((asked, result.is_ok()), (times, good), "{lag} ms, then {code:?}");
        }
    }
}
