//! What the stand-in for etcd has for the API server: a directory, and whether it must survive a crash of the machine. It says so
//! over HTTP, as any etcd would be asked at the address in `--etcd-servers`.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;

/// The path that only the stand-in answers.
pub(super) const PATH: &str = "/windlass/data-directory";
/// How long the API server waits for it: envtest starts it only when etcd is healthy.
const PATIENCE: Duration = Duration::from_secs(10);
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the API server has its data.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DataDirectory {
    /// The directory of `--data-dir`, absolute.
    pub(super) path: PathBuf,
    /// False with `--unsafe-no-fsync`.
    pub(super) is_synced: bool,
}

impl DataDirectory {
    /// Asks the stand-in at this URL.
    ///
    /// # Errors
    /// When there is none: an etcd has no place for what windlass stores.
    pub(super) fn at(url: &str) -> anyhow::Result<Self> {
        let address = address_of(url).with_context(|| {
            format!("--etcd-servers={url} is not possible with windlass: its own stand-in for etcd is at http://ADDRESS:PORT")
        })?;
        let began = Instant::now();
        loop {
            match ask(address) {
                Ok(directory) => return Ok(directory),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Unreachable(error)) if began.elapsed() > PATIENCE => return Err(error),
                Err(Failure::Unreachable(_)) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

enum Failure {
    /// It may be coming up.
    Unreachable(anyhow::Error),
    Final(anyhow::Error),
}

/// The address in a URL without TLS; none is looked up by its name. Pure.
pub(super) fn address_of(url: &str) -> Option<SocketAddr> {
    let host = url.strip_prefix("http://")?.trim_end_matches('/');
    match host.strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().ok()?))),
        None => host.parse().ok(),
    }
}

fn ask(address: SocketAddr) -> Result<DataDirectory, Failure> {
    let unreachable = |error: std::io::Error| {
        Failure::Unreachable(
            anyhow::Error::new(error).context(format!("the stand-in for etcd at {address} does not answer")),
        )
    };
    let mut stream = TcpStream::connect_timeout(&address, CALL_TIMEOUT).map_err(unreachable)?;
    stream.set_read_timeout(Some(CALL_TIMEOUT)).map_err(unreachable)?;
    write!(stream, "GET {PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").map_err(unreachable)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(unreachable)?;
    read(&answer).ok_or_else(|| {
        Failure::Final(anyhow::anyhow!(
            "{address} is not windlass's stand-in for etcd, and windlass keeps its objects itself; take etcd from the directory of `windlass envtest install`, too"
        ))
    })
}

/// What is said in an answer; `None` of any other server's. Pure.
fn read(answer: &str) -> Option<DataDirectory> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200 ").then_some(())?;
    serde_json::from_str(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_without_tls_and_names() {
        assert_eq!(address_of("http://127.0.0.1:2379"), Some("127.0.0.1:2379".parse().unwrap()));
        assert_eq!(address_of("http://localhost:2379/"), Some("127.0.0.1:2379".parse().unwrap()));
        assert_eq!(address_of("http://[::1]:2379"), Some("[::1]:2379".parse().unwrap()));
        for wrong in ["https://127.0.0.1:2379", "127.0.0.1:2379", "http://127.0.0.1", "http://etcd:2379"] {
            assert_eq!(address_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_the_stand_in_is_understood() {
        let directory = DataDirectory { path: "/tmp/a".into(), is_synced: false };
        let body = serde_json::to_string(&directory).unwrap();
        assert_eq!(read(&format!("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{body}")), Some(directory));
        // A real etcd.
        assert_eq!(read("HTTP/1.1 404 Not Found\r\n\r\n404 page not found\n"), None);
        assert_eq!(read("HTTP/1.1 200 OK\r\n\r\n{\"health\":\"true\"}"), None);
    }
}
