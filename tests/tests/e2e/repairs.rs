//! Periodic repairs, each with its main path off: what an event would have reported is found anyway. All other tests
//! run with the repairs off.

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, eventually};

use crate::{
    WEB, container_id,
    resources::cgroup_file,
    shared_dir::{condition, container_status, is_ready, wait_for},
    shell_pod,
};

/// A container that is killed is started again.
#[track_caller]
fn comes_back(testbed: &Testbed, kubectl: &Kubectl<'_>, name: &str) {
    kubectl.apply(&shell_pod(name, "Always", "exec sleep 100000"));
    let before = wait_for(kubectl, name, "runs", is_ready);
    testbed.docker(&["kill", &container_id(&before)]);
    let after = wait_for(kubectl, name, "runs again", |p| container_status(p)["restartCount"] == 1 && is_ready(p));
    assert_ne!(container_id(&before), container_id(&after));
}

#[test]
fn the_end_of_a_container_is_told_by_dockers_events_alone() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass().with_repairs("off,container-ends=off");
    let kubectl = windlass.up();
    comes_back(&testbed, &kubectl, "victim");
}

#[test]
fn what_dockers_events_do_not_tell_is_found_by_listing() {
    let testbed = Testbed::new();
    let mut windlass = testbed
        .windlass()
        .with_repairs("off,engine-relist=1s,unmanaged-relist=1s,container-ends=off,engine-events=off");
    let kubectl = windlass.up();
    comes_back(&testbed, &kubectl, "victim");
    // And a container that belongs to no pod.
    let uid = "11111111-2222-3333-4444-555555555555";
    let name = format!("k8s_main_nobody_default_{uid}_0");
    let labels = [
        "io.kubernetes.docker.type=container",
        "io.kubernetes.container.name=main",
        "io.kubernetes.pod.name=nobody",
        "io.kubernetes.pod.namespace=default",
        &format!("io.kubernetes.pod.uid={uid}"),
        "annotation.io.kubernetes.pod.terminationGracePeriod=1",
    ];
    let mut args = vec!["run", "-d", "--network=none", "--name", &name];
    labels.iter().for_each(|label| args.extend(["--label", label]));
    args.extend(["windlass/busybox:1", "sleep", "100000"]);
    let id = testbed.docker(&args).trim().to_owned();
    eventually(DEFAULT_TIMEOUT, "the container of nobody is removed", || {
        let left = testbed.docker(&["ps", "-aq", "--no-trunc"]);
        anyhow::ensure!(!left.contains(&id), "{left}");
        Ok(())
    });
    // The usage of unmanaged containers is reported, too.
    let is_told = |wanted: bool| {
        eventually(DEFAULT_TIMEOUT, &format!("a container of others is told of: {wanted}"), || {
            let page = testbed.try_sh("curl -fsS --max-time 5 http://127.0.0.1:10255/metrics/cadvisor")?;
            anyhow::ensure!(page.contains("name=\"stranger\"") == wanted);
            Ok(())
        });
    };
    testbed.docker(&["run", "-d", "--network=none", "--name=stranger", "windlass/busybox:1", "sleep", "100000"]);
    is_told(true);
    testbed.docker(&["rm", "-f", "stranger"]);
    is_told(false);
}

#[test]
fn manifests_and_static_pods_are_found_by_reading_their_directories() {
    let testbed = Testbed::new();
    let folder = testbed.dir().join("static");
    std::fs::create_dir_all(&folder).unwrap();
    let mut windlass = testbed
        .windlass()
        .with(&["--static-pod-path", &folder.to_string_lossy()])
        .with_repairs("off,static-pod-rescan=1s,manifest-rescan=1s,directory-changes=off");
    let kubectl = windlass.up();
    std::fs::write(folder.join("s.yaml"), shell_pod("static", "Always", "exec sleep 100000")).unwrap();
    std::fs::write(windlass.manifests_dir().join("m.yaml"), shell_pod("manifest", "Always", "exec sleep 100000"))
        .unwrap();
    wait_for(&kubectl, "static-node", "is ready", is_ready);
    wait_for(&kubectl, "manifest", "is ready", is_ready);
    std::fs::remove_file(folder.join("s.yaml")).unwrap();
    eventually(DEFAULT_TIMEOUT, "the static pod goes with its file", || {
        let left = kubectl.run(&["get", "pods", "-o", "name"]);
        anyhow::ensure!(!left.contains("static-node"), "{left}");
        Ok(())
    });
}

