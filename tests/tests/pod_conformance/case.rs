//! The node that all cases share, and the operations of a case.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, Daemon, FailingRegistry, Kubectl, Testbed, eventually,
    shared_dir::{SharedDir, shell},
};

/// The node's address, on which the server of [`Case::get`] listens.
pub(crate) const NODE_IP: &str = "198.18.0.1";

/// The cluster DNS address of the node.
pub(crate) const CLUSTER_DNS: &str = "10.96.0.10";

/// Results that several cases share, by area and name; created by the first one.
type Cached = Arc<OnceLock<Vec<String>>>;

/// A machine with a node. Fields are dropped in this order: windlass before its testbed.
pub(crate) struct Node {
    windlass: Mutex<Daemon>,
    server: OnceLock<Daemon>,
    registry: OnceLock<Daemon>,
    failing: OnceLock<FailingRegistry>,
    cached: Mutex<BTreeMap<String, Cached>>,
    pub(crate) testbed: Testbed,
}

impl Node {
    /// Creates a machine with a node, and these namespaces.
    pub(crate) fn start(namespaces: &[String]) -> Self {
        let testbed = Testbed::with_registry();
        let config = testbed.dir().join("config.yaml");
        let text =
            format!("apiVersion: windlass.io/v1alpha1\nkind: WindlassConfiguration\nclusterDNS: [{CLUSTER_DNS}]\n");
        fs::write(&config, text).expect("a file can be written");
        // The fullness of this machine's disk must not matter.
        let roomy = ["--eviction-hard", "memory.available<100Mi", "--image-gc-high-threshold", "100"];
        let windlass = testbed.windlass().with(&["--config", &config.to_string_lossy()]).with(&roomy);
        // One case depends on a repair: a container without a pod is found by listing, as often as in production.
        let mut windlass = windlass.with_repairs("off,engine-relist=60s");
        let kubectl = windlass.up();
        let daemon = windlass.into_daemon();
        let object = |name: &String| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let all: Vec<Value> = namespaces.iter().map(object).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": all});
        let made = kubectl.output(&["create", "-f", "-"], &list.to_string());
        assert!(made.ok, "{}", made.err);
        kubectl.accounts(&namespaces.iter().map(String::as_str).collect::<Vec<_>>());
        Self {
            windlass: Mutex::new(daemon),
            server: OnceLock::new(),
            registry: OnceLock::new(),
            failing: OnceLock::new(),
            cached: Mutex::default(),
            testbed,
        }
    }

    fn requests(&self) -> PathBuf {
        self.testbed.dir().join("requests")
    }

    /// Starts the HTTP server for probes and hooks.
    fn serve(&self) -> Daemon {
        let dir = self.testbed.dir();
        let (program, certificate) = (dir.join("server.py"), dir.join("server.pem"));
        fs::write(&program, include_str!("server.py")).expect("a file can be written");
        let pem = certificate.display();
        // A self-signed certificate.
        let _ = self.testbed.sh(&format!(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=nobody -keyout {pem} -out {pem}.crt 2>&1 && cat {pem}.crt >> {pem}"
        ));
        let mut command = self.testbed.command("python3");
        command.arg(&program).arg(self.requests()).arg(&certificate);
        let server = Daemon::start("server.py", &mut command, &dir.join("server.log")).expect("python3");
        eventually(DEFAULT_TIMEOUT, "the server answers", || {
            self.testbed
                .try_sh("curl -fsS --max-time 2 http://127.0.0.1:8101/ && curl -fsSk https://127.0.0.1:8102/")
                .map(drop)
        });
        server
    }
}

/// A case: a namespace, and a directory that its pods mount at /shared.
pub(crate) struct Case<'n> {
    node: &'n Node,
    pub(crate) testbed: &'n Testbed,
    pub(crate) kubectl: Kubectl<'n>,
    pub(crate) shared: SharedDir,
    pub(crate) namespace: String,
    brief: bool,
}

impl<'n> Case<'n> {
    /// A case with a namespace of its own, deleted with it.
    pub(crate) fn new(node: &'n Node, area: &str, name: &str) -> Self {
        Self::in_namespace(node, &namespace_of(area, name), true)
    }

