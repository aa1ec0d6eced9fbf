//! The settings of a node that joins an existing cluster: credentials and certificates. Names are kubelet's where it
//! has them.

use std::path::PathBuf;

/// The settings with all defaults filled in.
#[derive(Debug, Clone)]
pub(crate) struct ClusterAccess {
    /// The node's credentials; by default `kubelet.conf` in the data directory.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The credentials with which the node requests its own.
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    /// URLs of other API servers of the cluster.
    pub(crate) servers: Vec<String>,
    pub(crate) rotate_certificates: bool,
    pub(crate) server_tls_bootstrap: bool,
    pub(crate) tls_cert_file: Option<PathBuf>,
    pub(crate) tls_private_key_file: Option<PathBuf>,
    pub(crate) client_ca_file: Option<PathBuf>,
    /// Another proxy runs on the node.
    pub(crate) no_proxy: bool,
}

impl Default for ClusterAccess {
    /// Upstream's, except certificate rotation, which kubeadm enables in every cluster.
    fn default() -> Self {
        Self {
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            servers: Vec::new(),
            rotate_certificates: true,
            server_tls_bootstrap: false,
            tls_cert_file: None,
            tls_private_key_file: None,
            client_ca_file: None,
            no_proxy: false,
        }
    }
}

impl ClusterAccess {
    /// The serving certificate and key, if both are configured.
    pub(crate) fn serving_files(&self) -> Option<(PathBuf, PathBuf)> {
        self.tls_cert_file.clone().zip(self.tls_private_key_file.clone())
    }

    /// The other API servers; invalid URLs were reported as problems.
    pub(crate) fn server_urls(&self) -> Vec<http::Uri> {
        self.servers.iter().filter_map(|url| url.parse().ok()).collect()
    }

    /// All invalid settings.
    pub(super) fn problems(&self) -> Vec<String> {
        let no_url =
            |url: &&String| !url.parse::<http::Uri>().is_ok_and(|url| url.scheme().is_some() && url.host().is_some());
        let mut all: Vec<String> = self
            .servers
            .iter()
            .filter(no_url)
            .map(|url| format!("servers {url:?} is not a URL such as https://192.0.2.1:6443"))
            .collect();
        if self.tls_cert_file.is_some() != self.tls_private_key_file.is_some() {
            all.push("tlsCertFile and tlsPrivateKeyFile are of use together alone".to_owned());
        }
        all
    }
}

/// The flags of these settings, for the commands that run or join such a node.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ClusterAccessFlags {
    /// Whether the node's client certificate is rotated before it expires [default: true]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    rotate_certificates: Option<bool>,
    /// Whether the serving certificate of the node's API is requested from the cluster, as serverTLSBootstrap [default: false]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    rotate_server_certificates: Option<bool>,
    /// Another API server of the cluster, used if the kubeconfig's does not answer; may be given more than once
    #[arg(long = "server", value_name = "URL")]
    servers: Vec<String>,
    /// Serving certificate of the node's API [default: a self-signed one]
    #[arg(long, value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// The private key of that certificate
    #[arg(long, value_name = "FILE")]
    tls_private_key_file: Option<PathBuf>,
    /// Certificate authority of the clients of the node's API [default: that of the kubeconfig's current context]
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Whether another service proxy runs on this node [default: false]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_proxy: Option<bool>,
}

impl ClusterAccessFlags {
    pub(super) fn apply(&self, to: &mut ClusterAccess) {
        for (given, to) in [
            (self.rotate_certificates, &mut to.rotate_certificates),
            (self.rotate_server_certificates, &mut to.server_tls_bootstrap),
            (self.no_proxy, &mut to.no_proxy),
        ] {
            *to = given.unwrap_or(*to);
        }
        if !self.servers.is_empty() {
            to.servers.clone_from(&self.servers);
        }
        for (given, to) in [
            (&self.tls_cert_file, &mut to.tls_cert_file),
            (&self.tls_private_key_file, &mut to.tls_private_key_file),
            (&self.client_ca_file, &mut to.client_ca_file),
        ] {
            *to = given.clone().or(to.take());
        }
    }

    /// Whether --no-proxy is set.
    pub(crate) fn sets_no_proxy(&self) -> bool {
        self.no_proxy.is_some()
    }
}

/// The node's identity, for the command that runs it.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct IdentityFlags {
    /// Credentials of this node [default: kubelet.conf in the data directory]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Credentials to request the node's own with, while the kubeconfig is missing or its certificate has expired [default: none]
    #[arg(long, value_name = "FILE")]
    bootstrap_kubeconfig: Option<PathBuf>,
}

impl IdentityFlags {
    pub(super) fn apply(&self, to: &mut ClusterAccess) {
        to.kubeconfig = self.kubeconfig.clone().or(to.kubeconfig.take());
        to.bootstrap_kubeconfig = self.bootstrap_kubeconfig.clone().or(to.bootstrap_kubeconfig.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file_and_halves_are_refused() {
        let mut set = ClusterAccess {
            servers: vec!["https://a:1".into()],
            server_tls_bootstrap: true,
            no_proxy: true,
            ..ClusterAccess::default()
        };
        ClusterAccessFlags::default().apply(&mut set);
        assert!(set.server_tls_bootstrap && set.rotate_certificates && set.no_proxy);
        assert_eq!(set.server_urls(), ["https://a:1"]);
        assert_eq!(set.problems(), Vec::<String>::new());
        let flags = ClusterAccessFlags {
            servers: vec!["b:1".into()],
            tls_cert_file: Some("/c".into()),
            no_proxy: Some(false),
            ..ClusterAccessFlags::default()
        };
        flags.apply(&mut set);
        assert!(!set.no_proxy && set.serving_files().is_none());
        let problems = set.problems().join("; ");
        assert!(problems.contains("servers \"b:1\"") && problems.contains("together alone"), "{problems}");
    }
}
