//! One pod with everything in it, from its creation until nothing is left, while one of the calls that it takes is spoiled, by
//! a proxy before the real engine: Docker refuses, fails before or after it has acted, or hangs; its answer, or its events, are
//! lost; the agent is killed, or the engine, in mid-call. In the end all is as if nothing had happened.
//!
//! `make test` draws a few of them: `DOCKER_FAULTS=20` says how many, `FAULTS_SEED=1` repeats a draw, and `FAULTS_ONLY=SIGKILL`
//! takes those whose name has that. `make test-faults` runs every call with every fault; `FAULTS_PART=2/8` is the second eighth of
//! them.

#![allow(clippy::print_stdout, reason = "a test says what it saw")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::Path,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use windlass_tests::{Dice, DockerProxy, Fault, Kubectl, StreamFault, Testbed, Windlass};

/// The time for a pod to reach its desired state, with all retries.
const DEADLINE: Duration = Duration::from_secs(240);
const HOST_PORT: u16 = 18_080;

/// Who dies in mid-call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dies {
    Agent,
    Engine { signal: Signal, live_restore: bool },
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Call(Fault),
    Event(StreamFault),
    /// Before Docker hears of the call, or when it has done it.
    Death(Dies, bool),
}

impl Trouble {
    fn all() -> Vec<Self> {
        let calls = [Fault::Refuses, Fault::FailsBefore, Fault::FailsAfter, Fault::LosesAnswer, Fault::Hangs];
        let events = [StreamFault::Ends, StreamFault::HalfAnEvent, StreamFault::EndsInAnEvent];
        let engines = [Signal::SIGTERM, Signal::SIGKILL]
            .into_iter()
            .flat_map(|signal| [true, false].map(|live_restore| Dies::Engine { signal, live_restore }));
        let deaths = [Dies::Agent].into_iter().chain(engines);
        let deaths = deaths.flat_map(|dies| [false, true].map(|acted| Self::Death(dies, acted)));
        calls.map(Self::Call).into_iter().chain(events.map(Self::Event)).chain(deaths).collect()
    }

    /// Whether the containers end, and are run again.
    fn ends_containers(self) -> bool {
        matches!(self, Self::Death(Dies::Engine { live_restore: false, .. }, _))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(fault) => write!(f, "Docker {fault:?}"),
            Self::Event(fault) => write!(f, "the stream of events {fault:?}"),
            Self::Death(dies, acted) => write!(f, "{dies:?} dies, {}", if *acted { "after it" } else { "before it" }),
        }
    }
}

fn pod(name: &str) -> String {
    let shell = |line: &str| json!(["sh", "-c", line]);
    let stay = "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done";
    let volumes = json!([{"name": "memory", "mountPath": "/memory"}, {"name": "map", "mountPath": "/map"},
        {"name": "all", "mountPath": "/all"}, {"name": "map", "mountPath": "/one", "subPath": "a"}]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"test": "faults"}}, "spec": {
        "terminationGracePeriodSeconds": 3,
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "map", "configMap": {"name": "of-pods"}},
            {"name": "all", "projected": {"sources": [{"configMap": {"name": "of-pods"}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"serviceAccountToken": {"path": "token"}}]}}],
        "initContainers": [
            {"name": "init", "image": "windlass/busybox:1", "command": shell("echo made >> /memory/init"), "volumeMounts": volumes},
            {"name": "side", "image": "windlass/busybox:1", "restartPolicy": "Always", "command": shell(stay),
                "lifecycle": {"preStop": {"exec": {"command": shell("true")}}},
                "startupProbe": {"periodSeconds": 1, "exec": {"command": shell("true")}}}],
        "containers": [
            {"name": "main", "image": "windlass/busybox:1", "volumeMounts": volumes,
                "command": shell(&format!("httpd -p 80 -h /memory; {stay}")),
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "of-pods", "key": "a"}}}],
                "ports": [{"containerPort": 80, "hostPort": HOST_PORT}],
                "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "32Mi"}},
                "lifecycle": {"postStart": {"exec": {"command": shell("echo hooked > /memory/hook")}},
                    "preStop": {"exec": {"command": shell("sleep 0.2")}}},
                "readinessProbe": {"periodSeconds": 2, "exec": {"command": shell("test -e /memory/hook")}},
                "livenessProbe": {"periodSeconds": 5, "httpGet": {"port": 80, "path": "/init"}}},
            {"name": "user", "image": "windlass/busybox:1", "command": shell(stay), "securityContext": {"runAsUser": 1000}}]}});
    pod.to_string()
}

