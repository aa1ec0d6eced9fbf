//! A process with a client at its other end: bytes both ways, sizes of the terminal, and how it ended.

use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::Signal;
use tokio::{
    io::AsyncWriteExt as _,
    net::unix::OwnedWriteHalf,
    sync::{mpsc, watch},
};

use super::session::{Ending, Output, Session, Size};
use crate::engine::{
    Engine,
    attached::{Chunk, Printed},
    process::{Process, Streams},
};

/// How long a command may go on without its client, once its terminal has hung up or its input has ended. Upstream
/// leaves it alone for ever.
const AFTER_HANGUP: Duration = Duration::from_secs(2);
const AFTER_INPUT: Duration = Duration::from_secs(10);
/// A size is refused until the process has begun, of which Docker says nothing.
const RESIZE_AGAIN: Duration = Duration::from_millis(10);
const RESIZE_TRIES: u32 = 8;

/// Runs a process for a client, to the end of either.
pub(super) async fn run(engine: Engine, process: Process, streams: Streams, session: Session) {
    let Session { stdin, sizes, output, gone } = session;
    let mut attached = match engine.attach(&process, streams).await {
        Ok(attached) => attached,
        Err(error) => return end(&output, Ending::Failed(error.to_string())).await,
    };
    let input = tokio::spawn(feed(stdin, attached.input));
    let resizing = streams.tty.then(|| tokio::spawn(follow_size(engine.clone(), process.clone(), sizes)));
    if let Some(ended) = pass(&mut attached.output, &output, &gone).await {
        let ending = match (ended, &process) {
            (Err(why), _) => Some(Ending::Failed(format!("Docker's connection to the process broke: {why}"))),
            (Ok(()), Process::Main { .. }) => Some(Ending::Done),
            (Ok(()), Process::Command { exec, .. }) => tokio::select! {
                // How it ends nobody has seen, so nobody is told of a good end.
                () = gone.cancelled() => None,
                code = engine.exit_code(exec) => {
                    Some(code.map_or_else(|e| Ending::Failed(e.to_string()), Ending::Exited))
                }
            },
        };
        if let Some(ending) = ending {
            end(&output, ending).await;
        }
    } else {
        drop(output);
        abandon(&engine, &process, streams, attached.output).await;
    }
    input.abort();
    if let Some(task) = resizing {
        task.abort();
    }
}

async fn end(output: &mpsc::Sender<Output>, ending: Ending) {
    // A client that is gone wants to know nothing.
    let _ = output.send(Output::End(ending)).await;
}

/// Passes on what the process prints; `None` when the client goes first.
async fn pass(
    printed: &mut Printed,
    output: &mpsc::Sender<Output>,
    gone: &tokio_util::sync::CancellationToken,
) -> Option<std::io::Result<()>> {
    loop {
        let chunk = tokio::select! {
            biased;
            () = gone.cancelled() => return None,
            chunk = printed.next() => chunk,
        };
        let piece = match chunk {
            Ok(Some(Chunk::Stdout(bytes))) => Output::Stdout(bytes),
            Ok(Some(Chunk::Stderr(bytes))) => Output::Stderr(bytes),
            Ok(None) => return Some(Ok(())),
            Err(error) => return Some(Err(error)),
        };
        tokio::select! {
            () = gone.cancelled() => return None,
            sent = output.send(piece) => if sent.is_err() { return None },
        }
    }
}

/// Ends what was at somebody's terminal or waited for their input. A command that had neither goes on without its
/// client, as it does upstream: people start such and leave.
async fn abandon(engine: &Engine, process: &Process, streams: Streams, mut printed: Printed) {
    let Process::Command { exec, container } = process else { return };
    let patience = if streams.tty {
        if let Err(error) = engine.signal(exec, container, Signal::SIGHUP).await {
            tracing::warn!(%error, "a command whose client is gone may still run");
        }
        AFTER_HANGUP
    } else if streams.stdin {
        AFTER_INPUT
    } else {
        return;
    };
    let rest = async { while let Ok(Some(_)) = printed.next().await {} };
    let _ = tokio::time::timeout(patience, rest).await;
    if let Err(error) = engine.signal(exec, container, Signal::SIGKILL).await {
        tracing::warn!(%error, "a command whose client is gone may still run");
    }
}

/// Hands input to the process and closes it at the client's end.
async fn feed(stdin: Option<mpsc::Receiver<Bytes>>, mut input: OwnedWriteHalf) {
    let Some(mut stdin) = stdin else {
        // Shut down, it would end the output of some engines too.
        return std::future::pending().await;
    };
    while let Some(bytes) = stdin.recv().await {
        // Whoever sends more to a process that reads nothing any more still waits for its end.
        if input.write_all(&bytes).await.is_err() {
            break;
        }
    }
    let _ = input.shutdown().await;
    std::future::pending().await
}

/// Keeps the terminal at the newest size.
async fn follow_size(engine: Engine, process: Process, mut sizes: watch::Receiver<Option<Size>>) {
    loop {
        let size = *sizes.borrow_and_update();
        if let Some(Size { width, height }) = size.filter(|s| s.width > 0 && s.height > 0) {
            let mut wait = RESIZE_AGAIN;
            for _ in 0..RESIZE_TRIES {
                if engine.resize(&process, width, height).await.is_ok() {
                    break;
                }
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
        }
        if sizes.changed().await.is_err() {
            return;
        }
    }
}
