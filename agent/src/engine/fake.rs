//! A Docker that answers as a test wants it.

use std::{path::Path, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
    sync::mpsc,
};

use super::Engine;

/// An engine whose Docker gives every request the same answer, byte for byte, and then closes the connection.
pub(crate) fn that_answers(dir: &Path, answer: &'static str) -> Engine {
    that_hears(dir, answer).0
}

/// The same, with the first line of each request.
pub(crate) fn that_hears(dir: &Path, answer: &'static str) -> (Engine, mpsc::UnboundedReceiver<String>) {
    let (tell, heard) = mpsc::unbounded_channel();
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
            let _ = tell.send(String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (Engine::new(&socket.to_string_lossy(), Arc::default()).expect("an engine"), heard)
}
