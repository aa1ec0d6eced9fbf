//! The programs of `windlass envtest install`, started as controller-runtime's envtest starts them: its certificates, arguments, health
//! checks and signals (`pkg/internal/testing` of controller-runtime 0.24).

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use base64::Engine as _;
use nix::{sys::signal::Signal, unistd::User};
use serde_json::json;

use crate::{
    DEFAULT_TIMEOUT, Daemon,
    cluster::pki::{Holder, Pki},
    eventually, page, run,
    windlass::binary,
};

/// A free port of loopback, as envtest suggests one.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// The directory of the programs, for everybody.
#[derive(Debug)]
pub struct EnvtestAssets {
    dir: tempfile::TempDir,
}

impl EnvtestAssets {
    /// Installs them. The program stands where other users reach it.
    #[must_use]
    pub fn install() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        let program = dir.path().join("windlass");
        if fs::hard_link(binary(), &program).is_err() {
            let _ = fs::copy(binary(), &program).expect("a copy of the program");
        }
        let assets = Self { dir };
        let assets_dir = assets.path().display().to_string();
        let said = run(&program.display().to_string(), &["envtest", "install", &assets_dir]);
        assert_eq!(said.trim(), format!("export KUBEBUILDER_ASSETS='{assets_dir}'"));
        assets
    }

    /// What KUBEBUILDER_ASSETS names.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("bin")
    }
}

/// A running pair of both programs. Fields are dropped in this order.
#[derive(Debug)]
pub struct Envtest {
    api: Option<Daemon>,
    etcd: Daemon,
    assets: PathBuf,
    user: Option<String>,
    clients: Pki,
    serving: Pki,
    port: u16,
    etcd_url: String,
    flags: Vec<String>,
    /// That of etcd, which envtest removes at the end.
    pub data: tempfile::TempDir,
    certificates: tempfile::TempDir,
}

impl Envtest {
    /// Starts both, with more flags of kube-apiserver, as a user of this machine.
    #[must_use]
    pub fn start(assets: &EnvtestAssets, user: Option<&str>, flags: &[&str]) -> Self {
        let [data, certificates] = [(); 2].map(|()| directory(user));
        let pki = |name: &str| Pki::new(certificates.path().join(name)).expect("an authority");
        let (serving, clients, accounts) = (pki("serving"), pki("clients"), pki("accounts"));
        let server =
            Holder { file: "apiserver", user: "localhost", group: Some("envtest"), names: &["localhost", "127.0.0.1"] };
        serving.issue(&server).expect("a certificate");
        for (from, to) in [
            (serving.file("apiserver.crt"), "apiserver.crt"),
            (serving.file("apiserver.key"), "apiserver.key"),
            (clients.file("ca.crt"), "client-cert-auth-ca.crt"),
            // The certificate of an authority and its key.
            (accounts.file("ca.crt"), "sa-signer.crt"),
            (accounts.file("ca.key"), "sa-signer.key"),
        ] {
            let _ = fs::copy(from, certificates.path().join(to)).expect("a copy");
        }
        give(certificates.path(), user);
        let (etcd_port, peers) = (free_port(), free_port());
        let etcd_url = format!("http://127.0.0.1:{etcd_port}");
        let mut command = program(&assets.path().join("etcd"), user);
        command.args([
            format!("--advertise-client-urls={etcd_url}"),
            format!("--data-dir={}", data.path().display()),
            format!("--listen-client-urls={etcd_url}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
            "--unsafe-no-fsync=true".to_owned(),
        ]);
        let etcd = Daemon::start("etcd", &mut command, &certificates.path().join("etcd.log")).expect("it starts");
        eventually(DEFAULT_TIMEOUT, "etcd is healthy", || page(etcd_port, "/health"));
        let mut envtest = Self {
            api: None,
            etcd,
            assets: assets.path(),
            user: user.map(str::to_owned),
            clients,
            serving,
            port: free_port(),
            etcd_url,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            data,
            certificates,
        };
        envtest.start_api();
        envtest
    }

    /// Starts the API server, and waits until it is healthy.
    pub fn start_api(&mut self) {
        let log = self.certificates.path().join("api.log");
        let mut api = Daemon::start("kube-apiserver", &mut self.api_command(&[]), &log).expect("it starts");
        let url = format!("https://127.0.0.1:{}/healthz", self.port);
        eventually(DEFAULT_TIMEOUT, "the API is healthy", || {
            anyhow::ensure!(api.runs(), "it has ended: {}", api.log());
            let said = Command::new("curl").args(["--silent", "--insecure", &url]).output().context("curl")?;
            anyhow::ensure!(said.stdout == b"ok", "{said:?}");
            Ok(())
        });
        self.api = Some(api);
    }

    /// The arguments of envtest 0.24, and more flags.
    #[must_use]
    pub fn api_command(&self, more: &[&str]) -> Command {
        let mut command = program(&self.assets.join("kube-apiserver"), self.user.as_deref());
        let (dir, port) = (self.certificates.path().display(), self.port);
        command.args([
            "--allow-privileged=true".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={dir}"),
            format!("--client-ca-file={dir}/client-cert-auth-ca.crt"),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--etcd-servers={}", self.etcd_url),
            format!("--secure-port={port}"),
            format!("--service-account-issuer=https://127.0.0.1:{port}/"),
            format!("--service-account-key-file={dir}/sa-signer.crt"),
            format!("--service-account-signing-key-file={dir}/sa-signer.key"),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        ]);
        command.args(&self.flags).args(more);
        command
    }

    /// Ends the API server with SIGTERM.
    pub fn stop_api(&mut self) {
        let mut api = self.api.take().expect("it runs");
        api.end(Signal::SIGTERM);
    }

    /// Ends both, the API server first.
    pub fn stop(&mut self) {
        self.stop_api();
        self.etcd.end(Signal::SIGTERM);
    }

    /// The process ids of the API server and of etcd.
    #[must_use]
    pub fn pids(&self) -> (u32, u32) {
        (self.api.as_ref().map_or(0, Daemon::pid), self.etcd.pid())
    }

    /// The URL of the API.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// A kubeconfig with a certificate for a user, by the authority of clients.
    #[must_use]
    pub fn kubeconfig(&self, user: &str, group: Option<&str>) -> PathBuf {
        self.clients.issue(&Holder { file: user, user, group, names: &[] }).expect("a certificate");
        let data = |file: PathBuf| {
            base64::engine::general_purpose::STANDARD.encode(fs::read(file).expect("a file of the certificates"))
        };
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "envtest",
            "clusters": [{"name": "envtest", "cluster": {
                "server": self.url(), "certificate-authority-data": data(self.serving.file("ca.crt")),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": data(self.clients.file(&format!("{user}.crt"))),
                "client-key-data": data(self.clients.file(&format!("{user}.key"))),
            }}],
            "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": user}}],
        });
        let path = self.certificates.path().join(format!("{user}.kubeconfig"));
        fs::write(&path, config.to_string()).expect("a kubeconfig");
        path
    }
}

fn directory(user: Option<&str>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    give(dir.path(), user);
    dir
}

/// Gives a directory with all that is in it to a user.
fn give(dir: &Path, user: Option<&str>) {
    if let Some(user) = user {
        let _ = run("chown", &["-R", user, &dir.display().to_string()]);
    }
}

/// A program, as a user.
fn program(path: &Path, user: Option<&str>) -> Command {
    let mut command = Command::new(path);
    if let Some(user) = user {
        let user = User::from_name(user).expect("the users").expect("the user exists");
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/");
    }
    // envtest ends the group.
    command.process_group(0);
    command
}
