//! `windlass down --purge` leaves the machine as it was.

use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

use crate::WEB;

/// Docker lists images of the same second in random order.
fn sorted(lines: &str) -> String {
    let mut all: Vec<&str> = lines.lines().collect();
    all.sort_unstable();
    all.join("\n")
}

/// The state that must be the same before `up` and after `down --purge`, without packet counters.
fn traces(testbed: &Testbed) -> Vec<(&'static str, String)> {
    let strip = |text: String| {
        text.lines()
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.split(" [").next().unwrap_or(l).to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    };
    vec![
        ("iptables-save", strip(testbed.sh("iptables-save"))),
        ("ip6tables-save", strip(testbed.sh("ip6tables-save"))),
        ("ip link", testbed.sh("ip -o link | sed -E 's/@.*//; s/^[0-9]+: //' | sort")),
        ("ip route", testbed.sh("ip route | sort")),
        ("docker ps -a", testbed.docker(&["ps", "-a", "--format", "{{.Names}}"])),
        ("docker images", sorted(&testbed.docker(&["images", "-a", "--format", "{{.Repository}}:{{.Tag}}"]))),
        (
            "mounts",
            testbed
                .sh("grep -E 'windlass|kubernetes.io' /proc/mounts || true")
                .lines()
                .filter(|l| l.contains(&testbed.dir().display().to_string()) && !l.contains("/docker"))
                .collect::<Vec<_>>()
                .join("\n"),
        ),
        (
            "files",
            testbed.sh(&format!(
                "ls {} | grep -vE 'docker|exec|registry|kube|log$|\\.json|images|^run$' | sort",
                testbed.dir().display()
            )),
        ),
    ]
}

#[test]
fn purge_leaves_nothing() {
    let testbed = Testbed::new();
    // A container that is not managed by windlass must not be touched.
    testbed.docker(&["run", "-d", "--name", "bystander", "windlass/busybox:1", "sleep", "100000"]);
    let before = traces(&testbed);
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(WEB);
    let _ = kubectl.run(&["create", "secret", "generic", "hidden", "--from-literal=password=x"]);
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: mounted}\nspec:\n  containers:\n  - name: main\n    image: windlass/busybox:1\n    \
         command: [sleep, '100000']\n    ports: [{containerPort: 80, hostPort: 6380}]\n    volumeMounts: [{name: s, mountPath: /s}, {name: m, mountPath: /m}]\n  \
         volumes: [{name: s, secret: {secretName: hidden}}, {name: m, emptyDir: {medium: Memory}}]\n  terminationGracePeriodSeconds: 1\n",
    );
    eventually(DEFAULT_TIMEOUT, "the pods are Ready", || {
        kubectl.ready_pods("app=web", 2)?;
        let ready =
            kubectl.try_run(&["get", "pod", "mounted", "-o", "jsonpath={.status.containerStatuses[0].ready}"])?;
        anyhow::ensure!(ready == "true", "{ready}");
        Ok(())
    });
    // Other tests' pods have cgroups here too.
    let uids = kubectl.run(&["get", "pods", "-A", "-o", "jsonpath={range .items[*]}{.metadata.uid}{' '}{end}"]);
    let cgroups =
        |uid: &str| testbed.sh(&format!("find /sys/fs/cgroup -type d -path '*kubepods*{uid}*' 2>/dev/null || true"));
    assert!(uids.split_whitespace().all(|uid| !cgroups(uid).is_empty()), "each pod has its cgroups: {uids}");
    assert_ne!(traces(&testbed), before, "the node must have left traces, or this test sees nothing");
    windlass.down(&["--purge"]);
    for ((what, was), (_, is)) in before.iter().zip(traces(&testbed)) {
        assert_eq!(&is, was, "{what}");
    }
    for uid in uids.split_whitespace() {
        assert_eq!(cgroups(uid), "", "the cgroups of {uid}");
    }
    // Another file would be another lock.
    assert_eq!(testbed.sh(&format!("ls -A {}/run", testbed.dir().display())).trim(), "windlass.lock");
    let state = testbed.docker(&["inspect", "-f", "{{.State.Running}}", "bystander"]);
    assert_eq!(state.trim(), "true");
}

#[test]
fn down_keeps_the_data_and_up_brings_it_back() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(WEB);
    eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    windlass.down(&[]);
    assert_eq!(testbed.docker(&["ps", "-aq"]), "", "the pods' containers are gone");
    assert!(!testbed.sh("iptables-save").contains("KUBE-"), "the rules are gone");
    windlass.up();
    eventually(DEFAULT_TIMEOUT, "two pods are Ready again", || kubectl.ready_pods("app=web", 2));
    eventually(DEFAULT_TIMEOUT, "the service answers", || {
        testbed.try_sh("curl -fsS --max-time 3 http://127.0.0.1:30080/")
    });
}
