//! Fields of a pod's spec as its containers see them: environment, commands, names, namespaces of the host, volumes.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};
use windlass_tests::{Kubectl, PATIENCE, World, eventually};

use crate::sharing::{Shared, is_ready, main_of, says, shell, wait_for};

/// Waits until a file of the shared folder has this many lines, and gives them.
fn lines(shared: &Shared, name: &str, count: usize) -> Vec<String> {
    eventually(PATIENCE, &format!("{name} has {count} lines"), || {
        let lines = shared.lines(name);
        anyhow::ensure!(lines.len() >= count, "{lines:?}");
        Ok(lines)
    })
}

/// Makes a pod of one container that does `line` and stays.
fn tell(kubectl: &Kubectl<'_>, shared: &Shared, name: &str, line: &str, container: Value, rest: Value) {
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
fn variables_out_of_files() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
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

    // What is missing is named, and nothing outside the volume is read.
    for (name, write, why) in [
        ("absent", "true", "is not there"),
        ("other", "mkdir /made/conf; echo A=1 > /made/conf/env", "has no key \"PLAIN\""),
        ("sly", "ln -s /etc /made/conf", "leads out of its volume"),
    ] {
        kubectl.apply(&shared.pod(name, pod(write)));
        let pod = wait_for(&kubectl, name, "is kept from running", |p| {
            main_of(p)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        });
        assert!(main_of(&pod)["state"]["waiting"]["message"].to_string().contains(&why.replace('"', "\\\"")), "{pod}");
    }
}

#[test]
fn groups_of_the_image() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let made = "echo me:x:1000:1000::/:/bin/sh >> /etc/passwd; printf 'me:x:1000:\\nextra:x:5000:me\\n' >> /etc/group";
    let _ = world.docker(&["run", "--name", "made", "--network", "none", "windlass/busybox:1", "sh", "-c", made]);
    let _ = world.docker(&["commit", "--change", "USER me", "made", "windlass/groups:1"]);
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
    let left = world.docker(&["ps", "-a", "--format", "{{.Names}}"]);
    assert!(!left.contains("windlass-passwd"), "{left}");
}

#[test]
fn environment_command_and_working_dir() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let _ = kubectl.run(&["create", "configmap", "map", "--from-literal=one=1", "--from-literal=two=2"]);
    let _ = kubectl.run(&["create", "secret", "generic", "hidden", "--from-literal=word=psst"]);
    let _ = kubectl.run(&["create", "service", "clusterip", "my-db", "--tcp=5432:5432"]);
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let env = json!([
        {"name": "PLAIN", "value": "p"},
        {"name": "USED", "value": "$(PLAIN)-$(LATER)-$$(PLAIN)"},
        {"name": "LATER", "value": "l"},
        {"name": "NAME", "valueFrom": field("metadata.name")},
        {"name": "SPACE", "valueFrom": field("metadata.namespace")},
        {"name": "UID_OF", "valueFrom": field("metadata.uid")},
        {"name": "NODE", "valueFrom": field("spec.nodeName")},
        {"name": "ACCOUNT", "valueFrom": field("spec.serviceAccountName")},
        {"name": "HOST", "valueFrom": field("status.hostIP")},
        {"name": "IP", "valueFrom": field("status.podIP")},
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "two"}}},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}},
        {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "not-there", "key": "x", "optional": true}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}}]);
    let from = json!([{"prefix": "M_", "configMapRef": {"name": "map"}}, {"secretRef": {"name": "hidden"}}]);
    let container = json!({"env": env, "envFrom": from, "workingDir": "/tmp/made",
        "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}},
        "command": ["sh", "-c"], "args": ["pwd > /shared/dir; echo $(PLAIN) > /shared/arg; env > /shared/env; exec sleep 1000"]});
    tell(&kubectl, &shared, "all", "", container, json!({}));
    let pod = wait_for(&kubectl, "all", "is ready", is_ready);
    let env = lines(&shared, "env", 20);
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let ip = pod["status"]["podIP"].as_str().unwrap();
    for line in [
        "PLAIN=p",
        "USED=p-$(LATER)-$(PLAIN)",
        "NAME=all",
        "SPACE=default",
        &format!("UID_OF={uid}"),
        "NODE=node",
        "ACCOUNT=default",
        "HOST=198.18.0.1",
        &format!("IP={ip}"),
        "KEY=2",
        "WORD=psst",
        "CPU=250",
        "MEMORY=64",
        "M_one=1",
        "M_two=2",
        "word=psst",
        "MY_DB_SERVICE_PORT=5432",
        "KUBERNETES_SERVICE_PORT=443",
    ] {
        assert!(env.iter().any(|l| l == line), "{line} in {env:?}");
    }
    assert!(!env.iter().any(|l| l.starts_with("NONE=")), "{env:?}");
    assert_eq!((lines(&shared, "dir", 1), lines(&shared, "arg", 1)), (vec!["/tmp/made".into()], vec!["p".into()]));

    tell(&kubectl, &shared, "bare", "env > /shared/bare", json!({}), json!({"enableServiceLinks": false}));
    let bare = lines(&shared, "bare", 3);
    assert!(
        !bare.iter().any(|l| l.starts_with("MY_DB")) && bare.iter().any(|l| l.starts_with("KUBERNETES_")),
        "{bare:?}"
    );
    // What is missing holds the container up, says what it is, and comes as soon as it is there.
    let missing = json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "late", "key": "x"}}}]});
    tell(&kubectl, &shared, "waits", "true", missing, json!({}));
    wait_for(&kubectl, "waits", "says what is missing", |p| {
        let waiting = &p["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError" && waiting["message"] == "secret \"late\" not found"
    });
    let _ = kubectl.run(&["create", "secret", "generic", "late", "--from-literal=x=y"]);
    wait_for(&kubectl, "waits", "is ready", is_ready);
}

