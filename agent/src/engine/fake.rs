//! A fake Docker for tests.

use std::{path::Path, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
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
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => request.push(byte),
                    Err(_) => break,
                }
            }
            let _ = requests.send(String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (Engine::new(&socket.to_string_lossy(), Arc::default()).expect("an engine"), received)
}
