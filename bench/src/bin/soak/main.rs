//! A node under constant churn with randomly injected faults, and a search for leaks afterwards.
//!
//! `SOAK_MINUTES` sets the duration (30), `SOAK_SEED` repeats the choices of an earlier run. Needs root; everything
//! happens in network namespaces of the program's own.

#![allow(clippy::print_stdout, reason = "it says what it does")]

mod flush;
mod hung_mount;
mod measure;
mod pulls;
mod writes;

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Dice, Kubectl, Output, Testbed, eventually, run, try_run};

use hung_mount::HungMount;
use measure::{Memory, count_resources};
use pulls::Pulls;
use writes::AcknowledgedWrites;

/// The disk of the node's data.
const DISK_MEGABYTES: u32 = 192;
/// The longest restart backoff of a container: long-lived ones were killed once per such fault.
const BACK_OFF: Duration = Duration::from_secs(300);
const BETWEEN_FAULTS: Duration = Duration::from_secs(12);
const SAMPLES: Duration = Duration::from_secs(3);
/// The accepted growth of memory per minute, and in total for short runs.
const GROWTH: (f64, f64) = (1.0, 12.0);
/// The accepted number of repetitions of a log message (numbers and names removed) per fault.
const MOST_LINES: usize = 60;

/// A service with its pods, which exists for the whole run.
const LASTING: &str = include_str!("../../../../docs/examples/web.yaml");

struct Soak {
    far: HungMount,
    testbed: Testbed,
    node: Daemon,
    dice: Dice,
    writes: AcknowledgedWrites,
    serial: u64,
    faults: BTreeMap<&'static str, usize>,
    served: [usize; 2],
    pulls: Pulls,
}

fn start(testbed: &Testbed) -> Daemon {
    let windlass = testbed.windlass();
    let mut command = windlass.command("up");
    command.env("WINDLASS_LOG", "info");
    Daemon::start("windlass up", &mut command, &testbed.dir().join("windlass.log")).expect("windlass up")
}

fn kubectl(testbed: &Testbed) -> Kubectl<'_> {
    testbed.windlass().kubectl()
}

fn call(testbed: &Testbed, args: &[&str], stdin: &str) -> Output {
    kubectl(testbed).output(&[&["--request-timeout=10s"], args].concat(), stdin)
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{churn: pod}}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - name: main\n    image: windlass/busybox:1\n    command: [sh, -c, 'echo begun; exec sleep 100000']\n    \
         volumeMounts: [{{name: empty, mountPath: /empty}}, {{name: map, mountPath: /map}}]\n  \
         volumes: [{{name: empty, emptyDir: {{medium: Memory}}}}, {{name: map, configMap: {{name: lasting}}}}]\n"
    )
}

fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, labels: {{churn: service}}}}\nspec:\n  selector: {{app: web}}\n  \
         type: NodePort\n  ports: [{{port: 80}}]\n"
    )
}

impl Soak {
    fn name(&mut self, kind: &str) -> String {
        self.serial += 1;
        format!("{kind}-{}", self.serial)
    }

    /// A random object with a label.
    fn any(&mut self, kind: &str) -> Option<String> {
        let listed = call(&self.testbed, &["get", kind, "-l", "churn", "-o", "name"], "").out;
        let names: Vec<&str> = listed.lines().collect();
        let at = self.dice.index(names.len());
        names.get(at).map(|name| (*name).to_owned())
    }

    fn churn(&mut self) {
        match self.dice.below(10) {
            0 | 1 => {
                let name = self.name("pod");
                let _ = call(&self.testbed, &["apply", "-f", "-"], &pod(&name));
            }
            2 | 3 => {
                if let Some(name) = self.any("pods") {
                    let _ = call(&self.testbed, &["delete", &name, "--wait=false"], "");
                }
            }
            4 => {
                let name = self.name("service");
                let _ = call(&self.testbed, &["apply", "-f", "-"], &service(&name));
            }
            5 => {
                if let Some(name) = self.any("services") {
                    let _ = call(&self.testbed, &["delete", &name, "--wait=false"], "");
                }
            }
            6 | 7 => {
                let (name, value) = (self.name("map"), self.dice.below(u64::MAX).to_string());
                let given = format!("--from-literal=value={value}");
                let answer = call(&self.testbed, &["create", "configmap", &name, &given], "");
                self.writes.wrote(&name, &value, &answer);
            }
            8 => {
                let at = self.dice.below(self.writes.names().len() as u64);
                let name = usize::try_from(at).ok().and_then(|at| self.writes.names().get(at).map(|n| (*n).clone()));
                if let Some(name) = name {
                    let answer = call(&self.testbed, &["delete", "configmap", &name], "");
                    self.writes.deleted(&name, &answer);
                }
            }
            _ => {
                let answered = self.testbed.try_sh("curl -fsS --max-time 3 http://127.0.0.1:30080/").is_ok();
                self.served[usize::from(answered)] += 1;
                if let Some(name) = self.any("pods") {
                    let _ = call(&self.testbed, &["exec", &name, "--", "true"], "");
                    let _ = call(&self.testbed, &["logs", &name, "--tail=1"], "");
                }
            }
        }
    }

