//! VolumeAttachment. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::set;

use super::csi_node::driver_name;
use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Column, Definition, Resource, Subresource, VersionSpec, keep_metadata, status_keeps_metadata},
    },
    kinds::{
        core::persistent_volume::validate_inline,
        shared::{
            cells::text,
            field::{Field, IMMUTABLE},
            tables::{AGE, column, flag, named},
        },
        types,
    },
};

const MAX_BYTES: usize = 256 * 1024;
const MAX_MESSAGE_BYTES: usize = 1024;
const SOURCE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("storage.k8s.io", "volumeattachments", "VolumeAttachment", VolumeAttachment);
    resource.namespaced = false;
    resource.returns_deleted = true;
    resource.allow_unconditional_update = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("storage.k8s.io/v1", "VolumeAttachment"));
    v1.subresources = vec![Subresource::status()];
    let columns = vec![
        Column { format: "name".into(), ..column("Attacher", "Who attaches it.") },
        column("PV", "The volume."),
        column("Node", "Where it is attached."),
        flag("Attached", "Whether it is attached."),
        AGE,
    ];
    v1.table = named(columns, |object, age| {
        let (spec, status) = (&object["spec"], &object["status"]);
        vec![
            spec["attacher"].clone(),
            json!(text(&spec["source"]["persistentVolumeName"])),
            spec["nodeName"].clone(),
            json!(status["attached"] == true),
            json!(age),
        ]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct VolumeAttachment;

impl Strategy for VolumeAttachment {
    fn default(&self, object: &mut Map<String, Value>) {
        let inline = object.get_mut("spec").and_then(|spec| spec.pointer_mut("/source/inlineVolumeSpec/hostPath"));
        if let Some(path) = inline.and_then(Value::as_object_mut) {
            set(path, "type", json!(""));
        }
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_metadata(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        status_keeps_metadata(subresource)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        driver_name(&spec.at("attacher"), errors);
        let source = spec.at("source");
        let (inline, volume) = (source.at("inlineVolumeSpec"), source.at("persistentVolumeName"));
        match (inline.is_set(), volume.is_set()) {
            (false, false) => source.required(SOURCE, errors),
            (true, true) => source.forbidden(SOURCE, errors),
            (false, true) if volume.text().is_empty() => {
                volume.required("must specify non empty persistentVolumeName", errors);
            }
            (true, false) => validate_inline(&inline, errors),
            _ => {}
        }
        spec.at("nodeName").fits(names::subdomain, errors);
        if volume.is_set() {
            volume.fits(names::subdomain, errors);
        }
        validate_status(&Field::root(object).at("status"), errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let spec = Field::root(new).at("spec");
        if spec.value != &old["spec"] {
            // Upstream writes its internal type, in the order of its fields.
            let source = spec.at("source");
            let fields = [("PersistentVolumeName", "persistentVolumeName"), ("InlineVolumeSpec", "inlineVolumeSpec")];
            let (attacher, node, source) = (spec.at("attacher"), spec.at("nodeName"), source.internal(&fields));
            let shown = format!("{{\"Attacher\":{},\"Source\":{source},\"NodeName\":{}}}", attacher.value, node.value);
            spec.invalid_as(&shown, IMMUTABLE, errors);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        validate_status(&Field::root(new).at("status"), errors);
    }
}

fn validate_status(status: &Field<'_>, errors: &mut Errors) {
    let metadata = status.at("attachmentMetadata");
    let size: usize = metadata.entries().map(|(key, value)| key.len() + value.text().len()).sum();
    if size > MAX_BYTES {
        errors.too_long(metadata.path, MAX_BYTES);
    }
    for error in ["attachError", "detachError"].map(|field| status.at(field)) {
        if error.at("message").text().len() > MAX_MESSAGE_BYTES {
            errors.too_long(error.at("message").path, MAX_BYTES);
        }
        if error.at("errorCode").number().is_some_and(|code| code < 0) {
            error.at("errorCode").invalid("must be between 0 and 2147483647, inclusive", errors);
        }
    }
}
