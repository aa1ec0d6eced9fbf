//! exec, attach, cp and port-forward: real kubectl, through the API server and the node, to real containers.

mod commands;
mod forwards;
mod legacy;
mod terminals;

use std::{
    io::Write as _,
    process::{Child, Stdio},
};

use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, eventually};

/// The transport of kubectl: WebSockets, or SPDY if configured.
const SPOKEN: [&str; 2] = ["true", "false"];

/// Output and exit status of a call.
#[derive(Debug)]
struct Ended {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Ended {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

/// A kubectl with WebSockets or SPDY, not started yet.
fn speaking(kubectl: &Kubectl<'_>, websockets: &str, args: &[&str]) -> std::process::Command {
    let mut command = kubectl.command();
    command
        .args(args)
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn started(kubectl: &Kubectl<'_>, websockets: &str, args: &[&str]) -> Child {
    speaking(kubectl, websockets, args).spawn().expect("kubectl starts")
}

/// Runs kubectl with these bytes as input.
fn call(kubectl: &Kubectl<'_>, websockets: &str, args: &[&str], stdin: &[u8]) -> Ended {
    let mut child = started(kubectl, websockets, args);
    let mut input = child.stdin.take().expect("piped above");
    let output = std::thread::scope(|scope| {
        // A program that prints while it reads would block otherwise.
        scope.spawn(move || input.write_all(stdin));
        child.wait_with_output().expect("kubectl ends")
    });
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Applies a pod and waits until all its containers run.
fn running(kubectl: &Kubectl<'_>, name: &str, manifest: &str) {
    kubectl.apply(manifest);
    eventually(DEFAULT_TIMEOUT, &format!("{name} runs"), || {
        let pod = kubectl.json(&["pod", name])?;
        anyhow::ensure!(crate::shared_dir::is_ready(&pod), "{}", pod["status"]);
        Ok(())
    });
}

/// A sleeping pod for commands.
fn sleeper(kubectl: &Kubectl<'_>, name: &str) {
    running(kubectl, name, &crate::shell_pod(name, "Never", "exec sleep 100000"));
}
