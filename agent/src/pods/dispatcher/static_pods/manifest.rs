//! Pods from the text of a manifest, as the API server would store them: with defaults, the node's name appended, a
//! uid. Pure.

use std::{collections::BTreeSet, path::Path};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume, VolumeProjection};
use serde_json::{Map, Value, json};
use windlass_kit::{
    json,
    manifests::{self, Document},
    objects::pod_defaults,
};

use crate::pods::{container::env, lifecycle::spec};

/// The hash of a static pod's manifest, also if the manifest sets a uid.
const MANIFEST_HASH_ANNOTATION: &str = "windlass.io/manifest-hash";

/// The pods of one file.
#[derive(Debug, Default)]
pub(super) struct ManifestFile {
    pub(super) pods: Vec<Pod>,
    /// Why documents are invalid, each with its line.
    pub(super) problems: Vec<String>,
}

/// The hash of the manifest that a static pod, or its mirror pod, was read from.
pub(super) fn manifest_hash(pod: &Pod) -> Option<&str> {
    spec::annotation(pod, MANIFEST_HASH_ANNOTATION)
}

pub(super) fn pods(path: &Path, text: &str, node: &str) -> ManifestFile {
    let file = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let Some(format) = manifests::format_of(file) else { return ManifestFile::default() };
    let (documents, broken) = manifests::read(text, format);
    let mut file_pods = ManifestFile { pods: Vec::new(), problems: broken.iter().map(ToString::to_string).collect() };
    for document in documents {
        let line = document.line;
        match pod(path, document, node) {
            Ok(pod) => file_pods.pods.push(pod),
            Err(why) => file_pods.problems.push(format!("line {line}: {why}")),
        }
    }
    file_pods
}

fn pod(path: &Path, document: Document, node: &str) -> Result<Pod, String> {
    if (document.api_version.as_str(), document.kind.as_str()) != ("v1", "Pod") {
        return Err(format!("{} is no pod: only pods can be static", document.show()));
    }
    let hash = hash(&document, path, node);
    let uid = document.uid.clone().unwrap_or_else(|| hash.clone());
    let shown = document.show();
    let mut value = document.value;
    let object = value.as_object_mut().ok_or("not an object")?;
    pod_defaults::pod(object);
    set_metadata(object, &document.name, document.namespace.as_deref(), &uid, &hash, node);
    let spec = pod_defaults::child(object, "spec");
    spec.insert("nodeName".to_owned(), json!(node));
    // Upstream's: NoExecute taints do not evict static pods.
    let mut tolerations = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    tolerations.push(json!({"operator": "Exists", "effect": "NoExecute"}));
    spec.insert("tolerations".to_owned(), Value::Array(tolerations));
    let pod: Pod = json::from_value(&value).map_err(|e| format!("{shown} cannot be read as a pod: {e}"))?;
    check(&pod).map_err(|why| format!("{shown}: {why}"))?;
    Ok(pod)
}

fn set_metadata(
    object: &mut Map<String, Value>,
    name: &str,
    namespace: Option<&str>,
    uid: &str,
    hash: &str,
    node: &str,
) {
    let metadata = pod_defaults::child(object, "metadata");
    metadata.insert("name".to_owned(), json!(format!("{name}-{}", node.to_lowercase())));
    metadata.insert("namespace".to_owned(), json!(namespace.unwrap_or("default")));
    metadata.insert("uid".to_owned(), json!(uid));
    metadata.insert("generation".to_owned(), json!(1));
    let annotations = pod_defaults::child(metadata, "annotations");
    annotations.insert(spec::CONFIG_HASH_ANNOTATION.to_owned(), json!(uid));
    annotations.insert(spec::CONFIG_SOURCE_ANNOTATION.to_owned(), json!("file"));
    annotations.insert(MANIFEST_HASH_ANNOTATION.to_owned(), json!(hash));
}

/// 128 bits over node, path and manifest; a changed manifest is another pod.
fn hash(document: &Document, path: &Path, node: &str) -> String {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    for part in [node.as_bytes(), path.to_string_lossy().as_bytes(), document.value.to_string().as_bytes()] {
        digest.update(part);
        digest.update(b"\0");
    }
    digest.finish().as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The part of the API server's validation without which a pod would do harm; other faults show when the pod is run.
fn check(pod: &Pod) -> Result<(), String> {
    for (what, name) in [("metadata.name", spec::name(pod)), ("metadata.namespace", spec::namespace(pod))] {
        if !is_dns_name(name) {
            return Err(format!("{what} {name:?} is not a DNS name (lower case letters, digits, '-' and '.')"));
        }
    }
    let uid = spec::uid(pod);
    // It becomes a part of paths.
    if uid.len() > 64 || !uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(format!("metadata.uid {uid:?} may have letters, digits and '-' only, and 64 of them at most"));
    }
    let spec = pod.spec.as_ref().filter(|s| !s.containers.is_empty()).ok_or("spec.containers is empty")?;
    let mut names = BTreeSet::new();
    for (container, _) in spec::all_containers(spec) {
        if !is_dns_name(&container.name) || container.name.contains('.') {
            return Err(format!("container name {:?} is not a DNS label", container.name));
        }
        if !names.insert(&container.name) {
            return Err(format!("two containers have the name {:?}", container.name));
        }
        if spec::image_of(container).is_empty() {
            return Err(format!("container {:?} has no image", container.name));
        }
    }
    match api_reference(spec) {
        None => Ok(()),
        Some(what) => Err(format!("static pods may not reference {what}")),
    }
}

