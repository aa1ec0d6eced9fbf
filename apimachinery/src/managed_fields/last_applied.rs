//! Objects that were applied by clients before: their configuration is in an annotation.
//!
//! An apply by `kubectl` takes over, without conflict, what that annotation says kubectl applied, and keeps the annotation
//! up to date. Upstream: `managedfields/internal/lastappliedmanager.go`, `lastappliedupdater.go`.

use serde_json::Value;

use super::{
    ApplyError, Request, conflict::Conflicts, managers::Managers, record_apply, set::FieldSet, typed::Duplicates,
};

/// The annotation of kubectl's client-side apply.
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager whose applies follow client-side ones.
const KUBECTL: &str = "kubectl";
/// Bytes of all annotations of an object; a longer last applied configuration is left out.
const MAX_ANNOTATIONS_BYTES: usize = 256 << 10;

/// Applies by force if all conflicts are with the last applied configuration. Otherwise returns the other conflicts.
pub(super) fn resolve(
    request: &Request<'_>,
    live: &Value,
    applied: &Value,
    managers: &mut Managers,
    conflicts: Conflicts,
) -> Result<Value, ApplyError> {
    let allowed = if request.manager == KUBECTL { allowed_conflicts(request, live) } else { None };
    let Some(allowed) = allowed else { return Err(ApplyError::Conflicts(conflicts)) };
    let Conflicts(mut rest) = conflicts;
    rest.retain(|conflict| !allowed.has(&conflict.path.0));
    if !rest.is_empty() {
        return Err(ApplyError::Conflicts(Conflicts(rest)));
    }
    Ok(record_apply(request, live, applied, managers, true)?)
}

/// The fields of the last applied configuration that still have its values.
fn allowed_conflicts(request: &Request<'_>, live: &Value) -> Option<FieldSet> {
    let text = annotation(live)?;
    let last: Value = serde_json::from_str(text).ok()?;
    if last["apiVersion"].as_str() != Some(request.api_version) {
        return None;
    }
    request.ty.check(&last, Duplicates::Refused).ok()?;
    let comparison = request.ty.compare(&last, live);
    let fields = request.ty.to_set(&last);
    Some(fields.difference(&comparison.modified).difference(&comparison.added).difference(&comparison.removed))
}

/// Writes what `kubectl` applied into the annotation, where the object has it.
pub(super) fn refresh(request: &Request<'_>, applied: &Value, new: &mut Value) {
    if request.manager != KUBECTL || annotation(new).is_none() {
        return;
    }
    let mut last = applied.clone();
    if let Some(annotations) = last.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let mut text = crate::go_json(&last);
    text.push('\n');
    let Some(annotations) = new.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    annotations.insert(ANNOTATION.to_owned(), Value::String(text));
    let bytes: usize = annotations.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > MAX_ANNOTATIONS_BYTES {
        annotations.remove(ANNOTATION);
    }
}

fn annotation(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION].as_str().filter(|text| !text.is_empty())
}
