//! Image references. Pure; the grammar is that of registries and Docker (`distribution/reference`).

use std::fmt;

/// Docker Hub, the default registry.
const DOCKER: &str = "docker.io";

/// An image reference: `[registry/]path[:tag][@digest]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    path: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    /// Parses a reference; `None` when it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (name, digest) = text.split_once('@').map_or((text, None), |(name, digest)| (name, Some(digest)));
        let last = name.rfind('/').map_or(0, |at| at + 1);
        let (name, tag) = match name[last..].find(':') {
            Some(at) => (&name[..last + at], Some(&name[last + at + 1..])),
            None => (name, None),
        };
        if !digest.is_none_or(is_digest) || !tag.is_none_or(is_tag) || is_id(name) {
            return None;
        }
        // A first component that cannot be one of a path is a registry.
        let (registry, path) = match name.split_once('/') {
            Some((first, rest))
                if first == "localhost" || first.contains(['.', ':']) || first.to_lowercase() != first =>
            {
                (first, rest)
            }
            _ => (DOCKER, name),
        };
        if !is_registry(registry) || !path.split('/').all(is_part_of_path) {
            return None;
        }
        let registry = if registry == "index.docker.io" { DOCKER } else { registry };
        let own = registry == DOCKER && !path.contains('/');
        Some(Self {
            registry: registry.to_owned(),
            path: if own { format!("library/{path}") } else { path.to_owned() },
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// The registry, with its port.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path in its registry.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Registry and path, without tag and digest.
    #[must_use]
    pub fn repository(&self) -> String {
        format!("{}/{}", self.registry, self.path)
    }

    /// Whether it may refer to another image later: with the tag `latest`, or with neither tag nor digest.
    #[must_use]
    pub fn moves(&self) -> bool {
        self.tag.as_deref().map_or(self.digest.is_none(), |tag| tag == "latest")
    }

    /// The familiar name, as Docker lists it: without Docker Hub's registry, with a tag. The digest wins where both are
    /// given.
    #[must_use]
    pub fn familiar(&self) -> String {
        let name = self.repository();
        let short = name.strip_prefix("docker.io/").unwrap_or(&name);
        let short = short.strip_prefix("library/").filter(|_| self.registry == DOCKER).unwrap_or(short);
        match &self.digest {
            Some(digest) => format!("{short}@{digest}"),
            None => format!("{short}:{}", self.tag.as_deref().unwrap_or("latest")),
        }
    }
}

/// The full name, with a tag or a digest.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)?;
        match (&self.tag, &self.digest) {
            (None, None) => write!(f, ":latest")?,
            (Some(tag), _) => write!(f, ":{tag}")?,
            (None, Some(_)) => {}
        }
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

/// A host name or an address, optionally with a port.
fn is_registry(text: &str) -> bool {
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let port = rest.strip_prefix(':');
        return address.parse::<std::net::Ipv6Addr>().is_ok() && (rest.is_empty() || port.is_some_and(digits));
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(label) && port.is_none_or(digits)
}

fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(kind, hex)| {
        let mut parts = kind.split(['+', '.', '-', '_']);
        let word = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        parts.all(word) && hex.len() >= 32 && hex.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

/// Docker would take it for an image id.
fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Lower-case letters and digits, separated by a dot, one or two underscores, or dashes.
fn is_part_of_path(part: &str) -> bool {
    let small = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = part.bytes().next().is_some_and(small) && part.bytes().last().is_some_and(small);
    let mut between = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).filter(|s| !s.is_empty());
    ends && between.all(|s| matches!(s, "." | "_" | "__") || s.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn one_name_in_all_its_forms() {
        for (text, full, familiar, moves) in [
            ("nginx", "docker.io/library/nginx:latest", "nginx:latest", true),
            ("nginx:1.7_a-b", "docker.io/library/nginx:1.7_a-b", "nginx:1.7_a-b", false),
            ("docker.io/library/nginx:1", "docker.io/library/nginx:1", "nginx:1", false),
            ("index.docker.io/me/app", "docker.io/me/app:latest", "me/app:latest", true),
            ("library/nginx", "docker.io/library/nginx:latest", "nginx:latest", true),
            ("a/b__c/d-e--f.g:1", "docker.io/a/b__c/d-e--f.g:1", "a/b__c/d-e--f.g:1", false),
            ("host:5000/app", "host:5000/app:latest", "host:5000/app:latest", true),
            ("host:5000/library/app:2", "host:5000/library/app:2", "host:5000/library/app:2", false),
            ("[fd00::1]:5000/x:2", "[fd00::1]:5000/x:2", "[fd00::1]:5000/x:2", false),
            ("Host/nginx:latest", "Host/nginx:latest", "Host/nginx:latest", true),
        ] {
            let read = Reference::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((read.to_string().as_str(), read.familiar().as_str(), read.moves()), (full, familiar, moves));
            assert_eq!(Reference::parse(&read.to_string()).map(|r| r.familiar()).as_deref(), Some(familiar));
        }
        let both = Reference::parse(&format!("localhost/x:1@sha256:{HEX}")).unwrap();
        assert_eq!((both.registry(), both.path(), both.moves()), ("localhost", "x", false));
        assert_eq!(both.familiar(), format!("localhost/x@sha256:{HEX}"));
        assert_eq!(both.to_string(), format!("localhost/x:1@sha256:{HEX}"));
        let one = Reference::parse(&format!("nginx@sha256:{HEX}")).unwrap();
        assert_eq!((one.familiar(), one.moves()), (format!("nginx@sha256:{HEX}"), false));
        assert_eq!(one.repository(), "docker.io/library/nginx");
    }

    #[test]
    fn what_is_no_name() {
        let id = HEX.repeat(2);
        for bad in [
            "",
            "Nginx",
            "Host/Nginx",
            "a//b",
            "a:",
            "a: b",
            "a/-b",
            "a..b",
            "a@sha256:0",
            "a b",
            "a:b:c",
            "/a",
            "a/",
            "host/",
            "a@",
            &id,
        ] {
            assert_eq!(Reference::parse(bad), None, "{bad}");
        }
    }
}
