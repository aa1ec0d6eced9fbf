//! Event of `events.k8s.io`: the events of the core group, with other names of fields. Pure.

use serde_json::{Value, json};
use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        types::{Conversion, Definition, GcPolicy, Resource, Storage, Table, VersionSpec},
        validation::{
            errors::{Errors, text},
            names,
        },
    },
    kinds::{core::event, types},
};

/// Fields of this group and of the stored form.
const FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("events.k8s.io", "events", "Event", Event);
    resource.short_names = vec!["ev".into()];
    resource.create_on_update = true;
    resource.relaxed_durability = event::DURABILITY;
    resource.gc = GcPolicy::Unsupported;
    resource.storage = Storage::Store { name: "events".into(), api_version: "v1".to_owned() };
    let mut v1 = VersionSpec::new("v1", types::built_in("events.k8s.io/v1", "Event"));
    v1.conversion = Conversion::Fn { from_storage, to_storage };
    v1.selectable = [
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ]
    .map(SelectableField::path)
    .to_vec();
    let stored = event::table();
    let row = stored.row;
    v1.table = Table {
        columns: stored.columns,
        row: Box::new(move |object, now| {
            let mut object = object.clone();
            to_storage(&mut object);
            row(&object, now)
        }),
    };
    Definition::single(resource, v1)
}

fn rename(object: &mut Value, names: impl Iterator<Item = (&'static str, &'static str)>) {
    let Some(fields) = object.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

fn from_storage(object: &mut Value) {
    rename(object, FIELDS.into_iter().map(|(own, stored)| (stored, own)));
}

fn to_storage(object: &mut Value) {
    rename(object, FIELDS.into_iter());
    // Typed clients cannot do without it.
    if let Some(fields) = object.as_object_mut() {
        fields.entry("involvedObject").or_insert_with(|| json!({}));
    }
}

/// Upstream's limits.
const MAX_NAME_BYTES: usize = 128;
const MAX_NOTE_BYTES: usize = 1024;

#[derive(Debug)]
struct Event;

impl Strategy for Event {
    fn validate_name(&self, name: &str) -> Option<String> {
        event::Event.validate_name(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let about = text(&object["regarding"], "namespace");
        if !about.is_empty() && about != text(&object["metadata"], "namespace") {
            errors.invalid_text("involvedObject.namespace", about, "does not match event.namespace");
        }
        if object["eventTime"].is_null() {
            errors.required("eventTime", "");
        }
        let controller = text(object, "reportingController");
        if controller.is_empty() {
            errors.required("reportingController", "");
        } else {
            errors.unless("reportingController", controller, names::qualified(controller));
        }
        for field in ["reportingInstance", "action", "reason"] {
            match text(object, field).len() {
                0 => errors.required(field, ""),
                length if length > MAX_NAME_BYTES => {
                    let why = format!("can have at most {MAX_NAME_BYTES} characters");
                    errors.invalid_text(field, "", &why);
                }
                _ => {}
            }
        }
        if text(object, "note").len() > MAX_NOTE_BYTES {
            errors.invalid_text("note", "", &format!("can have at most {MAX_NOTE_BYTES} characters"));
        }
        if !matches!(text(object, "type"), "Normal" | "Warning") {
            errors.invalid_text("type", "", &format!("has invalid value: {}", text(object, "type")));
        }
    }
}
