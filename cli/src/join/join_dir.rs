//! The files that make a machine a node of a cluster: one directory in the data directory, created atomically.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::config::{AuthInfo, Kubeconfig};
use windlass_agent::certificates::{self, CertifiedKey};
use windlass_kit::{atomic_file, disk};

/// The directory, and its name while it is written.
const JOIN_DIR: &str = "join";
const TEMP_DIR: &str = "join.part";
/// The directories of pods, with volume files from the cluster's objects.
const PODS: &str = "pods";
/// The node's credentials, 0600; the certificate itself is in `pki`.
const KUBECONFIG: &str = "kubelet.conf";
/// The cluster's settings, which the machine's file and flags override; 0644.
const SETTINGS: &str = "config.yaml";
/// Other files of a cluster in the data directory, besides certificates.
const CLUSTER_FILES: [&str; 4] = ["kubelet.conf", "api-servers", "pod-cidr", "registered"];

/// The join directory; see the module.
#[derive(Debug, Clone)]
pub(crate) struct JoinDir {
    data_dir: PathBuf,
}

impl JoinDir {
    pub(crate) fn in_data_dir(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned() }
    }

    fn dir(&self) -> PathBuf {
        self.data_dir.join(JOIN_DIR)
    }

    /// The node's certificates.
    pub(crate) fn pki(&self) -> PathBuf {
        self.data_dir.join("pki")
    }

    /// The path of the node's credentials, which may not exist.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir().join(KUBECONFIG)
    }

    /// The path of the cluster's settings, which may not exist.
    pub(crate) fn settings(&self) -> PathBuf {
        self.dir().join(SETTINGS)
    }

    /// Whether this machine has joined, or may have: it is not known.
    pub(crate) fn exists(&self) -> bool {
        disk::kind(&self.dir()).map_or(true, |found| found.is_some())
    }

    /// The node's existing credentials: those of a join, else those of `windlass agent`.
    pub(crate) fn credentials(&self) -> Option<PathBuf> {
        [self.kubeconfig(), self.data_dir.join(KUBECONFIG)].into_iter().find(|file| file.exists())
    }

    /// The joined cluster's server, for messages.
    pub(crate) fn cluster(&self) -> Option<String> {
        let file = Kubeconfig::read_from(self.credentials()?).ok()?;
        file.clusters.into_iter().next()?.cluster?.server
    }

    /// Makes the machine a node, atomically.
    ///
    /// # Errors
    /// When a file cannot be written; the directory does not exist then.
    pub(crate) fn commit(&self, settings: &str, kubeconfig: &str) -> anyhow::Result<()> {
        let temp_dir = self.data_dir.join(TEMP_DIR);
        anyhow::ensure!(!self.exists(), "{} is there already, or cannot be read", self.dir().display());
        let write = || -> io::Result<()> {
            atomic_file::make_dir(&self.data_dir, 0o755)?;
            // What an earlier attempt has taken back is not the directory of a node on the disk either.
            atomic_file::sync_parent(&temp_dir)?;
            disk::remove_tree(&temp_dir)?;
            atomic_file::make_dir(&temp_dir, 0o755)?;
            atomic_file::write_durable(&temp_dir.join(SETTINGS), settings.as_bytes(), 0o644)?;
            atomic_file::write_durable(&temp_dir.join(KUBECONFIG), kubeconfig.as_bytes(), 0o600)?;
            disk::rename(&temp_dir, &self.dir())
        };
        write().or_else(|error| {
            // What says that it failed leaves no node, and no part of one.
            let _ = disk::of(&temp_dir).rename(&self.dir(), &temp_dir);
            let _ = atomic_file::sync_parent(&temp_dir).and_then(|()| disk::remove_tree(&temp_dir));
            Err(error)
                .with_context(|| format!("the files of the node could not be written below {}", self.dir().display()))
        })
    }

    /// Removes all files of a joined node, the certificates first; missing ones are no error. Call only after pods and
    /// mounts are removed.
    pub(crate) fn remove_all(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut note = |what: &Path, done: io::Result<()>| {
            problems.extend(done.err().map(|error| format!("{}: {error}", what.display())));
        };
        note(&self.pki(), certificates::remove_all(&self.pki()));
        // Only if empty: the directory may contain other files.
        let _ = disk::of(&self.pki()).remove_dir(&self.pki());
        for name in CLUSTER_FILES {
            let file = self.data_dir.join(name);
            note(&file, atomic_file::remove(&file));
        }
        // Pods' directories, whose mounts are removed; the join directory last.
        for name in [TEMP_DIR, PODS, JOIN_DIR] {
            let dir = self.data_dir.join(name);
            note(&dir, disk::remove_tree(&dir));
        }
        problems
    }
}

/// The certificate as credentials.
pub(crate) fn credentials(pair: &CertifiedKey) -> AuthInfo {
    AuthInfo {
        client_certificate_data: Some(STANDARD.encode(&pair.cert)),
        client_key_data: Some(STANDARD.encode(&pair.key).into()),
        ..AuthInfo::default()
    }
}