    fn in_namespace(node: &'n Node, namespace: &str, brief: bool) -> Self {
        let kubectl = node.testbed.windlass().kubectl();
        // Namespaces of cases were created with the node.
        if !brief {
            let _ = kubectl.run(&["create", "namespace", namespace]);
            kubectl.accounts(&[namespace]);
        }
        Self {
            node,
            testbed: &node.testbed,
            kubectl: kubectl.within(namespace),
            shared: SharedDir::open_to_all(&node.testbed, namespace),
            namespace: namespace.to_owned(),
            brief,
        }
    }

    /// Computes a result that several cases of an area share, in a namespace that stays.
    pub(crate) fn once(&self, area: &str, ask: impl FnOnce(&Case<'n>) -> Vec<String>) -> Vec<String> {
        let mut all = self.node.cached.lock();
        let output = Arc::clone(all.entry(area.to_owned()).or_default());
        drop(all);
        output.get_or_init(|| ask(&Self::in_namespace(self.node, area, false))).clone()
    }

    /// Applies objects with one command.
    pub(crate) fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.kubectl.apply(&list.to_string());
    }

    /// Creates a pod.
    pub(crate) fn pod(&self, name: &str, spec: Value) {
        self.kubectl.apply(&self.shared.pod(name, spec));
    }

    /// Creates a pod with metadata beyond its name.
    pub(crate) fn pod_with(&self, name: &str, metadata: Value, spec: Value) {
        let text = self.shared.pod(name, spec);
        let mut pod: Value = serde_json::from_str(&text).expect("a pod is JSON");
        for (key, value) in metadata.as_object().into_iter().flatten() {
            pod["metadata"][key] = value.clone();
        }
        self.kubectl.apply(&pod.to_string());
    }

    /// Creates a pod with one container `main` that runs a shell line.
    pub(crate) fn shell(&self, name: &str, line: &str, container: Value, spec: Value) {
        self.pod(name, one(line, container, spec));
    }

    /// Runs a shell line in a pod with one container, and returns its output.
    #[track_caller]
    pub(crate) fn run(&self, name: &str, line: &str, container: Value, spec: Value) -> Vec<String> {
        self.start(name, line, json!({}), container, spec);
        self.output(name)
    }

    /// Like [`run`](Self::run), with metadata and without waiting.
    pub(crate) fn start(&self, name: &str, line: &str, metadata: Value, container: Value, mut spec: Value) {
        let line = format!("({line}) > /shared/.{name} 2>&1; mv /shared/.{name} /shared/{name}");
        spec["restartPolicy"] = json!("Never");
        self.pod_with(name, metadata, one(&line, container, spec));
    }

