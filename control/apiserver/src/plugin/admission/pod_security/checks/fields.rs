//! How checks read pods, and say what they found. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Pod;

/// The containers of a pod: those that initialize it first.
pub(super) fn containers(pod: Pod<'_>) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(move |list| pod.spec[list].as_array().into_iter().flatten())
}

/// The names of the containers that are bad.
pub(super) fn containers_where<'a>(pod: Pod<'a>, is_bad: impl Fn(&'a Value) -> bool) -> Vec<&'a str> {
    containers(pod).filter(|container| is_bad(container)).map(name).collect()
}

pub(super) fn name(of: &Value) -> &str {
    of["name"].as_str().unwrap_or("")
}

/// Whether the pod runs on Windows, where some checks have no meaning.
pub(super) fn is_windows(pod: Pod<'_>) -> bool {
    pod.spec["os"]["name"] == "windows"
}

/// Whether the pod has a user namespace, in which its root is unprivileged on the host.
pub(super) fn has_user_namespace(pod: Pod<'_>) -> bool {
    pod.spec["hostUsers"] == false
}

/// `container "a"`, `containers "a", "b"`.
pub(super) fn container_list(names: &[&str]) -> String {
    counted("container", names)
}

/// A noun in the number of the quoted names that follow it.
pub(super) fn counted(noun: &str, names: &[&str]) -> String {
    format!("{} {}", plural(noun, names.len()), quoted(names.iter()))
}

/// A noun in its number.
pub(super) fn plural(noun: &str, number: usize) -> String {
    if number == 1 { noun.to_owned() } else { format!("{noun}s") }
}

/// The verb of a number of things.
pub(super) fn uses(number: usize) -> &'static str {
    if number == 1 { "uses" } else { "use" }
}

/// Each in quotes, which escape nothing, as upstream's.
pub(super) fn quoted<T: AsRef<str>>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| format!("\"{}\"", one.as_ref())).collect();
    all.join(", ")
}

/// Who sets a field of a security context wrongly, and the wrong values: the pod, its containers or both.
#[derive(Debug, Default)]
pub(super) struct Setters<'a> {
    pub(super) by_pod: bool,
    pub(super) by_containers: Vec<&'a str>,
    pub(super) values: BTreeSet<&'a str>,
}

impl<'a> Setters<'a> {
    /// Checks all security contexts; `bad` returns the forbidden value of one.
    pub(super) fn find(pod: Pod<'a>, bad: impl Fn(&'a Value) -> Option<&'a str>) -> Self {
        let mut found = Self::default();
        if let Some(value) = bad(&pod.spec["securityContext"]) {
            found.by_pod = true;
            found.values.insert(value);
        }
        for container in containers(pod) {
            if let Some(value) = bad(&container["securityContext"]) {
                found.by_containers.push(name(container));
                found.values.insert(value);
            }
        }
        found
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.by_pod && self.by_containers.is_empty()
    }

    /// Such as `pod and container "a"`.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        names.extend(self.by_pod.then(|| "pod".to_owned()));
        names.extend((!self.by_containers.is_empty()).then(|| container_list(&self.by_containers)));
        names
    }

    pub(super) fn describe(&self) -> String {
        self.names().join(" and ")
    }
}
