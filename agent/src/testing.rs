//! For tests alone.

use std::time::Duration;

/// Waits until something holds; a busy machine may take a while.
///
/// # Panics
/// When it does not hold within a minute.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not within a minute: {what}");
}
