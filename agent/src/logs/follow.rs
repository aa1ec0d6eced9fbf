//! Streams a log to a client, in chunks as they are read; with `follow` also what is written later.

use std::{io, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use windlass_kit::{blocking::LOGS, inotify::Watch};

use super::{
    LogRequest,
    reader::{CHUNK_BYTES, ReadState, Reader},
};

/// Chunks that are buffered for a slow client.
const CHUNK_QUEUE_CAPACITY: usize = 2;
/// The shortest interval between reads of a log that grows without pause.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(10);
/// How often the files are polled when the kernel has no inotify watch left.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Resolves when the container has exited, after which nothing is added to its log.
pub(crate) type ContainerExit = BoxFuture<'static, ()>;

/// Streams the log whose newest file is `path`, until `ended` if it follows.
///
/// # Errors
/// When the log cannot be opened; later errors end the stream.
pub(crate) async fn stream(
    path: &Path,
    request: LogRequest,
    ended: ContainerExit,
) -> io::Result<ReceiverStream<io::Result<Bytes>>> {
    let follow = request.follow;
    // Watched before the first read, so that no write falls between.
    let watch = path.parent().filter(|_| follow).and_then(|dir| {
        Watch::new(dir, Watch::WRITES).inspect_err(|error| {
            tracing::debug!(%error, folder = %dir.display(), "failed to watch log directory, polling instead; fs.inotify.max_user_watches may be too low");
        }).ok()
    });
    let path = path.to_owned();
    let reader = LOGS.io(move || Reader::open(&path, request)).await?;
    let (sender, chunks) = mpsc::channel(CHUNK_QUEUE_CAPACITY);
    tokio::spawn(async move {
        if let Err(error) = run(reader, watch, ended, &sender).await {
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(ReceiverStream::new(chunks))
}

async fn run(
    reader: Reader,
    watch: Option<Watch>,
    ended: ContainerExit,
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let reader = Arc::new(Mutex::new(reader));
    let mut ended = ended.fuse();
    let mut exited = false;
    loop {
        let shared = Arc::clone(&reader);
        let (chunk, state) = LOGS
            .io(move || {
                let mut reader = shared.lock();
                let mut chunk = Vec::with_capacity(reader.expected());
                let mut state = reader.fill(&mut chunk)?;
                if state == ReadState::CaughtUp && chunk.is_empty() && reader.follow_rotation()? {
                    state = ReadState::More;
                }
                Ok((chunk, state))
            })
            .await?;
        let silent = chunk.is_empty();
        if !silent {
            // A few bytes must not hold a large buffer each while the client is slow.
            let chunk = if chunk.len() < CHUNK_BYTES / 4 { Bytes::copy_from_slice(&chunk) } else { Bytes::from(chunk) };
            if sender.send(Ok(chunk)).await.is_err() {
                return Ok(());
            }
        }
        match state {
            ReadState::Done => return Ok(()),
            ReadState::More => continue,
            // Read once more: rotation is only checked when nothing was read.
            ReadState::CaughtUp if !silent => {
                tokio::time::sleep(MIN_READ_INTERVAL).await;
                continue;
            }
            ReadState::CaughtUp if exited => return Ok(()),
            ReadState::CaughtUp => {}
        }
        let changed = async {
            match &watch {
                Some(watch) => watch.changed().await,
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        };
        tokio::select! {
            () = sender.closed() => return Ok(()),
            () = changed => {}
            () = &mut ended => exited = true,
        }
    }
}
