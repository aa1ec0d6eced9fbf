//! The limits of a server: connections, bytes of requests, time.

use std::{fs, sync::OnceLock, time::Duration};

/// For the TLS handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of a request over HTTP/1, waiting for it included.
pub(super) const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximal length of the head of a request.
pub(super) const MAX_HEADER_BYTES: u32 = 64 << 10;
/// For the complete body of a request.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may read nothing of a pending response.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection without requests is closed after this time. Clients keep theirs for 90 s.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How often idle and stalled connections are searched for.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// Concurrent requests of one HTTP/2 connection.
pub(super) const MAX_CONCURRENT_STREAMS: u32 = 100;
/// What an HTTP/2 client may send of a body before the handler reads it.
pub(super) const STREAM_WINDOW: u32 = 64 << 10;
pub(super) const CONNECTION_WINDOW: u32 = 256 << 10;
/// Bytes of requests' bodies that one server buffers until they are answered.
pub(super) const BODY_BYTES_IN_FLIGHT: usize = 64 << 20;

/// Limits of the connections of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// In total.
    pub(super) connections: usize,
    /// From one source address.
    pub(super) per_address: usize,
    /// Without authentication.
    pub(super) unauthenticated: usize,
}

impl Limits {
    /// A share of the open files of the process, which needs others for usage, for Docker and for the store.
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

    /// For clients in this process, which all have the same address.
    pub(super) fn of_one_caller() -> Self {
        let connections = Self::of_process().connections;
        Self { connections, per_address: connections, unauthenticated: connections }
    }
}

/// The soft limit of open files (RLIMIT_NOFILE) in `/proc/PID/limits`.
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
