//! What a server gives to its clients at most: connections, bytes of requests, time.

use std::{fs, sync::OnceLock, time::Duration};

/// A client that does not finish its handshake is let go.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a client has for the head of a request over HTTP/1, the wait for it included.
pub(super) const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head of a request.
pub(super) const MAX_HEADER_BYTES: u32 = 64 << 10;
/// Time that a client has for the whole body of a request.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take nothing of an answer that waits for it.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection without requests is closed after so long. Clients keep theirs for 90 s.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Connections are looked through this often for those that are idle or blocked for too long.
pub(super) const SWEEP: Duration = Duration::from_secs(10);
/// Requests that one HTTP/2 connection may have open.
pub(super) const MAX_CONCURRENT_STREAMS: u32 = 100;
/// What an HTTP/2 client may send of a body before anybody has asked for it.
pub(super) const STREAM_WINDOW: u32 = 64 << 10;
pub(super) const CONNECTION_WINDOW: u32 = 256 << 10;
/// Bytes of requests' bodies that one server holds until they are answered.
pub(super) const BODY_BYTES_IN_FLIGHT: usize = 64 << 20;

/// Connections of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// All together.
    pub(super) connections: usize,
    /// From one source address.
    pub(super) per_address: usize,
    /// On which nobody was authenticated.
    pub(super) unauthenticated: usize,
}

impl Limits {
    /// A share of the files that the process may have open: it needs others for what it measures, for Docker and for
    /// the store.
    fn of_open_files(files: usize) -> Self {
        let connections = (files / 4).clamp(128, 2048);
        Self { connections, per_address: connections / 2, unauthenticated: connections / 4 }
    }

    /// For this process.
    pub(super) fn of_process() -> Self {
        static LIMITS: OnceLock<Limits> = OnceLock::new();
        *LIMITS.get_or_init(|| {
            let files = fs::read_to_string("/proc/self/limits").ok().and_then(|text| open_files(&text));
            Self::of_open_files(files.unwrap_or(1024))
        })
    }

    /// For callers in this process, who have all the same address.
    pub(super) fn of_one_caller() -> Self {
        let connections = Self::of_process().connections;
        Self { connections, per_address: connections, unauthenticated: connections }
    }
}

/// The soft limit of open files (RLIMIT_NOFILE) in a text of `/proc/PID/limits`.
fn open_files(text: &str) -> Option<usize> {
    let soft = text.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(usize::MAX) } else { soft.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_a_share_of_the_open_files() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max core file size        0                    unlimited            bytes     \n\
                    Max open files            65536                1048576              files     \n";
        assert_eq!(open_files(text), Some(65536));
        assert_eq!(open_files("Max open files            unlimited   unlimited   files"), Some(usize::MAX));
        assert_eq!(open_files("Max core file size  0"), None);
        assert!(open_files(&fs::read_to_string("/proc/self/limits").unwrap()).is_some());
        for (files, connections) in [(0, 128), (1024, 256), (65536, 2048), (usize::MAX, 2048)] {
            let limits = Limits::of_open_files(files);
            assert_eq!(limits.connections, connections);
            assert!(limits.unauthenticated < limits.per_address && limits.per_address < limits.connections);
        }
    }
}