#[test]
fn dns_policies() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let none = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["a.example"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}});
    tell(&kubectl, &shared, "none", "cat /etc/resolv.conf > /shared/none", json!({}), none);
    assert_eq!(lines(&shared, "none", 3), ["nameserver 192.0.2.53", "search a.example", "options ndots:2 edns0"]);
    let own = fs::read_to_string("/etc/resolv.conf").unwrap();
    tell(&kubectl, &shared, "host", "cat /etc/resolv.conf > /shared/host", json!({}), json!({"dnsPolicy": "Default"}));
    let seen = lines(&shared, "host", 1);
    for server in own.lines().filter(|l| l.starts_with("nameserver")) {
        assert!(seen.iter().any(|l| l == server), "{server} in {seen:?}");
    }
}

#[test]
fn namespaces_of_the_host_and_of_the_pod() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let namespace = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().to_string_lossy().into_owned();
    let of_world = world.sh("readlink /proc/self/ns/net").trim().to_owned();
    let look = |file: &str| {
        format!("for n in net pid ipc; do readlink /proc/self/ns/$n; done > /shared/{file}; hostname >> /shared/{file}")
    };
    tell(
        &kubectl,
        &shared,
        "host",
        &look("host"),
        json!({}),
        json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}),
    );
    let host = lines(&shared, "host", 4);
    assert_eq!(host[..3], [of_world.clone(), namespace("pid"), namespace("ipc")]);
    let pod = wait_for(&kubectl, "host", "is ready", is_ready);
    assert_eq!((&pod["status"]["podIP"], &pod["status"]["hostIP"]), (&json!("198.18.0.1"), &json!("198.18.0.1")));
    tell(&kubectl, &shared, "own", &look("own"), json!({}), json!({}));
    let own = lines(&shared, "own", 4);
    assert!(
        own[0] != of_world && own[1] != namespace("pid") && own[2] != namespace("ipc") && own[3] == "own",
        "{own:?}"
    );
    // Two containers of a pod share network and IPC, and processes when they ask for it.
    let both = json!({"shareProcessNamespace": true, "containers": [
        {"name": "a", "command": shell("exec sleep 7654")},
        {"name": "b", "command": shell("sleep 1; ps > /shared/shared; exec sleep 1000")}]});
    kubectl.apply(&shared.pod("both", both));
    let seen = lines(&shared, "shared", 3).join("\n");
    assert!(seen.contains("sleep 7654") && seen.contains("/pause"), "{seen}");
}

