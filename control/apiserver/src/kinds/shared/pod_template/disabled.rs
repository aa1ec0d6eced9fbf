//! Fields whose gates are off in 1.36 (upstream: `dropDisabledFields`): no component uses them, so they are dropped.
//! Pure.

use serde_json::Value;

/// What a source of a projected volume may be made of, elsewhere.
const PROJECTIONS: [&str; 2] = ["clusterTrustBundle", "podCertificate"];

/// Removes the fields from a spec, unless the stored one has them.
pub(crate) fn drop_disabled(spec: &mut Value, old: Option<&Value>) {
    let old = old.unwrap_or(&Value::Null);
    if old["schedulingGroup"].is_null()
        && let Some(fields) = spec.as_object_mut()
    {
        fields.remove("schedulingGroup");
    }
    for kind in PROJECTIONS {
        let volumes = old["volumes"].as_array().into_iter().flatten();
        let mut sources = volumes.flat_map(|volume| volume["projected"]["sources"].as_array().into_iter().flatten());
        if sources.any(|source| !source[kind].is_null()) {
            continue;
        }
        for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
            let sources = volume.pointer_mut("/projected/sources").and_then(Value::as_array_mut);
            for source in sources.into_iter().flatten().filter_map(Value::as_object_mut) {
                source.remove(kind);
            }
        }
    }
}
