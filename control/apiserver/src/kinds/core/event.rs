//! Event, in the core group. Pure; the time is a value.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Value, json};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Column, Definition, GcPolicy, Resource, Table, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{age, text},
            field::Field,
            tables::{NAME, column, wide},
        },
        types,
    },
    store::RelaxedDurability,
};

/// Which writes may reach the disk a few seconds later: all, since events recur.
pub(crate) const DURABILITY: RelaxedDurability = RelaxedDurability::Always;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "events", "Event", Event);
    resource.short_names = vec!["ev".into()];
    resource.create_on_update = true;
    resource.relaxed_durability = DURABILITY;
    resource.gc = GcPolicy::Unsupported;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "Event"));
    v1.selectable = [
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "type",
    ]
    .map(SelectableField::path)
    .to_vec();
    v1.selectable.push(SelectableField::at("source", &SOURCE));
    v1.table = table();
    Definition::single(resource, v1)
}

/// The columns, which do not begin with the name.
pub(crate) fn table() -> Table {
    let columns = vec![
        column("Last Seen", "When it happened last."),
        column("Type", "Normal or Warning."),
        column("Reason", "One word for it."),
        column("Object", "What it is about."),
        wide("Subobject", "Which part of it."),
        wide("Source", "Who reported it."),
        column("Message", "What happened."),
        wide("First Seen", "When it happened first."),
        wide("Count", "How often it happened."),
        Column { priority: 1, ..NAME },
    ];
    Table { columns, row: Box::new(row) }
}

/// An event's source is selected by its component; newer events have it in another field.
const SOURCE: [Cow<'static, str>; 2] = [Cow::Borrowed("source.component"), Cow::Borrowed("reportingComponent")];

fn row(object: &Value, now: Timestamp) -> Vec<Value> {
    let involved = &object["involvedObject"];
    let first =
        [&object["firstTimestamp"], &object["eventTime"]].into_iter().find(|t| !text(t).is_empty()).map_or("", text);
    let last = [&object["series"]["lastObservedTime"], &object["lastTimestamp"]]
        .into_iter()
        .find(|t| !text(t).is_empty())
        .map_or(first, text);
    let either =
        |old: &Value, new: &Value| if text(old).is_empty() { text(new).to_owned() } else { text(old).to_owned() };
    let component = either(&object["source"]["component"], &object["reportingComponent"]);
    let instance = either(&object["source"]["host"], &object["reportingInstance"]);
    let source = if instance.is_empty() { component } else { format!("{component}, {instance}") };
    let count = object["series"]["count"].as_i64().or_else(|| object["count"].as_i64()).unwrap_or(1);
    vec![
        json!(age(last, now)),
        object["type"].clone(),
        object["reason"].clone(),
        json!(format!("{}/{}", text(&involved["kind"]).to_lowercase(), text(&involved["name"]))),
        json!(text(&involved["fieldPath"])),
        json!(source),
        json!(text(&object["message"]).trim()),
        json!(age(first, now)),
        json!(count),
        object["metadata"]["name"].clone(),
    ]
}

/// The strategy of events, in both groups.
#[derive(Debug)]
pub(crate) struct Event;

impl Strategy for Event {
    /// Names of events are made by programs; they only must fit into a path.
    fn validate_name(&self, name: &str) -> Option<String> {
        names::path_segment(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        validate(object, "reportingComponent", errors);
    }
}

/// Upstream's limits.
const MAX_NAME_BYTES: usize = 128;
const MAX_NOTE_BYTES: usize = 1024;

/// Validates an event in its stored form (upstream: `legacyValidateEvent`). Errors name the controller's field as in
/// the version of the request, all other fields as stored.
pub(crate) fn validate(object: &Value, controller: &str, errors: &mut Errors) {
    let event = Field::root(object);
    let about = event.below("involvedObject.namespace");
    let own = event.below("metadata.namespace").text();
    let is_new = has_time(&event.at("eventTime"));
    // Events about objects of the cluster are in the namespace of old clients.
    let fits = match (about.text(), is_new) {
        ("", false) => matches!(own, "" | "default"),
        ("", true) => matches!(own, "default" | "kube-system"),
        (named, false) => named == own,
        (_, true) => true,
    };
    if !fits {
        errors.invalid_text(&about.path, about.text(), "does not match event.namespace");
    }
    if !is_new {
        return;
    }
    let reporter = event.at("reportingComponent").text();
    if reporter.is_empty() {
        errors.required(controller, "");
    }
    names::qualified_problems(reporter).iter().for_each(|why| errors.invalid_text(controller, reporter, why));
    for field in ["reportingInstance", "action", "reason"] {
        let field = event.at(field);
        if field.is_empty() {
            field.required("", errors);
        }
        at_most(&field, MAX_NAME_BYTES, errors);
    }
    at_most(&event.at("message"), MAX_NOTE_BYTES, errors);
}

/// Whether a time is set, and is not Go's zero time.
pub(crate) fn has_time(field: &Field<'_>) -> bool {
    !field.is_empty() && !field.text().starts_with("0001-01-01T00:00:00")
}

/// Upstream does not repeat the text.
fn at_most(field: &Field<'_>, max: usize, errors: &mut Errors) {
    if field.len() > max {
        errors.invalid_text(&field.path, "", &format!("can have at most {max} characters"));
    }
}