    /// Injects a fault and removes it. The process is not restarted when `gently`, so that its memory can be followed.
    fn fault(&mut self, gently: bool) {
        let kind = match self.dice.below(if gently { 7 } else { 8 }) {
            0 => {
                let running = self.testbed.docker(&["ps", "-q"]);
                let all: Vec<&str> = running.lines().collect();
                let at = self.dice.index(all.len());
                if let Some(id) = all.get(at) {
                    let host = format!("unix://{}", self.testbed.docker_socket().display());
                    let _ = try_run("docker", &["-H", &host, "kill", id]);
                }
                "containers killed"
            }
            1 => {
                self.testbed.sh("ip link set eth0 down");
                std::thread::sleep(Duration::from_secs(2));
                self.testbed.sh("ip link set eth0 up; ip route replace default via 198.18.0.2");
                "links down"
            }
            2 => {
                let filler = self.testbed.dir().join("data/filler");
                let line = format!("dd if=/dev/zero of={} bs=64k 2>/dev/null || true", filler.display());
                self.testbed.sh(&line);
                // Free space inside the store's file is used up first: only a write that fails meets the full disk.
                let mut met = false;
                for _ in 0..12 {
                    let (name, value) = (self.name("large"), "x".repeat(100_000));
                    let answer = call(
                        &self.testbed,
                        &["create", "configmap", &name, &format!("--from-literal=value={value}")],
                        "",
                    );
                    met |= answer.err.contains("space");
                    self.writes.wrote(&name, &value, &answer);
                    if met {
                        break;
                    }
                }
                let _ = fs::remove_file(&filler);
                if met { "full disks" } else { "nearly full disks" }
            }
            3 => {
                self.testbed.stop_docker();
                std::thread::sleep(Duration::from_secs(1));
                self.testbed.start_docker();
                "restarts of Docker"
            }
            4 => {
                // Sometimes long enough for the node's timeout, sometimes not.
                let until = Instant::now() + Duration::from_secs(5 + self.dice.below(20));
                self.far.hang(&self.testbed);
                while Instant::now() < until {
                    self.churn();
                }
                self.far.answer();
                "hung mounts"
            }
            5 => {
                flush::nat_table_flushed(&self.testbed);
                "flushes of the nat table"
            }
            6 => {
                self.pulls.fail(&self.testbed);
                "layers cut off"
            }
            _ => {
                self.node.end(Signal::SIGKILL);
                self.node = start(&self.testbed);
                "kill -9"
            }
        };
        *self.faults.entry(kind).or_default() += 1;
    }

    /// Waits for the node and the long-lived pods.
    fn settled(&mut self) {
        let (testbed, node) = (&self.testbed, &mut self.node);
        eventually(BACK_OFF + DEFAULT_TIMEOUT * 2, "the node and its lasting pods are Ready", || {
            anyhow::ensure!(node.runs(), "windlass ended by itself");
            let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
            anyhow::ensure!(kubectl(testbed).try_run(&["get", "node", "node", "-o", ready])? == "True", "not Ready");
            kubectl(testbed).ready_pods("app=web", 2)?;
            kubectl(testbed).ready_pods(&format!("app={}", hung_mount::POD), 1)?;
            testbed.try_sh("curl -fsS --max-time 3 http://127.0.0.1:30080/").map(drop)
        });
    }
}

fn disk(testbed: &Testbed) {
    let (image, data) = (testbed.dir().join("disk"), testbed.dir().join("data"));
    fs::create_dir_all(&data).expect("a folder");
    let (image, data) = (image.display().to_string(), data.display().to_string());
    run("truncate", &["-s", &format!("{DISK_MEGABYTES}M"), &image]);
    let looped =
        try_run("mkfs.ext4", &["-q", "-F", &image]).and_then(|_| try_run("mount", &["-o", "loop", &image, &data]));
    if let Err(error) = looped {
        println!("no loop device ({error}); the data is on a tmpfs");
        run("mount", &["-t", "tmpfs", "-o", &format!("size={DISK_MEGABYTES}m"), "data", &data]);
    }
}

/// Messages at WARN and ERROR with varying parts removed.
fn complaints(log: &str) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for line in log.lines().filter(|l| l.contains(" WARN ") || l.contains("ERROR ")) {
        let message = line.split_once(": ").map_or(line, |(_, rest)| rest);
        let message = message.split('=').next().unwrap_or(message);
        let words: String = message.chars().filter(|c| !c.is_ascii_digit()).collect();
        *all.entry(words.trim().to_owned()).or_default() += 1;
    }
    all
}

