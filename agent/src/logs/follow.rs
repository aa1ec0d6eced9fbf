//! The stream that a client gets: pieces as they are read, and at the end, for those who follow, what comes later.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use windlass_kit::{blocking, inotify::Watch};

use super::{
    LogRequest,
    reader::{Left, PIECE, Reader},
};

/// Pieces that wait for a slow client.
const WAITING: usize = 2;
/// A container that prints without end is looked at this often at most.
const GATHER: Duration = Duration::from_millis(10);
/// Where the kernel has no watch left to give.
const POLL: Duration = Duration::from_millis(250);

/// Ends when the container has ended, after which nothing is added to its log.
pub(crate) type Follow = BoxFuture<'static, ()>;

/// What was printed to the log whose newest file is `path`.
///
/// # Errors
/// When the log cannot be opened; what breaks later ends the stream.
pub(crate) async fn stream(
    path: &Path,
    request: LogRequest,
    ended: Follow,
) -> io::Result<ReceiverStream<io::Result<Bytes>>> {
    let follow = request.follow;
    // Watched before it is read, so that nothing falls between.
    let watch = path.parent().filter(|_| follow).and_then(|dir| {
        Watch::new(dir, Watch::WRITES).inspect_err(|error| {
            tracing::debug!(%error, folder = %dir.display(), "a log cannot be watched and is looked at instead; fs.inotify.max_user_instances may be too low");
        }).ok()
    });
    let path = path.to_owned();
    let reader = blocking::io(move || Reader::open(&path, request)).await?;
    let (tell, pieces) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        if let Err(error) = run(reader, watch, ended, &tell).await {
            let _ = tell.send(Err(error)).await;
        }
    });
    Ok(ReceiverStream::new(pieces))
}

async fn run(
    reader: Reader,
    watch: Option<Watch>,
    ended: Follow,
    tell: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let reader = Arc::new(Mutex::new(reader));
    let mut ended = ended.fuse();
    let mut over = false;
    loop {
        let shared = Arc::clone(&reader);
        let (piece, left) = blocking::io(move || {
            let mut reader = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let mut piece = Vec::with_capacity(PIECE + (64 << 10));
            let mut left = reader.fill(&mut piece)?;
            if left == Left::Nothing && piece.is_empty() && reader.follow_rotation()? {
                left = Left::More;
            }
            Ok((piece, left))
        })
        .await?;
        let silent = piece.is_empty();
        if !silent {
            // A follower's few bytes must not keep a large buffer each while the client is slow.
            let piece = if piece.len() < PIECE / 4 { Bytes::copy_from_slice(&piece) } else { Bytes::from(piece) };
            if tell.send(Ok(piece)).await.is_err() {
                return Ok(());
            }
        }
        match left {
            Left::Done => return Ok(()),
            Left::More => continue,
            // Once more, since a rotation is looked for when nothing was read.
            Left::Nothing if !silent => {
                tokio::time::sleep(GATHER).await;
                continue;
            }
            Left::Nothing if over => return Ok(()),
            Left::Nothing => {}
        }
        let changed = async {
            match &watch {
                Some(watch) => watch.changed().await,
                None => {
                    tokio::time::sleep(POLL).await;
                    Ok(())
                }
            }
        };
        tokio::select! {
            () = tell.closed() => return Ok(()),
            changed = changed => changed?,
            () = &mut ended => over = true,
        }
    }
}
