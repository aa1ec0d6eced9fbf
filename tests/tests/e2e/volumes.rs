//! Volumes of a pod on the node: their mounts, and that nothing is left after the pod's deletion.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, LentNode, eventually};

use crate::shared_dir::{SharedDir, container_status, is_ready, shell, wait_for, wait_for_event};

/// Waits until a file of the shared directory has `count` lines, and returns them.
fn lines(shared: &SharedDir, name: &str, count: usize) -> Vec<String> {
    eventually(DEFAULT_TIMEOUT, &format!("{name} has {count} lines"), || {
        let lines = shared.lines(name);
        anyhow::ensure!(lines.len() >= count, "{lines:?}");
        Ok(lines)
    })
}

/// Creates a pod with one container that runs `line` and stays.
fn tell(kubectl: &Kubectl<'_>, shared: &SharedDir, name: &str, line: &str, container: Value, rest: Value) {
    let mut main = container;
    main["name"] = json!("main");
    if main["command"].is_null() {
        main["command"] = shell(&format!("{line}; exec sleep 1000"));
    }
    let mut spec = rest;
    spec["containers"] = json!([main]);
    kubectl.apply(&shared.pod(name, spec));
}

#[test]
fn empty_dirs_and_host_paths() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let host = testbed.dir().join("host");
    let path = |name: &str, kind: &str| json!({"name": name.to_lowercase(), "hostPath": {"path": host.join(name), "type": kind}});
    let volumes = json!([{"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
        path("made", "DirectoryOrCreate"), path("file", "FileOrCreate"), path("any", "")]);
    let mounts: Value = ["disk", "memory", "made", "file", "any"]
        .map(|name| json!({"name": name, "mountPath": format!("/v/{name}")}))
        .into_iter()
        .collect();
    let line = "stat -c %a /v/disk /v/memory > /shared/modes; df -k /v/memory | tail -1 | awk '{print $1, $2}' >> /shared/modes; \
                echo x > /v/file; echo y > /v/made/y; echo kept >> /v/disk/kept; wc -l < /v/disk/kept > /shared/kept";
    tell(&kubectl, &shared, "p", line, json!({"volumeMounts": mounts}), json!({"volumes": volumes}));
    wait_for(&kubectl, "p", "is ready", is_ready);
    assert_eq!(lines(&shared, "modes", 3), ["777", "777", "tmpfs 4096"]);
    let text = |name: &str| fs::read_to_string(host.join(name)).unwrap();
    assert_eq!((text("file").as_str(), text("made/y").as_str(), host.join("any").is_dir()), ("x\n", "y\n", true));
    assert_eq!(fs::metadata(host.join("made")).unwrap().permissions().mode() & 0o777, 0o755);
    // The content of an emptyDir survives a container, and ends with the pod.
    let id = testbed.docker(&["ps", "-q", "--filter", "label=io.kubernetes.container.name=main"]);
    let _ = testbed.docker(&["kill", id.trim()]);
    eventually(DEFAULT_TIMEOUT, "the second run finds what the first has left", || {
        anyhow::ensure!(shared.lines("kept") == ["2"], "{:?}", shared.lines("kept"));
        Ok(())
    });
    let huge = json!({"volumes": [{"name": "huge", "emptyDir": {"medium": "HugePages"}}]});
    let mounted = "grep ' /v/huge ' /proc/mounts | cut -d' ' -f3 > /shared/huge";
    tell(&kubectl, &shared, "huge", mounted, json!({"volumeMounts": [{"name": "huge", "mountPath": "/v/huge"}]}), huge);
    assert_eq!(lines(&shared, "huge", 1), ["hugetlbfs"]);
    // An unreachable server, or a missing mount program, delays only its pod, with a reason.
    let nfs = json!({"volumes": [{"name": "n", "nfs": {"server": "127.0.0.1", "path": "/none"}}]});
    tell(&kubectl, &shared, "nfs", "true", json!({"volumeMounts": [{"name": "n", "mountPath": "/n"}]}), nfs);
    wait_for_event(&kubectl, "nfs", "nfs 127.0.0.1:/none could not be mounted");
    let wrong = json!({"volumes": [path("file", "Directory")]});
    tell(&kubectl, &shared, "wrong", "true", json!({"volumeMounts": [{"name": "file", "mountPath": "/f"}]}), wrong);
    wait_for_event(&kubectl, "wrong", "hostPath type check failed");
    let _ = kubectl.run(&["delete", "pod", "p", "wrong", "huge", "nfs"]);
    let pods = testbed.dir().join("data/pods");
    eventually(DEFAULT_TIMEOUT, "nothing is left of the pods", || {
        let left = fs::read_dir(&pods)?.flatten().count();
        anyhow::ensure!(left == 0, "{left} folders");
        Ok(())
    });
    assert!(host.join("file").exists(), "a path of the host stays");
}

