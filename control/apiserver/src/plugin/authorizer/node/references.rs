//! What a pod or a persistent volume names. Pure.

use serde_json::Value;
use windlass_kit::objects::pod_secrets::secret_names;

use super::{
    Vertex,
    graph::{Kind, Kind::*},
};

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The objects of its namespace that a pod names.
pub(crate) fn of_pod(pod: &Value) -> Vec<(Kind, String)> {
    let spec = &pod["spec"];
    let mut found = Found::default();
    found.add(ServiceAccount, &spec["serviceAccountName"]);
    found.0.extend(secret_names(pod).into_iter().map(|name| (Secret, name.to_owned())));
    for container in containers(pod) {
        for source in items(&container["env"]).map(|env| &env["valueFrom"]) {
            found.add(ConfigMap, &source["configMapKeyRef"]["name"]);
        }
        for source in items(&container["envFrom"]) {
            found.add(ConfigMap, &source["configMapRef"]["name"]);
        }
    }
    for volume in items(&spec["volumes"]) {
        found.add(ConfigMap, &volume["configMap"]["name"]);
        found.add(PersistentVolumeClaim, &volume["persistentVolumeClaim"]["claimName"]);
        if volume["ephemeral"].is_object() {
            let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
            found
                .0
                .push((PersistentVolumeClaim, format!("{}-{}", text(&pod["metadata"]["name"]), text(&volume["name"]))));
        }
        for source in items(&volume["projected"]["sources"]) {
            found.add(ConfigMap, &source["configMap"]["name"]);
        }
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<(Kind, String)>);

impl Found {
    fn add(&mut self, kind: Kind, name: &Value) {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
            self.0.push((kind, name.to_owned()));
        }
    }
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|list| items(&pod["spec"][list]))
}

/// The audiences of the tokens that a pod's volumes hold; the empty one is the API server itself.
pub(crate) fn audiences(pod: &Value) -> impl Iterator<Item = &str> {
    projected(pod)
        .filter_map(|source| source.get("serviceAccountToken"))
        .filter(|token| token.is_object())
        .map(|token| token["audience"].as_str().unwrap_or(""))
}

fn projected(pod: &Value) -> impl Iterator<Item = &Value> {
    items(&pod["spec"]["volumes"]).flat_map(|volume| items(&volume["projected"]["sources"]))
}

/// The claim that a persistent volume is for, and the secrets that its node needs to mount it. Those that only the
/// controllers of a CSI driver need are not included.
pub(super) fn of_volume(volume: &Value) -> Option<(Vertex, Vec<Vertex>)> {
    let spec = &volume["spec"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let (namespace, name) = (text(&spec["claimRef"]["namespace"]), text(&spec["claimRef"]["name"]));
    if name.is_empty() {
        return None;
    }
    let mut secrets = Vec::new();
    let mut add = |of: &Value, name: &Value| {
        let Some(name) = name.as_str().filter(|name| !name.is_empty()) else { return };
        let of = of.as_str().filter(|of| !of.is_empty()).unwrap_or(&namespace);
        secrets.push(Vertex::new(Secret, of, name));
    };
    for field in ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"] {
        let reference = &spec["csi"][field];
        add(&reference["namespace"], &reference["name"]);
    }
    add(&spec["azureFile"]["secretNamespace"], &spec["azureFile"]["secretName"]);
    for kind in ["cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"] {
        let reference = &spec[kind]["secretRef"];
        add(&reference["namespace"], &reference["name"]);
    }
    Some((Vertex::new(PersistentVolumeClaim, &namespace, &name), secrets))
}
