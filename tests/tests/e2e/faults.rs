//! Invalid input and missing dependencies: each gives a helpful message, and other pods are not affected.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use windlass_tests::{DEFAULT_TIMEOUT, LentNode, Testbed, eventually, run};

use crate::shell_pod;

#[test]
fn bad_manifests_are_refused_with_the_field_path() {
    let node = LentNode::take();
    let kubectl = node.kubectl();
    for (manifest, words) in [
        // Not YAML: kubectl itself rejects it.
        ("apiVersion: v1\nkind: Pod\n  metadata: {", &["error"][..]),
        // A field that does not exist.
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n  - {name: c, image: i, imagePolicy: Never}\n",
            &["strict decoding error", "unknown field \"spec.containers[0].imagePolicy\""],
        ),
        // A field of the wrong type.
        ("apiVersion: v1\nkind: ReplicationController\nmetadata: {name: x}\nspec: {replicas: many}\n", &["replicas"]),
        // A value that is not allowed.
        (
            "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: x}\nspec:\n  selector: {a: b}\n  template:\n    metadata: {labels: {a: b}}\n    \
          spec:\n      restartPolicy: Never\n      containers: [{name: c, image: i}]\n",
            &[
                "The ReplicationController \"x\" is invalid",
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ],
        ),
        // A selector that does not match the template.
        (
            "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: x}\nspec:\n  selector: {a: b}\n  template:\n    metadata: {labels: {a: c}}\n    \
          spec:\n      containers: [{name: c, image: i}]\n",
            &["spec.template.metadata.labels", "`selector` does not match template `labels`"],
        ),
        // An invalid name.
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_b}\n",
            &["metadata.name: Invalid value: \"A_b\"", "RFC 1123"],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: []}\n",
            &["spec.containers: Required value"],
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {type: NodePort, ports: [{port: 80, nodePort: 99}]}\n",
            &["spec.ports[0].nodePort", "30000-32767"],
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: nowhere}\n",
            &["namespaces \"nowhere\" not found"],
        ),
        ("apiVersion: v2\nkind: Nonsense\nmetadata: {name: x}\n", &["no matches for kind \"Nonsense\""]),
    ] {
        let output = kubectl.output(&["apply", "-f", "-"], manifest);
        assert!(!output.ok, "{manifest}\nwas accepted: {}", output.out);
        for word in words {
            assert!(output.err.contains(word), "{word:?} is missing in the answer to\n{manifest}\n{}", output.err);
        }
    }
    assert_eq!(
        kubectl.run(&["get", "rc,pods,cm", "-o", "name"]).trim(),
        "configmap/kube-root-ca.crt",
        "nothing was half applied"
    );
    // The server validates what kubectl does not: raw requests.
    let raw = |body: &str| kubectl.output(&["create", "--raw", "/api/v1/namespaces/default/pods", "-f", "-"], body);
    assert!(raw("{\"kind\": \"Pod\", ").err.contains("BadRequest"), "{:?}", raw("{\"kind\": \"Pod\", "));
    assert!(!raw("[]").ok && !raw("").ok);
}

