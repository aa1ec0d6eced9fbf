//! Probes, hooks, sidecars, and what a container may do: rows of the pod's specification on a real Docker Engine.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use windlass_tests::{PATIENCE, World, eventually};

use crate::{
    container_id,
    sharing::{Shared, events, is_ready, main_of, says, shell, wait_for},
};

#[test]
fn probes() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let quick = |probe: Value| {
        let mut probe = probe;
        probe["periodSeconds"] = json!(1);
        probe["failureThreshold"] = json!(1);
        probe
    };
    let serve = "mkdir -p /www && echo hi > /www/index.html && httpd -p 8080 -h /www && exec sleep 1000";
    let exec = |file: &str| quick(json!({"exec": {"command": ["test", "-f", format!("/shared/{file}")]}}));

    // Readiness by a command: there and back again.
    let spec =
        json!({"containers": [{"name": "main", "command": shell("exec sleep 1000"), "readinessProbe": exec("ready")}]});
    kubectl.apply(&shared.pod("exec", spec));
    let pod = wait_for(&kubectl, "exec", "runs", |p| main_of(p)["state"]["running"].is_object());
    assert!(!is_ready(&pod) && main_of(&pod)["started"] == true, "{}", pod["status"]);
    says(&kubectl, "exec", "Unhealthy Readiness probe failed");
    shared.put("ready");
    wait_for(&kubectl, "exec", "is ready", is_ready);
    shared.take("ready");
    wait_for(&kubectl, "exec", "is no longer ready", |p| !is_ready(p));
    shared.put("ready");
    let before = wait_for(&kubectl, "exec", "is ready again", is_ready);

    // By port: HTTP at a named one, TCP, and one that nobody listens at.
    for (name, probe, ready) in [
        ("http", json!({"httpGet": {"path": "/index.html", "port": "web"}}), true),
        ("http-404", json!({"httpGet": {"path": "/none", "port": 8080}}), false),
        ("tcp", json!({"tcpSocket": {"port": 8080}}), true),
        ("tcp-none", json!({"tcpSocket": {"port": 8081}}), false),
        ("grpc-none", json!({"grpc": {"port": 8080}}), false),
    ] {
        let spec = json!({"containers": [{"name": "main", "command": shell(serve), "readinessProbe": quick(probe),
                                          "ports": [{"name": "web", "containerPort": 8080}]}]});
        kubectl.apply(&shared.pod(name, spec));
        if ready {
            wait_for(&kubectl, name, "is ready", is_ready);
        } else {
            says(&kubectl, name, "Readiness probe failed");
            assert!(!is_ready(&kubectl.json(&["pod", name]).unwrap()), "{name}");
        }
    }
    assert!(events(&kubectl, "http-404").contains("HTTP probe failed with statuscode: 404"));

    // Liveness waits for the startup probe, and then ends what does not work any more.
    let mut startup = exec("begun");
    startup["failureThreshold"] = json!(100);
    let spec = json!({"containers": [{"name": "main", "command": shell("exec sleep 1000"),
                                      "startupProbe": startup, "livenessProbe": exec("alive")}]});
    kubectl.apply(&shared.pod("live", spec));
    says(&kubectl, "live", "Startup probe failed");
    let pod = kubectl.json(&["pod", "live"]).unwrap();
    assert!(main_of(&pod)["started"] == false && main_of(&pod)["restartCount"] == 0, "{}", pod["status"]);
    shared.put("alive");
    shared.put("begun");
    wait_for(&kubectl, "live", "has started", |p| main_of(p)["started"] == true && is_ready(p));
    shared.take("alive");
    let pod = wait_for(&kubectl, "live", "is restarted", |p| main_of(p)["restartCount"] == 1);
    assert_eq!(main_of(&pod)["lastState"]["terminated"]["exitCode"], 137, "{}", pod["status"]);
    says(&kubectl, "live", "Container main failed liveness probe, will be restarted");

    // Results outlive our own restart: nobody is unready for a moment.
    let since = |pod: &Value| {
        let all = pod["status"]["conditions"].as_array().unwrap();
        all.iter().find(|c| c["type"] == "Ready").unwrap()["lastTransitionTime"].clone()
    };
    windlass.kill();
    std::thread::sleep(Duration::from_millis(1500));
    windlass.start();
    eventually(PATIENCE, "the API is back", || windlass.kubectl().json(&["pod", "exec"]));
    std::thread::sleep(Duration::from_secs(4));
    let after = windlass.kubectl().json(&["pod", "exec"]).unwrap();
    assert_eq!((since(&before), container_id(&before)), (since(&after), container_id(&after)));
}

