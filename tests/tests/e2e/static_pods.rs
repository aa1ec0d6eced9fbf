//! Static pods, and pods that the node rejects at admission.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Kubectl, Testbed, eventually, shared_dir::is_ready};

use crate::container_id;

/// The duration without an API: every watch has failed many times by then, and has reached its longest backoff.
const AWAY: Duration = Duration::from_secs(120);

/// A manifest directory, written to as editors do.
struct Folder(PathBuf);

impl Folder {
    fn new(testbed: &Testbed) -> Self {
        let dir = testbed.dir().join("static");
        fs::create_dir_all(&dir).expect("a directory can be created");
        Self(dir)
    }

    /// Writes a temporary file and renames it, as editors do.
    fn put(&self, file: &str, text: &str) {
        let scratch = self.0.join(format!(".{file}.swp"));
        fs::write(&scratch, text).expect("a file can be written");
        fs::rename(scratch, self.0.join(file)).expect("a file can be renamed");
    }

    fn take(&self, file: &str) {
        fs::remove_file(self.0.join(file)).expect("a file can be removed");
    }
}

fn sleeper(name: &str, word: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: own}}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - name: c\n    image: windlass/busybox:1\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, 'echo {word}; trap exit TERM; while :; do sleep 0.1; done']\n"
    )
}

fn ready(kubectl: &Kubectl<'_>, name: &str) -> Value {
    eventually(DEFAULT_TIMEOUT, &format!("{name} is Ready"), || {
        let pod = kubectl.json(&["pod", name])?;
        anyhow::ensure!(is_ready(&pod), "{}", pod["status"]);
        Ok(pod)
    })
}