/// What a pod's status says when all is well: of everything but ids, names, addresses and times. Of the containers that are
/// `counted_again` there may be two, since Docker has forgotten what became of the first.
fn essence(pod: &Value, with_restarts: bool, counted_again: &BTreeSet<String>) -> Value {
    let status = &pod["status"];
    let all = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    let conditions: BTreeMap<String, Value> =
        all("conditions").iter().map(|c| (c["type"].to_string(), c["status"].clone())).collect();
    let states = |key: &str| -> Vec<Value> {
        let state = |c: &Value| {
            let running = !c["state"]["running"].is_null();
            let ended = &c["state"]["terminated"];
            json!({"name": c["name"], "ready": c["ready"], "started": c["started"], "running": running, "image": c["image"],
            "ended": [ended["exitCode"], ended["reason"]],
            "restarts": match with_restarts {
                true if c["restartCount"] == 1 && c["name"].as_str().is_some_and(|name| counted_again.contains(name)) => json!(0),
                true => c["restartCount"].clone(),
                false => Value::Null,
            }})
        };
        all(key).iter().map(state).collect()
    };
    json!({"phase": status["phase"], "conditions": conditions, "addresses": all("podIPs").len(),
        "containers": states("containerStatuses"), "init": states("initContainerStatuses")})
}

/// The names below a directory.
fn walk(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        found.insert(path.display().to_string());
        if path.is_dir() && !path.is_symlink() {
            walk(&path, found);
        }
    }
}

struct Run<'t> {
    testbed: &'t Testbed,
    proxy: &'t DockerProxy,
    windlass: Windlass<'t>,
    kubectl: Kubectl<'t>,
    dies: Option<Dies>,
    serial: usize,
    live_restore: bool,
    /// The containers of which Docker has forgotten how they have ended, or that they have begun.
    counted_again: BTreeSet<String>,
}

impl<'t> Run<'t> {
    fn new(testbed: &'t Testbed) -> Self {
        let proxy = testbed.docker_proxy();
        let mut windlass = testbed.windlass();
        let kubectl = windlass.up();
        kubectl.apply(
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-pods"}, "data": {"a": "b"}})
                .to_string(),
        );
        kubectl.accounts(&["default"]);
        Self {
            testbed,
            proxy,
            windlass,
            kubectl,
            dies: None,
            serial: 0,
            live_restore: false,
            counted_again: BTreeSet::new(),
        }
    }

