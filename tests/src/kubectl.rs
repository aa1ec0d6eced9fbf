//! The real kubectl.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::World;

/// kubectl with one kubeconfig, in one world.
#[derive(Debug, Clone)]
pub struct Kubectl<'w> {
    world: &'w World,
    kubeconfig: PathBuf,
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

impl<'w> Kubectl<'w> {
    pub(crate) fn new(world: &'w World, kubeconfig: PathBuf) -> Self {
        Self { world, kubeconfig }
    }

    /// A command ready for arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/kubectl");
        assert!(tool.exists(), "{} is missing: run scripts/kubectl.sh", tool.display());
        let mut command = self.world.command(&tool.to_string_lossy());
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        // Its discovery cache must not outlive the world.
        command.env("HOME", self.world.dir()).env("KUBECACHEDIR", self.world.dir().join("kubecache"));
        command
    }

    /// Runs kubectl and gives what came of it, good or bad.
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
        let output = child.wait_with_output().expect("kubectl ends");
        Output {
            ok: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs kubectl and gives its standard output.
    ///
    /// # Errors
    /// When it fails; both outputs are quoted.
    pub fn try_run(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.output(args, "");
        anyhow::ensure!(output.ok, "kubectl {args:?} failed: {}{}", output.err, output.out);
        Ok(output.out)
    }

    /// The same for calls that must work.
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
        let (ready, other): (Vec<Value>, Vec<Value>) = pods.into_iter().partition(|pod| {
            pod["metadata"]["deletionTimestamp"].is_null()
                && pod["status"]["conditions"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
        });
        anyhow::ensure!(
            ready.len() == count && other.is_empty(),
            "{} pods are Ready, wanted {count}; others: {}",
            ready.len(),
            other.iter().map(|p| format!("{} {}", p["metadata"]["name"], p["status"])).collect::<Vec<_>>().join(", ")
        );
        Ok(ready)
    }
}
