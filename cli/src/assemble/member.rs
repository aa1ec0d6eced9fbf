//! A node of a cluster that others run: how it reaches the API and what it shows there.

use std::{collections::BTreeSet, net::IpAddr, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node as NodeObject;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::{
    certificates::{Manager, Purpose, Wanted, self_signed},
    metrics::Metrics,
};
use windlass_kit::{
    client::{Access, Limits},
    serve::{Pems, Tls},
    supervise::Supervisor,
};

use super::{
    Node, SILENT, ServingTls,
    access::{self, access_of, authority_of, install_crypto},
    api_servers,
    credentials::{self, Source},
    proxy_config, spawn_node, spawn_proxy,
};
use crate::{config::Settings, systemd::Vitals};

/// Certificates that others keep are read again this often.
const REREAD: Duration = Duration::from_secs(10);
/// In the data folder: the addresses of API servers, certificates, and the node's kubeconfig where none is named.
const API_SERVERS: &str = "api-servers";
const PKI: &str = "pki";
const KUBECONFIG: &str = "kubelet.conf";

/// A node of the cluster that a kubeconfig leads to, or that a bootstrap kubeconfig lets it into.
pub(crate) async fn member(settings: &Settings) -> anyhow::Result<Node> {
    install_crypto();
    std::fs::create_dir_all(&settings.data_dir)
        .with_context(|| format!("the folder {} could not be made", settings.data_dir.display()))?;
    let membership = &settings.membership;
    let kubeconfig = membership.kubeconfig.clone().unwrap_or_else(|| settings.data_dir.join(KUBECONFIG));
    let bootstrap = membership.bootstrap_kubeconfig.clone();
    let source = Source { kubeconfig, bootstrap };
    let config = source.cluster().await?;
    let access = Access::without_credentials(
        &config,
        "this node has no certificate of the cluster yet",
        &membership.server_urls(),
    )?;
    let (client, heartbeat) = (access.client(Limits::DEFAULT), access.client(Limits::HEARTBEAT));
    let pki = settings.data_dir.join(PKI);
    let metrics: Arc<Metrics> = Arc::default();
    let mut tasks = Supervisor::new(CancellationToken::new());

    if source.is_managed(&config, &settings.node_name)? {
        let clients = credentials::clients(access.clone(), source.bootstrap.clone());
        let rotate = membership.rotate_certificates;
        let manager = Manager::open(&pki, Purpose::Client, clients, rotate, Arc::clone(&metrics));
        let manager = manager.with_context(|| format!("the certificates in {} cannot be used", pki.display()))?;
        // Told before the manager begins, so that it asks for nothing that is there.
        let given = watch::Sender::new(credentials::pair_of(&config).ok().flatten());
        let wanted = watch::Sender::new(Some(Wanted::client(&settings.node_name)));
        let (pairs, file) = (manager.pairs(), manager.current_path());
        let managing = manager.run(wanted.subscribe(), given.subscribe(), tasks.token());
        tasks.forever("client certificate", async move {
            managing.await;
            drop(wanted);
        });
        let following = credentials::follow(access.clone(), source.clone(), pairs, given, file, tasks.token());
        tasks.forever("credentials", following);
    } else {
        access.replace(config).with_context(|| access::unusable(&source.kubeconfig))?;
        tasks.forever("credentials", access::follow(access.clone(), source.kubeconfig.clone(), tasks.token()));
    }

    let node = watch::Sender::new(None);
    let pems = serving(settings, &source, &access, &node, &metrics, &mut tasks)?;
    let shows = pems()?;
    match (&membership.client_ca_file, &shows.client_ca) {
        (Some(file), _) => {
            tracing::info!(file = %file.display(), "clients of the node's API are known by certificates of this file's authority, or by tokens")
        }
        (None, Some(_)) => {
            tracing::info!(file = %source.present().display(), "clients of the node's API are known by certificates of this kubeconfig's authority, or by tokens")
        }
        (None, None) => {
            tracing::warn!(file = %source.present().display(), "clients of the node's API are known by tokens alone: the kubeconfig names no certificate authority, and there is no --client-ca-file; kube-apiserver's certificate is not known, so kubectl logs and exec are refused")
        }
    }
    let tls = Tls::new(shows)?;
    let mut vitals = Vitals::new(SILENT);
    let shown = ServingTls { tls: tls.clone(), client_ca: membership.client_ca_file.clone(), metrics, node };
    spawn_node(settings, client.clone(), heartbeat, shown, None, &mut vitals, &mut tasks).await?;
    tasks.spawn("certificates", tls.follow(move || pems().map_err(|e| format!("{e:#}")), REREAD, tasks.token()));
    let file = settings.data_dir.join(API_SERVERS);
    tasks.forever("API servers", api_servers::follow(access, client.clone(), file, tasks.token()));
    if !membership.no_proxy {
        // A node's rights alone do not make services work: they follow EndpointSlices.
        let as_proxy = match &settings.registration.proxy_kubeconfig {
            Some(file) => {
                let access = Access::new(access_of(file).await?).with_context(|| access::unusable(file))?;
                tasks.forever("credentials of the proxy", access::follow(access.clone(), file.clone(), tasks.token()));
                access.client(Limits::DEFAULT)
            }
            None => client.clone(),
        };
        spawn_proxy(proxy_config(settings), as_proxy, &vitals, &mut tasks);
    }
    Ok(Node { tasks, client, vitals: Some(vitals), plane: None })
}

/// Starts what has a certificate for the node's API, and gives what reads the one to be shown: that of the files that
/// were named, else one that the cluster has signed, else one that the node signs itself.
fn serving(
    settings: &Settings,
    source: &Source,
    access: &Access,
    node: &watch::Sender<Option<Arc<NodeObject>>>,
    metrics: &Arc<Metrics>,
    tasks: &mut Supervisor,
) -> anyhow::Result<impl Fn() -> anyhow::Result<Pems> + Send + use<>> {
    let pki = settings.data_dir.join(PKI);
    let files = settings.membership.serving_files();
    let signed = if files.is_none() && settings.membership.server_tls_bootstrap {
        // The node asks for this one itself, once it is somebody.
        let clients = credentials::clients(access.clone(), None);
        let manager = Manager::open(&pki, Purpose::Serving, clients, true, Arc::clone(metrics));
        let manager = manager.with_context(|| format!("the certificates in {} cannot be used", pki.display()))?;
        let (pairs, wanted) = (manager.pairs(), watch::Sender::new(None));
        let (_, nobodys) = watch::channel(None);
        tasks.forever("serving certificate", manager.run(wanted.subscribe(), nobodys, tasks.token()));
        let (mut nodes, name, stop) = (node.subscribe(), settings.node_name.clone(), tasks.token());
        tasks.forever("addresses of the node", async move {
            loop {
                let addresses = nodes.borrow_and_update().as_deref().map(addresses).unwrap_or_default();
                // As upstream: nothing is asked for before there is an address.
                let want = (!addresses.1.is_empty()).then(|| named(&name, addresses));
                wanted.send_if_modified(|now| (*now != want).then(|| now.clone_from(&want)).is_some());
                tokio::select! {
                    () = stop.cancelled() => return,
                    changed = nodes.changed() => if changed.is_err() { stop.cancelled().await; return },
                }
            }
        });
        Some(pairs)
    } else {
        None
    };
    let (client_ca, source) = (settings.membership.client_ca_file.clone(), source.clone());
    let own = named(
        &settings.node_name,
        (BTreeSet::from([settings.node_name.clone()]), settings.node_ips().iter().collect()),
    );
    let nodes = node.subscribe();
    Ok(move || {
        let client_ca = match &client_ca {
            Some(path) => Some(read(path)?),
            None => authority_of(&source.present())?,
        };
        if let Some((cert, key)) = &files {
            return Ok(Pems { cert: read(cert)?, key: read(key)?, client_ca });
        }
        let issued = signed.as_ref().and_then(|pairs| pairs.borrow().clone());
        let now = jiff::Timestamp::now().as_second();
        if let Some(pair) = issued.filter(|pair| pair.life().is_ok_and(|life| now <= life.ends)) {
            return Ok(Pems { cert: pair.cert, key: pair.key, client_ca });
        }
        let mut wanted = own.clone();
        if let Some(node) = nodes.borrow().as_deref() {
            let (names, addresses) = addresses(node);
            wanted.names.extend(names);
            wanted.addresses.extend(addresses);
        }
        let pair = self_signed(&pki, &wanted)
            .with_context(|| format!("no certificate for the node's API could be kept in {}", pki.display()))?;
        Ok(Pems { cert: pair.cert, key: pair.key, client_ca })
    })
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} could not be read", path.display()))
}

