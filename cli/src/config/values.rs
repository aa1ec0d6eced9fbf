//! Types of single settings, as files and flags spell them.

use std::net::SocketAddr;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Whether long chains of service rules are split into trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RulesLayout {
    /// Above 64 services and 16 endpoints.
    Auto,
    /// Never: as kube-proxy writes them.
    Flat,
    /// Always.
    Tree,
}

/// The pod network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PodNetwork {
    /// By Windlass: a routed pair of interfaces for each pod.
    Routed,
    /// By CNI plugins.
    Cni,
}

/// A listen address; empty for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct OptionalAddress(pub(crate) Option<SocketAddr>);

impl std::str::FromStr for OptionalAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let address =
            text.parse().map_err(|_| format!("{text:?} is not an address such as 127.0.0.1:10255, nor empty"))?;
        Ok(Self(Some(address)))
    }
}

impl TryFrom<String> for OptionalAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::fmt::Display for OptionalAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |address| write!(f, "{address}"))
    }
}
