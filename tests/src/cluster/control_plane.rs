//! The four programs of the control plane, started and stopped one by one.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nix::sys::signal::Signal;
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;

use super::{
    access,
    pki::{Holder, Pki},
};
use crate::{Daemon, Kubectl, Testbed, eventually, run};

/// The API server's address: outside of the node's namespace, so that the connection can be slowed down or cut.
pub const ADDRESS: &str = "198.18.0.2";
/// Its port.
pub const PORT: u16 = 6443;

const ETCD: &str = "http://127.0.0.1:2379";
const SERVICES: &str = "10.96.0.0/16";
const PODS: &str = "10.244.0.0/16";

/// The client certificate of the API server toward extension API servers.
const FRONT_PROXY: &str = "front-proxy-client";

/// The timeout of a control plane's start on a busy machine.
const START: Duration = Duration::from_secs(180);

/// One of the four programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager, which also signs certificates of nodes.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl Part {
    /// All four, in the order in which they start.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler];

    /// The file name.
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
    /// The network namespace of the control plane.
    machine: PathBuf,
    pki: Pki,
    running: Mutex<BTreeMap<Part, Daemon>>,
    /// Additional arguments of each program, in place of those of the same name.
    further: Mutex<BTreeMap<Part, Vec<String>>>,
}

impl ControlPlane {
    /// Starts a control plane, and creates the RBAC objects that Windlass nodes need.
    pub(crate) fn start(testbed: &Testbed) -> Self {
        let plane = Self::start_api(testbed);
        plane.begin(Part::ControllerManager);
        plane.begin(Part::Scheduler);
        let kubectl = Kubectl::new(testbed, plane.admin());
        kubectl.apply(&access::of_kubeadm().to_string());
        kubectl.apply(&access::of_nodes());
        // Pods are rejected until the default service account exists.
        kubectl.accounts(&["default"]);
        plane
    }

    /// Starts only etcd and kube-apiserver: no controllers run.
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
            Holder { file: FRONT_PROXY, user: FRONT_PROXY, group: None, names: &[] },
        ] {
            self.pki.issue(&holder)?;
        }
        self.pki.kubeconfig("admin", &Self::url())?;
        Ok(())
    }

    /// Creates the files that a node of this name needs to join: a kubeconfig, and a serving certificate for these
    /// addresses.
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

    /// The API server's URL.
    #[must_use]
    pub fn url() -> String {
        format!("https://{ADDRESS}:{PORT}")
    }

    /// etcd's URL, for a test that reads or writes behind the API server's back.
    #[must_use]
    pub fn etcd() -> String {
        format!("http://{ADDRESS}:2379")
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

    /// The audit log: a JSON line for each answered request of a node.
    #[must_use]
    pub fn requests(&self) -> String {
        fs::read_to_string(self.dir.join("requests.log")).unwrap_or_default()
    }

    /// A program's output.
    #[must_use]
    pub fn log(&self, part: Part) -> String {
        fs::read_to_string(self.log_file(part)).unwrap_or_default()
    }

    fn log_file(&self, part: Part) -> PathBuf {
        self.dir.join(format!("{}.log", part.program()))
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Part, Daemon>> {
        self.running.lock()
    }

    /// Starts a program (again) without waiting for it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn begin(&self, part: Part) {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.machine.display())).arg(self.assets.join(part.program()));
        // etcd keeps all its files below a directory of its own.
        let place = if part == Part::Etcd { self.dir.join("etcd") } else { self.dir.clone() };
        fs::create_dir_all(&place).expect("a directory can be created");
        let further = self.further.lock().get(&part).cloned().unwrap_or_default();
        let flag = |argument: &str| argument.split('=').next().unwrap_or_default().to_owned();
        let mut arguments = self.arguments(part).expect("its files can be written");
        arguments.retain(|argument| further.iter().all(|other| flag(other) != flag(argument)));
        command.args(arguments).args(further).current_dir(&place);
        let daemon = Daemon::start(part.program(), &mut command, &self.log_file(part)).expect("the program starts");
        self.running().insert(part, daemon);
    }

    /// Restarts a program with additional arguments, which stand in place of those of the same name.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn change(&self, part: Part, arguments: &[&str]) {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        self.further.lock().insert(part, arguments);
        self.end(part, Signal::SIGKILL);
        self.begin(part);
    }

    /// Ends a program with a signal; [`Signal::SIGKILL`] ends it at once.
    pub fn end(&self, part: Part, signal: Signal) {
        let ended = self.running().remove(&part);
        if let Some(mut daemon) = ended {
            daemon.end(signal);
        }
    }

    /// The process of a program, while it runs.
    #[must_use]
    pub fn pid(&self, part: Part) -> Option<u32> {
        self.running().get(&part).map(Daemon::pid)
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

    /// Saves the current content of etcd under a name, for [`restore`](Self::restore). The API is unreachable
    /// meanwhile.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn save(&self, name: &str) {
        self.exchange(|dir| copy(&dir.join("etcd"), &dir.join(name)));
    }

    /// Restores what [`save`](Self::save) has saved. Revisions go back too, as with an etcd snapshot.
    ///
    /// # Panics
    /// When there is no such copy.
    pub fn restore(&self, name: &str) {
        self.exchange(|dir| {
            fs::remove_dir_all(dir.join("etcd")).expect("the store can be removed");
            copy(&dir.join(name), &dir.join("etcd"));
        });
    }

    /// Stops all programs, calls `change` on their directory, and starts all again.
    fn exchange(&self, change: impl FnOnce(&Path)) {
        for part in Part::ALL.into_iter().rev() {
            // kube-apiserver drains as long as there are watches.
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
                format!("--listen-client-urls={ETCD},{}", Self::etcd()),
                format!("--advertise-client-urls={ETCD}"),
                "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
                // The durability of the disk does not matter here.
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
            Part::ApiServer => {
                // Only requests of nodes, once each: the control plane's own are much more.
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
                    format!("--proxy-client-cert-file={}", of(&format!("{FRONT_PROXY}.crt"))),
                    format!("--proxy-client-key-file={}", of(&format!("{FRONT_PROXY}.key"))),
                    format!("--requestheader-client-ca-file={}", of("ca.crt")),
                    format!("--requestheader-allowed-names={FRONT_PROXY}"),
                    "--requestheader-username-headers=X-Remote-User".to_owned(),
                    "--requestheader-group-headers=X-Remote-Group".to_owned(),
                    "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
                    // Nothing here leads to the addresses of Services.
                    "--enable-aggregator-routing=true".to_owned(),
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

/// The files that a node needs to join.
#[derive(Debug)]
pub struct NodeFiles {
    /// A kubeconfig with the node's client certificate.
    pub kubeconfig: PathBuf,
    /// The serving certificate.
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
            // Its data is thrown away, and a graceful stop would wait for watches.
            if let Some(mut daemon) = running.remove(&part) {
                daemon.end(Signal::SIGKILL);
            }
        }
    }
}