/// Whether the kernel notifies of it, as for rules in nf_tables, or not.
#[test]
fn what_others_change_in_the_kernel_is_found_by_looking() {
    let testbed = Testbed::new();
    let mut windlass = testbed
        .windlass()
        .with_repairs("off,nft-check=1s,proxy-sync=1s,pod-network-check=1s,cgroup-update=1s,nft-monitor=off");
    let kubectl = windlass.up();
    kubectl.apply(WEB);
    eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    let answers = || testbed.try_sh_outside("curl -fsS --max-time 3 http://198.18.0.1:30080/").map(drop);
    eventually(DEFAULT_TIMEOUT, "the service answers", answers);
    testbed.sh("iptables -t nat -F KUBE-SERVICES && iptables -t nat -F KUBE-NODEPORTS");
    eventually(DEFAULT_TIMEOUT, "the service answers again", answers);
    let rules = testbed.sh("iptables-save -t nat");
    assert!(rules.contains("\"default/web:http cluster IP\""), "{rules}");
    // Those of the pod network, of whose changes the kernel sends no notification.
    let of_pods = || -> Vec<String> {
        let all = testbed.sh("iptables-save");
        let mut rules: Vec<String> = all.lines().filter(|line| line.contains("WINDLASS-")).map(str::to_owned).collect();
        rules.sort();
        rules
    };
    let before = of_pods();
    assert!(before.iter().any(|rule| rule.contains("MASQUERADE")), "{before:?}");
    testbed.sh("iptables -F && iptables -t nat -F");
    eventually(DEFAULT_TIMEOUT, "the pod network has its rules again", || {
        let now = of_pods();
        anyhow::ensure!(now == before, "{now:#?} in place of {before:#?}");
        Ok(())
    });
    eventually(DEFAULT_TIMEOUT, "the service answers after all was flushed", answers);
    // The limits of a pod.
    let limited = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "limited"}, "spec": {
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "windlass/busybox:1",
            "command": ["sleep", "100000"], "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}}]}});
    kubectl.apply(&limited.to_string());
    let pod = wait_for(&kubectl, "limited", "is ready", is_ready);
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let quota = cgroup_file("/burstable", uid, ("cpu", "cpu.cfs_quota_us"), "cpu.max");
    let before = std::fs::read_to_string(&quota).unwrap();
    assert!(before.starts_with("20000"), "{before}");
    std::fs::write(&quota, "50000").unwrap();
    eventually(DEFAULT_TIMEOUT, "the pod has its limit again", || {
        let now = std::fs::read_to_string(&quota)?;
        anyhow::ensure!(now == before, "{now}");
        Ok(())
    });
}

/// A pod that only this node with this label may run, whatever its state.
fn choosy_pod(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "windlass/busybox:1"}]}})
    .to_string()
}

/// Controllers hear of no change, and the scheduler concludes nothing of any.
#[test]
fn what_controllers_and_scheduler_are_not_told_of_they_find_by_looking() {
    let testbed = Testbed::without_docker();
    let windlass = testbed
        .windlass()
        .with_repairs("off,informer-replay=1s,object-changes=off,unschedulable-flush=1s,queueing-hints=off");
    let _server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    kubectl.accounts(&["default"]);
    kubectl.apply(WEB);
    let has_pods = |count: usize| {
        eventually(DEFAULT_TIMEOUT, &format!("the controller has made {count} pods"), || {
            let pods = kubectl.pods("app=web")?;
            anyhow::ensure!(pods.len() == count, "{pods:?}");
            Ok(())
        });
    };
    has_pods(2);
    let _ = kubectl.run(&["scale", "rc", "web", "--replicas=3"]);
    has_pods(3);
    let status = json!({"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "hollow"}, "status": status});
    kubectl.apply(&node.to_string());
    kubectl.apply(&choosy_pod("waits"));
    wait_for(&kubectl, "waits", "fits nowhere", |pod| condition(pod, "PodScheduled")["reason"] == "Unschedulable");
    let _ = kubectl.run(&["label", "node", "hollow", "disk=ssd"]);
    wait_for(&kubectl, "waits", "has a node", |pod| pod["spec"]["nodeName"] == "hollow");
}

/// Nothing but another count mends what a quota says wrongly.
#[test]
fn quotas_are_counted_anew() {
    let testbed = Testbed::without_docker();
    let windlass = testbed.windlass().with_repairs("off,quota-resync=1s");
    let _server = windlass.api_alone();
    let kubectl = windlass.kubectl();
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"pods": "5"}}});
    kubectl.apply(&quota.to_string());
    let says_none = || {
        eventually(DEFAULT_TIMEOUT, "the quota says that there is no pod", || {
            let used: Value = kubectl.json(&["resourcequota", "q"])?["status"]["used"].clone();
            anyhow::ensure!(used == json!({"pods": "0"}), "{used}");
            Ok(())
        });
    };
    says_none();
    let wrong = json!({"status": {"used": {"pods": "3"}}}).to_string();
    let patch = ["patch", "resourcequota", "q", "--subresource=status", "--type=merge", "-p", &wrong];
    let written = kubectl.run(&[&patch[..], &["-o", "jsonpath={.status.used.pods}"]].concat());
    assert_eq!(written, "3");
    says_none();
}