/// What a pod needs of the API, in upstream's words (`HasAPIObjectReference`): a static pod runs without one.
fn api_reference(spec: &PodSpec) -> Option<&'static str> {
    let named = |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty());
    if named(&spec.service_account_name) {
        return Some("serviceaccounts");
    }
    let (mut maps, mut secrets) = (false, spec.image_pull_secrets.iter().flatten().next().is_some());
    let mut look = |container: &Container| {
        let (of_maps, of_secrets) = env::references(container);
        maps |= !of_maps.is_empty();
        secrets |= !of_secrets.is_empty();
    };
    spec::all_containers(spec).for_each(|(container, _)| look(container));
    spec::ephemeral_containers(spec).iter().for_each(look);
    if secrets {
        return Some("secrets");
    }
    if maps {
        return Some("configmaps");
    }
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(reference_of_volume)
}

fn reference_of_volume(volume: &Volume) -> Option<&'static str> {
    Some(match volume {
        Volume { config_map: Some(_), .. } => "configmaps (via configmap volumes)",
        Volume { secret: Some(_), .. } => "secrets (via secret volumes)",
        Volume { csi: Some(_), .. } => "csidrivers (via CSI volumes)",
        Volume { glusterfs: Some(_), .. } => "endpoints (via glusterFS volumes)",
        Volume { persistent_volume_claim: Some(_), .. } => "persistentvolumeclaims",
        Volume { ephemeral: Some(_), .. } => "persistentvolumeclaims (via ephemeral volumes)",
        Volume { azure_file: Some(_), .. } => "secrets (via azureFile volumes)",
        Volume { projected: Some(projected), .. } => {
            return projected.sources.iter().flatten().find_map(|source| {
                Some(match source {
                    VolumeProjection { config_map: Some(_), .. } => "configmaps (via projected volumes)",
                    VolumeProjection { secret: Some(_), .. } => "secrets (via projected volumes)",
                    VolumeProjection { service_account_token: Some(_), .. } => {
                        "serviceaccounts (via projected volumes)"
                    }
                    VolumeProjection { cluster_trust_bundle: Some(_), .. } => "clustertrustbundles",
                    VolumeProjection { pod_certificate: Some(_), .. } => "podcertificates",
                    _ => return None,
                })
            });
        }
        _ => return None,
    })
}

fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let body = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        body && !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> ManifestFile {
        pods(Path::new("/m/a.yaml"), text, "Node")
    }

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwork: true\n  containers:\n  - {name: c, image: nginx, ports: [{containerPort: 80}]}\n";

    #[test]
    fn a_manifest_becomes_what_the_api_would_have_made_of_it() {
        let pod = read(POD).pods.remove(0);
        assert_eq!((spec::name(&pod), spec::namespace(&pod)), ("web-node", "default"));
        assert_eq!(spec::uid(&pod).len(), 32);
        assert_eq!(spec::annotation(&pod, spec::CONFIG_HASH_ANNOTATION), Some(spec::uid(&pod)));
        assert!(spec::is_static(&pod));
        let value = serde_json::to_value(&pod).unwrap();
        for (pointer, wanted) in [
            ("/spec/nodeName", json!("Node")),
            ("/spec/restartPolicy", json!("Always")),
            ("/spec/terminationGracePeriodSeconds", json!(30)),
            ("/spec/enableServiceLinks", json!(true)),
            ("/spec/containers/0/imagePullPolicy", json!("Always")),
            ("/spec/containers/0/ports/0/protocol", json!("TCP")),
            ("/spec/containers/0/ports/0/hostPort", json!(80)),
            ("/spec/containers/0/terminationMessagePath", json!("/dev/termination-log")),
            ("/spec/tolerations/0/effect", json!("NoExecute")),
        ] {
            assert_eq!(value.pointer(pointer), Some(&wanted), "{pointer}");
        }
    }

    #[test]
    fn a_changed_manifest_is_another_pod_unless_it_gives_a_uid() {
        let uid = |text: &str| spec::uid(&read(text).pods[0]).to_owned();
        assert_eq!(uid(POD), uid(&format!("# a comment\n{POD}")));
        assert_ne!(uid(POD), uid(&POD.replace("nginx", "nginx:2")));
        let own = POD.replace("name: web", "name: web, uid: mine-1");
        assert_eq!(uid(&own), "mine-1");
        let other = own.replace("nginx", "nginx:2");
        assert_ne!(manifest_hash(&read(&own).pods[0]), manifest_hash(&read(&other).pods[0]));
    }

    #[test]
    fn invalid_documents_are_reported_with_their_line() {
        for (text, wanted) in [
            ("apiVersion: v1\nkind: Service\nmetadata: {name: s}\n", "line 1: Service s is no pod"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: 1}\n", "cannot be read as a pod"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n", "spec.containers is empty"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: P_}\nspec: {containers: [{name: c, image: x}]}\n",
                "metadata.name",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: p, uid: ../x}\nspec: {containers: [{name: c, image: x}]}\n",
                "metadata.uid",
            ),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n", "has no image"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x}, {name: c, image: x}]}\n",
                "two containers",
            ),
            ("kind: [", "line 1"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x}], volumes: [{name: v, secret: {secretName: s}}]}\n",
                "static pods may not reference secrets (via secret volumes)",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x, envFrom: [{configMapRef: {name: m}}]}]}\n",
                "static pods may not reference configmaps",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {serviceAccountName: me, containers: [{name: c, image: x}]}\n",
                "static pods may not reference serviceaccounts",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x}], volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]}\n",
                "static pods may not reference serviceaccounts (via projected volumes)",
            ),
        ] {
            let read = read(text);
            assert!(read.pods.is_empty(), "{text}");
            assert!(read.problems[0].contains(wanted), "{text}: {:?}", read.problems);
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "\\PC{0,80}", tail in "\\PC{0,40}") {
            let _ = (read(&text), read(&format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {tail}\n")));
        }
    }
}
