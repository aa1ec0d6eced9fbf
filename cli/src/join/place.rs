//! The files that make a machine a node of a cluster: one folder below the data folder, which is there as a whole or not
//! at all.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::config::{AuthInfo, Kubeconfig};
use windlass_agent::certificates::{self, Pair};
use windlass_kit::atomic_file;

/// The folder, and what it is while it is written.
const FOLDER: &str = "join";
const PART: &str = "join.part";
/// Folders of pods, with files of volumes that the cluster's objects were written to.
const PODS: &str = "pods";
/// The node's credentials, 0600; the certificate itself is in `pki`.
const KUBECONFIG: &str = "kubelet.conf";
/// The cluster's settings, which the machine's own file and flags go before; 0644.
const SETTINGS: &str = "config.yaml";
/// What a node keeps of a cluster elsewhere in the data folder, beside certificates.
const OF_CLUSTER: [&str; 4] = ["kubelet.conf", "api-servers", "pod-cidr", "registered"];

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    data_dir: PathBuf,
}

impl Place {
    pub(crate) fn below(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned() }
    }

    fn dir(&self) -> PathBuf {
        self.data_dir.join(FOLDER)
    }

    /// The node's certificates.
    pub(crate) fn pki(&self) -> PathBuf {
        self.data_dir.join("pki")
    }

    /// The node's credentials, whether there are any or not.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir().join(KUBECONFIG)
    }

    /// The file of the cluster's settings, whether there is one or not.
    pub(crate) fn settings(&self) -> PathBuf {
        self.dir().join(SETTINGS)
    }

    /// Whether this machine has joined.
    pub(crate) fn is_there(&self) -> bool {
        self.dir().exists()
    }

    /// Credentials of a node: those of a join, else those that an agent was let in with. None where there are none.
    pub(crate) fn credentials(&self) -> Option<PathBuf> {
        [self.kubeconfig(), self.data_dir.join(KUBECONFIG)].into_iter().find(|file| file.exists())
    }

    /// The cluster that it has joined, for a sentence.
    pub(crate) fn cluster(&self) -> Option<String> {
        let file = Kubeconfig::read_from(self.credentials()?).ok()?;
        file.clusters.into_iter().next()?.cluster?.server
    }

    /// Makes the machine a node: all at once, also across a crash.
    ///
    /// # Errors
    /// When a file cannot be written; nothing is there then.
    pub(crate) fn commit(&self, settings: &str, kubeconfig: &str) -> anyhow::Result<()> {
        let part = self.data_dir.join(PART);
        let write = || -> io::Result<()> {
            remove_tree(&part)?;
            atomic_file::make_dir(&part, 0o755)?;
            atomic_file::write_durable(&part.join(SETTINGS), settings.as_bytes(), 0o644)?;
            atomic_file::write_durable(&part.join(KUBECONFIG), kubeconfig.as_bytes(), 0o600)?;
            fs::rename(&part, self.dir())?;
            atomic_file::sync_parent(&self.dir())
        };
        write().or_else(|error| {
            let _ = remove_tree(&part);
            Err(error)
                .with_context(|| format!("the files of the node could not be written below {}", self.dir().display()))
        })
    }

    /// Takes away what makes the machine a node, the certificates first; what is not there is no error. Only after the pods
    /// and their mounts have gone.
    pub(crate) fn forget(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut note = |what: &Path, done: io::Result<()>| {
            problems.extend(done.err().map(|error| format!("{}: {error}", what.display())));
        };
        note(&self.pki(), certificates::forget(&self.pki()));
        // Theirs alone: a folder that holds something else stays.
        let _ = fs::remove_dir(self.pki());
        for name in OF_CLUSTER {
            let file = self.data_dir.join(name);
            note(&file, atomic_file::remove(&file));
        }
        // Pods' folders, from which nothing is mounted any more; the mark last.
        for name in [PART, PODS, FOLDER] {
            let folder = self.data_dir.join(name);
            note(&folder, remove_tree(&folder));
        }
        problems
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A certificate as credentials.
pub(crate) fn credentials(pair: &Pair) -> AuthInfo {
    AuthInfo {
        client_certificate_data: Some(STANDARD.encode(&pair.cert)),
        client_key_data: Some(STANDARD.encode(&pair.key).into()),
        ..AuthInfo::default()
    }
}
