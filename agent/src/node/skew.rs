//! Version skew between the node and its API server: a node is never newer, and at most three minor versions older
//! (Kubernetes' version skew policy). Pure.

use std::fmt;

/// Version of a Kubernetes component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The leading digits of a text as a number: vendors write `31+`.
fn leading(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

impl Version {
    /// Reads `v1.36.2+windlass`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix('v')?.splitn(3, '.');
        let (major, minor) = (leading(parts.next()?)?, leading(parts.next()?)?);
        Some(Self { major, minor, patch: parts.next().and_then(leading).unwrap_or(0) })
    }

    /// The version of an API server from its answer at `/version`; `None` if it is a build without a version.
    pub(super) fn of_server(major: &str, minor: &str, git_version: &str) -> Option<Self> {
        let (major, minor) = (leading(major)?, leading(minor)?);
        let patch = Self::parse(git_version).filter(|v| (v.major, v.minor) == (major, minor)).map_or(0, |v| v.patch);
        (major > 0).then_some(Self { major, minor, patch })
    }
}

/// The kubelet version that the node reports: its own, or the API server's if that is older.
pub(super) fn reported_version(own: &str, server: Option<Version>) -> String {
    let older =
        Version::parse(own).zip(server).filter(|(own, server)| (server.major, server.minor) < (own.major, own.minor));
    match older {
        Some((_, Version { major, minor, patch })) => {
            let build = own.split_once('+').map(|(_, build)| format!("+{build}")).unwrap_or_default();
            format!("v{major}.{minor}.{patch}{build}")
        }
        None => own.to_owned(),
    }
}

/// Whether a node of one version may join a cluster of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skew {
    /// It may.
    Supported,
    /// It may, with this warning.
    Warning(String),
    /// It may not: the API server is too new.
    Unsupported(String),
}

/// Evaluates the skew between a node of version `own` and an API server by its answer at `/version`. An unknown version
/// is supported.
#[must_use]
pub fn evaluate(own: &str, major: &str, minor: &str, git_version: &str) -> Skew {
    let Some(server) = Version::of_server(major, minor, git_version) else { return Skew::Supported };
    match problem(own, server) {
        None => Skew::Supported,
        Some(words) if Version::parse(own).is_some_and(|own| server > own) => Skew::Unsupported(words),
        Some(words) => Skew::Warning(words),
    }
}

/// Most minor versions that a node may be behind its API server.
const MAX_MINOR_SKEW: u32 = 3;

/// A description of an unsupported skew.
pub(super) fn problem(own: &str, server: Version) -> Option<String> {
    let own = Version::parse(own).filter(|own| own.major == server.major)?;
    if server.minor < own.minor {
        let by = own.minor - server.minor;
        let text = format!(
            "the API server is of {server}, this node of {own}: it calls itself {server}, since no node may be newer"
        );
        return Some(match by {
            1 => text,
            _ => format!(
                "{text}; {by} minor versions are more than anybody tests: update the API server, or run an older windlass"
            ),
        });
    }
    (server.minor - own.minor > MAX_MINOR_SKEW).then(|| {
        format!("the API server is of {server}, this node of {own}: a node may be {MAX_MINOR_SKEW} minor versions older at most; update windlass")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "v1.36.2+windlass";

    #[test]
    fn versions_are_read_as_servers_write_them() {
        for (major, minor, git, wanted) in [
            ("1", "36", "v1.36.4", Some((1, 36, 4))),
            ("1", "31+", "v1.31.9-gke.100", Some((1, 31, 9))),
            ("1", "36", "v0.0.0-master+$Format:%H$", Some((1, 36, 0))),
            ("0", "0", "v0.0.0-master+$Format:%H$", None),
            ("", "", "", None),
        ] {
            let read = Version::of_server(major, minor, git).map(|v| (v.major, v.minor, v.patch));
            assert_eq!(read, wanted, "{major} {minor} {git}");
        }
        assert_eq!(Version::parse("1.36"), None);
    }

    #[test]
    fn a_node_is_never_newer_than_its_server_and_says_what_is_wrong() {
        let server = |minor: &str| Version::of_server("1", minor, &format!("v1.{minor}.7")).unwrap();
        for (minor, version, words) in [
            ("36", OWN, None),
            ("39", OWN, None),
            ("40", OWN, Some("3 minor versions older at most")),
            ("35", "v1.35.7+windlass", Some("it calls itself 1.35")),
            ("33", "v1.33.7+windlass", Some("3 minor versions are more than anybody tests")),
        ] {
            assert_eq!(reported_version(OWN, Some(server(minor))), version);
            let found = problem(OWN, server(minor));
            assert_eq!(found.is_some(), words.is_some(), "{minor}: {found:?}");
            assert!(found.unwrap_or_default().contains(words.unwrap_or_default()), "{minor}");
        }
        let evaluated = |minor: &str| evaluate(OWN, "1", minor, "");
        assert!(matches!(
            (evaluated("36"), evaluated("39"), evaluate(OWN, "", "", "")),
            (Skew::Supported, Skew::Supported, Skew::Supported)
        ));
        assert!(matches!((evaluated("35"), evaluated("40")), (Skew::Warning(_), Skew::Unsupported(_))));
        assert_eq!(reported_version(OWN, None), OWN);
        assert_eq!(reported_version("v1.36.2", Some(server("35"))), "v1.35.7");
    }
}
