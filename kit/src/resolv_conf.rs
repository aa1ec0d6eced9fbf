//! The host's resolv.conf, from which pods and the cluster's DNS have the host's name servers.

use std::path::Path;

/// The upstream name servers of systemd-resolved.
const RESOLVED_CONF: &str = "/run/systemd/resolve/resolv.conf";

/// The lines of a resolv.conf that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// The addresses of name servers, as they are written.
    pub servers: Vec<String>,
    /// The domains of the last `search` or `domain` line.
    pub searches: Vec<String>,
    /// All options.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads the lines that are known; others are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => conf.servers.extend(words.next().map(str::to_owned)),
                Some("search" | "domain") => conf.searches = words.map(str::to_owned).collect(),
                Some("options") => conf.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        conf
    }
}

/// The resolv.conf that pods get the host's name servers from: the `configured` one, `None` where that is empty.
/// Without configuration it is /etc/resolv.conf, or systemd-resolved's own file where that one names its stub on a
/// loopback address, which does not exist in a pod.
///
/// # Errors
/// When the configured file cannot be read.
pub fn read(configured: Option<&Path>) -> Result<Option<String>, String> {
    match configured {
        Some(none) if none.as_os_str().is_empty() => Ok(None),
        Some(path) => match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(e) => Err(format!("failed to read resolvConf {}: {e}", path.display())),
        },
        None => {
            let usual = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
            Ok(Some(choose(usual, || std::fs::read_to_string(RESOLVED_CONF).ok())))
        }
    }
}

fn choose(usual: String, upstream: impl FnOnce() -> Option<String>) -> String {
    // The addresses of systemd-resolved's stub.
    let is_stub = |server: &String| matches!(server.as_str(), "127.0.0.53" | "127.0.0.54");
    if ResolvConf::parse(&usual).servers.iter().any(is_stub) { upstream().unwrap_or(usual) } else { usual }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_servers_behind_the_stub() {
        let stub = "# by systemd-resolved\nnameserver 127.0.0.53\noptions edns0\nsearch example.com\n";
        let real = || Some("nameserver 192.0.2.53\nsearch example.com\n".to_owned());
        assert_eq!(choose(stub.to_owned(), real), real().unwrap());
        assert_eq!(choose(stub.to_owned(), || None), stub, "what else is there");
        let own = "nameserver 127.0.0.1\n";
        assert_eq!(choose(own.to_owned(), real), own, "a name server of somebody's own");
    }

    #[test]
    fn the_file_that_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        assert!(read(Some(&path)).unwrap_err().contains("resolvConf"));
        for text in ["nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(Some(&path)).unwrap().as_deref(), Some(text), "read again");
        }
        assert_eq!(read(Some(Path::new(""))), Ok(None));
    }

    #[test]
    fn the_last_search_line_counts_and_all_others_add() {
        let conf = ResolvConf::parse(
            "; by hand\nnameserver 192.0.2.1\nnameserver\nnameserver 2001:db8::1 # second\ndomain a\nsearch b c\n\
             options ndots:2 rotate\noptions edns0\nsortlist x\n",
        );
        assert_eq!(conf.servers, ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(conf.searches, ["b", "c"]);
        assert_eq!(conf.options, ["ndots:2", "rotate", "edns0"]);
    }
}
