//! The types that the fake serves, and its discovery documents.

use kube::api::ApiResource;
use serde_json::{Value, json};

/// Group, version, kind, plural, namespaced.
pub(super) const KINDS: &[(&str, &str, &str, &str, bool)] = &[
    ("", "v1", "Pod", "pods", true),
    ("", "v1", "ReplicationController", "replicationcontrollers", true),
    ("", "v1", "Service", "services", true),
    ("", "v1", "Endpoints", "endpoints", true),
    ("", "v1", "ConfigMap", "configmaps", true),
    ("", "v1", "Secret", "secrets", true),
    ("", "v1", "ServiceAccount", "serviceaccounts", true),
    ("", "v1", "Event", "events", true),
    ("", "v1", "Namespace", "namespaces", false),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("", "v1", "PersistentVolume", "persistentvolumes", false),
    ("", "v1", "Node", "nodes", false),
    ("", "v1", "ResourceQuota", "resourcequotas", true),
    ("batch", "v1", "CronJob", "cronjobs", true),
    ("batch", "v1", "Job", "jobs", true),
    ("apps", "v1", "Deployment", "deployments", true),
    ("apps", "v1", "ReplicaSet", "replicasets", true),
    ("apps", "v1", "ControllerRevision", "controllerrevisions", true),
    ("apps", "v1", "DaemonSet", "daemonsets", true),
    ("apps", "v1", "StatefulSet", "statefulsets", true),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", true),
    ("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", false),
    ("coordination.k8s.io", "v1", "Lease", "leases", true),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", false),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", false),
    ("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", false),
    ("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", true),
    ("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", true),
    ("networking.k8s.io", "v1", "IPAddress", "ipaddresses", false),
    ("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", false),
    (CUSTOM.0, "v1", "Widget", CUSTOM.1, true),
];
/// Group and plural of a type that discovery shows only while [`FakeApi::serve_custom`] says so.
const CUSTOM: (&str, &str) = ("example.com", "widgets");

/// That type.
pub(crate) fn custom() -> ApiResource {
    ApiResource {
        group: CUSTOM.0.into(),
        version: "v1".into(),
        api_version: format!("{}/v1", CUSTOM.0),
        kind: "Widget".into(),
        plural: CUSTOM.1.into(),
    }
}

pub(super) fn discovery(path: &str, serves_custom: bool) -> Option<Value> {
    let list = |group: &str| {
        let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let found = KINDS.iter().filter(|k| k.0 == group);
        let resources: Vec<Value> = found
            .map(|k| json!({"name": k.3, "singularName": "", "namespaced": k.4, "kind": k.2, "verbs": verbs}))
            .collect();
        json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
    };
    let group = |name: &str| {
        let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
        json!({"name": name, "versions": [version], "preferredVersion": version})
    };
    match path {
        "/api/v1" => Some(list("")),
        "/apis" | "/apis/" => {
            let mut groups = [
                "apps",
                "batch",
                "coordination.k8s.io",
                "discovery.k8s.io",
                "networking.k8s.io",
                "rbac.authorization.k8s.io",
                "resource.k8s.io",
            ]
            .map(group)
            .to_vec();
            groups.extend(serves_custom.then(|| group(CUSTOM.0)));
            Some(json!({"kind": "APIGroupList", "groups": groups}))
        }
        "/apis/example.com/v1" if serves_custom => Some(list(CUSTOM.0)),
        "/apis/batch/v1" => Some(list("batch")),
        "/apis/apps/v1" => Some(list("apps")),
        "/apis/coordination.k8s.io/v1" => Some(list("coordination.k8s.io")),
        "/apis/discovery.k8s.io/v1" => Some(list("discovery.k8s.io")),
        "/apis/networking.k8s.io/v1" => Some(list("networking.k8s.io")),
        "/apis/resource.k8s.io/v1" => Some(list("resource.k8s.io")),
        "/apis/rbac.authorization.k8s.io/v1" => Some(list("rbac.authorization.k8s.io")),
        _ => None,
    }
}
