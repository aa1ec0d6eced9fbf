//! The program under test, in one testbed.

use std::{path::PathBuf, process::Command, time::Duration};

use crate::{DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, cluster::Api, eventually, testbed::NODE_IP};

/// The name of a testbed's node.
const NODE: &str = "node";

/// The variable that says which periodic repairs a program of the tests' build makes: `kit/src/repairs.rs`.
const REPAIRS: &str = "WINDLASS_TEST_REPAIRS";

/// `windlass` with its directories inside a [`Testbed`].
#[derive(Debug)]
pub struct Windlass<'w> {
    testbed: &'w Testbed,
    daemon: Option<Daemon>,
    settings: Vec<String>,
    /// None is made by default: what a main path loses shows as a failure then, and not as a delay.
    repairs: &'static str,
}

/// The binary that `scripts/test.sh` built.
pub(crate) fn binary() -> PathBuf {
    let named = std::env::var_os("WINDLASS_BIN").map(PathBuf::from);
    let path = named.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/debug/windlass")));
    assert!(
        path.exists(),
        "{} is missing: run the tests with `make test`, or build it and name it in WINDLASS_BIN",
        path.display()
    );
    path
}

/// The binary, outside of any testbed.
pub(crate) fn program() -> Command {
    Command::new(binary())
}

impl<'w> Windlass<'w> {
    pub(crate) fn new(testbed: &'w Testbed) -> Self {
        Self { testbed, daemon: None, settings: Vec::new(), repairs: "off" }
    }

    /// Adds flags to every command of this value.
    #[must_use]
    pub fn with(mut self, flags: &[&str]) -> Self {
        self.settings.extend(flags.iter().map(|f| (*f).to_owned()));
        self
    }

    /// Makes these periodic repairs, with main paths that are off: words of `kit/src/repairs.rs`; all of them as in the field where
    /// the text is empty.
    #[must_use]
    pub fn with_repairs(mut self, repairs: &'static str) -> Self {
        self.repairs = repairs;
        self
    }

    /// A command of `windlass` with this testbed's directories as flags.
    #[must_use]
    pub fn command(&self, subcommand: &str) -> Command {
        let dir = self.testbed.dir();
        let mut command = self.testbed.command(&binary().to_string_lossy());
        command.arg(subcommand);
        for (flag, path) in [
            ("--data-dir", dir.join("data")),
            ("--run-dir", dir.join("run")),
            ("--admin-kubeconfig", self.kubeconfig()),
            ("--manifests-dir", self.manifests_dir()),
            ("--pod-logs-dir", dir.join("log/pods")),
            ("--container-logs-dir", dir.join("log/containers")),
            ("--docker-socket", self.testbed.socket_of_agent()),
        ] {
            command.arg(flag).arg(path);
        }
        command.args(["--node-name", NODE]).args(&self.settings);
        // The fullness of this machine's disk must not matter, except in tests about it.
        if !self.settings.iter().any(|flag| flag == "--config" || flag == "--eviction-hard") {
            command.args(["--eviction-hard", "memory.available<100Mi", "--image-gc-high-threshold", "100"]);
        }
        // With a line for each API request, for the diagnosis of failed tests.
        command.env(REPAIRS, self.repairs).env("WINDLASS_LOG", "info,windlass_control::apiserver=debug");
        command
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        match self.testbed.api() {
            Api::Embedded => self.testbed.dir().join("etc/admin.kubeconfig"),
            Api::Cluster => self.testbed.cluster().admin(),
        }
    }

    /// The directory of manifests.
    #[must_use]
    pub fn manifests_dir(&self) -> PathBuf {
        self.testbed.dir().join("etc/manifests")
    }

    /// Arguments that run a node: `windlass up` with its own API, `windlass agent` in a real cluster.
    ///
    /// # Panics
    /// When the node's certificates cannot be made.
    #[must_use]
    pub fn node_command(&self) -> Command {
        if self.testbed.api() == Api::Embedded {
            return self.command("up");
        }
        let files = self.testbed.cluster().node(NODE, &[NODE_IP, "127.0.0.1"]);
        let mut command = self.command("agent");
        command.arg("--kubeconfig").arg(files.kubeconfig);
        command.arg("--tls-cert-file").arg(files.certificate).arg("--tls-private-key-file").arg(files.key);
        command
    }

