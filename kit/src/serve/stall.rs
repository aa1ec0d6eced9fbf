//! Clients that do not read their responses. hyper polls the body of a response on an HTTP/2 stream only while its
//! window is open, and a stream that waits for its window is reset after [`WRITE_TIMEOUT`]. For a connection, the time
//! since its socket blocks is recorded.

use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use hyper::rt::Executor;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep_until},
};

use super::{
    connection_limit::ConnectionGuard,
    counts::{Counts, Reason},
    limits::WRITE_TIMEOUT,
};

/// Since when a response waits for its client.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<Option<tokio::time::Instant>>);

impl Progress {
    fn since(&self) -> MutexGuard<'_, Option<tokio::time::Instant>> {
        self.0.lock()
    }

    /// The response waits for the client from now on.
    pub(super) fn waits_for_client(&self) {
        *self.since() = Some(tokio::time::Instant::now());
    }

    /// The response waits for the server.
    pub(super) fn waits_for_server(&self) {
        *self.since() = None;
    }
}

tokio::task_local! {
    /// Of the stream of the running task.
    static PROGRESS: Arc<Progress>;
}

/// Of the HTTP/2 stream of the caller; an unused one for HTTP/1, where the socket blocks.
pub(super) fn current_stream() -> Arc<Progress> {
    PROGRESS.try_with(Arc::clone).unwrap_or_default()
}

/// Runs the streams of one HTTP/2 connection, each as a task that ends when its client stalls.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    pub(super) server: &'static str,
    pub(super) client: Option<IpAddr>,
    pub(super) counts: Arc<Counts>,
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let (server, client, counts) = (self.server, self.client, Arc::clone(&self.counts));
        let task = TimeLimited { stream: Box::pin(stream), progress: Arc::default(), timer: None };
        tokio::spawn(async move {
            if task.await.is_err() {
                counts.dropped(Reason::Stalled);
                let client = client.map(tracing::field::display);
                tracing::warn!(server, client, "reset a stream: its client takes nothing of its answer");
            }
        });
    }
}

/// A stream with a timeout.
struct TimeLimited<F> {
    stream: Pin<Box<F>>,
    progress: Arc<Progress>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// The client stalled for too long.
#[derive(Debug)]
struct Stalled;

impl<F: Future> Future for TimeLimited<F> {
    type Output = Result<(), Stalled>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { stream, progress, timer } = &mut *self;
        if PROGRESS.sync_scope(Arc::clone(progress), || stream.as_mut().poll(cx)).is_ready() {
            return Poll::Ready(Ok(()));
        }
        // The progress changes only while the stream is polled, so that no timer is needed for one that does not wait.
        let Some(since) = *progress.since() else { return Poll::Pending };
        let until = since + WRITE_TIMEOUT;
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(Stalled))
    }
}

/// Since when a connection's socket blocks.
#[derive(Debug, Default)]
pub(super) struct Writes(Mutex<Option<Instant>>);

impl Writes {
    pub(super) fn record<T>(&self, written: &Poll<io::Result<T>>) {
        let mut blocked = self.0.lock();
        if written.is_pending() {
            blocked.get_or_insert_with(Instant::now);
        } else {
            *blocked = None;
        }
    }

    pub(super) fn blocked_for(&self, now: Instant) -> Option<std::time::Duration> {
        let blocked = *self.0.lock();
        blocked.map(|since| now.saturating_duration_since(since))
    }
}

/// The socket of a connection, which counts as open until this is dropped; with an upgrade that is later than the end
/// of HTTP on it.
#[derive(Debug)]
pub(super) struct Socket<S> {
    pub(super) inner: S,
    pub(super) guard: Arc<ConnectionGuard>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.guard.writes().record(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.guard.writes().record(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_client_that_takes_nothing_ends_a_stream() {
        let begun = tokio::time::Instant::now();
        let limited = |stream| TimeLimited { stream: Box::pin(stream), progress: Arc::default(), timer: None };
        let server_is_slow = limited(async {
            current_stream().waits_for_client();
            current_stream().waits_for_server();
            tokio::time::sleep(WRITE_TIMEOUT * 3).await;
            std::future::ready(()).await;
        });
        assert!(server_is_slow.await.is_ok());
        assert_eq!(begun.elapsed(), WRITE_TIMEOUT * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_whose_client_takes_nothing_ends() {
        let begun = tokio::time::Instant::now();
        let stalled = TimeLimited {
            stream: Box::pin(async {
                current_stream().waits_for_client();
                tokio::time::sleep(WRITE_TIMEOUT / 2).await;
                // A part was read meanwhile, so the timeout starts again.
                current_stream().waits_for_client();
                std::future::pending::<()>().await;
            }),
            progress: Arc::default(),
            timer: None,
        };
        assert!(stalled.await.is_err());
        assert_eq!(begun.elapsed(), WRITE_TIMEOUT * 3 / 2);
    }
}
