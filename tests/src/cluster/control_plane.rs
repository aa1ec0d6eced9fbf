//! The four programs of the control plane, started and stopped one by one.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    access,
    pki::{Holder, Pki},
};
use crate::{Daemon, Kubectl, Testbed, eventually, run};

/// Where the API server listens: on the machine outside, so that what is between the two can be made slow or cut.
pub const ADDRESS: &str = "198.18.0.2";
/// Its port.
pub const PORT: u16 = 6443;

const ETCD: &str = "http://127.0.0.1:2379";
const SERVICES: &str = "10.96.0.0/16";
const PODS: &str = "10.244.0.0/16";

/// How long a control plane takes to be there on a busy machine.
const START: Duration = Duration::from_secs(180);

/// One of the four programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The store.
    Etcd,
    /// The API.
    ApiServer,
    /// The controllers, also those that sign certificates of nodes.
    ControllerManager,
    /// The scheduler.
    Scheduler,
}

impl Part {
    /// All four, in the order in which they start.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler];

    /// The file's name.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }
}

/// A running control plane; ended when dropped. The Node authorizer, NodeRestriction, RBAC, bootstrap tokens and the
/// signing of nodes' certificates are on, as kubeadm has them.
#[derive(Debug)]
pub struct ControlPlane {
    assets: PathBuf,
    dir: PathBuf,
    /// The network namespace of the machine that it runs on.
    machine: PathBuf,
    pki: Pki,
    running: Mutex<BTreeMap<Part, Daemon>>,
    /// What a test has given a program beyond its usual arguments.
    further: Mutex<BTreeMap<Part, Vec<String>>>,
}

impl ControlPlane {
    /// Starts a control plane on the machine outside, and gives the rights that a node needs beyond its own.
    pub(crate) fn start(testbed: &Testbed) -> Self {
        let plane = Self::start_api(testbed);
        plane.begin(Part::ControllerManager);
        plane.begin(Part::Scheduler);
        let kubectl = Kubectl::new(testbed, plane.admin());
        kubectl.apply(&access::of_kubeadm().to_string());
        kubectl.apply(&access::of_nodes());
        // Pods are refused until the controller has made the account that they get.
        kubectl.accounts(&["default"]);
        plane
    }

    /// Starts the store and the API alone: nothing happens there that nobody asked for.
    pub(crate) fn start_api(testbed: &Testbed) -> Self {
        let assets = super::assets().unwrap_or_else(|| {
            panic!("a test on a real control plane needs {}: a folder with etcd, kube-apiserver …", super::ASSETS)
        });
        let dir = testbed.dir().join("cluster");
        let pki = Pki::new(dir.join("pki")).expect("certificates can be made");
        let plane =
            Self { assets, dir, machine: testbed.outside(), pki, running: Mutex::default(), further: Mutex::default() };
        plane.issue().expect("certificates can be made");
        plane.begin(Part::Etcd);
        plane.begin(Part::ApiServer);
        plane.answers(&Kubectl::new(testbed, plane.admin()));
        plane
    }

    fn issue(&self) -> anyhow::Result<()> {
        let server =
            ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
        let server = [&server[..], &[ADDRESS, "10.96.0.1"]].concat();
        for holder in [
            Holder { file: "apiserver", user: "kube-apiserver", group: None, names: &server },
            Holder { file: "admin", user: "admin", group: Some("system:masters"), names: &[] },
            Holder { file: "kubelet-client", user: access::KUBELET_CLIENT, group: None, names: &[] },
        ] {
            self.pki.issue(&holder)?;
        }
        self.pki.kubeconfig("admin", &Self::url())?;
        Ok(())
    }

