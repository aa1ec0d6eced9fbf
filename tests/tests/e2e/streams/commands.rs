//! exec and cp.

use std::fs;

use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, eventually};

use super::{SPOKEN, call, sleeper, started};

/// Bytes with a long period and all values.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(length);
    out
}

/// The number of processes of a pod with a word in their command line.
fn processes(word: &str) -> usize {
    let all = fs::read_dir("/proc").expect("processes can be listed").flatten();
    all.filter(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.trim() == word
    })
    .count()
}

#[test]
fn commands_in_containers() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    sleeper(&kubectl, "box");
    for websockets in SPOKEN {
        let exec = |args: &[&str], stdin: &[u8]| {
            let all: Vec<&str> = ["exec", "-i", "box", "--"].iter().chain(args).copied().collect();
            call(&kubectl, websockets, &all, stdin)
        };
        // exit codes and outputs
        let ended = exec(&["true"], b"");
        assert_eq!((ended.code, ended.out.len(), ended.err.as_str()), (0, 0, ""), "{websockets}: {ended:?}");
        let ended = exec(&["sh", "-c", "echo out; echo err >&2; exit 3"], b"");
        assert_eq!((ended.code, ended.text().as_str()), (3, "out\n"), "{websockets}: {ended:?}");
        assert!(ended.err.starts_with("err\n") && ended.err.contains("exit code 3"), "{ended:?}");
        let ended = exec(&["no-such-program"], b"");
        assert!(matches!(ended.code, 126 | 127), "{websockets}: {ended:?}");
        assert!(format!("{}{}", ended.text(), ended.err).contains("no-such-program"), "{ended:?}");
        // arguments are passed unchanged
        let ended = exec(&["printf", "%s|", "a b", "&c=d", "50%", "+é\"'"], b"");
        assert_eq!(ended.text(), "a b|&c=d|50%|+é\"'|", "{websockets}: {ended:?}");
        // a process may close its streams long before it ends
        let ended = exec(&["sh", "-c", "exec >&- 2>&- <&-; sleep 1; exit 5"], b"");
        assert_eq!(ended.code, 5, "{websockets}: {ended:?}");
        // input to its end, and output
        assert_eq!(exec(&["cat"], b"hello").text(), "hello");
        let sent = noise(10 << 20);
        let ended = exec(&["cat"], &sent);
        assert!(ended.out == sent, "{websockets}: {} bytes came back: {}", ended.out.len(), ended.err);
        let ended = exec(&["sh", "-c", "md5sum; echo end >&2"], &sent);
        assert!(ended.err.contains("end"), "{websockets}: {ended:?}");
        // unread input loses no output
        let ended = exec(&["sh", "-c", "echo early; exit 4"], &sent);
        assert_eq!((ended.code, ended.text().as_str()), (4, "early\n"), "{websockets}: {}", ended.err);
        // without input
        let ended = call(&kubectl, websockets, &["exec", "box", "--", "cat", "/etc/hostname"], b"");
        assert_eq!((ended.code, ended.text().as_str()), (0, "box\n"), "{ended:?}");
        // missing containers and commands
        let ended = call(&kubectl, websockets, &["exec", "box", "-c", "other", "--", "true"], b"");
        assert!(ended.code == 1 && ended.err.contains("container other is not valid for pod box"), "{ended:?}");
        let ended = call(&kubectl, websockets, &["exec", "nobody", "--", "true"], b"");
        assert!(ended.code == 1 && ended.err.contains("pods \"nobody\" not found"), "{ended:?}");
        copies(&testbed, &kubectl, websockets, &sent);
    }
    crowd(&kubectl);
    clients_that_go(&kubectl);
    rights(&kubectl);
    windlass.down(&[]);
}

/// kubectl cp, both ways, with a file and with a directory.
fn copies(testbed: &Testbed, kubectl: &Kubectl<'_>, websockets: &str, bytes: &[u8]) {
    let dir = testbed.dir().join(format!("copies-{websockets}"));
    fs::create_dir_all(dir.join("there/deep")).expect("a directory can be created");
    fs::write(dir.join("there/file"), bytes).expect("a file can be written");
    fs::write(dir.join("there/deep/other"), "other").expect("a file can be written");
    let there = dir.join("there").to_string_lossy().into_owned();
    let back = dir.join("back").to_string_lossy().into_owned();
    let target = format!("box:/tmp/there-{websockets}");
    let ended = call(kubectl, websockets, &["cp", &there, &target], b"");
    assert_eq!(ended.code, 0, "{ended:?}");
    let ended = call(kubectl, websockets, &["cp", &target, &back], b"");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(fs::read(dir.join("back/file")).expect("it came back") == bytes);
    assert_eq!(fs::read_to_string(dir.join("back/deep/other")).expect("it came back"), "other");
}

fn crowd(kubectl: &Kubectl<'_>) {
    let all: Vec<_> = (0..50)
        .map(|i| {
            let line = format!("echo {i}; cat; exit {}", i % 3);
            (i, started(kubectl, SPOKEN[i % 2], &["exec", "-i", "box", "--", "sh", "-c", &line]))
        })
        .collect();
    for (i, child) in all {
        // Its input is closed here.
        let output = child.wait_with_output().expect("kubectl ends");
        let code = i32::try_from(i % 3).expect("it is small");
        assert_eq!(output.status.code(), Some(code), "{i}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{i}\n"));
    }
}

/// A killed client leaves no process behind.
fn clients_that_go(kubectl: &Kubectl<'_>) {
    for (websockets, line) in [("true", "sleep 98761"), ("false", "sleep 98762")] {
        let args: Vec<&str> = ["exec", "-i", "box", "--"].into_iter().chain(line.split(' ')).collect();
        let mut client = started(kubectl, websockets, &args);
        eventually(DEFAULT_TIMEOUT, "the command runs", || {
            anyhow::ensure!(processes(line) == 1, "{line} does not run");
            Ok(())
        });
        client.kill().expect("kubectl can be killed");
        client.wait().expect("kubectl ends");
        eventually(DEFAULT_TIMEOUT, "the command is gone with its client", || {
            anyhow::ensure!(processes(line) == 0, "{line} runs still");
            Ok(())
        });
    }
}

/// A user without rights may not exec.
fn rights(kubectl: &Kubectl<'_>) {
    let token = kubectl.run(&["create", "token", "default"]);
    let server = kubectl.run(&["config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.server}"]);
    for websockets in SPOKEN {
        let mut command = kubectl.command();
        // Without the administrator's credentials.
        let output = command
            .args(["--kubeconfig", "/dev/null", "--server", &server, "--insecure-skip-tls-verify"])
            .args(["--token", token.trim(), "exec", "box", "--", "true"])
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
            .output()
            .expect("kubectl ends");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && printed.contains("Forbidden"), "{websockets}: {printed}");
    }
}
