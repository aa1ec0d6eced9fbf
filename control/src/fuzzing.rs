//! Entry points of the fuzzers: decoders and patches without a server.

use std::sync::Arc;

use serde_json::Value;
use windlass_apimachinery::schema::Schema;

use crate::{
    kinds::types,
    patch::{self, PatchKind},
    registry::TYPES,
    schema::{self, ContentType},
};

/// Decodes a body of any content type and does with it what precedes storing.
///
/// # Panics
/// When an accepted object cannot be decoded as its kind.
pub fn body(bytes: &[u8]) {
    for content_type in [ContentType::Json, ContentType::Yaml] {
        if let Ok(decoded) = schema::decode(bytes, content_type) {
            object(decoded.value);
        }
    }
}

/// Applies a patch of each type to an object. `text` is a JSON list of the object and the patch.
///
/// # Panics
/// When something that was taken for an object of its kind cannot be read as it.
pub fn patch(text: &[u8]) {
    let Ok(decoded) = schema::decode(text, ContentType::Json) else { return };
    let (current, patch) = (&decoded.value[0], &decoded.value[1]);
    let resource = TYPES.iter().find(|t| current["kind"] == t.gvk.kind);
    let schema = resource.map_or_else(|| Arc::new(Schema::any()), |resource| types::of_kind(&resource.gvk));
    for kind in [PatchKind::Json, PatchKind::Merge, PatchKind::Strategic] {
        let Ok(patched) = patch::apply(kind, &schema, current, patch) else { continue };
        if kind == PatchKind::Merge {
            assert_eq!(
                patch::apply(kind, &schema, &patched, patch).as_ref(),
                Ok(&patched),
                "merging twice is merging once"
            );
        }
        object(patched);
    }
}

fn object(value: Value) {
    let resource = TYPES.iter().find(|t| value["kind"] == t.gvk.kind && value["apiVersion"] == t.gvk.api_version());
    let Some(resource) = resource.filter(|_| value["metadata"].is_object()) else { return };
    let gvk = &resource.gvk;
    let mut made = value;
    // The server ignores this field of clients.
    made["metadata"].as_object_mut().and_then(|metadata| metadata.remove("managedFields"));
    if !schema::unknown_fields(gvk, &made).wrong.is_empty() {
        schema::drop_invalid_fields(gvk, &mut made);
    }
    schema::default(gvk, &mut made);
    let _ = schema::validate_create(gvk, &made);
    let _ = schema::validate_update(gvk, &made, &made);
    let _ = schema::validate_status(gvk, &made, &made);
    let bytes = serde_json::to_vec(&made).unwrap_or_default();
    if let Err(why) = (resource.try_decode)(&bytes) {
        panic!("{} cannot be read: {why}: {made}", gvk.kind);
    }
    let mut again = made.clone();
    schema::prune(gvk, &mut again);
    assert_eq!(again, made, "what is stored is in the form that is stored");
}
