//! Watches the API servers of a cluster by the Endpoints `default/kubernetes`, which a node may read. They are saved in a
//! file, so that a node that starts while the configured server is down finds them.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Endpoints;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use windlass_kit::{atomic_file, client::Access};

/// The poll interval, and the least time between polls after failed connections.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Parses a file of addresses, one per line.
fn parse(text: &str) -> Vec<SocketAddr> {
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

fn format_addresses(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(|at| format!("{at}\n")).collect()
}

/// The ready servers of the object, sorted.
fn addresses(endpoints: &Endpoints) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let named = |p: &&k8s_openapi::api::core::v1::EndpointPort| p.name.as_deref() == Some("https");
        let ports = || subset.ports.iter().flatten();
        let port = ports().find(named).or_else(|| ports().next()).and_then(|p| u16::try_from(p.port).ok());
        for address in subset.addresses.iter().flatten() {
            if let (Some(port), Ok(ip)) = (port, address.ip.parse::<IpAddr>()) {
                all.push(SocketAddr::new(ip, port));
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Updates the servers of `access` until `shutdown`: from the file at once, then from the cluster, at the interval and
/// when no server can be connected to.
pub(super) async fn watch(access: Access, client: Client, file: PathBuf, shutdown: CancellationToken) {
    let mut known = load(&file);
    access.learn(&known);
    let api: Api<Endpoints> = Api::namespaced(client, "default");
    loop {
        let result = tokio::select! {
            () = shutdown.cancelled() => return,
            result = api.get("kubernetes") => result,
        };
        match result.map(|endpoints| addresses(&endpoints)) {
            // An empty list is a cluster that starts up: a server has just answered.
            Ok(current) if current.is_empty() || current == known => {}
            Ok(current) => {
                access.learn(&current);
                if let Err(error) = atomic_file::write_durable(&file, format_addresses(&current).as_bytes(), 0o600) {
                    tracing::warn!(%error, file = %file.display(), "failed to save the addresses of the API servers; a start without the configured server will not find the others");
                }
                known = current;
            }
            Err(error) => tracing::debug!(%error, "failed to read the addresses of the API servers; retrying"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = async { tokio::time::sleep(MIN_POLL_INTERVAL).await; access.dial_failed().await } => {}
        }
    }
}

fn load(file: &Path) -> Vec<SocketAddr> {
    match atomic_file::read(file) {
        Ok(text) => parse(&text.unwrap_or_default()),
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "failed to read the saved addresses of the API servers; reading them from the cluster");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_are_read_from_endpoints_and_from_the_file() {
        let endpoints: Endpoints = serde_json::from_value(json!({
            "metadata": {"name": "kubernetes"},
            "subsets": [
                {
                    "addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}, {"ip": "nonsense"}],
                    "notReadyAddresses": [{"ip": "10.0.0.3"}],
                    "ports": [{"name": "other", "port": 1}, {"name": "https", "port": 6443}],
                },
                {"addresses": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}], "ports": [{"port": 6443}]},
                {"addresses": [{"ip": "10.0.0.9"}]},
            ],
        }))
        .unwrap();
        let all = addresses(&endpoints);
        assert_eq!(format_addresses(&all), "10.0.0.1:6443\n10.0.0.2:6443\n[fd00::1]:6443\n");
        assert_eq!(parse(&format_addresses(&all)), all);
        assert_eq!(parse("# a word\n10.0.0.1:6443\n10.0.0.1\n\n"), ["10.0.0.1:6443".parse().unwrap()]);
        assert_eq!(addresses(&Endpoints::default()), []);
    }
}
