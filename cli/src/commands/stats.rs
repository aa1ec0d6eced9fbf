//! What the node of this machine tells on its read-only port.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::Context as _;
use serde::de::DeserializeOwned;

/// How long the node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads one JSON page.
///
/// # Errors
/// When nobody answers there, or something else.
pub(super) fn ask<T: DeserializeOwned>(address: SocketAddr, path: &str) -> anyhow::Result<T> {
    let answer = page(address, path)
        .with_context(|| format!("the node's figures at http://{address}{path} could not be read; is windlass up? Another address is given with --stats-bind-address"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or("");
    anyhow::ensure!(
        status.contains(" 200 "),
        "http://{address}{path} answered {status:?}: it is not a windlass of this version that listens there"
    );
    serde_json::from_str(body).with_context(|| format!("the answer of http://{address}{path} cannot be read"))
}

fn page(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // Version 1.0, so that the answer comes in one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
