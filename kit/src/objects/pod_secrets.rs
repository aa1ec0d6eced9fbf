//! The Secrets that a pod names (upstream: `podutil.VisitPodSecretNames`).

use serde_json::Value;

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The names of the Secrets in its namespace that a pod uses, in no order and possibly repeated.
#[must_use]
pub fn secret_names(pod: &Value) -> Vec<&str> {
    let spec = &pod["spec"];
    let mut found: Vec<&Value> = items(&spec["imagePullSecrets"]).map(|secret| &secret["name"]).collect();
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    for container in lists.into_iter().flat_map(|list| items(&spec[list])) {
        found.extend(items(&container["env"]).map(|env| &env["valueFrom"]["secretKeyRef"]["name"]));
        found.extend(items(&container["envFrom"]).map(|source| &source["secretRef"]["name"]));
    }
    for volume in items(&spec["volumes"]) {
        found.push(&volume["secret"]["secretName"]);
        found.extend(items(&volume["projected"]["sources"]).map(|source| &source["secret"]["name"]));
        found.push(&volume["azureFile"]["secretName"]);
        found.push(&volume["csi"]["nodePublishSecretRef"]["name"]);
        let kinds = ["cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"];
        found.extend(kinds.map(|kind| &volume[kind]["secretRef"]["name"]));
    }
    found.into_iter().filter_map(Value::as_str).filter(|name| !name.is_empty()).collect()
}
