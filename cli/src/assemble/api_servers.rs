//! The other API servers of a cluster: those that it tells of in the Endpoints `default/kubernetes`, which a node may
//! read. They are kept in a file, so that a node that starts while the configured server is away finds them.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Endpoints;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use windlass_kit::{atomic_file, client::Access};

/// How often the cluster is asked.
const EVERY: Duration = Duration::from_secs(60);
/// Not more often than this, however often servers fail.
const AT_MOST: Duration = Duration::from_secs(1);

/// Addresses in a file, a line each.
fn read(text: &str) -> Vec<SocketAddr> {
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

fn written(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(|at| format!("{at}\n")).collect()
}

/// The servers that the object names, sorted. Those that are not ready are none.
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

/// Tells `access` of the cluster's servers: those of the file at once, then whatever the cluster says, at the start,
/// each minute and when none can be connected to; until `shutdown`.
pub(super) async fn follow(access: Access, client: Client, file: PathBuf, shutdown: CancellationToken) {
    let mut known = kept(&file);
    access.learn(&known);
    let api: Api<Endpoints> = Api::namespaced(client, "default");
    loop {
        let asked = tokio::select! {
            () = shutdown.cancelled() => return,
            asked = api.get("kubernetes") => asked,
        };
        match asked.map(|endpoints| addresses(&endpoints)) {
            // None at all is a cluster that starts, not one without servers: it has just answered.
            Ok(told) if told.is_empty() || told == known => {}
            Ok(told) => {
                access.learn(&told);
                if let Err(error) = atomic_file::write_durable(&file, written(&told).as_bytes(), 0o600) {
                    tracing::warn!(%error, file = %file.display(), "the addresses of the API servers could not be kept; a start without the configured server would not find the others");
                }
                known = told;
            }
            Err(error) => tracing::debug!(%error, "the API servers' addresses could not be read; it is tried again"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
            () = async { tokio::time::sleep(AT_MOST).await; access.dial_failed().await } => {}
        }
    }
}

fn kept(file: &Path) -> Vec<SocketAddr> {
    match atomic_file::read(file) {
        Ok(text) => read(&text.unwrap_or_default()),
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "the addresses of the API servers could not be read; they are asked for again");
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
        assert_eq!(written(&all), "10.0.0.1:6443\n10.0.0.2:6443\n[fd00::1]:6443\n");
        assert_eq!(read(&written(&all)), all);
        assert_eq!(read("# a word\n10.0.0.1:6443\n10.0.0.1\n\n"), ["10.0.0.1:6443".parse().unwrap()]);
        assert_eq!(addresses(&Endpoints::default()), []);
    }
}
