//! A node of a cluster that others run: how it reaches the API and what it shows there.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use http::Uri;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    client::{Access, Limits},
    serve::{Pems, Tls},
    supervise::Supervisor,
};

use super::{
    Node, SILENT, ServingTls,
    access::{self, access_of, authority_of, install_crypto},
    api_servers, proxy_config, spawn_node, spawn_proxy,
};
use crate::{config::Settings, systemd::Vitals};

/// Certificates that others keep are read again this often.
const REREAD: Duration = Duration::from_secs(10);
/// Where the addresses of API servers are kept, in the data folder.
const API_SERVERS: &str = "api-servers";

/// A node of the cluster that a kubeconfig leads to.
pub(crate) async fn member(
    settings: &Settings,
    kubeconfig: &Path,
    files: &crate::commands::AgentFiles,
    servers: &[Uri],
    with_proxy: bool,
) -> anyhow::Result<Node> {
    install_crypto();
    let config = access_of(kubeconfig).await?;
    let access = Access::waiting(&config, "its credentials are not read yet", servers)?;
    access.replace(config).with_context(|| access::unusable(kubeconfig))?;
    let (client, heartbeat) = (access.client(Limits::USUAL), access.client(Limits::HEARTBEAT));
    let read =
        |path: &Path| std::fs::read_to_string(path).with_context(|| format!("{} could not be read", path.display()));
    let (own, of_kubeconfig) = (files.clone(), kubeconfig.to_owned());
    let client_ca = files.client_ca_file.clone();
    let pems = move || -> anyhow::Result<Pems> {
        Ok(Pems {
            cert: read(&own.tls_cert_file)?,
            key: read(&own.tls_private_key_file)?,
            client_ca: match &own.client_ca_file {
                Some(path) => read(path)?,
                None => authority_of(&of_kubeconfig)?,
            },
        })
    };
    let tls = Tls::new(pems()?)?;
    let trusted = files.client_ca_file.as_deref().unwrap_or(kubeconfig);
    tracing::info!(file = %trusted.display(), "clients of the node's API are known by certificates of this file's authority, or by tokens");
    std::fs::create_dir_all(&settings.data_dir)
        .with_context(|| format!("the folder {} could not be made", settings.data_dir.display()))?;
    let mut tasks = Supervisor::new(CancellationToken::new());
    let mut vitals = Vitals::new(SILENT);
    let serving = ServingTls { tls: tls.clone(), client_ca };
    spawn_node(settings, client.clone(), heartbeat, serving, None, &mut vitals, &mut tasks).await?;
    tasks.spawn("certificates", tls.follow(move || pems().map_err(|e| format!("{e:#}")), REREAD, tasks.token()));
    tasks.forever("credentials", access::follow(access.clone(), kubeconfig.to_owned(), tasks.token()));
    let file = settings.data_dir.join(API_SERVERS);
    tasks.forever("API servers", api_servers::follow(access, client.clone(), file, tasks.token()));
    if with_proxy {
        spawn_proxy(proxy_config(settings), client.clone(), &vitals, &mut tasks);
    }
    Ok(Node { tasks, client, vitals: Some(vitals), plane: None })
}