#[test]
fn empty_dirs_and_host_paths() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let host = world.dir().join("host");
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
    // What is in an emptyDir outlives a container, and ends with the pod.
    let id = world.docker(&["ps", "-q", "--filter", "label=io.kubernetes.container.name=main"]);
    let _ = world.docker(&["kill", id.trim()]);
    eventually(PATIENCE, "the second run finds what the first has left", || {
        anyhow::ensure!(shared.lines("kept") == ["2"], "{:?}", shared.lines("kept"));
        Ok(())
    });
    let huge = json!({"volumes": [{"name": "huge", "emptyDir": {"medium": "HugePages"}}]});
    let mounted = "grep ' /v/huge ' /proc/mounts | cut -d' ' -f3 > /shared/huge";
    tell(&kubectl, &shared, "huge", mounted, json!({"volumeMounts": [{"name": "huge", "mountPath": "/v/huge"}]}), huge);
    assert_eq!(lines(&shared, "huge", 1), ["hugetlbfs"]);
    // A server that cannot be reached, or a node that lacks the program, holds up its pod alone and says why.
    let nfs = json!({"volumes": [{"name": "n", "nfs": {"server": "127.0.0.1", "path": "/none"}}]});
    tell(&kubectl, &shared, "nfs", "true", json!({"volumeMounts": [{"name": "n", "mountPath": "/n"}]}), nfs);
    says(&kubectl, "nfs", "nfs 127.0.0.1:/none could not be mounted");
    // What nobody here can mount is said to be so, and what can be.
    let disk = json!({"volumes": [{"name": "d", "csi": {"driver": "disks.example.com"}}]});
    tell(&kubectl, &shared, "disk", "true", json!({"volumeMounts": [{"name": "d", "mountPath": "/d"}]}), disk);
    says(&kubectl, "disk", "volumes of kind csi are not supported by Windlass; those that are: configMap,");
    let _ = kubectl.run(&["delete", "pod", "disk"]);
    let wrong = json!({"volumes": [path("file", "Directory")]});
    tell(&kubectl, &shared, "wrong", "true", json!({"volumeMounts": [{"name": "file", "mountPath": "/f"}]}), wrong);
    says(&kubectl, "wrong", "hostPath type check failed");
    let _ = kubectl.run(&["delete", "pod", "p", "wrong", "huge", "nfs"]);
    let pods = world.dir().join("data/pods");
    eventually(PATIENCE, "nothing is left of the pods", || {
        let left = fs::read_dir(&pods)?.flatten().count();
        anyhow::ensure!(left == 0, "{left} folders");
        Ok(())
    });
    assert!(host.join("file").exists(), "a path of the host stays");
}

#[test]
fn files_of_objects() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let _ = kubectl.run(&["create", "configmap", "map", "--from-literal=a=1", "--from-literal=b=2"]);
    let _ = kubectl.run(&["create", "secret", "generic", "hidden", "--from-literal=word=psst"]);
    let items = json!([{"key": "a", "path": "deep/a", "mode": 0o400}]);
    let downward = json!([
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu", "divisor": "1m"}}]);
    let volumes = json!([
        {"name": "map", "configMap": {"name": "map", "items": items}},
        {"name": "hidden", "secret": {"secretName": "hidden", "defaultMode": 0o440}},
        {"name": "maybe", "configMap": {"name": "not-there", "optional": true}},
        {"name": "all", "projected": {"defaultMode": 0o604, "sources": [
            {"configMap": {"name": "map"}}, {"secret": {"name": "hidden"}}, {"downwardAPI": {"items": downward}}]}}]);
    let mounts: Value = ["map", "hidden", "maybe", "all"]
        .map(|n| json!({"name": n, "mountPath": format!("/v/{n}")}))
        .into_iter()
        .collect();
    let line = "cd /v; for f in map/deep/a hidden/word all/a all/word all/name all/cpu; do \
                echo $f $(stat -L -c '%a %g' $f) $(cat $f); done > /shared/files; ls maybe | wc -l >> /shared/files; \
                df hidden | tail -1 | awk '{print $1}' >> /shared/files; cat all/labels > /shared/labels";
    let container = json!({"volumeMounts": mounts, "resources": {"requests": {"cpu": "125m"}}});
    let mut pod: Value = serde_json::from_str(&{
        let mut main = container;
        main["name"] = json!("main");
        main["command"] = shell(&format!("{line}; exec sleep 1000"));
        shared.pod("p", json!({"containers": [main], "volumes": volumes, "securityContext": {"fsGroup": 4321}}))
    })
    .unwrap();
    pod["metadata"]["labels"] = json!({"b": "2", "a": "1"});
    kubectl.apply(&pod.to_string());
    wait_for(&kubectl, "p", "is ready", is_ready);
    assert_eq!(
        lines(&shared, "files", 8),
        [
            "map/deep/a 440 4321 1",
            "hidden/word 440 4321 psst",
            "all/a 644 4321 1",
            "all/word 644 4321 psst",
            "all/name 644 4321 p",
            "all/cpu 644 4321 125",
            "0",
            "tmpfs"
        ]
    );
    assert_eq!(lines(&shared, "labels", 2), ["a=\"1\"", "b=\"2\""]);
}
