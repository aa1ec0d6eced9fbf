//! Entry points of the fuzzers: decoders and patches without a server.

use std::{
    net::Ipv4Addr,
    sync::{Arc, LazyLock},
};

pub(crate) mod client_types;

pub use crate::{apiextensions::fuzzing::printer_columns, plugin::audit::fuzzing::policy as audit_policy};

use serde_json::{Value, json};
use windlass_apimachinery::group_version::GroupVersion;
use windlass_apimachinery::{
    managed_fields::{self, FieldSet, Managers, OneVersion, Request, Type},
    patch::{self, PatchKind},
    schema::Schema,
    selectors::{FieldSelector, LabelSelector, label_selector_text},
};

use crate::{
    apiserver::{
        self,
        pipeline::validation::{Validation, errors::Errors, names},
        types::Catalog,
    },
    control_plane::instance::{ApiConfig, Instance},
    kinds,
    schema::{self, ContentType, transcoding},
    store::Memory,
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
    let catalog = catalog();
    let version = catalog.all().find(|version| current["kind"] == *version.gvk.kind);
    let schema = version.map_or_else(|| Arc::new(Schema::any()), |version| Arc::clone(version.spec.schema.node()));
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

/// Does with an object that has owners what precedes storing. `text` is a JSON list, as of `metadata.managedFields`.
///
/// # Panics
/// When the object is another one after its way through protobuf.
pub fn owners(text: &[u8]) {
    let Ok(decoded) = schema::decode(text, ContentType::Json) else { return };
    let metadata = json!({"name": "o", "managedFields": decoded.value});
    object(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
}

/// Has two managers apply objects one after the other, as an apply patch does. `text` is a JSON list of the first and the
/// second object of the same kind.
///
/// # Panics
/// When applying again what is applied changes something, or the owners cannot be read back.
pub fn applies(text: &[u8]) {
    let Ok(decoded) = schema::decode(text, ContentType::Json) else { return };
    let (first, second) = (&decoded.value[0], &decoded.value[1]);
    let catalog = catalog();
    let Some(version) = catalog.all().find(|version| first["kind"] == *version.gvk.kind) else { return };
    let (node, object_meta) = (version.spec.schema.node(), kinds::types::schema("meta/v1.ObjectMeta"));
    let (api_version, reset) = (version.gvk.api_version(), FieldSet::default());
    let request = |manager| Request {
        ty: Type::new(node, &object_meta),
        api_version: &api_version,
        subresource: "",
        reset: &reset,
        versions: &OneVersion,
        manager,
        now: "2026-01-01T00:00:00Z",
    };
    // What is stored is canonical and has defaults, as the pipeline makes it between two writes.
    let stored = |mut object: Value| {
        // The pipeline refuses what does not fit the type.
        version.spec.schema.check_decodable(&object).ok()?;
        apiserver::default(version, &mut object);
        Some(object)
    };
    let Ok(live) = managed_fields::apply(&request("first"), &json!({}), first, false) else { return };
    let Some(live) = stored(live) else { return };
    let Ok(both) = managed_fields::apply(&request("second"), &live, second, true) else { return };
    let Some(both) = stored(both) else { return };
    let owners = &both["metadata"]["managedFields"];
    assert!(Managers::decode(owners).is_ok(), "the owners cannot be read: {owners}");
    // As in upstream: an item whose key a default has changed is applied as another one the next time, and so may be one
    // without its key, which the pipeline refuses.
    let (ty, mut errors) = (Type::new(node, &object_meta), Errors::default());
    version.strategy.validate(&both, &mut errors);
    version.strategy.validate_create(&both, &mut errors);
    if !errors.0.is_empty() || !ty.to_set(second).difference(&ty.to_set(&both)).is_empty() {
        return;
    }
    if let Ok(again) = managed_fields::apply(&request("second"), &both, second, true) {
        assert_eq!(stored(again), Some(both), "applying twice is applying once");
    }
}

/// Parses text as the label selector of a query, as the field selector of each type and as a LabelSelector in JSON.
///
/// # Panics
/// When a LabelSelector matches other labels than its text in a query does.
pub fn selectors(text: &str) {
    static LABELS: LazyLock<Value> = LazyLock::new(|| json!({"a": "b", "app": "web", "n": "5", "x.y/z": ""}));
    if let Ok(selector) = LabelSelector::parse(text) {
        let _ = selector.matches_labels(&LABELS);
    }
    for version in catalog().all() {
        let selectable = Some(version.spec.selectable.as_slice());
        if let Ok(selector) = FieldSelector::parse(text, selectable) {
            let _ = selector.matches(&json!({"metadata": {"name": text}}));
        }
    }
    let Ok(decoded) = schema::decode(text.as_bytes(), ContentType::Json) else { return };
    let Ok(selector) = LabelSelector::from_label_selector(&decoded.value) else { return };
    // Labels that the API refuses have no form in a query, or that of others.
    let Ok(of_text) = LabelSelector::parse(&label_selector_text(&decoded.value)) else { return };
    if !is_valid_selector(&decoded.value) {
        return;
    }
    assert_eq!(selector.matches_labels(&LABELS), of_text.matches_labels(&LABELS), "{}", decoded.value);
}

/// Whether the API would store a LabelSelector: its keys and values are those of labels.
fn is_valid_selector(selector: &Value) -> bool {
    let fits =
        |text: &Value, wrong: fn(&str) -> Option<String>| text.as_str().is_some_and(|text| wrong(text).is_none());
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    labels.into_iter().all(|(key, value)| names::qualified(key).is_none() && fits(value, names::label_value))
        && expressions.all(|expression| {
            let mut values = expression["values"].as_array().into_iter().flatten();
            fits(&expression["key"], names::qualified) && values.all(|value| fits(value, names::label_value))
        })
}

/// The built-in types.
fn catalog() -> Arc<Catalog> {
    static CATALOG: LazyLock<Option<Arc<Catalog>>> = LazyLock::new(|| {
        let store = kinds::open_store(Box::new(Memory::default())).ok()?;
        let config = ApiConfig::new((Ipv4Addr::new(10, 96, 0, 0), 24), 30000..=30009);
        Some(Instance::new(&store, &config, None, None).api.catalogs().current())
    });
    CATALOG.clone().unwrap_or_default()
}

/// The built-in versions whose objects are stored.
#[cfg(test)]
pub(crate) fn stored_versions() -> Vec<Arc<crate::apiserver::types::Version>> {
    catalog().all().filter(|version| version.id().is_some()).cloned().collect()
}

fn object(value: Value) {
    let (group_version, kind) = (value["apiVersion"].clone(), value["kind"].clone());
    let (group_version, kind) = (group_version.as_str().unwrap_or(""), kind.as_str().unwrap_or(""));
    let group = GroupVersion::parse(group_version).group;
    let catalog = catalog();
    let version = catalog.of_kind(group, kind).iter().find(|v| v.gvk.api_version() == group_version);
    let Some(version) = version.filter(|v| v.id().is_some() && value["metadata"].is_object()) else { return };
    let of_version = &version.spec.schema;
    let mut made = value;
    // Owners are stored as the server writes them, and none where they cannot be read.
    let owners = Managers::decode(&made["metadata"]["managedFields"]).ok().and_then(|managers| managers.encode());
    if let Some(metadata) = made["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.extend(owners.map(|owners| ("managedFields".to_owned(), owners)));
    }
    if !of_version.check(&made).wrong.is_empty() {
        of_version.drop_invalid_fields(&mut made);
    }
    apiserver::default(version, &mut made);
    let _ = Validation::of_new(version, &made).run();
    let _ = Validation::of_change(version, &made, &made).run();
    let _ = Validation::of_status(version, &made, &made).run();
    let bytes = serde_json::to_vec(&made).unwrap_or_default();
    if let Err(why) = client_types::decode(group_version, kind, &bytes) {
        panic!("{kind} cannot be read: {why}: {made}");
    }
    let mut again = made.clone();
    of_version.prune(&mut again);
    assert_eq!(again, made, "what is stored is in the form that is stored");
    let protobuf = match transcoding::to_protobuf(&bytes) {
        Ok(protobuf) => protobuf,
        Err(transcoding::Error::NoProtobuf) => return,
        Err(why) => panic!("{kind} has no form in protobuf: {why}: {made}"),
    };
    match schema::decode_protobuf(&protobuf) {
        Ok(decoded) => {
            let mut back = decoded.value;
            of_version.prune(&mut back);
            let owners = |object: &Value| object["metadata"]["managedFields"].clone();
            assert_eq!(owners(&back), owners(&made), "owners are the same after their way through protobuf");
            // An empty struct may be absent from JSON, and never is from protobuf.
            let again = transcoding::to_protobuf(back.to_string().as_bytes()).map_err(|why| why.to_string());
            assert_eq!(again, Ok(protobuf), "an object is the same after its way through protobuf");
        }
        Err(why) => panic!("{kind} cannot be read in protobuf: {why}: {made}"),
    }
}
