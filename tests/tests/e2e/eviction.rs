//! Node-pressure eviction: pods are evicted before memory or disk run out, and unused images are deleted.

use std::{fs, path::Path, time::Duration};

use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, Windlass, configuration, eventually};

use crate::shared_dir::{SharedDir, events, is_ready, shell, wait_for};

/// Writable layers are measured once a minute.
const MEASURED: Duration = Duration::from_secs(180);

fn configured<'w>(testbed: &'w Testbed, config: &str) -> Windlass<'w> {
    let file = testbed.dir().join("config.yaml");
    fs::write(&file, configuration(config)).expect("the configuration can be written");
    testbed.windlass().with(&["--config", &file.to_string_lossy()])
}

fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

/// Waits until a pod is evicted, and returns it.
fn evicted(kubectl: &Kubectl<'_>, name: &str, within: Duration) -> Value {
    eventually(within, &format!("{name} is evicted"), || {
        let pod = kubectl.json(&["pod", name])?;
        let status = &pod["status"];
        anyhow::ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status}");
        Ok(pod)
    })
}

fn phase(kubectl: &Kubectl<'_>, name: &str) -> String {
    let pod = kubectl.json(&["pod", name]).expect("the pod is there");
    pod["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

fn node_is_short_of(kubectl: &Kubectl<'_>, kind: &str, taint: &str) {
    eventually(DEFAULT_TIMEOUT, &format!("the node has {kind} and its taint"), || {
        let node = kubectl.json(&["node", "node"])?;
        anyhow::ensure!(condition(&node, kind)["status"] == "True", "{}", node["status"]["conditions"]);
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        anyhow::ensure!(taints.iter().any(|t| t["key"] == taint && t["effect"] == "NoSchedule"), "{taints:?}");
        Ok(())
    });
}

/// The limit of all pods together is small, so that other processes of this machine do not matter.
#[test]
fn memory_pressure_evicts_pods() {
    let total = fs::read_to_string("/proc/meminfo").unwrap();
    let total: u64 = total.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    let testbed = Testbed::new();
    let config = format!(
        "evictionHard: {{memory.available: 200Mi}}\nsystemReserved: {{memory: {}Ki}}\n\
         enforceNodeAllocatable: [none]\nimageGCHighThresholdPercent: 100\n",
        total - (500 << 10)
    );
    let mut windlass = configured(&testbed, &config);
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let promised = json!({"cpu": "10m", "memory": "64Mi"});
    let container = |line: &str| json!({"name": "main", "command": shell(line)});
    let mut lasting = container("exec sleep 1000");
    lasting["resources"] = json!({"requests": promised, "limits": promised});
    kubectl.apply(&shared.pod("lasting", json!({"containers": [lasting]})));
    wait_for(&kubectl, "lasting", "is ready", is_ready);
    // A shell variable of 350 MiB. The shell would exec its last command.
    let hog = "x=$(head -c 350m /dev/zero | tr '\\0' x); sleep 1000; true";
    kubectl.apply(&shared.pod("hog", json!({"containers": [container(hog)]})));

    let pod = evicted(&kubectl, "hog", MEASURED);
    let message = pod["status"]["message"].as_str().unwrap();
    for words in [
        "The node was low on resource: memory. Threshold quantity: 200Mi, available: ",
        "Container main was using ",
        "request is 0, has larger consumption of memory. ",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let disrupted = condition(&pod, "DisruptionTarget");
    assert_eq!((&disrupted["status"], &disrupted["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["exitCode"], 137, "{state}");
    let output = kubectl.run(&["describe", "pod", "hog"]);
    for words in ["Status:           Failed", "Reason:           Evicted", "Warning  Evicted", "Killing"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let all = kubectl.json(&["events", "--field-selector", "involvedObject.name=hog,reason=Evicted"]).unwrap();
    assert_eq!(all["items"][0]["metadata"]["annotations"]["starved_resource"], "memory");
    assert_eq!(all["items"][0]["metadata"]["annotations"]["offending_containers"], "main");

    node_is_short_of(&kubectl, "MemoryPressure", "node.kubernetes.io/memory-pressure");
    assert!(events(&kubectl, "node").contains("EvictionThresholdMet Attempting to reclaim memory"));
    // A BestEffort pod that is bound to the node nevertheless is rejected.
    let mut careless: Value =
        serde_json::from_str(&shared.pod("careless", json!({"containers": [container("exec sleep 1000")]}))).unwrap();
    careless["spec"]["nodeName"] = json!("node");
    kubectl.apply(&careless.to_string());
    let refused = evicted(&kubectl, "careless", DEFAULT_TIMEOUT);
    assert_eq!(refused["status"]["message"], "Pod was rejected: The node had condition: [MemoryPressure]. ");
    assert!(refused["status"]["containerStatuses"][0]["containerID"].is_null(), "nothing was made of it");
    let mut modest = careless.clone();
    modest["metadata"]["name"] = json!("modest");
    modest["spec"]["containers"][0]["resources"] = json!({"requests": {"memory": "8Mi"}});
    kubectl.apply(&modest.to_string());
    wait_for(&kubectl, "modest", "is ready", is_ready);
    assert_eq!(phase(&kubectl, "lasting"), "Running", "whoever stays within its promise is left alone");
    // Evicted pods can be deleted like any others.
    let _ = kubectl.run(&["delete", "pod", "hog", "careless", "--timeout=60s"]);
}

#[test]
fn disk_pressure_reclaims_space() {
    let testbed = Testbed::new();
    let data = testbed.dir().join("data");
    fs::create_dir_all(&data).unwrap();
    mount(Some("tmpfs"), &data, Some("tmpfs"), MsFlags::empty(), Some("size=256m")).expect("a small disk");
    let config = "evictionHard: {nodefs.available: 100Mi}\nimageGCHighThresholdPercent: 100\n";
    let mut windlass = configured(&testbed, config);
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let pod = |name: &str, line: &str| {
        let main = json!({"name": "main", "command": shell(line), "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        shared.pod(name, json!({"containers": [main], "volumes": [{"name": "v", "emptyDir": {}}]}))
    };
    kubectl.apply(&pod("lasting", "echo small > /v/file; exec sleep 1000"));
    wait_for(&kubectl, "lasting", "is ready", is_ready);
    kubectl.apply(&pod("filler", "dd if=/dev/zero of=/v/file bs=1M count=180; exec sleep 1000"));
    let filler = evicted(&kubectl, "filler", MEASURED);
    let message = filler["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("The node was low on resource: ephemeral-storage. "), "{message}");
    node_is_short_of(&kubectl, "DiskPressure", "node.kubernetes.io/disk-pressure");
    let written = data.join("pods").join(filler["metadata"]["uid"].as_str().unwrap()).join("volumes");
    eventually(DEFAULT_TIMEOUT, "what it has written is gone", || {
        anyhow::ensure!(!written.exists(), "{} is there", written.display());
        Ok(())
    });
    let output = kubectl.run(&["describe", "node", "node"]);
    for words in ["KubeletHasDiskPressure", "kubelet has disk pressure", "Attempting to reclaim ephemeral-storage"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    assert_eq!(phase(&kubectl, "lasting"), "Running");
}

#[test]
fn pods_that_write_more_than_they_may_are_evicted() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let fill = |path: &str| shell(&format!("dd if=/dev/zero of={path} bs=1M count=8; exec sleep 1000"));
    let limit = |limit: &str| json!({"limits": {"ephemeral-storage": limit}});
    kubectl.apply(&shared.pod(
        "volume",
        json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "2Mi"}}],
            "containers": [{"name": "main", "command": fill("/v/file"), "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}),
    ));
    kubectl.apply(&shared.pod(
        "layer",
        json!({"containers": [{"name": "main", "command": fill("/file"), "resources": limit("2Mi")},
            {"name": "other", "command": shell("exec sleep 1000"), "resources": limit("50Mi")}]}),
    ));
    kubectl.apply(&shared.pod(
        "sum",
        json!({"volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "main", "command": fill("/v/file"), "resources": limit("2Mi"),
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}),
    ));
    kubectl.apply(&shared.pod(
        "within",
        json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "20Mi"}}],
            "containers": [{"name": "main", "command": fill("/v/file"), "resources": limit("20Mi"),
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}),
    ));
    for (name, message) in [
        ("volume", "Usage of EmptyDir volume \"v\" exceeds the limit \"2Mi\". "),
        ("layer", "Container main exceeded its local ephemeral storage limit \"2Mi\". "),
        ("sum", "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "),
    ] {
        let pod = evicted(&kubectl, name, MEASURED);
        assert_eq!(pod["status"]["message"], message);
        assert!(condition(&pod, "DisruptionTarget").is_null(), "it is its own fault");
        assert!(events(&kubectl, name).contains(&format!("Evicted {}", message.trim_end())), "{name}");
    }
    assert_eq!(phase(&kubectl, "within"), "Running");
    let node = kubectl.json(&["node", "node"]).unwrap();
    assert_eq!(condition(&node, "DiskPressure")["status"], "False");
}

/// A container's layer has no directory of its own with this driver: Docker is asked for what was written.
#[test]
fn what_is_written_counts_with_every_storage_driver() {
    let testbed = Testbed::with_storage_driver("vfs");
    assert_eq!(testbed.docker(&["info", "--format", "{{.Driver}}"]).trim(), "vfs");
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    let pod = |name: &str, limit: &str| {
        let fill = shell("dd if=/dev/zero of=/file bs=1M count=8; exec sleep 1000");
        let resources = json!({"limits": {"ephemeral-storage": limit}});
        shared.pod(name, json!({"containers": [{"name": "main", "command": fill, "resources": resources}]}))
    };
    kubectl.apply(&pod("layer", "2Mi"));
    kubectl.apply(&pod("within", "50Mi"));
    let layer = evicted(&kubectl, "layer", MEASURED);
    let why = "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ";
    assert_eq!(layer["status"]["message"], why);
    eventually(MEASURED, "the summary knows what was written", || {
        let summary: Value =
            serde_json::from_str(&kubectl.run(&["get", "--raw", "/api/v1/nodes/node/proxy/stats/summary"]))?;
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let rootfs = &pods.iter().find(|pod| pod["podRef"]["name"] == "within").unwrap_or(&Value::Null)["containers"]
            [0]["rootfs"];
        anyhow::ensure!(
            rootfs["usedBytes"].as_u64().is_some_and(|bytes| (8 << 20..16 << 20).contains(&bytes)),
            "{rootfs}"
        );
        anyhow::ensure!(rootfs["inodesUsed"].is_null(), "Docker counts bytes: {rootfs}");
        Ok(())
    });
    assert_eq!(phase(&kubectl, "within"), "Running");
}

#[test]
fn unused_images_are_collected() {
    let testbed = Testbed::new();
    let config = "evictionHard: {memory.available: 100Mi}\nimageGCHighThresholdPercent: 1\n\
                  imageGCLowThresholdPercent: 0\nimageMinimumGCAge: 0s\n";
    let collecting = |config: &str| configured(&testbed, config).with_repairs("off,image-collection=30s");
    let mut windlass = collecting(config);
    let kubectl = windlass.up();
    // Images of the testbed are loaded: they are somebody's, and stay.
    eventually(MEASURED, "the node says that there was nothing to collect", || {
        let output = events(&kubectl, "node");
        anyhow::ensure!(output.contains("deleting unused images (freed 0 bytes)"), "{output}");
        Ok(())
    });
    assert!(testbed.docker(&["images"]).contains("windlass/nginx"));
    windlass.kill();
    let mut windlass = collecting(&format!("{config}imageGCForeignImages: true\n"));
    let kubectl = windlass.up();
    let shared = SharedDir::new(&testbed);
    kubectl.apply(&shared.pod("user", json!({"containers": [{"name": "main", "command": shell("exec sleep 1000")}]})));
    wait_for(&kubectl, "user", "is ready", is_ready);
    // A dead container outside of Kubernetes uses an image too.
    let _ = testbed.docker(&["create", "--name", "outsider", "windlass/redis:1", "true"]);
    let images = || testbed.docker(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
    eventually(MEASURED, "unused images are gone", || {
        let images = images();
        anyhow::ensure!(!images.contains("windlass/nginx:1"), "{images}");
        Ok(())
    });
    let left = images();
    for name in ["windlass/busybox:1", "windlass/redis:1", "pause"] {
        assert!(left.contains(name), "{name}: {left}");
    }
    eventually(DEFAULT_TIMEOUT, "the node says that it was not enough", || {
        let output = events(&kubectl, "node");
        let told = output.lines().any(|l| l.starts_with("FreeDiskSpaceFailed ") && !l.contains("(freed 0 bytes)"));
        anyhow::ensure!(told, "{output}");
        Ok(())
    });
    let node = kubectl.json(&["node", "node"]).unwrap();
    let names = node["status"]["images"].to_string();
    assert!(names.contains("windlass/busybox:1"), "{names}");
    assert!(Path::new(&testbed.dir().join("data/images.json")).exists());
}
