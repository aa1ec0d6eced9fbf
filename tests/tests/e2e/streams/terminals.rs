//! Terminals, and a container's first process.

use std::process::Stdio;

use serde_json::json;
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, eventually};

use super::{SPOKEN, call, running, sleeper, started};

/// Uses a command in a terminal: size, input, a new size, the end.
const TYPIST: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
def size(rows, cols):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
def until(word, line=None):
    # Typed again and again: a size takes its time to arrive.
    global seen
    end, seen = time.time() + 60, b""
    while word not in seen:
        if time.time() > end:
            sys.exit("%r did not come, but %r" % (word, seen))
        if line:
            os.write(fd, line)
        if select.select([fd], [], [], 0.5)[0]:
            seen += os.read(fd, 65536)
ready, go = os.pipe()
pid, fd = pty.fork()
if pid == 0:
    os.read(ready, 1)
    os.execvp(sys.argv[1], sys.argv[1:])
size(31, 101)
os.write(go, b"x")
until(b"31 101\r\n", b"stty size\n")
size(41, 121)
os.kill(pid, signal.SIGWINCH)
until(b"41 121\r\n", b"stty size\n")
os.write(fd, b"echo one-$((1 + 1))\n")
until(b"one-2\r\n")
# Typed by whoever looks for an earlier line; Docker's own tools keep it for themselves.
os.write(fd, b"\x10\n")
until(b"one-2\r\n")
os.write(fd, b"sleep 1000\n")
time.sleep(1)
os.write(fd, b"\x03")
os.write(fd, b"echo after-$?\n")
until(b"after-130\r\n")
os.write(fd, b"exit 7\n")
try:
    while os.read(fd, 65536):
        pass
except OSError:
    pass
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// Runs kubectl in a terminal and returns its exit code.
fn typed(testbed: &Testbed, kubectl: &Kubectl<'_>, websockets: &str, args: &[&str]) -> String {
    let command = kubectl.command();
    let output = testbed
        .command("python3")
        .args(["-c", TYPIST])
        // The first word of each command enters the namespace.
        .arg(command.get_program())
        .args(command.get_args())
        .args(args)
        .envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))))
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
        .stdin(Stdio::null())
        .output()
        .expect("python3 starts");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{websockets}: {printed}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn terminals_and_attachments() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    sleeper(&kubectl, "box");
    for websockets in SPOKEN {
        assert_eq!(typed(&testbed, &kubectl, websockets, &["exec", "-it", "box", "--", "sh"]), "7", "{websockets}");
        attachments(&testbed, &kubectl, websockets);
    }
    windlass.down(&[]);
}

fn reader(name: &str, tty: bool, line: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "windlass/busybox:1", "command": ["sh", "-c", line],
            "stdin": true, "stdinOnce": true, "tty": tty}],
    }})
    .to_string()
}

fn attachments(testbed: &Testbed, kubectl: &Kubectl<'_>, websockets: &str) {
    // Input goes to the container's first process, and is closed with the only client.
    let name = format!("reader-{websockets}");
    running(kubectl, &name, &reader(&name, false, "while read line; do echo got $line; done; echo end"));
    let ended = call(kubectl, websockets, &["attach", "-i", &name], b"one\ntwo\n");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.text().contains("got one\ngot two\nend\n"), "{websockets}: {ended:?}");
    eventually(DEFAULT_TIMEOUT, "the container has ended", || {
        let pod = kubectl.json(&["pod", &name])?;
        anyhow::ensure!(pod["status"]["phase"] == "Succeeded", "{}", pod["status"]["phase"]);
        Ok(())
    });
    let ended = call(kubectl, websockets, &["attach", &name], b"");
    assert_ne!(ended.code, 0, "{ended:?}");

    // The container's own terminal.
    let name = format!("terminal-{websockets}");
    running(kubectl, &name, &reader(&name, true, "exec sh"));
    assert_eq!(typed(testbed, kubectl, websockets, &["attach", "-it", &name]), "0", "attachments tell no exit code");

    // A client without input changes nothing.
    let name = format!("talker-{websockets}");
    running(kubectl, &name, &crate::shell_pod(&name, "Never", "while true; do echo tick; sleep 1; done"));
    let mut looker = started(kubectl, websockets, &["attach", &name]);
    let mut out = looker.stdout.take().expect("piped");
    let mut seen = [0; 5];
    std::io::Read::read_exact(&mut out, &mut seen).expect("it is heard");
    assert_eq!(&seen, b"tick\n");
    looker.kill().expect("kubectl can be killed");
    looker.wait().expect("kubectl ends");
    let pod = kubectl.json(&["pod", &name]).expect("the pod is there");
    assert_eq!(pod["status"]["phase"], "Running");

    // kubectl's handling of both.
    let name = format!("once-{websockets}");
    let args =
        ["run", &name, "--rm", "-i", "--restart=Never", "--image=windlass/busybox:1", "--", "sh", "-c", "cat; exit 0"];
    let ended = call(kubectl, websockets, &args, b"through\n");
    assert!(ended.code == 0 && ended.text().contains("through\n"), "{websockets}: {ended:?}");
}
