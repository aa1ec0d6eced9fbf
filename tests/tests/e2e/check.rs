//! `windlass check`: reports problems and changes nothing.

use windlass_tests::Testbed;

#[test]
fn check_probes_the_machine_and_leaves_it_unchanged() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let rules = || testbed.sh("(iptables-save; ip6tables-save) | grep -v '^#'; ip -o link; ls /proc/sys/net/ipv4/conf");
    let before = rules();
    let text = windlass.try_run("check", &[]).unwrap();
    assert!(text.contains("Docker Engine") && text.contains("kinds of rules are taken"), "{text}");
    assert!(text.contains("free for the Kubernetes API") && text.contains("this machine can be a node"), "{text}");
    assert!(text.contains("it listens at 127.0.0.1:6443,198.18.0.1:6443"), "pods reach the API: {text}");
    let alone = windlass.command("check").args(["--quiet", "--api-bind-address", "127.0.0.1:6443"]).output().unwrap();
    let alone = String::from_utf8_lossy(&alone.stdout).into_owned();
    assert!(alone.contains("the API in pods") && alone.contains("which pods cannot reach"), "{alone}");
    // This engine was started without live-restore.
    assert!(text.contains("live-restore") && text.contains("daemon.json"), "{text}");
    assert_eq!(rules(), before, "something was changed");
    assert!(!testbed.dir().join("data").exists(), "something was made");

    let mut command = testbed.command("python3");
    command
        .args(["-c", "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',6443)); s.listen(); time.sleep(60)"]);
    let holder =
        windlass_tests::Daemon::start("a holder of a port", &mut command, &testbed.dir().join("holder.log")).unwrap();
    windlass_tests::eventually(windlass_tests::DEFAULT_TIMEOUT, "the port is taken", || {
        let refused = windlass.try_run("check", &["--quiet"]).err().map(|e| e.to_string());
        let refused = refused.ok_or_else(|| anyhow::anyhow!("nothing is wrong"))?;
        anyhow::ensure!(
            refused.contains("6443") && refused.contains("python3") && refused.contains("1 missing"),
            "{refused}"
        );
        anyhow::ensure!(!refused.contains("free for"), "{refused}");
        Ok(())
    });
    drop(holder);

    let elsewhere = windlass.command("check").args(["--docker-socket", "/nowhere/docker.sock"]).output().unwrap();
    let output = String::from_utf8_lossy(&elsewhere.stdout).into_owned();
    assert!(elsewhere.status.code() == Some(3) && output.contains("/nowhere/docker.sock"), "{output}");

    let _ = windlass.up();
    let text = windlass.try_run("check", &[]).unwrap();
    assert!(text.contains("windlass serves the Kubernetes API there"), "{text}");
}
