//! Pods that share a folder with their test, and what is asked of them.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use windlass_tests::{Kubectl, PATIENCE, World, eventually};

/// A folder of the machine that every pod here has at /shared.
pub(crate) struct Shared(pub(crate) PathBuf);

impl Shared {
    pub(crate) fn new(world: &World) -> Self {
        let dir = world.dir().join("shared");
        fs::create_dir_all(&dir).expect("a folder can be made");
        Self(dir)
    }

    pub(crate) fn put(&self, name: &str) {
        fs::write(self.0.join(name), "").expect("a file can be written");
    }

    pub(crate) fn take(&self, name: &str) {
        let _ = fs::remove_file(self.0.join(name));
    }

    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.0.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// A pod whose containers have the folder.
    pub(crate) fn pod(&self, name: &str, mut spec: Value) -> String {
        for field in ["containers", "initContainers"] {
            for container in spec[field].as_array_mut().into_iter().flatten() {
                container["image"] = json!("windlass/busybox:1");
                let mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
                container["volumeMounts"] =
                    mounts.into_iter().chain([json!({"name": "shared", "mountPath": "/shared"})]).collect();
            }
        }
        let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
        spec["volumes"] =
            volumes.into_iter().chain([json!({"name": "shared", "hostPath": {"path": self.0}})]).collect();
        if spec["terminationGracePeriodSeconds"].is_null() {
            spec["terminationGracePeriodSeconds"] = json!(1);
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
    }
}

pub(crate) fn shell(line: &str) -> Value {
    json!(["sh", "-c", line])
}

pub(crate) fn wait_for(kubectl: &Kubectl<'_>, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Value {
    eventually(PATIENCE, &format!("{name}: {what}"), || {
        let pod = kubectl.json(&["pod", name])?;
        anyhow::ensure!(check(&pod), "{}", pod["status"]);
        Ok(pod)
    })
}

pub(crate) fn main_of(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"]
        .as_array()
        .is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// The reasons and messages of a pod's events.
pub(crate) fn events(kubectl: &Kubectl<'_>, name: &str) -> String {
    let all =
        kubectl.json(&["events", "--field-selector", &format!("involvedObject.name={name}")]).expect("events are told");
    let line = |e: &Value| format!("{} {}\n", e["reason"].as_str().unwrap_or(""), e["message"].as_str().unwrap_or(""));
    all["items"].as_array().into_iter().flatten().map(line).collect()
}

pub(crate) fn says(kubectl: &Kubectl<'_>, name: &str, words: &str) {
    eventually(PATIENCE, &format!("{name} has an event: {words}"), || {
        let told = events(kubectl, name);
        anyhow::ensure!(told.contains(words), "{told}");
        Ok(())
    });
}
