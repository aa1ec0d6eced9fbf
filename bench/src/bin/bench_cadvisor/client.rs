//! A cheap HTTP client, because it shares the cores with the measured process. Like Prometheus and metrics-server it
//! keeps its connection.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
};

use anyhow::Context as _;

pub(crate) struct Client {
    stream: TcpStream,
    takes: &'static str,
    buffer: Vec<u8>,
}

impl Client {
    /// `takes` is the accepted content coding, such as `gzip`.
    pub(crate) fn connect(port: u16, takes: &'static str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, takes, buffer: vec![0; 256 << 10] })
    }

    /// Requests a page and reads all of it. Returns its length.
    pub(crate) fn get(&mut self, path: &str) -> anyhow::Result<usize> {
        let takes = self.takes;
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {takes}\r\n\r\n");
        self.stream.write_all(head.as_bytes())?;
        let mut filled = 0;
        let (length, mut left) = loop {
            let read = self.stream.read(&mut self.buffer[filled..])?;
            anyhow::ensure!(read > 0, "{path} was cut off in its head");
            filled += read;
            let Some(end) = self.buffer[..filled].windows(4).position(|at| at == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.buffer[..end])?;
            anyhow::ensure!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            let length = length.with_context(|| format!("{path} has no length: {head}"))?;
            break (length, length.saturating_sub(filled - end - 4));
        };
        while left > 0 {
            let read = self.stream.read(&mut self.buffer)?;
            anyhow::ensure!(read > 0, "{path} was cut off with {left} bytes to come");
            left = left.saturating_sub(read);
        }
        Ok(length)
    }
}
