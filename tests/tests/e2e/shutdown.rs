//! Graceful node shutdown: pods end in order before the machine is switched off. The test has its own message bus and a
//! login manager that speaks logind's protocol.

use std::{io::Read as _, os::unix::net::UnixStream, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, eventually};
use zbus::{connection, object_server::SignalEmitter};

use crate::shared_dir::{SharedDir, condition, is_ready, shell, wait_for};

/// The part of `org.freedesktop.login1.Manager` that inhibitors use.
struct Manager {
    /// Our ends of the inhibitor locks.
    locks: Arc<Mutex<Vec<UnixStream>>>,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Manager {
    fn inhibit(&self, what: &str, _who: &str, _why: &str, mode: &str) -> zbus::OwnedFd {
        assert_eq!((what, mode), ("shutdown", "delay"));
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        self.locks.lock().push(ours);
        std::os::fd::OwnedFd::from(theirs).into()
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> u64 {
        60_000_000
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

struct Logind {
    bus: PathBuf,
    runtime: tokio::runtime::Runtime,
    connection: zbus::Connection,
    locks: Arc<Mutex<Vec<UnixStream>>>,
    _daemon: Daemon,
}

impl Logind {
    fn start(testbed: &Testbed) -> Self {
        let bus = testbed.dir().join("bus");
        let address = format!("unix:path={}", bus.display());
        let mut command = testbed.command("dbus-daemon");
        command.args(["--session", "--nofork", "--nopidfile", "--nosyslog", "--address", &address]);
        let daemon = Daemon::start("dbus-daemon", &mut command, &testbed.dir().join("bus.log")).expect("dbus-daemon");
        // The socket exists before the bus listens on it.
        eventually(DEFAULT_TIMEOUT, "the bus is there", || Ok(UnixStream::connect(&bus).map(drop)?));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let locks = Arc::<Mutex<Vec<UnixStream>>>::default();
        let manager = Manager { locks: Arc::clone(&locks) };
        let connection = runtime.block_on(async {
            connection::Builder::address(address.as_str())
                .name("org.freedesktop.login1")
                .serve_at("/org/freedesktop/login1", manager)
                .build()
                .await
        });
        Self { bus, runtime, connection: connection.expect("the bus takes us"), locks, _daemon: daemon }
    }

    fn tell(&self, start: bool) {
        let emitter = SignalEmitter::new(&self.connection, "/org/freedesktop/login1").expect("an object");
        self.runtime.block_on(Manager::prepare_for_shutdown(&emitter, start)).expect("the signal is sent");
    }

    /// Waits for a new lock after `known` and returns our end.
    fn lock(&self, known: usize) -> UnixStream {
        eventually(DEFAULT_TIMEOUT, "the node asks the machine to wait", || {
            let locks = self.locks.lock();
            let lock = locks.get(known).ok_or_else(|| anyhow::anyhow!("{} locks", locks.len()))?;
            Ok(lock.try_clone()?)
        })
    }
}

#[test]
fn pods_end_in_order_before_the_machine() {
    let testbed = Testbed::new();
    let logind = Logind::start(&testbed);
    let config = testbed.dir().join("config.yaml");
    std::fs::write(
        &config,
        windlass_tests::configuration(
            "shutdownGracePeriod: 12s\nshutdownGracePeriodCriticalPods: 4s\n\
             evictionHard: {memory.available: 100Mi}\nimageGCHighThresholdPercent: 100\n",
        ),
    )
    .expect("a file");
    let windlass = testbed.windlass().with(&["--config", &config.to_string_lossy()]);
    let mut command = windlass.command("up");
    command.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", logind.bus.display()));
    let mut node =
        Daemon::start("windlass up", &mut command, &testbed.dir().join("windlass.log")).expect("windlass up");
    let kubectl = windlass.kubectl();
    eventually(DEFAULT_TIMEOUT, "the node is Ready", || {
        anyhow::ensure!(node.runs(), "{}", node.log());
        let node = kubectl.json(&["node", "node"])?;
        anyhow::ensure!(is_ready(&node), "{}", node["status"]["conditions"]);
        Ok(())
    });
    let mut lock = logind.lock(0);
    let shared = SharedDir::new(&testbed);
    let pod = |name: &str, class: Option<&str>| {
        let line = format!(
            "trap 'echo {name} was told >> /shared/order; sleep 1; echo {name} ended >> /shared/order; exit' TERM; while :; do sleep 0.1; done"
        );
        shared.pod(
            name,
            json!({"containers": [{"name": "main", "command": shell(&line)}],
            "priorityClassName": class, "terminationGracePeriodSeconds": 30, "nodeName": "node"}),
        )
    };
    kubectl.apply(&pod("plain", None));
    kubectl.apply(&pod("critical", Some("system-cluster-critical")));
    for name in ["plain", "critical"] {
        wait_for(&kubectl, name, "is ready", is_ready);
    }

    logind.tell(true);
    lock.set_read_timeout(Some(Duration::from_secs(40))).expect("a time");
    assert_eq!(lock.read(&mut [0; 1]).expect("the machine may end"), 0);
    assert_eq!(shared.lines("order"), ["plain was told", "plain ended", "critical was told", "critical ended"]);
    assert_eq!(testbed.running_containers(&[]), [""; 0]);
    for name in ["plain", "critical"] {
        let pod = wait_for(&kubectl, name, "has failed", |p| p["status"]["phase"] == "Failed");
        assert_eq!(pod["status"]["reason"], "Terminated");
        assert_eq!(pod["status"]["message"], "Pod was terminated in response to imminent node shutdown.");
        assert_eq!(condition(&pod, "DisruptionTarget")["reason"], "TerminationByKubelet");
    }
    eventually(DEFAULT_TIMEOUT, "the node is not ready", || {
        let ready = condition(&kubectl.json(&["node", "node"])?, "Ready");
        anyhow::ensure!(ready["status"] == "False" && ready["message"] == "node is shutting down", "{ready}");
        Ok(())
    });
    kubectl.apply(&pod("late", None));
    let late = wait_for(&kubectl, "late", "is refused", |p| p["status"]["phase"] == "Failed");
    assert_eq!(late["status"]["reason"], "NodeShutdown");

    // The shutdown is cancelled.
    logind.tell(false);
    let _lock = logind.lock(1);
    eventually(DEFAULT_TIMEOUT, "the node is Ready again", || {
        anyhow::ensure!(is_ready(&kubectl.json(&["node", "node"])?));
        Ok(())
    });
    kubectl.apply(&pod("after", None));
    wait_for(&kubectl, "after", "is ready", is_ready);
}