#[test]
fn hooks_and_the_order_of_ends() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let note =
        |word: &str, file: &str| json!({"exec": {"command": ["sh", "-c", format!("echo {word} >> /shared/{file}")]}});
    let until_told = |word: &str, file: &str| {
        shell(&format!("trap 'echo {word} >> /shared/{file}; exit 0' TERM; while :; do sleep 0.1; done"))
    };

    // After the start, and before the signal.
    let spec = json!({"terminationGracePeriodSeconds": 20, "containers": [
        {"name": "main", "command": until_told("signal", "hooks"),
         "lifecycle": {"postStart": note("started", "hooks"), "preStop": note("stopping", "hooks")}},
        {"name": "second", "command": shell("head -n 1 /shared/hooks > /shared/second; exec sleep 1000")}]});
    kubectl.apply(&shared.pod("hooks", spec));
    wait_for(&kubectl, "hooks", "is ready", is_ready);
    assert_eq!(shared.lines("hooks"), ["started"]);
    // The next container waits for the hook.
    eventually(PATIENCE, "the second container has looked", || {
        anyhow::ensure!(shared.lines("second") == ["started"], "{:?}", shared.lines("second"));
        Ok(())
    });
    let _ = kubectl.run(&["delete", "pod", "hooks"]);
    assert_eq!(shared.lines("hooks"), ["started", "stopping", "signal"]);

    // A hook that fails ends its container.
    let spec = json!({"containers": [{"name": "main", "command": shell("exec sleep 1000"),
        "lifecycle": {"postStart": {"exec": {"command": ["false"]}}}}]});
    kubectl.apply(&shared.pod("bad-hook", spec));
    wait_for(&kubectl, "bad-hook", "is restarted", |p| main_of(p)["restartCount"].as_u64() >= Some(1));
    says(&kubectl, "bad-hook", "FailedPostStartHook");

    // Sidecars start before and end after the others, the last one first.
    let sidecar = |name: &str| {
        json!({"name": name, "restartPolicy": "Always", "command": until_told(name, "ends"),
               "startupProbe": {"exec": {"command": ["sh", "-c", format!("echo {name} >> /shared/begins")]}, "periodSeconds": 1}})
    };
    let spec = json!({"terminationGracePeriodSeconds": 20,
        "initContainers": [sidecar("one"), sidecar("two"), {"name": "init", "command": shell("echo init >> /shared/begins")}],
        "containers": [{"name": "main", "command": until_told("main", "ends")}]});
    kubectl.apply(&shared.pod("sidecars", spec));
    wait_for(&kubectl, "sidecars", "is ready", is_ready);
    assert_eq!(shared.lines("begins"), ["one", "two", "init"]);
    let _ = kubectl.run(&["delete", "pod", "sidecars"]);
    assert_eq!(shared.lines("ends"), ["main", "two", "one"]);

    // A pod whose work is done takes its sidecars with it.
    let spec = json!({"restartPolicy": "Never", "initContainers": [
        {"name": "side", "restartPolicy": "Always", "command": until_told("side", "job")}],
        "containers": [{"name": "main", "command": shell("sleep 1")}]});
    kubectl.apply(&shared.pod("job", spec));
    wait_for(&kubectl, "job", "succeeds", |p| p["status"]["phase"] == "Succeeded");
    assert_eq!(shared.lines("job"), ["side"]);

    // Whoever is in a hurry is heard while a container takes its time.
    let spec = json!({"terminationGracePeriodSeconds": 300,
        "containers": [{"name": "main", "command": shell("trap '' TERM; while :; do sleep 0.1; done")}]});
    kubectl.apply(&shared.pod("slow", spec));
    let pod = wait_for(&kubectl, "slow", "is ready", is_ready);
    let _ = kubectl.run(&["delete", "pod", "slow", "--wait=false"]);
    wait_for(&kubectl, "slow", "is being deleted", |p| p["metadata"]["deletionTimestamp"].is_string());
    std::thread::sleep(Duration::from_secs(2));
    let _ = kubectl.run(&["delete", "pod", "slow", "--grace-period=1"]);
    let id = container_id(&pod);
    eventually(PATIENCE, "its container is gone", || {
        anyhow::ensure!(!world.docker(&["ps", "-aq", "--no-trunc"]).contains(&id));
        Ok(())
    });
}

