//! Blocking work, which must not run on the runtime's worker threads.

use std::io;

use tokio::task::JoinError;

/// Runs `work` on a thread for blocking work. When it does not end, because it panicked or the runtime stops, the
/// error is that of `lost`.
///
/// # Errors
/// Those of the work, and of `lost`.
pub async fn run<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
    lost: impl FnOnce(JoinError) -> E,
) -> Result<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(lost(error)))
}

/// [`run`] for I/O.
///
/// # Errors
/// Those of the work; [`io::ErrorKind::Other`] when it did not end.
pub async fn io<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    run(work, io::Error::other).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error() {
        assert_eq!(run(|| Ok::<_, String>(1), |error| error.to_string()).await, Ok(1));
        assert_eq!(run(|| Err::<(), _>("no".to_owned()), |error| error.to_string()).await, Err("no".to_owned()));
        let lost = io(|| -> io::Result<()> { std::panic::panic_any(()) }).await;
        assert_eq!(lost.unwrap_err().kind(), io::ErrorKind::Other);
    }
}
