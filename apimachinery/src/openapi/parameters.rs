//! Parameters of paths and queries.

use super::Descriptions;
use crate::schema::{Kind, Schema};

/// A parameter of a path or query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: String,
    /// `path` or `query`.
    pub(super) place: &'static str,
    /// `string`, `integer` or `boolean`.
    pub(super) kind: &'static str,
    pub(super) description: String,
}

/// A parameter: its name, its type, and what it does in our words.
type Row = (&'static str, &'static str, &'static str);

const PRETTY: Row = ("pretty", "string", "Whether the answer is indented: `true` or `false`.");
const DRY_RUN: Row = ("dryRun", "string", "`All` does all but store the change.");
const FIELD_MANAGER: Row =
    ("fieldManager", "string", "Who makes the change, in at most 128 printable characters; apply patches require it.");
const FIELD_VALIDATION: Row = (
    "fieldValidation",
    "string",
    "What is done with unknown and repeated fields: `Ignore`, `Warn` (the default) or `Strict`.",
);
const FORCE: Row = ("force", "boolean", "Takes fields from the managers that own them. For apply patches alone.");
const RESOURCE_VERSION: Row = ("resourceVersion", "string", "The version that the answer is, or is not older than.");
const CONTINUE: Row = ("continue", "string", "The token of the page before, with which the next page begins.");
const FIELD_SELECTOR: Row = ("fieldSelector", "string", "Restricts objects by their fields.");
const LABEL_SELECTOR: Row = ("labelSelector", "string", "Restricts objects by their labels.");
const LIMIT: Row = ("limit", "integer", "The greatest number of objects of a page.");
const RESOURCE_VERSION_MATCH: Row =
    ("resourceVersionMatch", "string", "How `resourceVersion` is meant: `Exact` or `NotOlderThan`.");
const SEND_INITIAL_EVENTS: Row = (
    "sendInitialEvents",
    "boolean",
    "Whether a watch begins with all objects there are, and a bookmark after them; requires `resourceVersionMatch`.",
);
const TIMEOUT_SECONDS: Row = ("timeoutSeconds", "integer", "How long a list or watch may last.");
const GRACE_PERIOD_SECONDS: Row =
    ("gracePeriodSeconds", "integer", "Seconds before the object is deleted; 0 deletes it at once.");
const IGNORE_STORE_READ_ERROR: Row = (
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "boolean",
    "Deletes an object that cannot be read, whatever depends on it.",
);
const ORPHAN_DEPENDENTS: Row =
    ("orphanDependents", "boolean", "Deprecated; whether dependents stay. Use `propagationPolicy`.");
const PROPAGATION_POLICY: Row =
    ("propagationPolicy", "string", "What happens to dependents: `Orphan`, `Background` or `Foreground`.");

/// Those of a list or watch.
const LIST: [Row; 10] = [
    ("allowWatchBookmarks", "boolean", "Whether a watch may send bookmarks."),
    CONTINUE,
    FIELD_SELECTOR,
    LABEL_SELECTOR,
    LIMIT,
    RESOURCE_VERSION,
    RESOURCE_VERSION_MATCH,
    SEND_INITIAL_EVENTS,
    TIMEOUT_SECONDS,
    ("watch", "boolean", "Whether changes follow as a stream instead of the list."),
];
const DELETE: [Row; 5] =
    [DRY_RUN, GRACE_PERIOD_SECONDS, IGNORE_STORE_READ_ERROR, ORPHAN_DEPENDENTS, PROPAGATION_POLICY];
const DELETE_COLLECTION: [Row; 13] = [
    CONTINUE,
    DRY_RUN,
    FIELD_SELECTOR,
    GRACE_PERIOD_SECONDS,
    IGNORE_STORE_READ_ERROR,
    LABEL_SELECTOR,
    LIMIT,
    ORPHAN_DEPENDENTS,
    PROPAGATION_POLICY,
    RESOURCE_VERSION,
    RESOURCE_VERSION_MATCH,
    SEND_INITIAL_EVENTS,
    TIMEOUT_SECONDS,
];

/// What a request does; each kind of request has its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// All requests that answer with an object.
    Pretty,
    /// Reading an object of a custom type.
    Get,
    List,
    Write,
    Patch,
    Delete,
    DeleteCollection,
}

pub(super) fn of(set: Set) -> Vec<Parameter> {
    let rows: &[Row] = match set {
        Set::Pretty => &[PRETTY],
        Set::Get => &[RESOURCE_VERSION],
        Set::List => &LIST,
        Set::Write => &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION],
        Set::Patch => &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE],
        Set::Delete => &DELETE,
        Set::DeleteCollection => &DELETE_COLLECTION,
    };
    let parameter = |(name, kind, description): &Row| Parameter {
        name: (*name).to_owned(),
        place: "query",
        kind,
        description: (*description).to_owned(),
    };
    rows.iter().map(parameter).collect()
}

/// The name of an object of a kind, as a part of the path.
pub(super) fn name(kind: &str) -> Parameter {
    in_path("name", format!("name of the {kind}"))
}

pub(super) fn namespace() -> Parameter {
    in_path("namespace", "the namespace of the object".to_owned())
}

/// What follows a proxy's path.
pub(super) fn rest_of_path() -> Parameter {
    in_path("path", "path to the resource".to_owned())
}

fn in_path(name: &str, description: String) -> Parameter {
    Parameter { name: name.to_owned(), place: "path", kind: "string", description }
}

/// The fields of a type of options, which are in the query.
pub(super) fn fields(of: &str, options: &Schema, descriptions: &Descriptions<'_>) -> Vec<Parameter> {
    let properties = options.object().into_iter().flat_map(|object| &object.properties);
    let own = properties.filter(|(_, property)| !property.inlined);
    let kind = |schema: &Schema| match schema.items().unwrap_or(schema).kind {
        Kind::Bool => "boolean",
        Kind::Integer(_) => "integer",
        _ => "string",
    };
    own.map(|(name, property)| Parameter {
        name: (**name).to_owned(),
        place: "query",
        kind: kind(&property.schema),
        description: descriptions.of_field(of, name).unwrap_or_default(),
    })
    .collect()
}