    /// The content of the file that a pod has written under its name.
    #[track_caller]
    pub(crate) fn output(&self, name: &str) -> Vec<String> {
        let file = self.shared.0.join(name);
        let deadline = std::time::Instant::now() + DEFAULT_TIMEOUT;
        while !file.exists() {
            if std::time::Instant::now() > deadline {
                let status = self.kubectl.try_run(&["get", "pod", name, "-o", "jsonpath={.status}"]);
                panic!("{name} has written nothing: {status:?}\n{}", self.events(name));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.shared.lines(name)
    }

    #[track_caller]
    pub(crate) fn wait(&self, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        windlass_tests::shared_dir::wait_for(&self.kubectl, name, what, check)
    }

    #[track_caller]
    pub(crate) fn wait_ready(&self, name: &str) -> Value {
        self.wait(name, "is ready", windlass_tests::shared_dir::is_ready)
    }

    /// Waits for a phase.
    #[track_caller]
    pub(crate) fn wait_phase(&self, name: &str, phase: &str) -> Value {
        self.wait(name, phase, |p| p["status"]["phase"] == phase)
    }

    /// Waits until the pod's first container waits for this reason.
    #[track_caller]
    pub(crate) fn wait_waiting(&self, name: &str, reason: &str) -> Value {
        let waiting = |p: &Value| windlass_tests::shared_dir::container_status(p)["state"]["waiting"].clone();
        waiting(&self.wait(name, reason, |p| waiting(p)["reason"] == reason))
    }

    /// Waits for an event.
    #[track_caller]
    pub(crate) fn wait_for_event(&self, name: &str, words: &str) {
        windlass_tests::shared_dir::wait_for_event(&self.kubectl, name, words);
    }

    pub(crate) fn events(&self, name: &str) -> String {
        windlass_tests::shared_dir::events(&self.kubectl, name)
    }

    /// Runs kubectl; panics on failure.
    #[track_caller]
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl.run(args)
    }

    /// Docker's ids of a container of a pod, newest first; `POD` is the sandbox.
    pub(crate) fn ids(&self, pod: &str, container: &str) -> Vec<String> {
        let filters = self.filters_of(pod, container);
        self.testbed.all_containers(&filters.each_ref().map(String::as_str))
    }

    /// For a pod that the API has removed: no such container runs, and dead ones are removed.
    #[track_caller]
    pub(crate) fn wait_containers_removed(&self, pod: &str, container: &str) {
        assert_eq!(self.running_ids(pod, container), [""; 0]);
        self.wait_removed(pod, &[container]);
    }

    /// Waits until Docker has removed these containers.
    #[track_caller]
    pub(crate) fn wait_removed(&self, pod: &str, containers: &[&str]) {
        eventually(DEFAULT_TIMEOUT, "Docker has forgotten the containers", || {
            let left: Vec<String> = containers.iter().flat_map(|container| self.ids(pod, container)).collect();
            anyhow::ensure!(left.is_empty(), "{containers:?} of {pod}: {left:?}");
            Ok(())
        });
    }

    /// The running ones.
    pub(crate) fn running_ids(&self, pod: &str, container: &str) -> Vec<String> {
        let filters = self.filters_of(pod, container);
        self.testbed.running_containers(&filters.each_ref().map(String::as_str))
    }

    /// What `docker ps` finds a container of a pod by.
    fn filters_of(&self, pod: &str, container: &str) -> [String; 3] {
        let label = |key: &str, value: &str| format!("label=io.kubernetes.{key}={value}");
        [label("pod.namespace", &self.namespace), label("pod.name", pod), label("container.name", container)]
    }

    /// Docker's inspection of the newest instance of a container.
    #[track_caller]
    pub(crate) fn inspect(&self, pod: &str, container: &str) -> Value {
        let ids = self.ids(pod, container);
        let id = ids.first().unwrap_or_else(|| panic!("Docker has no container {container} of {pod}"));
        let all: Value = serde_json::from_str(&self.testbed.docker(&["inspect", id])).expect("docker prints JSON");
        all[0].clone()
    }

    /// Builds an image from the sample image and lines of a Dockerfile.
    pub(crate) fn image(&self, name: &str, lines: &str) {
        let dir = self.shared.0.join("image");
        fs::create_dir_all(&dir).expect("a directory can be created");
        fs::write(dir.join("Dockerfile"), format!("FROM windlass/busybox:1\n{lines}\n"))
            .expect("a file can be written");
        let _ = self.testbed.docker(&["build", "-q", "-t", name, &dir.to_string_lossy()]);
    }

    /// Starts a registry on port 5001 that requires the user `me` with the password `secret`, and pushes an image.
    pub(crate) fn registry_with_password(&self) {
        let dir = self.testbed.dir();
        let script = "import crypt; print(crypt.crypt(\"secret\", crypt.mksalt(crypt.METHOD_BLOWFISH)))";
        let hash = self.testbed.sh(&format!("python3 -W ignore -c '{script}'"));
        fs::write(dir.join("htpasswd"), format!("me:{}\n", hash.trim())).expect("a file can be written");
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {0}/private}}}}\n\
             http: {{addr: '127.0.0.1:5001'}}\nauth: {{htpasswd: {{realm: here, path: {0}/htpasswd}}}}\n",
            dir.display()
        );
        fs::write(dir.join("private.yml"), config).expect("a file can be written");
        let mut command = self.testbed.command("docker-registry");
        command.arg("serve").arg(dir.join("private.yml"));
        let registry =
            Daemon::start("docker-registry", &mut command, &dir.join("private.log")).expect("docker-registry");
        let _ = self.node.registry.set(registry);
        eventually(DEFAULT_TIMEOUT, "the registry asks who comes", || {
            let code =
                self.testbed.try_sh("curl -s -o /dev/null -w '%{http_code}' --max-time 2 http://127.0.0.1:5001/v2/")?;
            anyhow::ensure!(code.trim() == "401", "{code}");
            Ok(())
        });
        let image = "127.0.0.1:5001/private/busybox:1";
        let known = dir.join("docker-config");
        fs::create_dir_all(&known).expect("a directory can be created");
        let auth = json!({"auths": {"127.0.0.1:5001": {"auth": "bWU6c2VjcmV0"}}});
        fs::write(known.join("config.json"), auth.to_string()).expect("a file can be written");
        let _ = self.testbed.docker(&["tag", "windlass/busybox:1", image]);
        let _ = self.testbed.docker(&["--config", &known.to_string_lossy(), "push", "-q", image]);
        let _ = self.testbed.docker(&["rmi", image]);
    }

    /// A cgroup file of a pod, for the machine's cgroup version; `class` is part of a path.
    pub(crate) fn pod_cgroup(&self, uid: &str, class: &str, what: &str) -> String {
        let (controller, file) = match what {
            "cpu quota" => ("cpu", ("cpu.cfs_quota_us", "cpu.max")),
            "cpu shares" => ("cpu", ("cpu.shares", "cpu.weight")),
            "memory limit" => ("memory", ("memory.limit_in_bytes", "memory.max")),
            other => panic!("nobody asked for {other} before"),
        };
        let one = format!("/sys/fs/cgroup/{controller}/kubepods{class}/pod{uid}/{}", file.0);
        let two = format!("/sys/fs/cgroup/kubepods{class}/pod{uid}/{}", file.1);
        let output = fs::read_to_string(one).or_else(|_| fs::read_to_string(two)).unwrap_or_default();
        output.split_whitespace().next().unwrap_or_default().to_owned()
    }

    /// A URL of the server, which answers with the status code at the end of the path, or as the name says: see
    /// server.py. The server groups requests of a case by their path.
    pub(crate) fn http_get(&self, what: &str) -> Value {
        let _ = self.node.server.get_or_init(|| self.node.serve());
        json!({"host": NODE_IP, "port": 8101, "path": format!("/{}/{what}", self.namespace)})
    }

    /// The received requests of this case: paths without the case's part, and headers.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let output = fs::read_to_string(self.node.requests()).unwrap_or_default();
        let prefix = format!("/{}/", self.namespace);
        let all = output.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        all.filter(|r| text(&r["path"]).starts_with(&prefix)).collect()
    }

    /// The peak memory of the node's process in MiB.
    pub(crate) fn peak_memory_megabytes(&self) -> u64 {
        let pid = self.node.windlass.lock().pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("windlass runs");
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
    }

    /// The registry with fault injection.
    pub(crate) fn failing_registry(&self) -> &FailingRegistry {
        self.node.failing.get_or_init(|| FailingRegistry::start(self.testbed, 5007))
    }

    /// The log of windlass so far.
    pub(crate) fn log(&self) -> String {
        self.node.windlass.lock().log()
    }
}

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if self.brief {
            let _ = self.kubectl.try_run(&["delete", "namespace", &self.namespace, "--wait=false"]);
        }
    }
}

/// The namespace of a case.
pub(crate) fn namespace_of(area: &str, name: &str) -> String {
    let name: String = format!("{area}-{name}").replace('_', "-").chars().take(63).collect();
    name.trim_end_matches('-').to_owned()
}

/// A spec with one container `main` that runs a shell line, unless it has a command of its own.
pub(crate) fn one(line: &str, container: Value, mut spec: Value) -> Value {
    let mut main = container;
    main["name"] = json!("main");
    if main["command"].is_null() && !line.is_empty() {
        main["command"] = shell(line);
    }
    spec["containers"] = json!([main]);
    spec
}

/// A shell line that keeps a container running.
pub(crate) const SLEEP_FOREVER: &str = "exec sleep 100000";

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
