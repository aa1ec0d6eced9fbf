//! Notifications to systemd, received on a socket of the test: ready, status, watchdog, reload.

use std::{
    fs,
    os::unix::net::{UnixDatagram, UnixListener},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, Windlass, configuration, eventually};

use crate::shell_pod;

/// The watchdog interval: pings are due each half of it.
const WATCHDOG: Duration = Duration::from_secs(2);

/// The manager's socket.
struct Manager {
    socket: UnixDatagram,
    /// Every line, in the order of arrival.
    lines: Vec<String>,
}

impl Manager {
    fn new(testbed: &Testbed) -> Self {
        let socket = UnixDatagram::bind(testbed.dir().join("notify.sock")).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        Self { socket, lines: Vec::new() }
    }

    fn hear(&mut self) {
        let mut buffer = [0; 8192];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            self.lines.extend(String::from_utf8_lossy(&buffer[..length]).lines().map(str::to_owned));
        }
    }

    /// Waits for a line with this prefix after the first `since` lines; returns its position.
    #[track_caller]
    fn wait(&mut self, since: usize, line: &str) -> usize {
        eventually(DEFAULT_TIMEOUT, line, || {
            self.hear();
            let found = self.lines.iter().skip(since).position(|l| l.starts_with(line));
            found.map(|at| since + at).ok_or_else(|| anyhow::anyhow!("heard only {:?}", &self.lines[since..]))
        })
    }

    fn count(&self, line: &str) -> usize {
        self.lines.iter().filter(|l| *l == line).count()
    }

    fn start(&self, testbed: &Testbed, windlass: &Windlass<'_>) -> Daemon {
        let mut command = windlass.command("up");
        command.env("NOTIFY_SOCKET", testbed.dir().join("notify.sock"));
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        // The file sets the log level.
        command.env_remove("WINDLASS_LOG");
        Daemon::start("windlass up", &mut command, &testbed.dir().join("windlass.log")).expect("windlass up")
    }
}

const SETTINGS: &str = "evictionHard: {memory.available: 100Mi}\nimageGCHighThresholdPercent: 100\n";

#[test]
fn systemd_is_notified() {
    let testbed = Testbed::new();
    testbed.stop_docker();
    // A stale socket, as left by a killed engine.
    drop(UnixListener::bind(testbed.docker_socket()).expect("a socket"));
    let file = testbed.dir().join("config.yaml");
    fs::write(&file, configuration(SETTINGS)).expect("the settings");
    let mut manager = Manager::new(&testbed);
    let mut node = {
        let windlass = testbed.windlass().with(&["--config", &file.to_string_lossy()]);
        manager.start(&testbed, &windlass)
    };
    manager.wait(0, "STATUS=starting");
    manager.wait(0, "EXTEND_TIMEOUT_USEC=60000000");
    // Its parts run without Docker, which is all that systemd, a boot or an upgrade wait for.
    let ready = manager.wait(0, "READY=1");
    let at = manager.wait(0, "STATUS=waiting for Docker: ");
    testbed.start_docker();
    manager.wait(at, "STATUS=Ready with 0 pods");
    assert_eq!(manager.count("READY=1"), 1, "a Ready node is no second start: {:?}", manager.lines);
    let windlass = testbed.windlass().with(&["--config", &file.to_string_lossy()]);
    let kubectl = windlass.kubectl();
    manager.wait(ready, "STATUS=Ready with 0 pods");
    kubectl.apply(&shell_pod("p", "Always", "sleep 3600"));
    let at = manager.wait(ready, "STATUS=Ready with 1 pod");
    manager.wait(manager.lines.len(), "WATCHDOG=1");

    // A hanging Docker is reported, and causes no restart.
    let docker = Pid::from_raw(i32::try_from(testbed.docker_pid()).expect("a process"));
    kill(docker, Signal::SIGSTOP).expect("a signal");
    let at = manager.wait(at, "STATUS=Docker does not answer, 1 pod left alone: ");
    manager.wait(at, "WATCHDOG=1");
    kill(docker, Signal::SIGCONT).expect("a signal");
    let at = manager.wait(at, "STATUS=Ready with 1 pod");

    // Reload: changeable settings take effect, the others are named, and an invalid file changes nothing.
    let pods = windlass.manifests_dir();
    fs::write(pods.join("more.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n").expect("a manifest");
    fs::write(
        &file,
        configuration(&format!(
            "{SETTINGS}log: debug,windlass_control::apiserver=trace\nlogFormat: json\nmaxPods: 17\n"
        )),
    )
    .expect("the settings");
    let output = windlass.try_run("reload", &[]).expect("it is told");
    assert!(output.contains("in force: log, logFormat; needs a restart: maxPods"), "{output}");
    let reloading = manager.wait(at, "RELOADING=1");
    assert!(manager.lines[reloading + 1].starts_with("MONOTONIC_USEC="), "{:?}", &manager.lines[reloading..]);
    let again = manager.wait(reloading, "READY=1");
    eventually(DEFAULT_TIMEOUT, "lines are JSON, and more of them", || {
        let log = node.log();
        anyhow::ensure!(log.lines().any(|l| l.starts_with('{') && l.contains("\"level\":\"DEBUG\"")));
        Ok(())
    });
    eventually(DEFAULT_TIMEOUT, "the manifest is applied", || kubectl.try_run(&["get", "configmap", "more"]));
    fs::write(&file, configuration(&format!("{SETTINGS}logFromat: text\nlog: error\n"))).expect("the settings");
    let refused = windlass.try_run("reload", &[]).expect_err("it is refused").to_string();
    for words in ["logFromat", "line 5", "logFormat"] {
        assert!(refused.contains(words), "{refused}");
    }
    kill(Pid::from_raw(i32::try_from(node.pid()).expect("a process")), Signal::SIGHUP).expect("a signal");
    let refused = manager.wait(again + 1, "READY=1");
    let log = node.log();
    assert!(log.contains("nothing was changed") && log.contains("did you mean"), "{log}");
    assert!(node.log().lines().last().is_some_and(|l| l.starts_with('{')), "the form of lines stays");

    // A stopped process sends no pings, so that the watchdog would end it; this one is continued.
    node.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(200));
    manager.hear();
    let before = manager.lines.len();
    std::thread::sleep(WATCHDOG * 2);
    manager.hear();
    assert_eq!(manager.lines[before..], [""; 0]);
    node.signal(Signal::SIGCONT);
    let alive = manager.wait(before.max(refused), "WATCHDOG=1");
    node.end(Signal::SIGTERM);
    manager.wait(alive, "STOPPING=1");
}
