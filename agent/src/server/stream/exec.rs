//! Connects a client's session with a process: exec and attach.

use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::Signal;
use tokio::{
    io::AsyncWriteExt as _,
    net::unix::OwnedWriteHalf,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

use super::session::{ExitStatus, Output, Session, Size};
use crate::engine::{
    Engine, EngineError,
    exec_attach::{Process, Streams},
    hijack::{Chunk, OutputReader},
};

/// Grace periods of a command without its client: after its terminal was hung up, and after its standard input was
/// closed. Upstream leaves it running for ever.
const HANGUP_GRACE: Duration = Duration::from_secs(2);
const STDIN_CLOSED_GRACE: Duration = Duration::from_secs(10);
/// Resizing fails until the process has started, which Docker does not report.
const RESIZE_RETRY_DELAY: Duration = Duration::from_millis(10);
const RESIZE_ATTEMPTS: u32 = 8;

/// Runs a process for a client until either ends. At `shutdown` the process is left alone: it is Docker's, and an upgrade of
/// the agent is no reason to end somebody's restore of a database. Its client is gone, though, and with it its input.
pub(super) async fn run(
    engine: Engine,
    process: Process,
    streams: Streams,
    session: Session,
    shutdown: &CancellationToken,
) {
    let Session { stdin, sizes, output, client_gone } = session;
    let joined = async {
        let attached = engine.attach(&process, streams).await?;
        let has_exited = has_exited(&engine, &process).await;
        Ok::<_, EngineError>((attached, has_exited))
    };
    let joined = tokio::select! {
        joined = joined => joined,
        () = shutdown.cancelled() => return,
        () = client_gone.cancelled() => {
            // It is a child of `shutdown`.
            if !shutdown.is_cancelled() {
                abandon(&engine, &process, streams).await;
            }
            return;
        }
    };
    let mut attached = match joined {
        Ok((_, true)) => return send_status(&output, ExitStatus::Done).await,
        Ok((attached, false)) => attached,
        Err(error) => return send_status(&output, ExitStatus::Failed(error.to_string())).await,
    };
    let input = tokio::spawn(copy_stdin(stdin, attached.input));
    let resizing = streams.tty.then(|| tokio::spawn(resize_terminal(engine.clone(), process.clone(), sizes)));
    if let Some(ended) = copy_output(&mut attached.output, &output, &client_gone).await {
        let status = match (ended, &process) {
            (Err(why), _) => Some(ExitStatus::Failed(format!("Docker's connection to the process broke: {why}"))),
            (Ok(()), Process::Main { .. }) => Some(ExitStatus::Done),
            (Ok(()), Process::Command { exec, .. }) => tokio::select! {
                // The client is gone before the exit code is known: report no success.
                () = client_gone.cancelled() => None,
                code = engine.exit_code(exec) => {
                    Some(code.map_or_else(|e| ExitStatus::Failed(e.to_string()), ExitStatus::Exited))
                }
            },
        };
        if let Some(status) = status {
            send_status(&output, status).await;
        }
    } else if shutdown.is_cancelled() {
        tracing::info!("leaving a command of a client alone, since the agent ends");
    } else {
        drop(output);
        terminate_orphan(&engine, &process, streams, attached.output).await;
    }
    input.abort();
    if let Some(task) = resizing {
        task.abort();
    }
}

/// Whether a container that was just attached to does not run any more. Docker attaches to an exited one, too, and then
/// waits for a next start that never comes. After attaching, an exit ends the streams, so that this is not too early;
/// the client takes the output from the log.
async fn has_exited(engine: &Engine, process: &Process) -> bool {
    let Process::Main { container } = process else { return false };
    match engine.inspect(container).await {
        Ok(found) => !found.is_some_and(|instance| instance.is_running()),
        // The streams say so when Docker is gone.
        Err(_) => false,
    }
}

async fn send_status(output: &mpsc::Sender<Output>, status: ExitStatus) {
    // A client that is gone receives nothing.
    let _ = output.send(Output::End(status)).await;
}

/// Copies the output to the client; `None` when the client is gone first.
async fn copy_output(
    reader: &mut OutputReader,
    output: &mpsc::Sender<Output>,
    client_gone: &CancellationToken,
) -> Option<std::io::Result<()>> {
    loop {
        let chunk = tokio::select! {
            biased;
            () = client_gone.cancelled() => return None,
            chunk = reader.next() => chunk,
        };
        let frame = match chunk {
            Ok(Some(Chunk::Stdout(bytes))) => Output::Stdout(bytes),
            Ok(Some(Chunk::Stderr(bytes))) => Output::Stderr(bytes),
            Ok(None) => return Some(Ok(())),
            Err(error) => return Some(Err(error)),
        };
        tokio::select! {
            () = client_gone.cancelled() => return None,
            sent = output.send(frame) => if sent.is_err() { return None },
        }
    }
}

/// Terminates a command whose client disconnected before Docker has confirmed its start: Docker may start it anyway.
async fn abandon(engine: &Engine, process: &Process, streams: Streams) {
    if let Process::Command { exec, container } = process
        && (streams.tty || streams.stdin)
    {
        engine.kill_command(exec, container).await;
    }
}

/// Terminates a command whose client is gone if it had a terminal or standard input. One that had neither keeps
/// running, as upstream: it may be meant to.
async fn terminate_orphan(engine: &Engine, process: &Process, streams: Streams, mut reader: OutputReader) {
    let Process::Command { exec, container } = process else { return };
    let grace = if streams.tty {
        if let Err(error) = engine.signal(exec, container, Signal::SIGHUP).await {
            tracing::warn!(%error, "failed to signal a command whose client is gone; it may still run");
        }
        HANGUP_GRACE
    } else if streams.stdin {
        STDIN_CLOSED_GRACE
    } else {
        return;
    };
    let rest = async { while let Ok(Some(_)) = reader.next().await {} };
    let _ = tokio::time::timeout(grace, rest).await;
    if let Err(error) = engine.signal(exec, container, Signal::SIGKILL).await {
        tracing::warn!(%error, "failed to signal a command whose client is gone; it may still run");
    }
}

/// Copies standard input to the process, and closes it when the client does.
async fn copy_stdin(stdin: Option<mpsc::Receiver<Bytes>>, mut input: OwnedWriteHalf) {
    let Some(mut stdin) = stdin else {
        // Some engines would end the output too if it was shut down.
        return std::future::pending().await;
    };
    while let Some(bytes) = stdin.recv().await {
        // The process reads no more, but the client still waits for its exit.
        if input.write_all(&bytes).await.is_err() {
            break;
        }
    }
    let _ = input.shutdown().await;
    std::future::pending().await
}

/// Resizes the terminal to the latest size.
async fn resize_terminal(engine: Engine, process: Process, mut sizes: watch::Receiver<Option<Size>>) {
    loop {
        let size = *sizes.borrow_and_update();
        if let Some(Size { width, height }) = size.filter(|s| s.width > 0 && s.height > 0) {
            let mut wait = RESIZE_RETRY_DELAY;
            for _ in 0..RESIZE_ATTEMPTS {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fake;

    /// An upgrade of the agent: Docker is asked for nothing that would end the command. Its client's end is another matter.
    #[tokio::test]
    async fn a_command_outlives_the_agent_and_not_its_client() {
        for agent_ends in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let asked = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
            let seen = std::sync::Arc::clone(&asked);
            let engine = fake::scripted(dir.path(), move |line| {
                seen.lock().push(line.to_owned());
                if line.starts_with("POST") && line.contains("/start") {
                    return "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".to_owned();
                }
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned()
            });
            let (output, _received) = mpsc::channel(4);
            let (_sizes, sizes) = watch::channel(None);
            let shutdown = CancellationToken::new();
            let client_gone = shutdown.child_token();
            let session = Session { stdin: None, sizes, output, client_gone: client_gone.clone() };
            let streams = Streams { stdin: false, stdout: true, stderr: false, tty: true };
            let process = Process::Command { exec: "e1".to_owned(), container: "c1".to_owned() };
            let running = tokio::spawn({
                let shutdown = shutdown.clone();
                async move { run(engine, process, streams, session, &shutdown).await }
            });
            tokio::time::timeout(Duration::from_secs(20), async {
                while asked.lock().is_empty() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
            .await
            .unwrap();
            if agent_ends {
                shutdown.cancel()
            } else {
                client_gone.cancel()
            }
            tokio::time::timeout(Duration::from_secs(20), running).await.unwrap().unwrap();
            // To signal a command, its process is asked for.
            let signalled = asked.lock().iter().any(|line| line.contains("/exec/e1/json"));
            assert_eq!(signalled, !agent_ends, "{:?}", asked.lock());
        }
    }

    /// A Docker that takes the request and never answers.
    #[tokio::test]
    async fn a_client_that_leaves_does_not_wait_for_docker() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let engine = Engine::new(&socket.to_string_lossy(), std::sync::Arc::default()).unwrap();
        let (output, mut received) = mpsc::channel(4);
        let (_, sizes) = watch::channel(None);
        let client_gone = CancellationToken::new();
        let session = Session { stdin: None, sizes, output, client_gone: client_gone.clone() };
        let streams = Streams { stdin: false, stdout: true, stderr: true, tty: false };
        let process = Process::Command { exec: "0e".to_owned(), container: "0a".to_owned() };
        let running =
            tokio::spawn(async move { run(engine, process, streams, session, &CancellationToken::new()).await });
        let _asked = listener.accept().await.unwrap();
        client_gone.cancel();
        running.await.unwrap();
        assert!(received.recv().await.is_none());
    }

    /// Docker's answers when a container exits before it is attached to: it attaches anyway, and sends nothing.
    #[tokio::test]
    async fn attaching_to_what_has_exited_ends() {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake::scripted(dir.path(), |line| {
            if line.contains("/attach") {
                return "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".to_owned();
            }
            let labels = r#"{"io.kubernetes.pod.uid":"u","io.kubernetes.pod.name":"p","io.kubernetes.pod.namespace":"n","io.kubernetes.container.name":"c","io.kubernetes.docker.type":"container"}"#;
            let state = r#"{"Status":"exited","Running":false,"ExitCode":0,"StartedAt":"2026-01-01T00:00:00Z","FinishedAt":"2026-01-01T00:00:01Z"}"#;
            let body = format!(
                r#"{{"Id":"0a","Created":"2026-01-01T00:00:00Z","Name":"/c","Image":"sha256:i","State":{state},"Config":{{"Labels":{labels}}}}}"#
            );
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        });
        let (output, mut received) = mpsc::channel(4);
        let (_, sizes) = watch::channel(None);
        let session = Session { stdin: None, sizes, output, client_gone: CancellationToken::new() };
        let streams = Streams { stdin: false, stdout: true, stderr: true, tty: false };
        let process = Process::Main { container: "0a".to_owned() };
        let ended = tokio::time::timeout(
            Duration::from_secs(20),
            run(engine, process, streams, session, &CancellationToken::new()),
        )
        .await;
        assert!(ended.is_ok(), "it waits for output that never comes");
        assert!(matches!(received.recv().await, Some(Output::End(ExitStatus::Done))));
    }
}