#[test]
fn a_broken_file_among_the_manifests_stops_only_itself() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let folder = windlass.manifests_dir();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(
        folder.join("a-broken.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: mended\n data: {a: b\n",
    )
    .unwrap();
    std::fs::write(folder.join("b-good.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good}\ndata: {a: b}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: made}\n").unwrap();
    std::fs::write(
        folder.join("c-early.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: early, namespace: later}\n",
    )
    .unwrap();
    let kubectl = windlass.up();
    eventually(DEFAULT_TIMEOUT, "the good file is applied", || {
        kubectl.try_run(&["get", "configmap/good", "namespace/made"])
    });
    let log = eventually(DEFAULT_TIMEOUT, "the broken file is in the log with its line", || {
        let log = windlass.daemon().log();
        let line = log
            .lines()
            .find(|l| l.contains("a-broken.yaml"))
            .ok_or_else(|| anyhow::anyhow!("no word of it"))?
            .to_owned();
        anyhow::ensure!(line.contains("line") || line.contains(":5"), "{line}");
        Ok(line)
    });
    assert!(log.contains("ERROR") || log.contains("WARN"), "{log}");
    std::fs::write(
        folder.join("a-broken.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: mended\ndata: {a: b}\n",
    )
    .unwrap();
    eventually(DEFAULT_TIMEOUT, "the mended file is applied", || kubectl.try_run(&["get", "configmap/mended"]));
    // A rejected manifest is retried.
    let _ = kubectl.run(&["create", "namespace", "later"]);
    eventually(DEFAULT_TIMEOUT, "the early object is applied", || {
        kubectl.try_run(&["-n", "later", "get", "configmap/early"])
    });
    // An edited file is applied, and nothing else changes.
    let version = kubectl.run(&["get", "configmap/mended", "-o", "jsonpath={.metadata.resourceVersion}"]);
    std::fs::write(
        folder.join("b-good.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good}\ndata: {a: c}\n",
    )
    .unwrap();
    eventually(DEFAULT_TIMEOUT, "the edit arrives", || {
        let value = kubectl.try_run(&["get", "configmap/good", "-o", "jsonpath={.data.a}"])?;
        anyhow::ensure!(value == "c", "{value}");
        Ok(())
    });
    assert_eq!(kubectl.run(&["get", "configmap/mended", "-o", "jsonpath={.metadata.resourceVersion}"]), version);
}

#[test]
fn an_image_that_cannot_be_had_holds_up_only_its_pod() {
    let node = LentNode::take();
    let kubectl = node.kubectl();
    kubectl.apply(&shell_pod("missing", "Always", "sleep 1").replace("windlass/busybox:1", "windlass/nowhere:1"));
    kubectl.apply(&shell_pod("fine", "Always", "exec sleep 100000"));
    eventually(DEFAULT_TIMEOUT, "the other pod is Ready", || kubectl.ready_pods("test=fine", 1));
    let mut seen = std::collections::BTreeSet::new();
    eventually(DEFAULT_TIMEOUT, "ErrImagePull, then ImagePullBackOff", || {
        let pod = kubectl.json(&["pod", "missing"])?;
        let reason =
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].as_str().unwrap_or("").to_owned();
        seen.insert(reason);
        anyhow::ensure!(seen.contains("ErrImagePull") && seen.contains("ImagePullBackOff"), "{seen:?}");
        Ok(())
    });
    let events = kubectl.run(&["get", "events", "--field-selector", "involvedObject.name=missing"]);
    for word in ["Failed to pull image \"windlass/nowhere:1\"", "Error: ErrImagePull", "Back-off pulling image"] {
        assert!(events.contains(word), "{word} is missing in {events}");
    }
}

#[test]
fn docker_may_go_and_come_back() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    windlass.start();
    let ready = |testbed: &Testbed| -> anyhow::Result<(String, String)> {
        let text = testbed.windlass().kubectl().try_run(&[
            "get",
            "node",
            "node",
            "-o",
            "jsonpath={range .status.conditions[?(@.type=='Ready')]}{.status} {.reason} {.message}{end}",
        ])?;
        let (status, rest) = text.split_once(' ').ok_or_else(|| anyhow::anyhow!("{text:?}"))?;
        Ok((status.to_owned(), rest.to_owned()))
    };
    let wait = |testbed: &Testbed, wanted: &str| -> String {
        eventually(DEFAULT_TIMEOUT, &format!("Ready is {wanted}"), || {
            let (status, rest) = ready(testbed)?;
            anyhow::ensure!(status == wanted, "{status} {rest}");
            Ok(rest)
        })
    };
    wait(&testbed, "True");
    testbed.windlass().kubectl().apply(&shell_pod("lasting", "Always", "exec sleep 100000"));
    eventually(DEFAULT_TIMEOUT, "the pod is Ready", || testbed.windlass().kubectl().ready_pods("test=lasting", 1));
    testbed.stop_docker();
    let why = wait(&testbed, "False");
    assert!(why.contains("KubeletNotReady") && why.to_lowercase().contains("docker"), "{why}");
    // The API keeps working without Docker.
    let _ = testbed.windlass().kubectl().run(&["create", "configmap", "meanwhile"]);
    assert!(windlass.daemon().runs());
    testbed.start_docker();
    wait(&testbed, "True");
    // Docker's restart ended the container; it is started again.
    eventually(DEFAULT_TIMEOUT, "the pod is Ready again", || {
        testbed.windlass().kubectl().ready_pods("test=lasting", 1)
    });
}

#[test]
fn a_taken_port_is_named_with_its_holder() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    for (port, kind) in [(6443, "API"), (10250, "node API")] {
        let log = testbed.dir().join("holder.log");
        let mut command = testbed.command("python3");
        command.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]);
        let holder = windlass_tests::Daemon::start("the port's holder", &mut command, &log).unwrap();
        eventually(DEFAULT_TIMEOUT, "the port is taken", || {
            testbed.try_sh(&format!("curl -s -o /dev/null http://127.0.0.1:{port}/"))
        });
        windlass.start();
        let printed = eventually(DEFAULT_TIMEOUT, "windlass gives up", || {
            anyhow::ensure!(!windlass.daemon().runs());
            Ok(windlass.daemon().log())
        });
        let last = printed.lines().rev().take(5).collect::<Vec<_>>().join("\n");
        assert!(last.contains(&port.to_string()), "{kind}: {last}");
        assert!(last.contains("python") && last.contains(&holder.pid().to_string()), "{kind}: {last}");
    }
}

