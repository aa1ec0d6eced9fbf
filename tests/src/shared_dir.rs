//! Pods that share a host directory with their test, and requests to them through files.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use crate::{DEFAULT_TIMEOUT, Kubectl, Testbed};
use serde_json::{Value, json};

/// A host directory that the pods mount at /shared.
#[derive(Debug)]
pub struct SharedDir(pub PathBuf);

impl SharedDir {
    /// Creates the directory of a testbed.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(testbed: &Testbed) -> Self {
        let dir = testbed.dir().join("shared");
        fs::create_dir_all(&dir).expect("a directory can be created");
        Self(dir)
    }

    /// Creates a world-writable subdirectory for the pods of one namespace.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn open_to_all(testbed: &Testbed, namespace: &str) -> Self {
        let dir = Self::new(testbed).0.join(namespace);
        fs::create_dir_all(&dir).expect("a directory can be created");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("root may change modes");
        Self(dir)
    }

    /// Creates an empty file.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn touch(&self, name: &str) {
        fs::write(self.0.join(name), "").expect("a file can be written");
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.0.join(name));
    }

    /// The lines of a file; none when there is no such file.
    #[must_use]
    pub fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.0.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// A pod whose containers mount the directory, and use the sample image unless they name another.
    #[must_use]
    pub fn pod(&self, name: &str, mut spec: Value) -> String {
        for field in ["containers", "initContainers"] {
            for container in spec[field].as_array_mut().into_iter().flatten() {
                if container["image"].is_null() {
                    container["image"] = json!("windlass/busybox:1");
                }
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

/// A container command that runs a shell line.
#[must_use]
pub fn shell(line: &str) -> Value {
    json!(["sh", "-c", line])
}

/// Waits until `check` accepts a pod, and returns the pod.
///
/// # Panics
/// When it does not in time.
#[track_caller]
pub fn wait_for(kubectl: &Kubectl<'_>, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Value {
    // By a field selector: for a single name kubectl gets the object, then watches, and does not print the first event
    // of the watch, so that a change between the two is lost.
    let selector = format!("metadata.name={name}");
    kubectl.watch(DEFAULT_TIMEOUT, &format!("{name}: {what}"), &["pods", "--field-selector", &selector], |pod| {
        check(pod).then(|| pod.clone())
    })
}

/// The status of a pod's first container.
#[must_use]
pub fn container_status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// A condition of a pod; null if it is missing.
#[must_use]
pub fn condition(pod: &Value, kind: &str) -> Value {
    let all = pod["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|c| c["type"] == kind)).cloned().unwrap_or_default()
}

/// Whether a pod's condition Ready is true.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

fn line_of(event: &Value) -> String {
    format!("{} {}\n", event["reason"].as_str().unwrap_or(""), event["message"].as_str().unwrap_or(""))
}

/// The reasons and messages of a pod's events.
///
/// # Panics
/// When they cannot be listed.
#[must_use]
pub fn events(kubectl: &Kubectl<'_>, name: &str) -> String {
    events_of(kubectl, name).iter().map(line_of).collect()
}

/// How many events of a pod have a reason and message that contain `words`, repetitions included.
///
/// # Panics
/// When its events cannot be listed.
#[must_use]
pub fn event_count(kubectl: &Kubectl<'_>, name: &str, words: &str) -> u64 {
    let told = events_of(kubectl, name);
    told.iter().filter(|e| line_of(e).contains(words)).map(|e| e["count"].as_u64().unwrap_or(1)).sum()
}

fn events_of(kubectl: &Kubectl<'_>, name: &str) -> Vec<Value> {
    let selector = format!("involvedObject.name={name}");
    let mut all = kubectl.json(&["events", "--field-selector", &selector]).expect("events are told");
    match all["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

/// Waits for an event about an object whose reason and message contain `words`.
///
/// # Panics
/// When there is no such event.
#[track_caller]
pub fn wait_for_event(kubectl: &Kubectl<'_>, name: &str, words: &str) {
    let selector = format!("involvedObject.name={name}");
    kubectl.watch(
        DEFAULT_TIMEOUT,
        &format!("{name} has an event: {words}"),
        &["events", "--field-selector", &selector],
        |e| line_of(e).contains(words).then_some(()),
    );
}
