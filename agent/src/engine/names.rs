//! Names and labels of containers, as cri-dockerd writes them, so that either agent can adopt the
//! other's containers. Pure.

use std::collections::HashMap;

pub(crate) const TYPE: &str = "io.kubernetes.docker.type";
pub(crate) const TYPE_SANDBOX: &str = "podsandbox";
pub(crate) const TYPE_CONTAINER: &str = "container";
/// Ours alone: a helper container, which is never started and gives access to the files of its image.
pub(crate) const TYPE_HELPER: &str = "windlass-helper";
pub(crate) const SANDBOX_ID: &str = "io.kubernetes.sandbox.id";
pub(crate) const LOG_PATH: &str = "io.kubernetes.container.logpath";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const HASH: &str = "annotation.io.kubernetes.container.hash";
pub(crate) const RESTART_COUNT: &str = "annotation.io.kubernetes.container.restartCount";
pub(crate) const MESSAGE_PATH: &str = "annotation.io.kubernetes.container.terminationMessagePath";
/// The `terminationMessagePolicy` that falls back to the end of the log.
pub(crate) const FROM_LOG: &str = "FallbackToLogsOnError";
pub(crate) const MESSAGE_POLICY: &str = "annotation.io.kubernetes.container.terminationMessagePolicy";
pub(crate) const PORTS: &str = "annotation.io.kubernetes.container.ports";
pub(crate) const PRE_STOP: &str = "annotation.io.kubernetes.container.preStopHandler";
/// What keys of a pod's annotations begin with as labels of its sandbox.
pub(crate) const ANNOTATION: &str = "annotation.";
pub(crate) const GRACE: &str = "annotation.io.kubernetes.pod.terminationGracePeriod";
/// Ours alone: the address of the sandbox, so that a restart finds it without entering the namespace.
pub(crate) const POD_IP: &str = "io.windlass.pod.ip";
/// Ours alone: the image reference for statuses, since Docker may know the image by other names later.
pub(crate) const IMAGE_SHOWN: &str = "io.windlass.image";
/// The container name of the sandbox.
pub(crate) const SANDBOX_NAME: &str = "POD";

/// What labels begin with that the agent writes, reads again and believes.
const RESERVED: [&str; 2] = ["io.kubernetes.", "io.windlass."];

/// Whether a label is reserved for the agent, so that pods may not set it.
pub(crate) fn is_reserved(label: &str) -> bool {
    let key = label.strip_prefix(ANNOTATION).unwrap_or(label);
    RESERVED.iter().any(|prefix| key.starts_with(prefix))
}

/// Whether a container of this name may belong to a pod.
pub(crate) fn is_pods_name(name: &str) -> bool {
    name.trim_start_matches('/').starts_with("k8s_")
}

/// The pod and container that a Docker container belongs to, from its labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) container: String,
    pub(crate) attempt: u32,
}

impl Identity {
    /// `k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`.
    pub(crate) fn docker_name(&self) -> String {
        format!("k8s_{}_{}_{}_{}_{}", self.container, self.pod, self.namespace, self.uid, self.attempt)
    }

    /// The labels that carry the identity back to us.
    pub(crate) fn labels(&self) -> HashMap<String, String> {
        let kind = if self.container == SANDBOX_NAME { TYPE_SANDBOX } else { TYPE_CONTAINER };
        [
            (TYPE, kind),
            (CONTAINER_NAME, self.container.as_str()),
            (POD_NAME, &self.pod),
            (POD_NAMESPACE, &self.namespace),
            (POD_UID, &self.uid),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
    }

    /// Reads labels and the container's name; `None` for containers not labelled by us. Labels alone are not enough:
    /// a container inherits its image's labels, and one started by hand has another name.
    pub(crate) fn read(name: &str, labels: &HashMap<String, String>) -> Option<Self> {
        if !labels.contains_key(TYPE) || !is_pods_name(name) {
            return None;
        }
        let label = |key: &str| labels.get(key).cloned();
        Some(Self {
            namespace: label(POD_NAMESPACE)?,
            pod: label(POD_NAME)?,
            uid: label(POD_UID)?,
            container: label(CONTAINER_NAME)?,
            attempt: attempt_of(name, labels),
        })
    }
}

/// The attempt: the restart count's label for containers, else the sixth field of the name. A name
/// may have a seventh, random one.
fn attempt_of(name: &str, labels: &HashMap<String, String>) -> u32 {
    labels
        .get(RESTART_COUNT)
        .and_then(|text| text.parse().ok())
        .or_else(|| name.trim_start_matches('/').split('_').nth(5).and_then(|text| text.parse().ok()))
        .unwrap_or(0)
}

/// The hash of the fields whose change recreates a container, its name and image, as the kubelet computes it, so that a
/// container of another agent is adopted: 32 bit FNV-1a of Go's dump of their JSON's bytes.
pub(crate) fn container_hash(name: &str, image: &str) -> String {
    let json = serde_json::json!({"image": image, "name": name}).to_string();
    let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    let dumped = format!("([]uint8)[{}]", bytes.join(" "));
    let hash = dumped.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_survives_the_way_through_docker() {
        let identity = Identity {
            namespace: "default".into(),
            pod: "web-abc".into(),
            uid: "u-1".into(),
            container: "nginx".into(),
            attempt: 3,
        };
        let mut labels = identity.labels();
        labels.insert(RESTART_COUNT.into(), "3".into());
        assert_eq!(identity.docker_name(), "k8s_nginx_web-abc_default_u-1_3");
        assert_eq!(Identity::read("/k8s_nginx_web-abc_default_u-1_3", &labels), Some(identity.clone()));
        assert_eq!(Identity::read("/k8s_nginx_web-abc_default_u-1_3_00ff00ff", &labels), Some(identity));
        assert_eq!(Identity::read("/somebody", &HashMap::new()), None);
        assert_eq!(Identity::read("/somebody", &labels), None, "its image has such labels");
    }

    #[test]
    fn a_sandbox_counts_by_its_name() {
        let sandbox = Identity {
            namespace: "n".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: SANDBOX_NAME.into(),
            attempt: 2,
        };
        assert_eq!(sandbox.labels().get(TYPE).map(String::as_str), Some(TYPE_SANDBOX));
        assert_eq!(Identity::read("k8s_POD_p_n_u_2", &sandbox.labels()).map(|i| i.attempt), Some(2));
    }

    #[test]
    fn every_label_that_is_read_is_reserved() {
        for label in [
            TYPE,
            SANDBOX_ID,
            LOG_PATH,
            CONTAINER_NAME,
            POD_NAME,
            POD_NAMESPACE,
            POD_UID,
            HASH,
            RESTART_COUNT,
            MESSAGE_PATH,
            MESSAGE_POLICY,
            PORTS,
            PRE_STOP,
            GRACE,
            POD_IP,
            IMAGE_SHOWN,
        ] {
            assert!(is_reserved(label), "{label}");
        }
        for label in ["app", "kubernetes.io/name", "annotation.kubernetes.io/config.hash", "io.kubernetes"] {
            assert!(!is_reserved(label), "{label}");
        }
    }

    #[test]
    fn the_hash_is_upstreams() {
        assert_eq!(container_hash("test_container", "foo/image:v1"), "8e45cbd0");
        assert_eq!(container_hash("c", "i:1"), container_hash("c", "i:1"));
        assert_ne!(container_hash("c", "i:1"), container_hash("c", "i:2"));
        assert_ne!(container_hash("ab", "c"), container_hash("a", "bc"));
    }
}
