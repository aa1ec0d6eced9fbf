//! Configuration of a control plane for tests, with files in a temporary directory.

use std::{net::Ipv4Addr, path::Path};

use windlass_control::{Config, ServerOptions};
use windlass_identity::pki::Lifetimes;

/// A control plane that listens at a free port of loopback.
pub(crate) fn config(folder: &Path) -> Config {
    Config {
        data_dir: folder.join("data"),
        listen: vec!["127.0.0.1:0".parse().expect("an address")],
        advertise: Ipv4Addr::LOCALHOST.into(),
        cluster_domain: "cluster.local".to_owned(),
        cluster_dns: None,
        service_cidr: (Ipv4Addr::new(10, 96, 0, 0), 16),
        node_ports: 30000..=32767,
        max_token_seconds: None,
        node_name: "n".to_owned(),
        node_addresses: vec![Ipv4Addr::LOCALHOST.into()],
        admin_kubeconfig: folder.join("admin.kubeconfig"),
        lifetimes: Lifetimes::default(),
        token_auth_file: None,
        audit: None,
        admission_control_config_file: None,
        network_policies: false,
        options: ServerOptions::default(),
    }
}
