//! A fake Docker for tests.

use std::{path::Path, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::mpsc,
};

use super::Engine;

/// An engine whose Docker gives every request the same response, byte for byte, and then closes the connection.
pub(crate) fn answering(dir: &Path, answer: &'static str) -> Engine {
    recording(dir, answer).0
}

/// The same, with a channel of the first line of each request.
pub(crate) fn recording(dir: &Path, answer: &'static str) -> (Engine, mpsc::UnboundedReceiver<String>) {
    let (requests, received) = mpsc::unbounded_channel();
    let socket = dir.join("docker.sock");
    let listener = UnixListener::bind(&socket).expect("the socket of a fake Docker");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = requests.send(first_line(&mut stream).await);
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (Engine::new(&socket.to_string_lossy(), Arc::default()).expect("an engine"), received)
}

/// An engine whose Docker answers each request by its first line; a connection is kept open after an answer of 101, unless
/// that has the header `Ends`.
pub(crate) fn scripted(dir: &Path, answer: impl Fn(&str) -> String + Send + 'static) -> Engine {
    let socket = dir.join("docker.sock");
    let listener = UnixListener::bind(&socket).expect("the socket of a fake Docker");
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let line = first_line(&mut stream).await;
            let answer = answer(&line);
            let _ = stream.write_all(answer.as_bytes()).await;
            if answer.starts_with("HTTP/1.1 101") && !answer.contains("\r\nEnds:") {
                open.push(stream);
            }
        }
    });
    Engine::new(&socket.to_string_lossy(), Arc::default()).expect("an engine")
}

/// An answer with this body; the connection ends with it.
pub(crate) fn json(code: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

async fn first_line(stream: &mut UnixStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => break,
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    // The body too: closing a connection with something unread resets it.
    let length = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    };
    let mut body = vec![0; request.lines().find_map(length).unwrap_or_default()];
    let _ = stream.read_exact(&mut body).await;
    request.lines().next().unwrap_or_default().to_owned()
}
