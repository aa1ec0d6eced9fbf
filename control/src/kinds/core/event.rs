//! Event, in the core group. Pure; the time is a value.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Value, json};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        types::{Column, Definition, GcPolicy, Resource, Table, VersionSpec},
        validation::errors::{self, Errors},
    },
    kinds::{
        shared::{
            cells::{age, text},
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
        wide("Source", "Who told it."),
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
        let wrong = name.contains(['/', '%']) || name == "." || name == "..";
        wrong.then(|| "may not contain '/' or '%', nor be '.' or '..'".to_owned())
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let about = errors::text(&object["involvedObject"], "namespace");
        if !about.is_empty() && about != errors::text(&object["metadata"], "namespace") {
            errors.invalid_text("involvedObject.namespace", about, "does not match event.namespace");
        }
    }
}