fn running(testbed: &Testbed, pod: &str) -> Vec<String> {
    let listed = testbed.docker(&["ps", "-q", "--no-trunc", "--filter", &format!("name=k8s_c_{pod}_")]);
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn static_pods_follow_their_files() {
    let testbed = Testbed::new();
    let folder = Folder::new(&testbed);
    let mut windlass = testbed.windlass().with(&["--static-pod-path", &folder.0.to_string_lossy()]);
    folder.put("a.yaml", &sleeper("a", "one"));
    let kubectl = windlass.up();
    let first = ready(&kubectl, "a-node");
    let meta = &first["metadata"];
    assert_eq!(meta["ownerReferences"][0]["kind"], "Node");
    let hash = meta["annotations"]["kubernetes.io/config.hash"].as_str().expect("it has a hash").to_owned();
    assert_eq!(meta["annotations"]["kubernetes.io/config.mirror"], hash.as_str());
    assert_eq!(meta["annotations"]["kubernetes.io/config.source"], "file");
    eventually(DEFAULT_TIMEOUT, "its log is read", || {
        let log = kubectl.output(&["logs", "a-node"], "");
        anyhow::ensure!(log.out == "one\n", "{} {}", log.out, log.err);
        Ok(())
    });

    // The mirror pod is deleted in the API: it is created again, and the container is not touched.
    let id = container_id(&first);
    let _ = kubectl.run(&["delete", "pod", "a-node", "--wait=false"]);
    let again = eventually(DEFAULT_TIMEOUT, "the image is there again", || {
        let pod = kubectl.json(&["pod", "a-node"])?;
        anyhow::ensure!(pod["metadata"]["uid"] != first["metadata"]["uid"] && is_ready(&pod), "{}", pod["metadata"]);
        Ok(pod)
    });
    assert_eq!(container_id(&again), id);

    // Edited: the old pod ends, then the new one starts, never both at once.
    folder.put("a.yaml", &sleeper("a", "two"));
    let edited = eventually(DEFAULT_TIMEOUT, "the new one is Ready", || {
        assert!(running(&testbed, "a-node").len() < 2, "both run");
        let pod = kubectl.json(&["pod", "a-node"])?;
        anyhow::ensure!(pod["metadata"]["annotations"]["kubernetes.io/config.hash"] != hash.as_str() && is_ready(&pod));
        Ok(pod)
    });
    assert_ne!(container_id(&edited), id);

    // An incomplete file, and a second file with the same pod: pods keep running, and the log has the reason.
    let whole = sleeper("a", "three");
    folder.put("a.yaml", &whole[..whole.len() / 2]);
    folder.put("b.yaml", &sleeper("a", "other"));
    folder.put("c.yaml", &sleeper("c", "see"));
    ready(&kubectl, "c-node");
    assert_eq!(container_id(&kubectl.json(&["pod", "a-node"]).unwrap()), container_id(&edited));
    eventually(DEFAULT_TIMEOUT, "it is told", || {
        let log = windlass.daemon().log();
        anyhow::ensure!(log.contains("a.yaml: line") && log.contains("is defined in"), "{log}");
        Ok(())
    });

    // kill -9, and a change during the downtime.
    windlass.kill();
    folder.take("b.yaml");
    folder.put("a.yaml", &sleeper("a", "two"));
    folder.take("c.yaml");
    let kubectl = windlass.up();
    let kept = ready(&kubectl, "a-node");
    assert_eq!(container_id(&kept), container_id(&edited), "the same content is the same pod");
    eventually(DEFAULT_TIMEOUT, "c is gone", || {
        anyhow::ensure!(running(&testbed, "c-node").is_empty());
        let found = kubectl.output(&["get", "pod", "c-node"], "");
        anyhow::ensure!(found.err.contains("NotFound"), "{}{}", found.out, found.err);
        Ok(())
    });

    folder.take("a.yaml");
    eventually(DEFAULT_TIMEOUT, "a is gone", || {
        anyhow::ensure!(running(&testbed, "a-node").is_empty());
        anyhow::ensure!(kubectl.output(&["get", "pod", "a-node"], "").err.contains("NotFound"));
        Ok(())
    });
}

#[test]
fn pods_go_on_while_the_api_is_away_and_statuses_catch_up() {
    let testbed = Testbed::new();
    let folder = Folder::new(&testbed);
    let windlass = testbed.windlass();
    let mut server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    let pki = testbed.dir().join("data/pki");
    let mut command = windlass.command("agent");
    for (flag, file) in [
        ("--kubeconfig", "node.kubeconfig"),
        ("--tls-cert-file", "kubelet.crt"),
        ("--tls-private-key-file", "kubelet.key"),
    ] {
        command.arg(flag).arg(pki.join(file));
    }
    for (flag, dir) in [("--run-dir", "agent-run"), ("--data-dir", "agent-data"), ("--static-pod-path", "static")] {
        command.args([flag, &testbed.dir().join(dir).to_string_lossy()]);
    }
    let log = testbed.dir().join("agent.log");
    let mut node = Daemon::start("windlass agent", &mut command, &log).unwrap();
    kubectl.apply(&sleeper("p", "hello"));
    let before = ready(&kubectl, "p");

    server.end(nix::sys::signal::Signal::SIGKILL);
    std::thread::sleep(AWAY);
    folder.put("s.yaml", &sleeper("s", "static"));
    let id = container_id(&before);
    let _ = testbed.docker(&["kill", id.trim_start_matches("docker://")]);
    eventually(DEFAULT_TIMEOUT, "a container that died is started again, and a static pod begins", || {
        anyhow::ensure!(running(&testbed, "p").iter().any(|c| !id.ends_with(c.as_str())), "no new container");
        anyhow::ensure!(!running(&testbed, "s-node").is_empty(), "no static pod");
        Ok(())
    });
    // The agent is restarted without an API: static pods run, and no other pod's container is touched.
    let runs = running(&testbed, "p");
    node.end(nix::sys::signal::Signal::SIGKILL);
    let _node = Daemon::start("windlass agent", &mut command, &log).unwrap();
    folder.put("t.yaml", &sleeper("t", "static"));
    eventually(DEFAULT_TIMEOUT, "a static pod begins", || {
        anyhow::ensure!(!running(&testbed, "t-node").is_empty(), "no static pod");
        Ok(())
    });
    assert_eq!(running(&testbed, "p"), runs);

    let _server = windlass.api_alone();
    eventually(DEFAULT_TIMEOUT, "the status has caught up", || {
        let pod = kubectl.json(&["pod", "p"])?;
        anyhow::ensure!(
            pod["status"]["containerStatuses"][0]["restartCount"] == 1 && is_ready(&pod),
            "{}",
            pod["status"]
        );
        Ok(())
    });
    ready(&kubectl, "s-node");
    ready(&kubectl, "t-node");
}

#[test]
fn what_was_bound_here_and_does_not_fit_is_refused() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass().with(&["--max-pods", "4"]);
    let kubectl = windlass.up();
    let bound = |name: &str, spec: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  nodeName: node\n  terminationGracePeriodSeconds: 1\n  {spec}\n  \
             containers:\n  - {{name: c, image: 'windlass/busybox:1', command: [sleep, '1000']"
        )
    };
    for (name, spec, rest, reason) in [
        ("port", "", ", ports: [{containerPort: 80, hostPort: 7070}]", None),
        ("cpu", "", ", resources: {requests: {cpu: '1000'}}", Some("OutOfcpu")),
        ("label", "nodeSelector: {no: such}", "", Some("NodeAffinity")),
        ("clash", "", ", ports: [{containerPort: 81, hostPort: 7070}]", Some("NodePorts")),
        ("two", "", "", None),
        ("three", "", "", None),
        ("four", "", "", None),
        ("five", "", "", Some("OutOfpods")),
    ] {
        kubectl.apply(&format!("{}{rest}}}\n", bound(name, spec)));
        let Some(reason) = reason else {
            ready(&kubectl, name);
            continue;
        };
        let pod = eventually(DEFAULT_TIMEOUT, &format!("{name} is refused"), || {
            let pod = kubectl.json(&["pod", name])?;
            anyhow::ensure!(pod["status"]["phase"] == "Failed", "{}", pod["status"]);
            Ok(pod)
        });
        assert_eq!(pod["status"]["reason"], reason);
        assert!(
            pod["status"]["message"].as_str().is_some_and(|m| m.starts_with("Pod was rejected: ")),
            "{}",
            pod["status"]
        );
        let described = kubectl.run(&["describe", "pod", name]);
        assert!(described.contains(reason), "{described}");
    }
    // One that was deleted by force gives its place and its port away at once, as with kubelet, though it may still be stopping.
    let _ = kubectl.run(&["delete", "pod", "port", "--force", "--grace-period=0", "--wait=false"]);
    kubectl.apply(&format!("{}, ports: [{{containerPort: 80, hostPort: 7070}}]}}\n", bound("again", "")));
    ready(&kubectl, "again");
}