    /// Starts the node and returns at once.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(&mut self) {
        let mut command = self.node_command();
        self.start_with(&mut command);
    }

    /// Like [`start`](Self::start), with another command.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_with(&mut self, command: &mut Command) {
        let log = self.testbed.dir().join("windlass.log");
        let name = if self.testbed.api() == Api::Embedded { "windlass up" } else { "windlass agent" };
        self.daemon = Some(Daemon::start(name, command, &log).expect("windlass starts"));
    }

    /// Starts the node and waits until it is Ready and pods can be created.
    pub fn up(&mut self) -> Kubectl<'w> {
        self.start();
        self.is_ready()
    }

    /// Waits until the started node is Ready and pods can be created.
    ///
    /// # Panics
    /// When it is not Ready in time.
    pub fn is_ready(&mut self) -> Kubectl<'w> {
        let kubectl = self.kubectl();
        eventually(DEFAULT_TIMEOUT, "the node is Ready", || {
            let daemon = self.daemon.as_mut().expect("started above");
            anyhow::ensure!(daemon.runs(), "windlass ended:\n{}", daemon.log());
            let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}/{.spec.taints}";
            let printed = kubectl.try_run(&["get", "node", NODE, "-o", path])?;
            // In a real cluster a controller has to remove the taint of new nodes.
            anyhow::ensure!(
                printed.starts_with("True/") && !printed.contains("not-ready"),
                "Ready and taints are {printed:?}"
            );
            Ok(())
        });
        kubectl
    }

    /// Takes the running process out, for tests that end it themselves.
    ///
    /// # Panics
    /// When it was not started.
    #[must_use]
    pub fn into_daemon(mut self) -> Daemon {
        self.daemon.take().expect("windlass was started")
    }

    /// Starts the API without a node and waits until it answers; the caller ends the process.
    ///
    /// # Panics
    /// When it does not answer in time.
    #[must_use]
    pub fn api_alone(&self) -> Daemon {
        let log = self.testbed.dir().join("server.log");
        let mut server = Daemon::start("windlass up --no-node", self.command("up").arg("--no-node"), &log)
            .expect("windlass up --no-node");
        let kubectl = self.kubectl();
        eventually(DEFAULT_TIMEOUT, "the API answers", || {
            anyhow::ensure!(server.runs(), "{}", server.log());
            kubectl.try_run(&["get", "namespace", "default"])
        });
        server
    }

    /// kubectl with the administrator's kubeconfig.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl<'w> {
        Kubectl::new(self.testbed, self.kubeconfig())
    }

    /// The running process.
    ///
    /// # Panics
    /// When it was not started.
    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("windlass was started")
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.daemon().end(nix::sys::signal::Signal::SIGKILL);
        self.daemon = None;
    }

    /// Runs a command of `windlass` and returns its output.
    ///
    /// # Errors
    /// When it fails.
    pub fn try_run(&self, subcommand: &str, args: &[&str]) -> anyhow::Result<String> {
        let output = self.command(subcommand).args(args).output()?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        anyhow::ensure!(output.status.success(), "windlass {subcommand} {args:?} ended with {}: {text}", output.status);
        Ok(text)
    }

    /// `windlass down`, with the process that [`up`](Self::up) started reaped.
    #[track_caller]
    pub fn down(&mut self, args: &[&str]) -> String {
        // The test is the parent: it has to reap the process while `down` waits for its end.
        let output = std::thread::scope(|scope| {
            let down = scope.spawn(|| self.try_run("down", args));
            down.join().expect("the thread of windlass down")
        });
        if let Some(mut daemon) = self.daemon.take() {
            eventually(Duration::from_secs(5), "windlass has ended", || {
                anyhow::ensure!(!daemon.runs());
                Ok(())
            });
        }
        match output {
            Ok(text) => text,
            Err(error) => panic!("{error:#}"),
        }
    }
}
