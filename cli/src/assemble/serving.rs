//! The serving certificate of the node's API: from configured files, else issued by the cluster, else self-signed.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node as NodeObject;
use tokio::sync::watch;
use windlass_agent::{
    certificates::{CertificateManager, CertificateTemplate, CertifiedKey, Purpose, self_signed},
    metrics::Metrics,
};
use windlass_kit::{client::Access, serve::Pems, supervise::Supervisor};

use super::credentials::{self, Source};
use crate::config::{Settings, connect::authority_of};

type NodeReceiver = watch::Receiver<Option<Arc<NodeObject>>>;

/// The source of the serving certificate.
pub(super) struct ServingCertificate {
    files: Option<(PathBuf, PathBuf)>,
    client_ca: Option<PathBuf>,
    source: Source,
    pki: PathBuf,
    node_name: String,
    /// The template with the configured addresses, for a self-signed certificate.
    template: CertificateTemplate,
    /// The certificate that the cluster issued.
    issued: Option<watch::Receiver<Option<CertifiedKey>>>,
    manager: Option<CertificateManager>,
    node: Option<NodeReceiver>,
}

impl ServingCertificate {
    /// Opens the certificates in `pki`.
    pub(super) fn open(
        settings: &Settings,
        source: &Source,
        access: &Access,
        pki: PathBuf,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let files = settings.cluster_access.serving_files();
        let manager = if files.is_none() && settings.cluster_access.server_tls_bootstrap {
            let clients = credentials::client_provider(access.clone(), None);
            let manager = CertificateManager::open(&pki, Purpose::Serving, clients, true, Arc::clone(metrics));
            Some(manager.with_context(|| format!("the certificates in {} cannot be used", pki.display()))?)
        } else {
            None
        };
        let node_name = settings.node_name.clone();
        let own = (BTreeSet::from([node_name.clone()]), settings.node_ips().iter().collect());
        Ok(Self {
            files,
            client_ca: settings.cluster_access.client_ca_file.clone(),
            source: source.clone(),
            template: template(&node_name, own),
            pki,
            node_name,
            issued: manager.as_ref().map(CertificateManager::pairs),
            manager,
            node: None,
        })
    }

    /// Starts requesting certificates for the addresses of the Node.
    pub(super) fn start(&mut self, node: NodeReceiver, tasks: &mut Supervisor) {
        self.node = Some(node.clone());
        let Some(manager) = self.manager.take() else { return };
        let (template_tx, no_other) = (watch::Sender::new(None), watch::channel(None).1);
        tasks.forever("serving certificate", manager.run(template_tx.subscribe(), no_other, tasks.token()));
        let (mut nodes, name, stop) = (node, self.node_name.clone(), tasks.token());
        tasks.forever("addresses of the node", async move {
            loop {
                let addresses = nodes.borrow_and_update().as_deref().map(addresses).unwrap_or_default();
                // As upstream: no request before there is an address.
                let wanted = (!addresses.1.is_empty()).then(|| template(&name, addresses));
                template_tx.send_if_modified(|now| (*now != wanted).then(|| now.clone_from(&wanted)).is_some());
                tokio::select! {
                    () = stop.cancelled() => return,
                    changed = nodes.changed() => if changed.is_err() { stop.cancelled().await; return },
                }
            }
        });
    }

    /// The certificate to serve now, and the authority of clients.
    pub(super) fn pems(&self) -> anyhow::Result<Pems> {
        let client_ca = match &self.client_ca {
            Some(path) => Some(read(path)?),
            None => authority_of(&self.source.present())?,
        };
        if let Some((cert, key)) = &self.files {
            return Ok(Pems { cert: read(cert)?, key: read(key)?, client_ca });
        }
        let issued = self.issued.as_ref().and_then(|pairs| pairs.borrow().clone());
        let now = jiff::Timestamp::now().as_second();
        if let Some(pair) = issued.filter(|pair| pair.validity().is_ok_and(|validity| now <= validity.not_after)) {
            return Ok(Pems { cert: pair.cert, key: pair.key, client_ca });
        }
        let mut template = self.template.clone();
        if let Some(node) = self.node.as_ref().and_then(|node| node.borrow().clone()) {
            let (names, addresses) = addresses(&node);
            template.names.extend(names);
            template.addresses.extend(addresses);
        }
        let pair = self_signed(&self.pki, &template)
            .with_context(|| format!("no certificate for the node's API could be written to {}", self.pki.display()))?;
        Ok(Pems { cert: pair.cert, key: pair.key, client_ca })
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} could not be read", path.display()))
}

fn template(node: &str, (names, addresses): (BTreeSet<String>, BTreeSet<IpAddr>)) -> CertificateTemplate {
    CertificateTemplate { purpose: Purpose::Serving, node: node.to_owned(), names, addresses }
}

/// The names and addresses in a Node's status.
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
    fn certificates_contain_the_addresses_of_the_status() {
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