fn main() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let minutes = number("SOAK_MINUTES").unwrap_or(30);
    let seed = number("SOAK_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.as_secs()
    });
    println!("{minutes} minutes, SOAK_SEED={seed}");
    let testbed = Testbed::new();
    disk(&testbed);
    let far = HungMount::new(&testbed);
    let node = start(&testbed);
    let (dice, writes, pulls) = (Dice::new(seed), AcknowledgedWrites::default(), Pulls::new(&testbed));
    let mut soak = Soak { far, testbed, node, dice, writes, serial: 0, faults: BTreeMap::new(), served: [0, 0], pulls };
    eventually(DEFAULT_TIMEOUT, "objects are taken", || {
        let given = call(&soak.testbed, &["apply", "-f", "-"], LASTING);
        anyhow::ensure!(given.ok, "{}", given.err);
        let given = call(&soak.testbed, &["apply", "-f", "-"], &soak.far.pod());
        anyhow::ensure!(given.ok, "{}", given.err);
        let given = call(&soak.testbed, &["create", "configmap", "lasting", "--from-literal=value=1"], "");
        anyhow::ensure!(given.ok || given.err.contains("AlreadyExists"), "{}", given.err);
        Ok(())
    });
    soak.settled();
    std::thread::sleep(Duration::from_secs(5));
    let before = count_resources(&soak.testbed, soak.node.pid());
    println!("before: {:?}", before.counts);

    let begun = Instant::now();
    let whole = Duration::from_secs(minutes * 60);
    let mut memory = Memory::default();
    let (mut fault_at, mut sample_at) = (BETWEEN_FAULTS, Duration::ZERO);
    while begun.elapsed() < whole {
        let now = begun.elapsed();
        soak.churn();
        // In the last half the process is not restarted, and its memory is followed.
        let gently = now > whole / 2;
        if now > fault_at {
            soak.fault(gently);
            fault_at = begun.elapsed() + BETWEEN_FAULTS;
        }
        if gently && now > sample_at {
            memory.sample(now, soak.node.pid());
            sample_at = now + SAMPLES;
        }
        assert!(soak.node.runs(), "windlass ended by itself");
    }
    println!(
        "faults: {:?}; writes acknowledged: {}; requests failed, answered: {:?}",
        soak.faults, soak.writes.acknowledged, soak.served
    );

    let mut wrong = Vec::new();
    soak.settled();
    wrong.extend(soak.writes.lost(&kubectl(&soak.testbed)).expect("objects are listed"));
    for kind in ["pods", "services"] {
        let _ = kubectl(&soak.testbed).run(&["delete", kind, "-l", "churn", "--timeout=120s"]);
    }
    let mut leaked = Vec::new();
    // conntrack entries expire after two minutes, threads and idle connections sooner.
    let timeout = Instant::now() + Duration::from_secs(180);
    while Instant::now() < timeout {
        leaked = count_resources(&soak.testbed, soak.node.pid()).leaked(&before);
        if leaked.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_secs(5));
    }
    wrong.extend(leaked);
    println!("after: {:?}", count_resources(&soak.testbed, soak.node.pid()).counts);
    match memory.slope() {
        Some((slope, minutes)) => {
            let most = GROWTH.0.max(GROWTH.1 / minutes.max(0.1));
            println!("memory: {slope:+.2} MB a minute over {minutes:.1} minutes, at most {most:.2}");
            if slope > most {
                wrong.push(format!("memory grows by {slope:.2} MB a minute"));
            }
        }
        None => wrong.push("memory was not followed for long enough".to_owned()),
    }
    let log = soak.node.log();
    let faults: usize = soak.faults.values().sum();
    for (message, count) in complaints(&log) {
        println!("{count:5} × {message}");
        if count > MOST_LINES * faults.max(1) / 4 {
            wrong.push(format!("{count} lines for {faults} faults: {message}"));
        }
    }
    for (fault, words) in [("restarts of Docker", "Docker does not answer"), ("full disks", "could not be put on disk")]
    {
        let (made, logged) = (soak.faults.get(fault).copied().unwrap_or(0), log.matches(words).count());
        // One that continues into the next counts once.
        if logged * 2 < made {
            wrong.push(format!("{made} {fault}, and {logged} lines of it"));
        }
    }
    if wrong.is_empty() {
        println!("nothing leaked, nothing acknowledged was lost");
        return;
    }
    println!("SOAK_SEED={seed} found:\n{}", wrong.join("\n"));
    let kept = std::env::temp_dir().join("windlass-soak.log");
    if fs::write(&kept, log).is_ok() {
        println!("the log is kept in {}", kept.display());
    }
    drop(soak);
    std::process::exit(1);
}
