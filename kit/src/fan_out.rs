//! Many requests concurrently, with a bound.

use std::future::Future;

use futures::{StreamExt, stream};

/// Requests that one reconciliation, or one decision of the scheduler, has in flight. What it writes may be any number; the API, which serves others too, is
/// not to see it all at once.
pub const WIDTH: usize = 32;

/// Runs futures, at most [`WIDTH`] concurrently; their outputs come in their order.
pub async fn bounded_join<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    // Collected first: a stream of a borrowing iterator is not `Send`.
    let futures: Vec<F> = futures.into_iter().collect();
    stream::iter(futures).buffered(WIDTH).collect().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn no_more_than_its_width_is_in_flight_and_the_order_stays() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let outputs = bounded_join((0..300).map(|i| {
            let (now, most) = (&now, &most);
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                i
            }
        }))
        .await;
        assert_eq!(outputs, (0..300).collect::<Vec<_>>());
        assert_eq!(most.into_inner(), WIDTH);
    }
}
