//! Event of `events.k8s.io`: the events of the core group, with other names of fields. Pure.

use serde_json::{Value, json};
use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Conversion, Definition, GcPolicy, Resource, Storage, Table, VersionSpec},
    },
    kinds::{
        core::event,
        shared::field::{Field, IMMUTABLE, immutable},
        types,
    },
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

/// Fields of older events, by their stored names.
const OLD: [&str; 3] = ["firstTimestamp", "lastTimestamp", "count"];

#[derive(Debug)]
struct Event;

impl Strategy for Event {
    fn validate_create(&self, object: &Value, errors: &mut Errors) {
        let mut stored = object.clone();
        to_storage(&mut stored);
        event::validate(&stored, "reportingController", errors);
        let own = Field::root(&stored);
        series(&own.at("series"), errors);
        if !event::has_time(&own.at("eventTime")) {
            own.at("eventTime").required("", errors);
        }
        if !matches!(own.at("type").text(), "Normal" | "Warning") {
            errors.invalid_text("type", "", &format!("has invalid value: {}", own.at("type").text()));
        }
        let source = own.at("source");
        let has_source = ["component", "host"].iter().any(|field| !source.at(field).is_empty());
        let old = OLD.iter().filter(|field| own.at(field).is_set() && own.at(field).value != &json!(0));
        for field in old.copied().chain(has_source.then_some("source")) {
            errors.invalid_text(field, "", "needs to be unset");
        }
    }

    /// Only the series of an event changes.
    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let (mut new, mut old) = (new.clone(), old.clone());
        to_storage(&mut new);
        to_storage(&mut old);
        event::validate(&new, "reportingController", errors);
        if new["series"] != old["series"] {
            series(&Field::root(&new).at("series"), errors);
        }
        const FIXED: [&str; 6] = ["reason", "message", "source", "firstTimestamp", "lastTimestamp", "count"];
        let about = Field::root(&new).at("involvedObject");
        if *about.value != old["involvedObject"] {
            about.invalid_as(&reference(&about), IMMUTABLE, errors);
        }
        immutable(&new, &old, &FIXED, errors);
        immutable(&new, &old, &["reason", "type", "eventTime", "action", "related"], errors);
        let controller =
            Field { path: "reportingController".to_owned().into(), ..Field::root(&new).at("reportingComponent") };
        controller.unchanged(&Field::root(&old).at("reportingComponent"), errors);
        immutable(&new, &old, &["reportingInstance"], errors);
    }
}

/// A reference as upstream's internal type writes it.
fn reference(to: &Field<'_>) -> String {
    let fields = [
        ("Kind", "kind"),
        ("Namespace", "namespace"),
        ("Name", "name"),
        ("UID", "uid"),
        ("APIVersion", "apiVersion"),
        ("ResourceVersion", "resourceVersion"),
        ("FieldPath", "fieldPath"),
    ];
    let fields: Vec<String> =
        fields.iter().map(|(internal, name)| format!("\"{internal}\":{}", json!(to.at(name).text()))).collect();
    format!("{{{}}}", fields.join(","))
}

fn series(series: &Field<'_>, errors: &mut Errors) {
    if !series.is_set() {
        return;
    }
    if series.at("count").number().unwrap_or(0) < 2 {
        errors.invalid_text("series.count", "", "should be at least 2");
    }
    if !event::has_time(&series.at("lastObservedTime")) {
        errors.required("series.lastObservedTime", "");
    }
}
