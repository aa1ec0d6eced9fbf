//! Bodies of requests with their limits, and of responses with the progress of their clients.

use std::{
    error::Error,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    connection_limit::RequestGuard,
    limits::{BODY_BYTES_IN_FLIGHT, BODY_TIMEOUT},
    stall::Progress,
};

/// A response is passed on in chunks of this size, so that progress is visible, and a stalled connection buffers at
/// most one chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// Why the body of a request was not read completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It did not arrive in time.
    #[error("the body of the request did not come within {} s", BODY_TIMEOUT.as_secs())]
    Timeout,
    /// The bodies of other requests use all of the memory for them.
    #[error("the server holds too much of other requests; try again later")]
    Busy,
}

impl BodyError {
    /// Finds it among the causes of an error.
    #[must_use]
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(*found);
            }
            cause = error.source();
        }
        None
    }
}

/// The memory for requests' bodies of one server.
#[derive(Debug, Clone)]
pub(super) struct BodyMemoryLimit(Arc<Semaphore>);

impl BodyMemoryLimit {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BODY_BYTES_IN_FLIGHT)))
    }

    /// The share of one request.
    pub(super) fn request(&self, server: &'static str, client: Option<IpAddr>) -> BodyMemory {
        BodyMemory { limit: self.clone(), permit: Arc::default(), streaming: BodyStreaming::default(), server, client }
    }
}

/// Extension of requests: whether their handler passes the body on as it arrives. It holds nothing of it then, and the
/// body may take as long as its receiver takes.
#[derive(Debug, Clone, Default)]
pub struct BodyStreaming(Arc<AtomicBool>);

impl BodyStreaming {
    /// Lifts the limits for bodies that are collected, from now on.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The memory of one request, until all clones are dropped or it is released.
#[derive(Debug, Clone)]
pub(super) struct BodyMemory {
    limit: BodyMemoryLimit,
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    streaming: BodyStreaming,
    server: &'static str,
    client: Option<IpAddr>,
}

impl BodyMemory {
    /// Logs whose request was aborted: its response may never be read.
    fn refused(&self, error: BodyError) -> BodyError {
        let client = self.client.map(tracing::field::display);
        tracing::warn!(server = self.server, client, %error, "aborted a request");
        error
    }

    /// What the handler of the request decides on.
    pub(super) fn streaming(&self) -> BodyStreaming {
        self.streaming.clone()
    }

    fn add(&self, bytes: usize) -> Result<(), BodyError> {
        if self.streaming.has_begun() {
            return Ok(());
        }
        let count = u32::try_from(bytes).map_err(|_| BodyError::Busy)?;
        let more = Arc::clone(&self.limit.0).try_acquire_many_owned(count).map_err(|_| BodyError::Busy)?;
        let mut permit = self.permit.lock();
        match permit.as_mut() {
            Some(permit) => permit.merge(more),
            None => *permit = Some(more),
        }
        Ok(())
    }

