//! The control plane's configuration from the settings.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use tokio::sync::watch;
use windlass_control::{Config, ServerOptions};
use windlass_identity::pki::Lifetimes;
use windlass_kit::cluster_dns;

use super::{Ranges, Settings};

/// The configuration of the API server and its store.
///
/// # Errors
/// When clusterCIDR or serviceCIDR has no IPv4 range.
pub(crate) fn control_config(settings: &Settings) -> anyhow::Result<Config> {
    ipv4(&settings.cluster_cidr(), "clusterCIDR")?;
    Ok(Config {
        data_dir: settings.data_dir.clone(),
        listen: settings.api_bind_addresses().iter().collect(),
        advertise: settings.api_advertise_address(),
        cluster_domain: settings.cluster_domain.clone(),
        service_cidr: ipv4(&settings.service_cidr, "serviceCIDR")?,
        cluster_dns: settings.cluster_dns_bind_address(),
        node_ports: settings.node_ports.clone(),
        max_token_seconds: settings.max_token_seconds(),
        node_name: settings.node_name.clone(),
        node_addresses: settings.node_ips().iter().collect(),
        admin_kubeconfig: settings.admin_kubeconfig.clone(),
        lifetimes: Lifetimes::default(),
        token_auth_file: settings.token_auth_file.clone(),
        audit: settings.audit.config(),
        admission_control_config_file: settings.admission_control_config_file.clone(),
        network_policies: false,
        options: ServerOptions::default(),
    })
}

/// The configuration of the controllers.
pub(crate) fn controllers_config(
    settings: &Settings,
    root_ca: watch::Receiver<String>,
) -> windlass_controllers::Config {
    let local_path =
        windlass_controllers::LocalPath { node: settings.node_name.clone(), dir: settings.local_path_dir() };
    let mut servers: Vec<u16> = settings.api_bind_addresses().iter().map(|at| at.port()).collect();
    servers.extend([settings.node_api_bind.port(), settings.proxy_health_bind.port()]);
    servers.extend(settings.cluster_dns_bind_address().map(|at| at.port()));
    windlass_controllers::Config {
        cluster_cidr: settings.cluster_cidr().to_string(),
        local_path: settings.local_path_provisioner.then_some(local_path),
        service_load_balancer: settings.service_load_balancer.then_some(servers),
        root_ca,
        ..windlass_controllers::Config::default()
    }
}

/// The configuration of the cluster's DNS; `None` if it is off.
///
/// # Errors
/// When serviceCIDR has no IPv4 range.
pub(crate) fn dns_config(settings: &Settings) -> anyhow::Result<Option<windlass_dns::Config>> {
    let Some(listen) = settings.cluster_dns_bind_address() else { return Ok(None) };
    Ok(Some(windlass_dns::Config {
        listen,
        service_ip: cluster_dns::service_ip(ipv4(&settings.service_cidr, "serviceCIDR")?),
        domain: settings.cluster_domain.clone(),
        resolv_conf: settings.resolv_conf.clone(),
        pod_cidrs: settings.cluster_cidr().iter().copied().collect(),
    }))
}

fn ipv4(ranges: &Ranges, setting: &str) -> anyhow::Result<(Ipv4Addr, u8)> {
    ranges.ipv4().with_context(|| format!("{setting} \"{ranges}\" has no IPv4 range, which a control plane needs"))
}
