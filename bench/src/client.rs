//! A client that costs little, because it shares the cores with the server: HTTP/1.1 over TLS, one request at a time on a
//! connection that stays open. Requests are rendered before, and responses are neither parsed as JSON nor copied.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::config::Kubeconfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, crypto::ring, version},
};

/// Connections of one source address; the server allows 1,024.
const CONNECTIONS_PER_ADDRESS: usize = 400;
const BUFFER_BYTES: usize = 64 << 10;

/// The server, with the administrator's credentials.
#[derive(Clone)]
pub struct Server {
    address: SocketAddr,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// The server of a kubeconfig.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(kubeconfig: &Path) -> anyhow::Result<Self> {
        let config = Kubeconfig::read_from(kubeconfig)?;
        let cluster = config.clusters.first().and_then(|c| c.cluster.as_ref()).context("no cluster")?;
        let user = config.auth_infos.first().and_then(|u| u.auth_info.as_ref()).context("no user")?;
        let pem = |data: &Option<String>, file: &Option<String>| -> anyhow::Result<Vec<u8>> {
            match (data, file) {
                (Some(data), _) => Ok(BASE64_STANDARD.decode(data)?),
                (None, Some(file)) => Ok(std::fs::read(file)?),
                (None, None) => anyhow::bail!("{}: no certificate", kubeconfig.display()),
            }
        };
        let certificates = |pem: &[u8]| -> anyhow::Result<Vec<CertificateDer<'static>>> {
            Ok(CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?)
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(&pem(&cluster.certificate_authority_data, &cluster.certificate_authority)?)? {
            roots.add(root)?;
        }
        let chain = certificates(&pem(&user.client_certificate_data, &user.client_certificate)?)?;
        // A secret shows itself only to its serializer.
        let key = serde_json::to_value(user)?["client-key-data"].as_str().map(str::to_owned);
        let key = PrivateKeyDer::from_pem_slice(&pem(&key, &user.client_key)?)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        let url = cluster.server.as_deref().context("no server")?;
        let address: SocketAddr =
            url.strip_prefix("https://").context("an https URL")?.trim_end_matches('/').parse()?;
        Ok(Self { address, name: ServerName::from(address.ip()), tls: TlsConnector::from(Arc::new(tls)) })
    }

    /// A server whose certificate this is, and which asks for none.
    ///
    /// # Errors
    /// When the certificate cannot be used.
    pub fn of_certificate(address: SocketAddr, certificate: CertificateDer<'static>) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address, name: ServerName::from(address.ip()), tls: TlsConnector::from(Arc::new(tls)) })
    }

    /// The `number`th connection. Loopback has many addresses, each of which is a client of its own to the server.
    ///
    /// # Errors
    /// When the connection fails, or what comes is no HTTP.
    pub async fn connect(&self, number: usize) -> anyhow::Result<Connection> {
        let socket = TcpSocket::new_v4()?;
        if self.address.ip().is_loopback() {
            let last = u8::try_from(2 + number / CONNECTIONS_PER_ADDRESS)?;
            socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0))?;
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(self.name.clone(), stream).await?;
        Ok(Connection { stream, buffer: Vec::new(), start: 0 })
    }
}

/// The text of a request; `body` is JSON.
#[must_use]
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let length = if body.is_empty() {
        String::new()
    } else {
        format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len())
    };
    format!("{method} {path} HTTP/1.1\r\nHost: bench\r\nAccept: application/json\r\n{length}\r\n{body}").into_bytes()
}

/// How the body of a response ends.
#[derive(Debug, Clone, Copy)]
enum Remaining {
    Bytes(usize),
    /// Bytes of the current chunk with the line break behind it; 0 before the line with the next size.
    Chunk(usize),
    End,
}

/// A connection with a response in its buffer from `start` on.
#[derive(Debug)]
pub struct Connection {
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
    start: usize,
}

/// A response whose head was read.
#[derive(Debug)]
pub struct Response {
    /// The code.
    pub status: u16,
    remaining: Remaining,
}

