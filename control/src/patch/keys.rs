//! Which lists are merged item by item, and by which key: upstream's table for the kinds that are served.
//!
//! A list is named by its field and by the field that holds it (`containers` in `spec`); the root's holder is
//! empty. A list that is not here is replaced as a whole.

/// The key of a list in a strategic merge patch.
#[must_use]
pub fn merge_key(holder: &str, field: &str) -> Option<&'static str> {
    list_keys(holder, field).first().copied().or(match (holder, field) {
        // Merged by address in a patch, though one whole for server-side apply.
        ("status", "hostIPs") => Some("ip"),
        _ => None,
    })
}

/// The keys that tell a list's items apart in server-side apply; empty for a list that is one whole.
#[must_use]
pub fn list_keys(holder: &str, field: &str) -> &'static [&'static str] {
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "env"
        | "schedulingGates"
        | "resourceClaimStatuses" => &["name"],
        "volumes" | "imagePullSecrets" | "resourceClaims" if holder == "spec" => &["name"],
        "secrets" if holder.is_empty() => &["name"],
        "volumeMounts" => &["mountPath"],
        "volumeDevices" => &["devicePath"],
        "hostAliases" | "podIPs" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey", "whenUnsatisfiable"],
        "conditions" => &["type"],
        "addresses" if holder == "status" => &["type"],
        "ownerReferences" => &["uid"],
        "ports" if is_container(holder) => &["containerPort", "protocol"],
        "ports" if holder == "spec" => &["port", "protocol"],
        _ => &[],
    }
}

/// What a key's field counts as where it is missing.
pub(super) fn key_default(key: &str) -> Option<&'static str> {
    (key == "protocol").then_some("TCP")
}

/// Lists of plain values that are merged as sets.
#[must_use]
pub fn is_set(holder: &str, field: &str) -> bool {
    matches!((holder, field), ("metadata", "finalizers") | ("spec", "podCIDRs"))
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

/// Fields of which an item may have one only; setting one takes the others away.
pub(super) fn alternatives(holder: &str) -> &'static [&'static str] {
    match holder {
        "env" => &["value", "valueFrom"],
        "livenessProbe" | "readinessProbe" | "startupProbe" => &["exec", "grpc", "httpGet", "tcpSocket"],
        "postStart" | "preStop" => &["exec", "httpGet", "sleep", "tcpSocket"],
        _ => &[],
    }
}

fn is_container(holder: &str) -> bool {
    matches!(holder, "containers" | "initContainers" | "ephemeralContainers")
}
