//! Merge keys of lists, as in upstream's types.
//!
//! A list is identified by its field and its parent field (`containers` in `spec`); the parent of a root field is
//! empty. Other lists are atomic.

/// The key of a list in a strategic merge patch.
#[must_use]
pub fn merge_key(parent: &str, field: &str) -> Option<&'static str> {
    list_keys(parent, field).first().copied().or(match (parent, field) {
        // Merged by address in a patch, though atomic in server-side apply.
        ("status", "hostIPs") => Some("ip"),
        _ => None,
    })
}

/// The list-map keys in server-side apply; empty for an atomic list.
#[must_use]
pub fn list_keys(parent: &str, field: &str) -> &'static [&'static str] {
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "env"
        | "schedulingGates"
        | "resourceClaimStatuses" => &["name"],
        "volumes" | "imagePullSecrets" | "resourceClaims" if parent == "spec" => &["name"],
        "secrets" if parent.is_empty() => &["name"],
        "volumeMounts" => &["mountPath"],
        "volumeDevices" => &["devicePath"],
        "hostAliases" | "podIPs" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey", "whenUnsatisfiable"],
        "conditions" => &["type"],
        "addresses" if parent == "status" => &["type"],
        "ownerReferences" => &["uid"],
        "ports" if is_container(parent) => &["containerPort", "protocol"],
        "ports" if parent == "spec" => &["port", "protocol"],
        _ => &[],
    }
}

/// The default of a missing key field.
pub(super) fn key_default(key: &str) -> Option<&'static str> {
    (key == "protocol").then_some("TCP")
}

/// Lists of scalars that are merged as sets.
#[must_use]
pub fn is_set(parent: &str, field: &str) -> bool {
    matches!((parent, field), ("metadata", "finalizers") | ("spec", "podCIDRs"))
}

/// Lists whose items keep only the fields that a patch names with `$retainKeys`.
#[must_use]
pub fn retains_keys(field: &str) -> bool {
    matches!(field, "volumes" | "resourceClaims" | "resourceClaimStatuses")
}

/// Maps that server-side apply replaces as a whole.
#[must_use]
pub fn is_atomic_map(field: &str) -> bool {
    matches!(
        field,
        "selector"
            | "nodeSelector"
            | "labelSelector"
            | "configMapKeyRef"
            | "secretKeyRef"
            | "fieldRef"
            | "resourceFieldRef"
            | "nodeSelectorTerms"
    )
}

/// Mutually exclusive fields: setting one removes the others.
pub(super) fn alternatives(parent: &str) -> &'static [&'static str] {
    match parent {
        "env" => &["value", "valueFrom"],
        "livenessProbe" | "readinessProbe" | "startupProbe" => &["exec", "grpc", "httpGet", "tcpSocket"],
        "postStart" | "preStop" => &["exec", "httpGet", "sleep", "tcpSocket"],
        _ => &[],
    }
}

fn is_container(parent: &str) -> bool {
    matches!(parent, "containers" | "initContainers" | "ephemeralContainers")
}