#[test]
fn contents_reach_running_pods() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let map = |value: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"level": value}})
            .to_string()
    };
    kubectl.apply(&map("one"));
    let copy = "while :; do cat /settings/level > /shared/level; cat /about/labels > /shared/labels; sleep 0.1; done";
    let spec = json!({
        "containers": [{"name": "main", "command": shell(copy), "env": [{"name": "WHO", "value": "me"}],
            "volumeMounts": [{"name": "settings", "mountPath": "/settings"}, {"name": "about", "mountPath": "/about"},
                             {"name": "shared", "mountPath": "/mine", "subPathExpr": "for-$(WHO)"}]}],
        "volumes": [{"name": "settings", "configMap": {"name": "settings"}},
                    {"name": "about", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]});
    kubectl.apply(&shared.pod("reader", spec));
    let reads = |file: &str, wanted: &str| {
        eventually(PATIENCE, &format!("{file} is {wanted}"), || {
            let there = shared.lines(file).join("\n");
            anyhow::ensure!(there.contains(wanted), "{there}");
            Ok(())
        });
    };
    reads("level", "one");
    assert!(shared.0.join("for-me").is_dir(), "subPathExpr");
    kubectl.apply(&map("two"));
    reads("level", "two");
    let _ = kubectl.run(&["label", "pod", "reader", "colour=blue"]);
    reads("labels", "colour=\"blue\"");

    // A pod that waits for an object begins as soon as it is there.
    let spec = json!({"containers": [{"name": "main", "command": shell("echo $LATE > /shared/late; exec sleep 1000"),
        "env": [{"name": "LATE", "valueFrom": {"secretKeyRef": {"name": "late", "key": "word"}}}]}]});
    kubectl.apply(&shared.pod("waiting", spec));
    wait_for(&kubectl, "waiting", "waits", |p| {
        main_of(p)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    let _ = kubectl.run(&["create", "secret", "generic", "late", "--from-literal=word=here"]);
    reads("late", "here");
}

/// A machine may be a container itself, and lack some of what `privileged` stands for.
fn docker_has_all_capabilities() -> bool {
    let number = |text: &str, radix| u64::from_str_radix(text.trim(), radix).expect("the kernel writes numbers");
    let last = number(&fs::read_to_string("/proc/sys/kernel/cap_last_cap").expect("procfs is there"), 10);
    let status = fs::read_to_string("/proc/self/status").expect("procfs is there");
    let bounding = status.lines().find_map(|l| l.strip_prefix("CapBnd:")).expect("each process has a bounding set");
    number(bounding, 16).count_ones() == u32::try_from(last).expect("there are few capabilities") + 1
}

#[test]
fn what_a_container_may_do() {
    let world = World::new();
    let mut windlass = world.windlass();
    let kubectl = windlass.up();
    let shared = Shared::new(&world);
    let report = |name: &str| {
        shell(&format!(
            "(id -u; id -g; id -G; grep -E '^(NoNewPrivs|CapEff|Seccomp):' /proc/self/status; \
             cat /proc/sys/net/ipv4/ip_unprivileged_port_start; touch /x 2>/dev/null && echo writable) > /shared/{name} 2>&1; \
             exec sleep 1000"
        ))
    };
    let told = |name: &str, spec: Value| {
        kubectl.apply(&shared.pod(name, spec));
        wait_for(&kubectl, name, "is ready", is_ready);
        eventually(PATIENCE, &format!("{name} has told"), || {
            let lines = shared.lines(name);
            anyhow::ensure!(lines.len() >= 7, "{lines:?}");
            Ok(lines.into_iter().map(|l| l.replace('\t', " ")).collect::<Vec<String>>())
        })
    };
    let plain = told("plain", json!({"containers": [{"name": "main", "command": report("plain")}]}));
    assert_eq!((plain[0].as_str(), plain[7].as_str()), ("0", "writable"), "{plain:?}");
    assert!(plain.contains(&"NoNewPrivs: 0".to_owned()) && plain.contains(&"Seccomp: 2".to_owned()), "{plain:?}");

    fs::set_permissions(&shared.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let narrow = told(
        "narrow",
        json!({"securityContext": {"runAsUser": 1000, "runAsGroup": 2000, "supplementalGroups": [3000], "fsGroup": 4000,
                   "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"}]},
               "containers": [{"name": "main", "command": report("narrow"),
                   "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                                       "seccompProfile": {"type": "Unconfined"}, "capabilities": {"drop": ["ALL"]}}}]}),
    );
    assert_eq!(narrow[..2], ["1000", "2000"]);
    for group in ["2000", "3000", "4000"] {
        assert!(narrow[2].split(' ').any(|g| g == group), "{narrow:?}");
    }
    for line in ["NoNewPrivs: 1", "Seccomp: 0", "CapEff: 0000000000000000", "80"] {
        assert!(narrow.contains(&line.to_owned()), "{line}: {narrow:?}");
    }
    assert_eq!(narrow.len(), 7, "the root file system is read-only: {narrow:?}");

    let privileged =
        json!({"containers": [{"name": "main", "command": report("all"), "securityContext": {"privileged": true}}]});
    if docker_has_all_capabilities() {
        let all = told("all", privileged);
        assert!(all.contains(&"Seccomp: 0".to_owned()), "{all:?}");
    } else {
        // Docker cannot give what it does not have: the container says so, and its pod's sandbox lives.
        kubectl.apply(&shared.pod("all", privileged));
        wait_for(&kubectl, "all", "tells why it does not start", |p| {
            let ended = &main_of(p)["lastState"]["terminated"];
            ended["reason"] == "StartError" && ended["message"].to_string().contains("unable to apply caps")
        });
    }

    // What a node must not run it refuses, and says why.
    let spec = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
                      "containers": [{"name": "main", "command": shell("exec sleep 1000")}]});
    kubectl.apply(&shared.pod("refused", spec));
    let pod = wait_for(&kubectl, "refused", "fails", |p| p["status"]["phase"] == "Failed");
    assert_eq!(pod["status"]["reason"], "SysctlForbidden");
    let spec = json!({"hostUsers": false, "containers": [{"name": "main", "command": shell("exec sleep 1000")}]});
    kubectl.apply(&shared.pod("mapped", spec));
    let pod = wait_for(&kubectl, "mapped", "fails", |p| p["status"]["phase"] == "Failed");
    assert_eq!(pod["status"]["reason"], "PodFeatureUnsupported");
    assert!(pod["status"]["message"].to_string().contains("hostUsers: false"), "{pod}");
    let spec =
        json!({"containers": [{"name": "main", "command": shell("true"), "securityContext": {"runAsNonRoot": true}}]});
    kubectl.apply(&shared.pod("root", spec));
    let pod = wait_for(&kubectl, "root", "is kept from running", |p| {
        main_of(p)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    assert!(main_of(&pod)["state"]["waiting"]["message"].as_str().unwrap().contains("will run as root"));
}
