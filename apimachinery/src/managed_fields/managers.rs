//! `metadata.managedFields`: which manager set which fields, and when.
//!
//! Upstream: `apimachinery/pkg/util/managedfields/internal/managedfields.go`, `capmanagers.go`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{fields_v1::FieldsV1Error, set::FieldSet};

/// Managers by update that are recorded; the oldest are merged into one when there are more.
pub(super) const MAX_UPDATE_MANAGERS: usize = 10;
/// The manager that the oldest are merged into.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// How a manager sets fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By apply patches: what it no longer applies is removed.
    Apply,
    /// By create, update and the other patches.
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The identity of a manager.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    /// The name: the parameter `fieldManager`, or the first part of the User-Agent.
    pub manager: String,
    /// How it sets fields.
    pub operation: Operation,
    /// For updates the version of the request, such as `apps/v1`; empty for applies, whose version may change.
    pub api_version: String,
    /// The subresource of the request, or empty.
    pub subresource: String,
}

impl ManagerId {
    /// The manager of a request. An empty name becomes `unknown`.
    #[must_use]
    pub fn of(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let version = if operation == Operation::Update { api_version } else { "" };
        let manager = if manager.is_empty() { "unknown" } else { manager };
        Self {
            manager: manager.to_owned(),
            operation,
            api_version: version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    /// The form of conflict messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut out = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            out = format!("{out} with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            out = format!("{out} using {}", self.api_version);
        }
        out
    }
}

/// What a manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The fields.
    pub fields: FieldSet,
    /// The version that they are fields of.
    pub api_version: String,
    /// When they were last changed, RFC 3339; empty where that is not known.
    pub time: String,
}

/// All managers of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managers(pub BTreeMap<ManagerId, Owned>);

/// Why `metadata.managedFields` cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagersError {
    /// It is no list of objects.
    #[error("managedFields is no list of entries")]
    Malformed,
    /// An entry has another operation than the two.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry has no version.
    #[error("apiVersion must not be empty")]
    ApiVersion,
    /// An entry has another form of fields than FieldsV1.
    #[error("invalid fieldsType {0:?} in managed fields entry {1}")]
    FieldsType(String, usize),
    /// The fields of an entry cannot be read.
    #[error("error decoding set: {0}")]
    Fields(#[from] FieldsV1Error),
}

impl Managers {
    /// Reads `metadata.managedFields`; null counts as empty.
    ///
    /// # Errors
    /// When an entry is malformed.
    pub fn decode(entries: &Value) -> Result<Self, ManagersError> {
        let entries = match entries {
            Value::Null => return Ok(Self::default()),
            Value::Array(entries) => entries,
            _ => return Err(ManagersError::Malformed),
        };
        let mut out = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            let text = |field: &str| entry[field].as_str().unwrap_or("");
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(ManagersError::Operation),
            };
            let api_version = text("apiVersion");
            if api_version.is_empty() {
                return Err(ManagersError::ApiVersion);
            }
            if text("fieldsType") != "FieldsV1" {
                return Err(ManagersError::FieldsType(text("fieldsType").to_owned(), at));
            }
            let fields = match &entry["fieldsV1"] {
                Value::Null => FieldSet::default(),
                document => FieldSet::from_fields_v1(document)?,
            };
            let mut id = ManagerId::of(text("manager"), operation, api_version, text("subresource"));
            text("manager").clone_into(&mut id.manager);
            let (api_version, time) = (api_version.to_owned(), text("time").to_owned());
            out.insert(id, Owned { fields, api_version, time });
        }
        Ok(Self(out))
    }

    /// The value of `metadata.managedFields`, or `None` without managers: applies first, then in the order of their
    /// times.
    #[must_use]
    pub fn encode(&self) -> Option<Value> {
        if self.0.is_empty() {
            return None;
        }
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_by(|(a, of_a), (b, of_b)| {
            (a.operation, &of_a.time, &a.manager, &of_a.api_version, &a.subresource).cmp(&(
                b.operation,
                &of_b.time,
                &b.manager,
                &of_b.api_version,
                &b.subresource,
            ))
        });
        let entry = |(id, owned): (&ManagerId, &Owned)| {
            let of = (id.manager.as_str(), id.operation, id.subresource.as_str());
            entry(of, (&owned.api_version, &owned.time), owned.fields.to_fields_v1())
        };
        Some(entries.into_iter().map(entry).collect())
    }

    /// Merges the oldest managers by update into one for each version, so that no more than [`MAX_UPDATE_MANAGERS`] stay.
    pub(super) fn cap(&mut self) {
        let mut updates: Vec<(String, ManagerId)> = Vec::new();
        for (id, owned) in self.0.iter().filter(|(id, _)| id.operation == Operation::Update) {
            updates.push((owned.time.clone(), id.clone()));
        }
        if updates.len() <= MAX_UPDATE_MANAGERS {
            return;
        }
        updates.sort();
        let mut left = updates.len();
        // The first of each version is only merged when a second one comes.
        let mut first_of_version: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (time, id) in updates {
            if left <= MAX_UPDATE_MANAGERS {
                return;
            }
            let Some(owned) = self.0.get(&id).cloned() else { continue };
            let Some(first) = first_of_version.get(&owned.api_version) else {
                first_of_version.insert(owned.api_version, id);
                continue;
            };
            let bucket = ManagerId::of(ANCIENT_CHANGES, Operation::Update, &owned.api_version, "");
            if !self.0.contains_key(&bucket)
                && let Some(oldest) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), oldest);
            }
            self.0.remove(&id);
            if let Some(merged) = self.0.get_mut(&bucket) {
                merged.fields = merged.fields.union(&owned.fields);
                merged.time = time;
            }
            left -= 1;
        }
    }
}

/// An entry of `metadata.managedFields`: of a manager, with the version and time of its fields.
pub(super) fn entry(
    (manager, operation, subresource): (&str, Operation, &str),
    (api_version, time): (&str, &str),
    fields: Value,
) -> Value {
    let mut out = Map::new();
    let mut text = |field: &str, value: &str| {
        if !value.is_empty() {
            out.insert(field.to_owned(), Value::from(value));
        }
    };
    text("manager", manager);
    text("operation", operation.name());
    text("apiVersion", api_version);
    text("time", time);
    text("fieldsType", "FieldsV1");
    text("subresource", subresource);
    out.insert("fieldsV1".to_owned(), fields);
    Value::Object(out)
}

/// Whether a client asks for an object without managers: an empty list, or a list of one empty entry.
#[must_use]
pub fn is_reset(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.is_null() || *only == json!({}),
        _ => false,
    }
}