impl Connection {
    /// Sends a request.
    ///
    /// # Errors
    /// When the connection fails, or what comes is no HTTP.
    pub async fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(request).await?;
        Ok(self.stream.flush().await?)
    }

    /// Reads more into the buffer.
    async fn fill(&mut self) -> anyhow::Result<()> {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        self.buffer.reserve(BUFFER_BYTES / 4);
        anyhow::ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server closed the connection");
        Ok(())
    }

    /// Reads the head of a response.
    ///
    /// # Errors
    /// When the connection fails, or what comes is no HTTP.
    pub async fn head(&mut self) -> anyhow::Result<Response> {
        let end = loop {
            match memchr::memmem::find(&self.buffer[self.start..], b"\r\n\r\n") {
                Some(end) => break self.start + end,
                None => self.fill().await?,
            }
        };
        let head = std::str::from_utf8(&self.buffer[self.start..end])?;
        let status = head.get(9..12).context("a status line")?.parse()?;
        let header = |name: &str| {
            let line = head.lines().find(|l| l.get(..name.len()).is_some_and(|n| n.eq_ignore_ascii_case(name)));
            line.map(|line| line[name.len()..].trim())
        };
        let remaining = match header("content-length:") {
            Some(length) => Remaining::Bytes(length.parse()?),
            None if header("transfer-encoding:") == Some("chunked") => Remaining::Chunk(0),
            None => anyhow::bail!("a response of unknown length: {head}"),
        };
        self.start = end + 4;
        Ok(Response { status, remaining })
    }

    /// Gives the next bytes of a body to `take`; false at its end. Bytes of chunks are given as they come.
    ///
    /// # Errors
    /// When the connection fails, or what comes is no HTTP.
    pub async fn piece(&mut self, response: &mut Response, take: &mut impl FnMut(&[u8])) -> anyhow::Result<bool> {
        if matches!(response.remaining, Remaining::Bytes(0)) {
            response.remaining = Remaining::End;
        }
        if matches!(response.remaining, Remaining::End) {
            return Ok(false);
        }
        if self.start == self.buffer.len() {
            self.fill().await?;
        }
        match response.remaining {
            Remaining::Bytes(left) => {
                let given = left.min(self.buffer.len() - self.start);
                take(&self.buffer[self.start..self.start + given]);
                self.start += given;
                response.remaining = Remaining::Bytes(left - given);
            }
            Remaining::Chunk(0) => {
                let line = loop {
                    match memchr::memmem::find(&self.buffer[self.start..], b"\r\n") {
                        Some(length) => break self.start..self.start + length,
                        None => self.fill().await?,
                    }
                };
                let size = usize::from_str_radix(std::str::from_utf8(&self.buffer[line.clone()])?, 16)?;
                self.start = line.end + 2;
                response.remaining = Remaining::Chunk(size + 2);
                if size == 0 {
                    while self.buffer.len() - self.start < 2 {
                        self.fill().await?;
                    }
                    self.start += 2;
                    response.remaining = Remaining::End;
                }
            }
            Remaining::Chunk(left) => {
                let given = left.min(self.buffer.len() - self.start);
                // Without the line break behind the chunk.
                let data = given.min(left.saturating_sub(2));
                take(&self.buffer[self.start..self.start + data]);
                self.start += given;
                response.remaining = Remaining::Chunk(left - given);
            }
            Remaining::End => {}
        }
        Ok(true)
    }

    /// Sends a request and reads its response; `take` gets the body.
    ///
    /// # Errors
    /// When the connection fails, or what comes is no HTTP.
    pub async fn exchange(&mut self, request: &[u8], mut take: impl FnMut(&[u8])) -> anyhow::Result<u16> {
        self.send(request).await?;
        let mut response = self.head().await?;
        while self.piece(&mut response, &mut take).await? {}
        Ok(response.status)
    }

    /// Like [`exchange`](Self::exchange), for a response that must be of this status; returns its body.
    ///
    /// # Errors
    /// When the connection fails, or what comes is no HTTP.
    pub async fn text(&mut self, request: &[u8], status: u16) -> anyhow::Result<String> {
        let mut body = Vec::new();
        let got = self.exchange(request, |piece| body.extend_from_slice(piece)).await?;
        let body = String::from_utf8(body)?;
        anyhow::ensure!(got == status, "{got} instead of {status}: {body}");
        Ok(body)
    }
}
