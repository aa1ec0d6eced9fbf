//! Listen addresses: one with its port, or several separated by commas.

use std::{fmt, net::SocketAddr, str::FromStr};

/// At least one address, all with the same port, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addresses(Vec<SocketAddr>);

impl Addresses {
    /// Removes duplicates.
    fn new(all: impl IntoIterator<Item = SocketAddr>) -> Self {
        let mut unique = Vec::new();
        for address in all {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        Self(unique)
    }

    /// Both addresses, or one if they are the same.
    pub(crate) fn both(first: SocketAddr, second: SocketAddr) -> Self {
        Self::new([first, second])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().copied()
    }

    /// Whether one of them is not loopback, so that other machines or pods reach it.
    pub(crate) fn any_beyond_loopback(&self) -> bool {
        self.iter().any(|address| !address.ip().is_loopback())
    }
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = |part: &str| {
            let part = part.trim();
            part.parse().map_err(|_| format!("{part:?} is not an address with a port, such as 127.0.0.1:6443"))
        };
        let all = text.split(',').map(read).collect::<Result<Vec<SocketAddr>, String>>()?;
        if all.windows(2).any(|pair| pair[0].port() != pair[1].port()) {
            return Err(format!("{text:?} has several ports; give all addresses the same"));
        }
        if all.len() > 1 && all.iter().any(|address| address.ip().is_unspecified()) {
            return Err(format!("{text:?} names all addresses and single ones as well; give one or the other"));
        }
        Ok(Self::new(all))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.iter().map(|address| address.to_string()).collect();
        f.write_str(&texts.join(","))
    }
}

impl<'de> serde::Deserialize<'de> for Addresses {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, shown) in [
            ("127.0.0.1:6443", "127.0.0.1:6443"),
            ("127.0.0.1:6443, 192.0.2.1:6443", "127.0.0.1:6443,192.0.2.1:6443"),
            ("127.0.0.1:6443,127.0.0.1:6443", "127.0.0.1:6443"),
            ("[::]:6443", "[::]:6443"),
        ] {
            assert_eq!(text.parse::<Addresses>().unwrap().to_string(), shown);
        }
        for (text, words) in [
            ("", "not an address"),
            ("127.0.0.1", "not an address"),
            ("127.0.0.1:6443,", "not an address"),
            ("127.0.0.1:6443,192.0.2.1:6444", "several ports"),
            ("0.0.0.0:6443,127.0.0.1:6443", "all addresses"),
        ] {
            let why = text.parse::<Addresses>().unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
        let reached = |text: &str| text.parse::<Addresses>().unwrap().any_beyond_loopback();
        assert!(reached("0.0.0.0:1") && reached("127.0.0.1:1,192.0.2.1:1") && !reached("127.0.0.1:1,[::1]:1"));
    }
}
