//! The events of a watch, one of which may fail, or all of them be held.

use std::{io, time::Duration};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    response::Response,
};
use futures::{StreamExt as _, stream};
use serde_json::json;
use tower::BoxError;

use super::{EventFault, Faults};

/// How late the events of a server are that lags behind another.
const LAG: Duration = Duration::from_secs(10);

/// The lines of a watch.
struct Lines {
    chunks: BodyDataStream,
    buffer: Vec<u8>,
    faults: Faults,
    plural: String,
    /// What comes last.
    last: Option<Option<BoxError>>,
}

pub(super) fn watched(faults: Faults, plural: String, answer: Response) -> Response {
    let (parts, body) = answer.into_parts();
    let lines = Lines { chunks: body.into_data_stream(), buffer: Vec::new(), faults, plural, last: None };
    let lines = stream::unfold(lines, async |mut lines| lines.next().await.map(|line| (line, lines)));
    Response::from_parts(parts, Body::from_stream(lines))
}

impl Lines {
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        if let Some(last) = &mut self.last {
            return last.take().map(Err);
        }
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                if self.faults.has_ended() {
                    std::future::pending::<()>().await;
                }
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return self.deliver(line.into()).await;
            }
            match self.chunks.next().await {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => return Some(Err(error.into())),
                None => return None,
            }
        }
    }

    async fn deliver(&mut self, line: Bytes) -> Option<Result<Bytes, BoxError>> {
        self.faults.released(&self.plural).await;
        let half = line.slice(..line.len() / 2);
        let error = |code: u16, reason: &str| {
            let object = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                "reason": reason, "message": "a test wants it so"});
            Bytes::from(format!("{}\n", json!({"type": "ERROR", "object": object})))
        };
        let (piece, end) = match self.faults.of_event(&line) {
            None => return Some(Ok(line)),
            Some(EventFault::Lags) => {
                tokio::time::sleep(LAG).await;
                return Some(Ok(line));
            }
            Some(EventFault::Ends) => (None, None),
            Some(EventFault::BreaksOff) => (Some(half), Some(io::Error::from(io::ErrorKind::ConnectionReset).into())),
            Some(EventFault::EndsWithin) => (Some(half), None),
            Some(EventFault::Expired) => (Some(error(410, "Expired")), None),
            Some(EventFault::Error) => (Some(error(500, "InternalError")), None),
        };
        self.last = Some(end);
        piece.map(Ok)
    }
}
