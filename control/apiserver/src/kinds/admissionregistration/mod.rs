//! Kinds of the group `admissionregistration.k8s.io`. Expressions are compiled when they are written.

pub(crate) mod bindings;
mod json_path;
pub(crate) mod policies;
mod rules;
pub(crate) mod webhooks;

/// The warning about a name that upstream reserves for configurations in files.
fn name_warning(object: &serde_json::Value) -> Option<String> {
    const SUFFIX: &str = ".static.k8s.io";
    let is_kept = object["metadata"]["name"].as_str().is_some_and(|name| name.ends_with(SUFFIX));
    let why = "are reserved for static manifest-based configurations and cannot be managed via the API";
    is_kept.then(|| format!("metadata.name: names ending with {SUFFIX:?} {why}"))
}