#[test]
fn environment_from_files() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let from = |key: &str, optional: bool| {
        json!({"name": key, "valueFrom": {"fileKeyRef":
            {"volumeName": "made", "path": "conf/env", "key": key, "optional": optional}}})
    };
    let pod = |write: &str| {
        json!({"restartPolicy": "Never", "volumes": [{"name": "made", "emptyDir": {}}],
            "initContainers": [{"name": "init", "command": shell(write),
                "volumeMounts": [{"name": "made", "mountPath": "/made"}]}],
            "containers": [{"name": "main", "env": [from("PLAIN", false), from("QUOTED", false), from("NONE", true)],
                "command": shell("env > /shared/env.new; mv /shared/env.new /shared/env")}]})
    };
    kubectl.apply(
        &shared.pod("p", pod("mkdir /made/conf; printf \"# a\\nPLAIN=p q\\nQUOTED='a\\nb'\\n\" > /made/conf/env")),
    );
    wait_for(&kubectl, "p", "ends well", |p| p["status"]["phase"] == "Succeeded");
    let env = shared.lines("env");
    assert!(env.contains(&"PLAIN=p q".to_owned()), "{env:?}");
    assert!(env.windows(2).any(|two| two == ["QUOTED=a", "b"]), "{env:?}");
    assert!(!env.iter().any(|l| l.starts_with("NONE")), "{env:?}");

    // Missing keys are named, and nothing outside of the volume is read.
    for (name, write, why) in [
        ("absent", "true", "is not there"),
        ("other", "mkdir /made/conf; echo A=1 > /made/conf/env", "has no key \"PLAIN\""),
        ("sly", "ln -s /etc /made/conf", "leads out of its volume"),
    ] {
        kubectl.apply(&shared.pod(name, pod(write)));
        let pod = wait_for(&kubectl, name, "is kept from running", |p| {
            container_status(p)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        });
        assert!(
            container_status(&pod)["state"]["waiting"]["message"].to_string().contains(&why.replace('"', "\\\"")),
            "{pod}"
        );
    }
}

#[test]
fn supplemental_groups_of_the_image() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let made = "echo me:x:1000:1000::/:/bin/sh >> /etc/passwd; printf 'me:x:1000:\\nextra:x:5000:me\\n' >> /etc/group";
    let _ = testbed.docker(&["run", "--name", "made", "--network", "none", "windlass/busybox:1", "sh", "-c", made]);
    let _ = testbed.docker(&["commit", "--change", "USER me", "made", "windlass/groups:1"]);
    let _ = testbed.docker(&["rm", "made"]);
    fs::set_permissions(&shared.0, fs::Permissions::from_mode(0o777)).unwrap();
    let groups = |name: &str, context: Value| {
        let line = format!("id -G > /shared/{name}; exec sleep 1000");
        let mut pod: Value =
            serde_json::from_str(&shared.pod(
                name,
                json!({"securityContext": context, "containers": [{"name": "main", "command": shell(&line)}]}),
            ))
            .unwrap();
        pod["spec"]["containers"][0]["image"] = json!("windlass/groups:1");
        kubectl.apply(&pod.to_string());
        let mut all: Vec<String> = lines(&shared, name, 1)[0].split(' ').map(str::to_owned).collect();
        all.sort();
        all
    };
    assert_eq!(groups("merged", json!({"supplementalGroups": [3000]})), ["1000", "3000", "5000"]);
    let strict = json!({"supplementalGroups": [3000], "supplementalGroupsPolicy": "Strict"});
    assert_eq!(groups("strict", strict), ["1000", "3000"]);
    let strict = json!({"runAsUser": 1000, "supplementalGroupsPolicy": "Strict"});
    assert_eq!(groups("numbered", strict), ["1000"]);
    let left = testbed.docker(&["ps", "-a", "--format", "{{.Names}}"]);
    assert!(!left.contains("windlass-passwd"), "{left}");
}

#[test]
fn unsupported_volumes() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    let shared = SharedDir::new(testbed);
    let container =
        json!({"name": "main", "command": shell("true"), "volumeMounts": [{"name": "d", "mountPath": "/d"}]});
    let disk = json!({"volumes": [{"name": "d", "csi": {"driver": "disks.example.com"}}], "containers": [container]});
    kubectl.apply(&shared.pod("disk", disk));
    wait_for_event(&kubectl, "disk", "volumes of kind csi are not supported by Windlass; those that are: configMap,");
}
