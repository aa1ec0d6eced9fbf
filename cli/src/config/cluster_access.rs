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
    /// The node enforces NetworkPolicies on the built-in pod network.
    pub(crate) enforce_network_policies: bool,
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
            enforce_network_policies: false,
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

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::{
        super::{ClusterAccessFlags, Flags, Settings},
        *,
    };

    #[test]
    fn flags_override_the_file_and_halves_are_refused() {
        let mut set = Settings::example();
        set.cluster_access = ClusterAccess {
            servers: vec!["https://a:1".into()],
            server_tls_bootstrap: true,
            no_proxy: true,
            ..ClusterAccess::default()
        };
        let flags = |line: &[&str]| {
            let command = ClusterAccessFlags::augment_args(clap::Command::new("node").no_binary_name(true));
            let cluster_access = ClusterAccessFlags::from_arg_matches(&command.get_matches_from(line)).unwrap();
            let mut flags = Flags::default();
            flags.cluster_access = cluster_access;
            flags
        };
        flags(&[]).apply(&mut set).unwrap();
        let access = &set.cluster_access;
        assert!(access.server_tls_bootstrap && access.rotate_certificates && access.no_proxy);
        assert_eq!(access.server_urls(), ["https://a:1"]);
        assert_eq!(access.problems(), Vec::<String>::new());
        let given = flags(&["--server", "b:1", "--tls-cert-file", "/c", "--no-proxy=false", "--rotate-certificates"]);
        assert!(given.cluster_access.has("no-proxy") && !given.cluster_access.has("client-ca-file"));
        given.apply(&mut set).unwrap();
        let access = &set.cluster_access;
        assert!(!access.no_proxy && access.rotate_certificates && access.serving_files().is_none());
        let problems = access.problems().join("; ");
        assert!(problems.contains("servers \"b:1\"") && problems.contains("together alone"), "{problems}");
    }
}
