//! The real kubectl.

use std::{
    io::{BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Deserializer, Value};

use crate::{DEFAULT_TIMEOUT, Testbed, eventually, shared_dir::is_ready};

/// How long kubectl may take. What waits for ever says nothing of what it waits for.
const LIMIT: Duration = Duration::from_secs(480);

/// kubectl with one kubeconfig, in one testbed.
#[derive(Debug, Clone)]
pub struct Kubectl<'w> {
    testbed: &'w Testbed,
    kubeconfig: PathBuf,
    namespace: Option<String>,
    /// The file name of the program in `target/tools`.
    program: String,
}

/// What a call printed and how it ended.
#[derive(Debug)]
pub struct Output {
    /// Whether it exited with 0.
    pub ok: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Follows a process; it is killed when `follow` has not come to its end in time. Returns whether that was so, too.
fn killed_after<T>(limit: Duration, pid: u32, follow: impl FnOnce() -> T) -> (T, bool) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    let (ended, wait) = channel::<()>();
    std::thread::scope(|scope| {
        let guard = scope.spawn(move || {
            let is_late = wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            is_late && kill(pid, Signal::SIGKILL).is_ok()
        });
        let result = follow();
        drop(ended);
        (result, guard.join().expect("the guard does not panic"))
    })
}

impl<'w> Kubectl<'w> {
    pub(crate) fn new(testbed: &'w Testbed, kubeconfig: PathBuf) -> Self {
        Self { testbed, kubeconfig, namespace: None, program: "kubectl".to_owned() }
    }

    /// The same with a kubectl of this version, which `scripts/kubectl.sh VERSION` has installed.
    #[must_use]
    pub fn of_version(&self, version: &str) -> Self {
        Self { program: format!("kubectl-{version}"), ..self.clone() }
    }

    /// A kubectl for one namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self.clone() }
    }

    /// A command ready for arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools").join(&self.program);
        assert!(tool.exists(), "{} is missing: run `scripts/install.sh test`", tool.display());
        let mut command = self.testbed.command(&tool.to_string_lossy());
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(self.namespace.iter().flat_map(|n| ["--namespace", n]));
        // Its discovery cache must not outlive the testbed.
        command.env("HOME", self.testbed.dir()).env("KUBECACHEDIR", self.testbed.dir().join("kubecache"));
        command
    }

    /// Runs kubectl and returns output and exit status, successful or not.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    #[must_use]
    pub fn output(&self, args: &[&str], stdin: &str) -> Output {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let _ = child.stdin.take().expect("piped above").write_all(stdin.as_bytes());
        let pid = child.id();
        let (output, is_late) = killed_after(LIMIT, pid, || child.wait_with_output().expect("kubectl ends"));
        let mut err = String::from_utf8_lossy(&output.stderr).into_owned();
        if is_late {
            err.push_str(&format!("kubectl did not end within {LIMIT:?} and was killed"));
        }
        Output { ok: output.status.success(), out: String::from_utf8_lossy(&output.stdout).into_owned(), err }
    }

    /// Runs kubectl and returns its standard output.
    ///
    /// # Errors
    /// When it fails; both outputs are quoted.
    pub fn try_run(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.output(args, "");
        anyhow::ensure!(output.ok, "kubectl {args:?} failed: {}{}", output.err, output.out);
        Ok(output.out)
    }

    /// Like [`try_run`](Self::try_run), but panics on failure.
    #[track_caller]
    #[must_use]
    pub fn run(&self, args: &[&str]) -> String {
        match self.try_run(args) {
            Ok(out) => out,
            Err(error) => panic!("{error:#}"),
        }
    }

    /// `kubectl apply -f -`.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        let output = self.output(&["apply", "-f", "-"], manifest);
        assert!(output.ok, "kubectl apply failed: {}{}\n{manifest}", output.err, output.out);
        output.out
    }

    /// `kubectl get … -o json`.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let mut all = vec!["get"];
        all.extend(args);
        all.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.try_run(&all)?)?)
    }

    /// `kubectl get … --watch`: passes each object to `check` on every change, until it returns a value.
    ///
    /// # Panics
    /// When it returns none within `timeout`; the message quotes the last object.
    #[track_caller]
    pub fn watch<T>(
        &self,
        timeout: Duration,
        what: &str,
        args: &[&str],
        mut check: impl FnMut(&Value) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + timeout;
        let mut last = "nothing was shown".to_owned();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "not within {timeout:?}: {what}: {last}");
            let (found, shown) = self.watch_once(left, args, &mut check);
            if let Some(found) = found {
                return found;
            }
            last = shown.unwrap_or(last);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// One watch, until it ends or `left` is over; also returns the last object, or kubectl's error.
    fn watch_once<T>(
        &self,
        left: Duration,
        args: &[&str],
        check: &mut impl FnMut(&Value) -> Option<T>,
    ) -> (Option<T>, Option<String>) {
        let mut command = self.command();
        command.arg("get").args(args).args(["-o", "json", "--watch"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped above"));
        let (mut found, mut shown) = (None, None);
        killed_after(left, child.id(), || {
            for object in Deserializer::from_reader(stdout).into_iter::<Value>().map_while(Result::ok) {
                found = check(&object);
                shown = Some(format!("{} {} {}", object["status"], object["reason"], object["message"]));
                if found.is_some() {
                    break;
                }
            }
        });
        let _ = child.kill();
        let mut complaint = String::new();
        let _ = child.stderr.take().expect("piped above").read_to_string(&mut complaint);
        let _ = child.wait();
        (found, shown.or(Some(complaint).filter(|c| !c.is_empty())))
    }

    /// Waits until namespaces have their default service account: until then a real API rejects pods.
    ///
    /// # Panics
    /// When one of them has none.
    #[track_caller]
    pub fn accounts(&self, namespaces: &[&str]) {
        eventually(DEFAULT_TIMEOUT, "namespaces have their accounts", || {
            let all = self.json(&["serviceaccounts", "-A", "--field-selector", "metadata.name=default"])?;
            let made: Vec<&str> = all["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|account| account["metadata"]["namespace"].as_str())
                .collect();
            let missing: Vec<&&str> = namespaces.iter().filter(|name| !made.contains(name)).collect();
            anyhow::ensure!(missing.is_empty(), "{missing:?} have none");
            Ok(())
        });
    }

    /// The pods with a label, as JSON objects.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn pods(&self, selector: &str) -> anyhow::Result<Vec<Value>> {
        Ok(self.json(&["pods", "-l", selector])?["items"].as_array().cloned().unwrap_or_default())
    }

    /// Pods with a label that are Ready and not being deleted; fails unless there are exactly `count`.
    ///
    /// # Errors
    /// When there are more or fewer.
    pub fn ready_pods(&self, selector: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        let pods = self.pods(selector)?;
        let (ready, other): (Vec<Value>, Vec<Value>) =
            pods.into_iter().partition(|pod| pod["metadata"]["deletionTimestamp"].is_null() && is_ready(pod));
        anyhow::ensure!(
            ready.len() == count && other.is_empty(),
            "{} pods are Ready, wanted {count}; others: {}",
            ready.len(),
            other.iter().map(|p| format!("{} {}", p["metadata"]["name"], p["status"])).collect::<Vec<_>>().join(", ")
        );
        Ok(ready)
    }
}