    /// Waits, and ends who is to die when his hour has come.
    fn until<T>(&mut self, what: &str, check: impl Fn(&Self) -> anyhow::Result<T>) -> Result<T, String> {
        let begun = Instant::now();
        loop {
            if self.proxy.holds() {
                self.kill();
            }
            match check(self) {
                Ok(value) => return Ok(value),
                Err(error) if begun.elapsed() > DEADLINE => return Err(format!("{what}: {error:#}")),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn kill(&mut self) {
        match self.dies {
            Some(Dies::Agent) => {
                self.windlass.kill();
                self.proxy.release();
                self.windlass.start();
            }
            Some(Dies::Engine { signal, .. }) => {
                self.testbed.end_docker(signal);
                // The agent replaces what was lost as soon as it sees the next engine: the test looks before.
                self.proxy.cut_off(true);
                self.proxy.release();
                self.testbed.start_docker();
                // A container that ends while there is no engine may lose its exit code, and the next engine reports
                // 255, as of a failed one. The two cannot be distinguished, so the init container, which ends by
                // itself, is run again. A container whose start the engine had not recorded is only created, as by its
                // word, and is replaced; it is counted like any other, as by kubelet.
                let all = self.testbed.docker(&["ps", "-a", "--format", "{{.Names}} {{.Status}}"]);
                let forgotten = |line: &str| {
                    let name = line.strip_prefix("k8s_")?.split('_').next()?;
                    let is_lost = line.ends_with(" Created") || (name == "init" && line.contains(" Exited (255)"));
                    is_lost.then(|| name.to_owned())
                };
                self.counted_again = all.lines().filter_map(forgotten).collect();
                self.proxy.cut_off(false);
            }
            None => self.proxy.release(),
        }
    }

    /// Everything that a pod may leave.
    fn leftovers(&self) -> anyhow::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let dir = self.testbed.dir();
        for below in ["data/pods", "data/network", "log"] {
            walk(&dir.join(below), &mut found);
        }
        let below = format!("{}/", dir.display());
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        found.extend(
            mounts
                .lines()
                .filter_map(|l| l.split(' ').nth(4))
                .filter(|m| m.starts_with(&below))
                // Of an engine that was killed while it made a container's first layer; only the engine knows whose it was.
                .filter(|m| !m.ends_with("-init/merged"))
                .map(|m| format!("mount {m}")),
        );
        let containers = self.testbed.docker(&["ps", "-a", "--format", "{{.Names}} {{.Status}}"]);
        found.extend(containers.lines().map(|line| format!("container {line}")));
        let links = self.testbed.try_sh("ip -o link | cut -d: -f2 | cut -d@ -f1; ip route; ip rule")?;
        found.extend(links.lines().map(|line| format!("link {line}")));
        let rules = self.testbed.try_sh("iptables-save; ip6tables-save")?;
        found.extend(rules.lines().filter(|line| line.starts_with('-')).map(|line| format!("rule {line}")));
        Ok(found)
    }

    /// Runs the pod from its creation until nothing is left of it.
    fn run(&mut self, trouble: Option<Trouble>, number: usize, wanted: Option<&Wanted>) -> Result<Wanted, String> {
        self.proxy.arm(None, None);
        let live_restore = matches!(trouble, Some(Trouble::Death(Dies::Engine { live_restore: true, .. }, _)));
        if live_restore != self.live_restore {
            self.testbed.stop_docker();
            self.testbed.set_live_restore(live_restore);
            self.testbed.start_docker();
            self.live_restore = live_restore;
            let _ = self.windlass.is_ready();
        }
        self.serial += 1;
        self.counted_again.clear();
        let name = format!("p{}", self.serial);
        let (call, event) = match trouble {
            None => (None, None),
            Some(Trouble::Call(fault)) => (Some((number, fault)), None),
            Some(Trouble::Event(fault)) => (None, Some((number, fault))),
            Some(Trouble::Death(_, false)) => (Some((number, Fault::HoldsBefore)), None),
            Some(Trouble::Death(_, true)) => (Some((number, Fault::HoldsAfter)), None),
        };
        self.dies = if let Some(Trouble::Death(dies, _)) = trouble { Some(dies) } else { None };
        self.proxy.arm(call, event);
        self.kubectl.apply(&pod(&name));
        // A hook or a probe that Docker does not run fails, and its container is run again.
        let exact = |spoiled: Option<String>| {
            !trouble.is_some_and(Trouble::ends_containers) && !spoiled.is_some_and(|call| call.contains("exec"))
        };
        let is = self.until("it is as it would be", |run| {
            let pod = run.kubectl.json(&["pod", &name])?;
            let is = essence(&pod, exact(run.proxy.spoiled()), &run.counted_again);
            let should = wanted.map(|wanted| if exact(run.proxy.spoiled()) { &wanted.exact } else { &wanted.roughly });
            anyhow::ensure!(
                should.is_none_or(|should| *should == is),
                "{is} instead of {}",
                should.unwrap_or(&Value::Null)
            );
            anyhow::ensure!(is["phase"] == "Running" && is["conditions"]["\"Ready\""] == "True", "{is}");
            Ok(pod)
        })?;
        self.until("its port is open", |run| {
            let url = format!("http://127.0.0.1:{HOST_PORT}/init");
            let page = run.testbed.try_sh(&format!("curl -fsS --max-time 2 {url}"))?;
            // A container is started once: each run of this one is counted as such.
            let runs = 1 + is["status"]["initContainerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
            let lines = u64::try_from(page.lines().filter(|line| *line == "made").count())?;
            anyhow::ensure!((1..=runs).contains(&lines), "{page:?} of {runs} runs");
            Ok(())
        })?;
        let logs = self.until("its logs are where shippers look", |run| {
            let mut found = BTreeSet::new();
            walk(&run.testbed.dir().join("log"), &mut found);
            let links = found.iter().filter(|path| path.ends_with(".log")).count();
            anyhow::ensure!(wanted.is_none_or(|wanted| links >= wanted.logs), "{found:?}");
            Ok(links)
        })?;
        let deleted = self.until("it can be deleted", |run| {
            run.kubectl.try_run(&["delete", "pod", &name, "--wait=false", "--ignore-not-found"])
        });
        deleted?;
        self.until("the API has it no more", |run| {
            let there = run.kubectl.try_run(&["get", "pods", "-o", "name"])?;
            anyhow::ensure!(there.is_empty(), "{there}");
            Ok(())
        })?;
        let left = self.until("nothing is left", |run| {
            let left = run.leftovers()?;
            let more: Vec<&String> =
                left.iter().filter(|one| wanted.is_some_and(|wanted| !wanted.left.contains(*one))).collect();
            anyhow::ensure!(more.is_empty(), "{more:?}");
            anyhow::ensure!(left.iter().all(|one| !one.starts_with("container")), "{left:?}");
            Ok(left)
        })?;
        Ok(Wanted {
            exact: essence(&is, true, &BTreeSet::new()),
            roughly: essence(&is, false, &BTreeSet::new()),
            logs,
            left,
            calls: self.proxy.calls(),
            events: self.proxy.events(),
        })
    }
}

/// What a run without trouble ends in, and takes.
struct Wanted {
    exact: Value,
    roughly: Value,
    logs: usize,
    left: BTreeSet<String>,
    calls: Vec<String>,
    events: usize,
}

/// Runs these pairs of a trouble and the number of its call or event; panics with all that went wrong.
fn run_all(choose: impl FnOnce(&Wanted) -> Vec<(Trouble, usize)>) {
    let testbed = Testbed::new();
    let mut run = Run::new(&testbed);
    // The second finds what is made once.
    run.run(None, 0, None).expect("a run without trouble");
    let wanted = run.run(None, 0, None).expect("a run without trouble");
    println!("{} calls and {} events: {:?}", wanted.calls.len(), wanted.events, wanted.calls);
    let chosen = choose(&wanted);
    let (mut ran, mut wrong) = (0, Vec::new());
    for (trouble, number) in &chosen {
        let begun = Instant::now();
        let end = run.run(Some(*trouble), *number, Some(&wanted));
        let what = run.proxy.spoiled().unwrap_or_else(|| format!("number {number} was not reached"));
        ran += usize::from(run.proxy.spoiled().is_some());
        println!("{trouble}: {what}: {} ({} s)", if end.is_ok() { "well" } else { "WRONG" }, begun.elapsed().as_secs());
        if let Err(why) = end {
            println!("{why}");
            wrong.push(format!("{trouble}: {what}: {why}"));
            // The next ones are to find a clean node.
            let _ = run.kubectl.try_run(&["delete", "pods", "--all", "--force", "--grace-period=0", "--timeout=60s"]);
            if wrong.len() >= 10 {
                break;
            }
        }
    }
    println!("{ran} of {} pairs of a call and a fault ran, {} went wrong", chosen.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn a_pod_comes_and_goes_whatever_docker_does() {
    let seed = number("FAULTS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
        u64::from(now.subsec_nanos())
    });
    println!("FAULTS_SEED={seed}");
    let count = number("DOCKER_FAULTS").unwrap_or(4);
    run_all(|wanted| {
        let only = std::env::var("FAULTS_ONLY").unwrap_or_default();
        let all: Vec<Trouble> =
            Trouble::all().into_iter().filter(|trouble| trouble.to_string().contains(&only)).collect();
        let mut dice = Dice::new(seed);
        let draw = |_| {
            let trouble = all[dice.index(all.len())];
            let of = if let Trouble::Event(_) = trouble { wanted.events } else { wanted.calls.len() };
            (trouble, dice.index(of))
        };
        (0..count).map(draw).collect()
    });
}

#[test]
#[ignore = "hours: make test-faults"]
fn every_call_meets_every_fault() {
    let part = std::env::var("FAULTS_PART").unwrap_or_else(|_| "1/1".to_owned());
    let (which, of) = part.split_once('/').expect("FAULTS_PART is such as 2/8");
    let (which, of): (usize, usize) = (which.parse().expect("a number"), of.parse().expect("a number"));
    run_all(|wanted| {
        let pairs = Trouble::all().into_iter().flat_map(|trouble| {
            let count = if let Trouble::Event(_) = trouble { wanted.events } else { wanted.calls.len() };
            (0..count).map(move |number| (trouble, number))
        });
        // Each part has some of every kind.
        pairs.enumerate().filter(|(index, _)| index % of == which - 1).map(|(_, pair)| pair).collect()
    });
}