    /// Makes what a node of this name needs to join: a kubeconfig, and a certificate of its own API for these addresses.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn node(&self, name: &str, addresses: &[&str]) -> NodeFiles {
        let (user, serving) = (format!("system:node:{name}"), format!("{name}-serving"));
        let names = [&[name], addresses].concat();
        let group = Some("system:nodes");
        let issued = self.pki.issue(&Holder { file: name, user: &user, group, names: &[] }).and_then(|()| {
            self.pki.issue(&Holder { file: &serving, user: &user, group, names: &names })?;
            self.pki.kubeconfig(name, &Self::url())
        });
        NodeFiles {
            kubeconfig: issued.expect("a node's certificates can be made"),
            certificate: self.pki.file(&format!("{serving}.crt")),
            key: self.pki.file(&format!("{serving}.key")),
        }
    }

    /// Where the API is.
    #[must_use]
    pub fn url() -> String {
        format!("https://{ADDRESS}:{PORT}")
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn admin(&self) -> PathBuf {
        self.pki.file("admin.kubeconfig")
    }

    /// A file of the cluster's certificates: `ca.crt`, `ca.key` and so on.
    #[must_use]
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.pki.file(name)
    }

    /// A line of JSON for each request that a node has made and that was answered.
    #[must_use]
    pub fn requests(&self) -> String {
        fs::read_to_string(self.dir.join("requests.log")).unwrap_or_default()
    }

    /// What a program has printed.
    #[must_use]
    pub fn log(&self, part: Part) -> String {
        fs::read_to_string(self.log_file(part)).unwrap_or_default()
    }

    fn log_file(&self, part: Part) -> PathBuf {
        self.dir.join(format!("{}.log", part.program()))
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Part, Daemon>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program (again), and does not wait for it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn begin(&self, part: Part) {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.machine.display())).arg(self.assets.join(part.program()));
        // All that the store keeps is below a directory of its own, whatever it calls it.
        let place = if part == Part::Etcd { self.dir.join("etcd") } else { self.dir.clone() };
        fs::create_dir_all(&place).expect("a directory can be created");
        command.args(self.arguments(part).expect("its files can be written")).current_dir(&place);
        let further = self.further.lock().unwrap_or_else(PoisonError::into_inner);
        command.args(further.get(&part).into_iter().flatten());
        drop(further);
        let daemon = Daemon::start(part.program(), &mut command, &self.log_file(part)).expect("the program starts");
        self.running().insert(part, daemon);
    }

    /// Starts a program again with further arguments; of an argument that it has twice the later one counts.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn change(&self, part: Part, arguments: &[&str]) {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        self.further.lock().unwrap_or_else(PoisonError::into_inner).insert(part, arguments);
        self.end(part, Signal::SIGKILL);
        self.begin(part);
    }

    /// Ends a program; without a signal that it could act on for [`Signal::SIGKILL`].
    pub fn end(&self, part: Part, signal: Signal) {
        let ended = self.running().remove(&part);
        if let Some(mut daemon) = ended {
            daemon.end(signal);
        }
    }

    /// Sends a program a signal that does not end it, such as [`Signal::SIGSTOP`].
    pub fn signal(&self, part: Part, signal: Signal) {
        if let Some(daemon) = self.running().get(&part) {
            daemon.signal(signal);
        }
    }

    /// Waits until the API server is ready.
    ///
    /// # Panics
    /// When a program has ended, or the API server is not ready in time.
    pub fn answers(&self, kubectl: &Kubectl<'_>) {
        eventually(START, "the API server is ready", || {
            for (part, daemon) in self.running().iter_mut() {
                assert!(daemon.runs(), "{} has ended: {}", part.program(), daemon.log());
            }
            kubectl.try_run(&["get", "--raw", "/readyz"])
        });
    }

    /// Keeps what the store holds now under a name, for [`restore`](Self::restore). The API is away meanwhile.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn save(&self, name: &str) {
        self.exchange(|dir| copy(&dir.join("etcd"), &dir.join(name)));
    }

    /// Puts back what [`save`](Self::save) has kept: revisions go back too, as with a snapshot of etcd.
    ///
    /// # Panics
    /// When there is no such copy.
    pub fn restore(&self, name: &str) {
        self.exchange(|dir| {
            fs::remove_dir_all(dir.join("etcd")).expect("the store can be removed");
            copy(&dir.join(name), &dir.join("etcd"));
        });
    }

    /// Ends everything, changes the store's files, and starts everything again.
    fn exchange(&self, change: impl FnOnce(&Path)) {
        for part in Part::ALL.into_iter().rev() {
            // Those of kube-apiserver drain for as long as somebody watches.
            self.end(part, if part == Part::Etcd { Signal::SIGTERM } else { Signal::SIGKILL });
        }
        change(&self.dir);
        for part in Part::ALL {
            self.begin(part);
        }
    }

    fn arguments(&self, part: Part) -> anyhow::Result<Vec<String>> {
        fs::create_dir_all(&self.dir)?;
        let of = |name: &str| self.pki.file(name).display().to_string();
        let admin = of("admin.kubeconfig");
        Ok(match part {
            Part::Etcd => vec![
                "--data-dir=data".to_owned(),
                format!("--listen-client-urls={ETCD}"),
                format!("--advertise-client-urls={ETCD}"),
                "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
                // The disk of this machine decides nothing here.
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
            Part::ApiServer => {
                // Told of nodes only, and once each: the cluster's own parts ask much more.
                let policy = json!({
                    "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
                    "rules": [{"level": "Metadata", "userGroups": ["system:nodes"]}, {"level": "None"}],
                });
                let file = self.dir.join("audit-policy.json");
                fs::write(&file, policy.to_string())?;
                vec![
                    format!("--etcd-servers={ETCD}"),
                    format!("--secure-port={PORT}"),
                    format!("--advertise-address={ADDRESS}"),
                    format!("--service-cluster-ip-range={SERVICES}"),
                    format!("--client-ca-file={}", of("ca.crt")),
                    format!("--tls-cert-file={}", of("apiserver.crt")),
                    format!("--tls-private-key-file={}", of("apiserver.key")),
                    format!("--kubelet-client-certificate={}", of("kubelet-client.crt")),
                    format!("--kubelet-client-key={}", of("kubelet-client.key")),
                    "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname".to_owned(),
                    format!("--service-account-key-file={}", of("sa.pub")),
                    format!("--service-account-signing-key-file={}", of("sa.key")),
                    "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
                    "--authorization-mode=Node,RBAC".to_owned(),
                    "--enable-admission-plugins=NodeRestriction".to_owned(),
                    "--enable-bootstrap-token-auth=true".to_owned(),
                    "--allow-privileged=true".to_owned(),
                    format!("--audit-policy-file={}", file.display()),
                    format!("--audit-log-path={}", self.dir.join("requests.log").display()),
                    "--audit-log-mode=blocking".to_owned(),
                ]
            }
            Part::ControllerManager => vec![
                format!("--kubeconfig={admin}"),
                "--controllers=*,bootstrapsigner,tokencleaner".to_owned(),
                format!("--service-account-private-key-file={}", of("sa.key")),
                format!("--root-ca-file={}", of("ca.crt")),
                format!("--cluster-signing-cert-file={}", of("ca.crt")),
                format!("--cluster-signing-key-file={}", of("ca.key")),
                "--allocate-node-cidrs=true".to_owned(),
                format!("--cluster-cidr={PODS}"),
                format!("--service-cluster-ip-range={SERVICES}"),
                "--leader-elect=false".to_owned(),
            ],
            Part::Scheduler => vec![format!("--kubeconfig={admin}"), "--leader-elect=false".to_owned()],
        })
    }
}

/// What a node needs to join.
#[derive(Debug)]
pub struct NodeFiles {
    /// With the node's client certificate in it.
    pub kubeconfig: PathBuf,
    /// Of the node's own API.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    run("cp", &["-a", &from.to_string_lossy(), &to.to_string_lossy()]);
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let mut running = std::mem::take(&mut *self.running());
        for part in Part::ALL.into_iter().rev() {
            // Nothing of it is looked at again, and an orderly end waits for those who watch.
            if let Some(mut daemon) = running.remove(&part) {
                daemon.end(Signal::SIGKILL);
            }
        }
    }
}