    /// The request is answered: its body is no longer used.
    pub(super) fn release(&self) {
        self.permit.lock().take();
    }
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct RequestBody<B> {
    body: B,
    memory: BodyMemory,
    until: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl RequestBody<Incoming> {
    pub(super) fn wrap(body: Incoming, memory: BodyMemory) -> Body {
        Body::new(Self::new(body, memory))
    }
}

impl<B> RequestBody<B> {
    fn new(body: B, memory: BodyMemory) -> Self {
        Self { body, memory, until: Instant::now() + BODY_TIMEOUT, timer: None }
    }
}

impl<B> HttpBody for RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let memory = self.memory.add(frame.data_ref().map_or(0, Bytes::len));
                Poll::Ready(Some(memory.map(|()| frame).map_err(|error| self.memory.refused(error).into())))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending if self.memory.streaming.has_begun() => Poll::Pending,
            Poll::Pending => {
                let until = self.until;
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
                timer.as_mut().poll(cx).map(|()| Some(Err(self.memory.refused(BodyError::Timeout).into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response, whose request counts as open until it is sent.
#[derive(Debug)]
pub(super) struct ResponseBody {
    body: Body,
    /// The rest of a frame.
    rest: Bytes,
    long_running: bool,
    progress: Arc<Progress>,
    guard: Arc<RequestGuard>,
}

impl ResponseBody {
    pub(super) fn wrap(body: Body, long_running: bool, progress: Arc<Progress>, guard: Arc<RequestGuard>) -> Body {
        Body::new(Self { body, rest: Bytes::new(), long_running, progress, guard })
    }

    fn next_chunk(&mut self) -> Frame<Bytes> {
        Frame::data(self.rest.split_to(self.rest.len().min(CHUNK_BYTES)))
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = if self.rest.is_empty() {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        self.rest = data;
                        Poll::Ready(Some(Ok(self.next_chunk())))
                    }
                    Err(other) => Poll::Ready(Some(Ok(other))),
                },
                other => other,
            }
        } else {
            Poll::Ready(Some(Ok(self.next_chunk())))
        };
        self.guard.progressed();
        if !self.long_running {
            match &frame {
                Poll::Ready(Some(_)) => self.progress.waits_for_client(),
                Poll::Ready(None) | Poll::Pending => self.progress.waits_for_server(),
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of the next frame of a body.
    async fn next(
        body: &mut (impl HttpBody<Data = Bytes, Error = axum::BoxError> + Unpin),
    ) -> Result<usize, BodyError> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        match frame {
            Some(Ok(frame)) => Ok(frame.data_ref().map_or(0, Bytes::len)),
            Some(Err(error)) => Err(BodyError::of(error.as_ref()).unwrap()),
            None => Ok(0),
        }
    }

    /// A body that has some frames and then never another one.
    struct Endless(Vec<usize>);

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            match self.0.pop() {
                Some(length) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; length]))))),
                None => Poll::Pending,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let mut body = RequestBody::new(Endless(vec![3]), BodyMemoryLimit::new().request("a test", None));
        assert_eq!(next(&mut body).await, Ok(3));
        let begun = Instant::now();
        assert_eq!(next(&mut body).await, Err(BodyError::Timeout));
        assert_eq!(begun.elapsed(), BODY_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_passed_on_has_no_limits() {
        let all = BodyMemoryLimit::new();
        let memory = all.request("a test", None);
        memory.streaming().begin();
        let mut body = RequestBody::new(Endless(vec![BODY_BYTES_IN_FLIGHT, BODY_BYTES_IN_FLIGHT]), memory);
        for _ in 0..2 {
            assert_eq!(next(&mut body).await, Ok(BODY_BYTES_IN_FLIGHT));
        }
        assert!(tokio::time::timeout(2 * BODY_TIMEOUT, next(&mut body)).await.is_err());
        assert_eq!(all.0.available_permits(), BODY_BYTES_IN_FLIGHT);
    }

    #[tokio::test]
    async fn what_all_requests_hold_is_bounded_and_given_back() {
        let all = BodyMemoryLimit::new();
        let (first, second) = (all.request("a test", None), all.request("a test", None));
        let mut greedy = RequestBody::new(Endless(vec![1, BODY_BYTES_IN_FLIGHT - 10]), first.clone());
        assert_eq!(next(&mut greedy).await, Ok(BODY_BYTES_IN_FLIGHT - 10));
        let mut other = RequestBody::new(Endless(vec![20, 20]), second);
        assert_eq!(next(&mut other).await, Err(BodyError::Busy));
        assert_eq!(next(&mut greedy).await, Ok(1));
        first.release();
        assert_eq!(next(&mut other).await, Ok(20));
        drop(greedy);
        drop(first);
        assert_eq!(all.0.available_permits(), BODY_BYTES_IN_FLIGHT - 20);
        drop(other);
        assert_eq!(all.0.available_permits(), BODY_BYTES_IN_FLIGHT);
    }

    #[test]
    fn the_cause_is_found_under_what_it_is_wrapped_in() {
        let wrapped = axum::Error::new(axum::Error::new(BodyError::Busy));
        assert_eq!(BodyError::of(&wrapped), Some(BodyError::Busy));
        assert_eq!(BodyError::of(&std::io::Error::other("x")), None);
    }
}