#[test]
fn without_root_nothing_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    run("chmod", &["777", &dir.path().to_string_lossy()]);
    // `nobody` may not be able to read the build directory, so the program is copied.
    let program = dir.path().join("windlass");
    let built = std::env::var("WINDLASS_BIN")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../target/debug/windlass").to_owned());
    std::fs::copy(built, &program).unwrap();
    for command in ["up", "down"] {
        let output = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .arg(command)
            .args([
                "--data-dir",
                &dir.path().join("data").to_string_lossy(),
                "--run-dir",
                &dir.path().join("run").to_string_lossy(),
            ])
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains("needs root"), "{printed}");
        assert!(!dir.path().join("data").exists() && !dir.path().join("run").exists());
    }
}

#[test]
fn a_foreign_or_damaged_data_directory_is_untouched() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let data = testbed.dir().join("data");
    let gives_up = |windlass: &mut windlass_tests::Windlass<'_>, why: &str| {
        windlass.start();
        let printed = eventually(DEFAULT_TIMEOUT, why, || {
            anyhow::ensure!(!windlass.daemon().runs());
            Ok(windlass.daemon().log())
        });
        let last = printed.lines().last().unwrap_or("").to_owned();
        assert!(last.contains(&data.display().to_string()), "{why}: {last}");
    };
    // A directory of another user.
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("family-photos.tar"), "precious").unwrap();
    gives_up(&mut windlass, "a foreign folder is refused");
    let left: Vec<_> = std::fs::read_dir(&data).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["family-photos.tar"]);
    std::fs::remove_dir_all(&data).unwrap();
    // A truncated store.
    windlass.up();
    windlass.daemon().end(nix::sys::signal::Signal::SIGTERM);
    let store = walk(&data).into_iter().find(|p| p.to_string_lossy().contains("/store/log-")).expect("the store's log");
    let whole = std::fs::read(&store).unwrap();
    let cut = &whole[..whole.len() / 3];
    std::fs::write(&store, cut).unwrap();
    gives_up(&mut windlass, "a truncated store is refused");
    assert_eq!(std::fs::read(&store).unwrap(), cut, "the file must not be touched");
    std::fs::write(&store, &whole).unwrap();
    windlass.up();
    std::thread::sleep(Duration::from_millis(100));
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn acknowledged_writes_survive_a_kill_in_the_middle_of_a_storm() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let acknowledged = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0.. {
                if kubectl.try_run(&["create", "configmap", &format!("c{i}"), "--from-literal=a=b"]).is_err() {
                    return;
                }
                acknowledged.store(i + 1, Ordering::SeqCst);
            }
        });
        eventually(DEFAULT_TIMEOUT, "the storm blows", || {
            let acknowledged = acknowledged.load(Ordering::SeqCst);
            anyhow::ensure!(acknowledged > 20, "only {acknowledged} writes are acknowledged");
            Ok(())
        });
        windlass.kill();
        writer.join().unwrap();
    });
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    windlass.up();
    for i in 0..acknowledged {
        let _ = kubectl.run(&["get", "configmap", &format!("c{i}")]);
    }
}