fn named(node: &str, (names, addresses): (BTreeSet<String>, BTreeSet<IpAddr>)) -> Wanted {
    Wanted { purpose: Purpose::Serving, node: node.to_owned(), names, addresses }
}

/// The names and addresses of a node, as its status tells them.
fn addresses(node: &NodeObject) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
    let (mut names, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for address in node.status.iter().flat_map(|status| &status.addresses).flatten() {
        match (address.type_.as_str(), address.address.parse::<IpAddr>()) {
            (_, Ok(ip)) => drop(ips.insert(ip)),
            ("Hostname" | "InternalDNS" | "ExternalDNS", Err(_)) => drop(names.insert(address.address.clone())),
            _ => {}
        }
    }
    (names, ips)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn certificates_name_what_the_status_names() {
        let node: NodeObject = serde_json::from_value(json!({"metadata": {"name": "n1"}, "status": {"addresses": [
            {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "InternalIP", "address": "fd00::1"}, {"type": "ExternalDNS", "address": "n1.example"},
            {"type": "Other", "address": "nothing"},
        ]}}))
        .unwrap();
        let (names, ips) = addresses(&node);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["n1", "n1.example"]);
        assert_eq!(ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
        assert_eq!(addresses(&NodeObject::default()), Default::default());
    }
}
