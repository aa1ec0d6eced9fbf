//! Bodies of requests with their limits, and of answers with what is noted of how they are taken.

use std::{
    error::Error,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    limits::{BODY_BYTES_IN_FLIGHT, BODY_TIMEOUT},
    open::RequestGuard,
    stall::Progress,
};

/// An answer is handed on in pieces of this size, so that it is seen how it is taken, and so that no more than a piece
/// of it lies in a connection whose client takes nothing.
const PIECE: usize = 64 << 10;

/// Why the body of a request was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It did not come in time.
    #[error("the body of the request did not come within {} s", BODY_TIMEOUT.as_secs())]
    Timeout,
    /// The server holds too many bytes of other requests.
    #[error("the server holds too much of other requests; try again later")]
    Busy,
}

impl BodyError {
    /// The one among the causes of an error.
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

/// The bytes of requests that a server holds.
#[derive(Debug, Clone)]
pub(super) struct InFlight(Arc<Semaphore>);

impl InFlight {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BODY_BYTES_IN_FLIGHT)))
    }

    /// What one request of a client holds of them.
    pub(super) fn request(&self, server: &'static str, client: Option<IpAddr>) -> Held {
        Held { bytes: self.clone(), permit: Arc::default(), server, client }
    }
}

/// The bytes of one request, until all that share this are dropped or it is released.
#[derive(Debug, Clone)]
pub(super) struct Held {
    bytes: InFlight,
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    server: &'static str,
    client: Option<IpAddr>,
}

impl Held {
    /// The log says whose request was given up: its answer may never be read.
    fn refused(&self, error: BodyError) -> BodyError {
        let client = self.client.map(tracing::field::display);
        tracing::warn!(server = self.server, client, %error, "a request was given up");
        error
    }

    fn add(&self, bytes: usize) -> Result<(), BodyError> {
        let count = u32::try_from(bytes).map_err(|_| BodyError::Busy)?;
        let more = Arc::clone(&self.bytes.0).try_acquire_many_owned(count).map_err(|_| BodyError::Busy)?;
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        match permit.as_mut() {
            Some(permit) => permit.merge(more),
            None => *permit = Some(more),
        }
        Ok(())
    }

    /// The request is answered: nobody holds its body any more.
    pub(super) fn release(&self) {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct RequestBody<B> {
    body: B,
    held: Held,
    until: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl RequestBody<Incoming> {
    pub(super) fn wrap(body: Incoming, held: Held) -> Body {
        Body::new(Self::new(body, held))
    }
}

impl<B> RequestBody<B> {
    fn new(body: B, held: Held) -> Self {
        Self { body, held, until: Instant::now() + BODY_TIMEOUT, timer: None }
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
                let held = self.held.add(frame.data_ref().map_or(0, Bytes::len));
                Poll::Ready(Some(held.map(|()| frame).map_err(|error| self.held.refused(error).into())))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let until = self.until;
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
                timer.as_mut().poll(cx).map(|()| Some(Err(self.held.refused(BodyError::Timeout).into())))
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

/// The body of an answer, which keeps its request open until it was sent.
#[derive(Debug)]
pub(super) struct ResponseBody {
    body: Body,
    /// What is left of a frame.
    rest: Bytes,
    long_running: bool,
    progress: Arc<Progress>,
    guard: Arc<RequestGuard>,
}

impl ResponseBody {
    pub(super) fn wrap(body: Body, long_running: bool, progress: Arc<Progress>, guard: Arc<RequestGuard>) -> Body {
        Body::new(Self { body, rest: Bytes::new(), long_running, progress, guard })
    }

    fn hand_on(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        Frame::data(piece)
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
                        Poll::Ready(Some(Ok(self.hand_on())))
                    }
                    Err(other) => Poll::Ready(Some(Ok(other))),
                },
                other => other,
            }
        } else {
            Poll::Ready(Some(Ok(self.hand_on())))
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

    /// The next frame of a body, as a list of how many bytes it has.
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

    /// A body that gives its frames and then nothing any more.
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
        let mut body = RequestBody::new(Endless(vec![3]), InFlight::new().request("a test", None));
        assert_eq!(next(&mut body).await, Ok(3));
        let begun = Instant::now();
        assert_eq!(next(&mut body).await, Err(BodyError::Timeout));
        assert_eq!(begun.elapsed(), BODY_TIMEOUT);
    }

    #[tokio::test]
    async fn what_all_requests_hold_is_bounded_and_given_back() {
        let all = InFlight::new();
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
