//! A machine for one test: two network namespaces (the node and an outside client), Docker Engine with its own data,
//! and an image registry in place of the public one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use crate::{
    Daemon, DockerProxy, Windlass,
    cluster::{Api, ControlPlane},
    engine_data, eventually,
    guard::Guard,
    run, try_run,
};

/// The node's address toward the outside.
pub const NODE_IP: &str = "198.18.0.1";
/// The address of the client outside.
const OUTSIDE_IP: &str = "198.18.0.2";

/// Puts the programs of another root directory in place of the machine's, for the engine alone.
const WITH_PROGRAMS_OF: &str = r#"mount --rbind "$0/usr" /usr && exec "$@""#;
/// The same for users whose containers have ids of their own, in a file.
const WITH_SUBORDINATE_IDS: &str =
    r#"for file in /etc/subuid /etc/subgid; do touch $file; mount --bind "$0" $file || exit; done; exec "$@""#;

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A machine for one test. Removed when dropped.
#[derive(Debug)]
pub struct Testbed {
    name: String,
    dir: tempfile::TempDir,
    api: Api,
    cluster: OnceLock<ControlPlane>,
    dockerd: Mutex<Option<Daemon>>,
    proxy: OnceLock<DockerProxy>,
    /// Docker's storage driver; its own choice by default.
    storage_driver: Option<&'static str>,
    /// Docker's other settings.
    engine_settings: Value,
    /// Docker's containers outlive it.
    live_restore: AtomicBool,
    registry: Option<Daemon>,
    guard: Guard,
}

impl Testbed {
    /// Creates the namespaces and starts Docker Engine in the node's, with the sample images in its store.
    ///
    /// # Panics
    /// When any of it fails, for example without root or the packages that `make test` installs.
    #[must_use]
    pub fn new() -> Self {
        Self::with_docker(Api::from_env(), None, json!({}))
    }

    /// Like [`new`](Self::new), for a node of a real control plane, whatever `TEST_API` says.
    ///
    /// # Panics
    /// When any of it fails.
    #[must_use]
    pub fn on_cluster() -> Self {
        Self::with_docker(Api::Cluster, None, json!({}))
    }

    /// Like [`new`](Self::new), with a storage driver of Docker's that it would not choose.
    ///
    /// # Panics
    /// When any of it fails.
    #[must_use]
    pub fn with_storage_driver(driver: &'static str) -> Self {
        Self::with_docker(Api::from_env(), Some(driver), json!({}))
    }

    /// Like [`new`](Self::new), with these settings of Docker's in its `daemon.json`.
    ///
    /// # Panics
    /// When any of it fails.
    #[must_use]
    pub fn with_engine_settings(settings: Value) -> Self {
        Self::with_docker(Api::from_env(), None, settings)
    }

    fn with_docker(api: Api, storage_driver: Option<&'static str>, engine_settings: Value) -> Self {
        let mut testbed = Self::without_docker();
        (testbed.api, testbed.storage_driver, testbed.engine_settings) = (api, storage_driver, engine_settings);
        // Of the driver that the engine chooses.
        if storage_driver.is_none() {
            engine_data::copy_to(&testbed.docker_data());
        }
        testbed.start_docker();
        if storage_driver.is_some() {
            engine_data::IMAGES.into_iter().for_each(|image| testbed.load(image));
        }
        testbed
    }

    /// Loads a sample image into the node's Docker Engine.
    ///
    /// # Panics
    /// When it was not built, or cannot be loaded.
    pub fn load(&self, image: &str) {
        let file = sample_image(image);
        run("docker", &["-H", &self.docker_host(), "load", "-q", "-i", &file.to_string_lossy()]);
    }

    /// Only the namespaces, for tests without containers.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn without_docker() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "the end-to-end tests need root");
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("wlt{}-{serial}", std::process::id());
        let dir = tempfile::Builder::new().prefix("windlass-test-").tempdir().expect("a temporary directory");
        let guard = Guard::new(&name, dir.path());
        let (api, cluster) = (Api::from_env(), OnceLock::new());
        let testbed = Self {
            name,
            dir,
            api,
            cluster,
            dockerd: Mutex::default(),
            proxy: OnceLock::new(),
            storage_driver: None,
            engine_settings: json!({}),
            live_restore: AtomicBool::new(false),
            registry: None,
            guard,
        };
        testbed.connect();
        testbed
    }

    /// Like [`new`](Self::new), and every sample image is also served by a registry that Docker uses as its mirror,
    /// under the names that public manifests use (`nginx`, `busybox`, `redis`, `k8stest/nginx:test` …).
    #[must_use]
    pub fn with_registry() -> Self {
        let mut testbed = Self::new();
        testbed.start_registry();
        for (sample, names) in [
            ("windlass/nginx:1", &["library/nginx:latest", "library/nginx:1.7.9", "k8stest/nginx:test"][..]),
            ("windlass/busybox:1", &["library/busybox:latest"][..]),
            ("windlass/redis:1", &["library/redis:latest", "k8stest/redis:test"][..]),
        ] {
            for name in names {
                let pushed = format!("127.0.0.1:5000/{name}");
                testbed.docker(&["tag", sample, &pushed]);
                testbed.docker(&["push", "-q", &pushed]);
                testbed.docker(&["rmi", &pushed]);
            }
        }
        testbed
    }

    /// The directory of this testbed.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The node's network namespace, as a file.
    #[must_use]
    pub fn namespace(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Moves the calling thread into the node's network namespace, where the API's port is.
    ///
    /// # Errors
    /// Without root.
    pub fn enter(&self) -> anyhow::Result<()> {
        let namespace = fs::File::open(self.namespace())?;
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).context("the testbed's network namespace")
    }

    /// The kind of API that the node of this testbed has.
    #[must_use]
    pub fn api(&self) -> Api {
        self.api
    }

    /// The real control plane in the outside namespace; the first call starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn cluster(&self) -> &ControlPlane {
        self.cluster.get_or_init(|| ControlPlane::start(self))
    }

    /// Like [`cluster`](Self::cluster), but starts only etcd and kube-apiserver if it is not running yet.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn api_server(&self) -> &ControlPlane {
        self.cluster.get_or_init(|| ControlPlane::start_api(self))
    }

    /// The outside network namespace, as a file.
    #[must_use]
    pub fn outside(&self) -> PathBuf {
        Path::new("/run/netns").join(format!("{}-out", self.name))
    }

    /// A command that runs in the node's network namespace.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        in_namespace(&self.name, program)
    }

    /// Runs a shell line in the node's network namespace.
    ///
    /// # Errors
    /// When it ends with another code than 0.
    pub fn try_sh(&self, line: &str) -> anyhow::Result<String> {
        try_run("nsenter", &[&format!("--net=/run/netns/{}", self.name), "sh", "-c", line])
    }

    /// Like [`try_sh`](Self::try_sh), but panics on failure.
    #[track_caller]
    pub fn sh(&self, line: &str) -> String {
        match self.try_sh(line) {
            Ok(out) => out,
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Runs a shell line in the outside network namespace.
    ///
    /// # Errors
    /// When it ends with another code than 0.
    pub fn try_sh_outside(&self, line: &str) -> anyhow::Result<String> {
        try_run("nsenter", &[&format!("--net=/run/netns/{}-out", self.name), "sh", "-c", line])
    }

    /// A command that runs in the outside network namespace.
    #[must_use]
    pub fn command_outside(&self, program: &str) -> Command {
        in_namespace(&format!("{}-out", self.name), program)
    }

    /// Runs docker against this testbed's engine.
    #[track_caller]
    pub fn docker(&self, args: &[&str]) -> String {
        let host = self.docker_host();
        let mut all = vec!["-H", &host];
        all.extend(args);
        run("docker", &all)
    }

    /// Where the engine keeps images and containers.
    pub(crate) fn docker_data(&self) -> PathBuf {
        self.dir().join("docker")
    }

    /// The engine's socket.
    #[must_use]
    pub fn docker_socket(&self) -> PathBuf {
        self.dir().join("docker.sock")
    }

    pub(crate) fn docker_host(&self) -> String {
        format!("unix://{}", self.docker_socket().display())
    }

    /// `windlass` with the directories of this testbed; nothing is started.
    #[must_use]
    pub fn windlass(&self) -> Windlass<'_> {
        Windlass::new(self)
    }

    fn connect(&self) {
        let (node, outside) = (&self.name, format!("{}-out", self.name));
        for namespace in [node, &outside] {
            run("ip", &["netns", "add", namespace]);
            run("ip", &["-n", namespace, "link", "set", "lo", "up"]);
        }
        run("ip", &["-n", node, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &outside]);
        for (namespace, address) in [(node, NODE_IP), (&outside, OUTSIDE_IP)] {
            run("ip", &["-n", namespace, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
            run("ip", &["-n", namespace, "link", "set", "eth0", "up"]);
        }
        run("ip", &["-n", node, "route", "add", "default", "via", OUTSIDE_IP]);
    }

    /// The socket that `windlass` uses: the engine's, or that of a proxy before it.
    pub(crate) fn socket_of_agent(&self) -> PathBuf {
        self.proxy.get().map_or_else(|| self.docker_socket(), |proxy| proxy.socket().to_owned())
    }

    /// A proxy between `windlass` and the engine; to be called first before `windlass` is started.
    pub fn docker_proxy(&self) -> &DockerProxy {
        self.proxy.get_or_init(|| DockerProxy::start(&self.dir().join("proxy.sock"), &self.docker_socket()))
    }

    fn dockerd(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.dockerd.lock()
    }

    /// Whether Docker's containers outlive it, from its next start on.
    pub fn set_live_restore(&self, live_restore: bool) {
        self.live_restore.store(live_restore, Ordering::Relaxed);
    }

    /// Starts Docker Engine (again).
    ///
    /// # Panics
    /// When it cannot be started, or does not answer.
    pub fn start_docker(&self) {
        let dir = self.dir();
        let config = dir.join("daemon.json");
        let live_restore = self.live_restore.load(Ordering::Relaxed);
        let mut settings: Value = std::env::var("TEST_ENGINE_CONFIG")
            .map_or_else(|_| json!({}), |text| serde_json::from_str(&text).expect("TEST_ENGINE_CONFIG is JSON"));
        for (name, value) in self.engine_settings.as_object().into_iter().flatten() {
            settings[name] = value.clone();
        }
        settings["live-restore"] = live_restore.into();
        std::fs::write(&config, settings.to_string()).expect("the engine's configuration");
        let _ = std::fs::remove_file(dir.join("docker.pid"));
        let mut command = match std::env::var("TEST_ENGINE") {
            Ok(root) => {
                let mut command = self.command("unshare");
                command.args(["--mount", "--propagation", "slave", "sh", "-c", WITH_PROGRAMS_OF, &root, "dockerd"]);
                command
            }
            Err(_) if !settings["userns-remap"].is_null() => {
                let (ids, mut command) = (dir.join("subids"), self.command("unshare"));
                std::fs::write(&ids, "daemon:100000:65536\n").expect("subordinate ids");
                command.args(["--mount", "--propagation", "slave", "sh", "-c", WITH_SUBORDINATE_IDS]).arg(&ids);
                command.arg("dockerd");
                command
            }
            Err(_) => self.command("dockerd"),
        };
        command
            .arg(format!("--config-file={}", config.display()))
            .arg(format!("--data-root={}", self.docker_data().display()))
            .arg(format!("--exec-root={}", dir.join("exec").display()))
            .arg(format!("--pidfile={}", dir.join("docker.pid").display()))
            .arg(format!("--host={}", self.docker_host()))
            .arg("--registry-mirror=http://127.0.0.1:5000")
            // Clients of the mirror retry by themselves.
            .arg("--max-download-attempts=1")
            .args(self.storage_driver.map(|driver| format!("--storage-driver={driver}")));
        let log = dir.join("dockerd.log");
        let mut start = || Daemon::start("dockerd", &mut command, &log).expect("dockerd");
        *self.dockerd() = Some(start());
        let host = self.docker_host();
        eventually(Duration::from_secs(120), "Docker Engine answers", || {
            // On a busy machine it gives up on its containerd, and its supervisor restarts it.
            if !self.dockerd().as_mut().is_some_and(Daemon::runs) {
                *self.dockerd() = Some(start());
            }
            try_run("docker", &["-H", &host, "version"]).map(drop)
        });
    }

    /// The process of Docker Engine.
    ///
    /// # Panics
    /// When it was not started.
    #[must_use]
    pub fn docker_pid(&self) -> u32 {
        self.dockerd().as_ref().expect("Docker Engine was started").pid()
    }

    /// Stops Docker Engine; its containers end with it, but for live-restore.
    pub fn stop_docker(&self) {
        self.end_docker(Signal::SIGTERM);
    }

    /// Ends Docker Engine by a signal.
    pub fn end_docker(&self, signal: Signal) {
        if let Some(mut daemon) = self.dockerd().take() {
            daemon.end(signal);
        }
    }

    fn start_registry(&mut self) {
        let dir = self.dir();
        let config = dir.join("registry.yml");
        std::fs::write(
            &config,
            format!(
                "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:5000'}}\n",
                dir.join("registry").display()
            ),
        )
        .expect("the registry's configuration");
        let mut command = self.command("docker-registry");
        command.arg("serve").arg(&config);
        self.registry =
            Some(Daemon::start("docker-registry", &mut command, &dir.join("registry.log")).expect("docker-registry"));
        eventually(Duration::from_secs(30), "the registry answers", || {
            self.try_sh("curl -fsS --max-time 2 http://127.0.0.1:5000/v2/").map(drop)
        });
    }
}

impl Default for Testbed {
    fn default() -> Self {
        Self::new()
    }
}

fn in_namespace(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
    command
}

/// A sample image as a file, saved once for all tests of a run by `scripts/test.sh`.
fn sample_image(name: &str) -> PathBuf {
    let file = sample_images().join(format!("{name}.tar"));
    assert!(
        file.exists(),
        "{} is missing: run the tests with `make test`, or scripts/test-images.sh once",
        file.display()
    );
    file
}

/// The directory of the sample images.
pub(crate) fn sample_images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("out/images")
}

/// The agent's log message for a write that changed nothing.
const EMPTY_WRITE: &str = "the API accepted a write that changed nothing";

impl Testbed {
    /// The log lines in this testbed's directory with [`EMPTY_WRITE`]: no test may have any.
    fn empty_writes(&self) -> Vec<String> {
        let logs = fs::read_dir(self.dir()).into_iter().flatten().flatten().map(|entry| entry.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let texts: Vec<String> =
            logs.map(|log| String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()).collect();
        texts
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| line.contains(EMPTY_WRITE))
            .map(str::to_owned)
            .collect()
    }
}

impl Testbed {
    /// Fails if an agent has written in vain so far.
    #[track_caller]
    pub(crate) fn assert_no_empty_writes(&self) {
        let in_vain = self.empty_writes();
        assert!(in_vain.is_empty(), "an agent wrote in vain:\n{}", in_vain.join("\n"));
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if self.dockerd().is_some() {
            let host = self.docker_host();
            if let Ok(ids) = try_run("docker", &["-H", &host, "ps", "-aq"]) {
                // Docker Engine 20.10 can deadlock when it removes hundreds of containers at once; the rest ends with
                // its shims.
                let mut args = vec!["120", "docker", "-H", &host, "rm", "-fv"];
                args.extend(ids.split_whitespace());
                if args.len() > 6 {
                    let _ = try_run("timeout", &args);
                }
            }
        }
        self.cluster = OnceLock::new();
        self.registry = None;
        *self.dockerd() = None;
        self.end_shims();
        for namespace in [self.name.clone(), format!("{}-out", self.name)] {
            let _ = try_run("ip", &["netns", "delete", &namespace]);
        }
        self.unmount();
        self.guard.disarm();
        if !std::thread::panicking() {
            self.assert_no_empty_writes();
        }
    }
}
