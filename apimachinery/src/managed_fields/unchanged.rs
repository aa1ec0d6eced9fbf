//! Owners after an update of little: entries that the update does not reach stay as they are stored.
//!
//! A write mostly changes a few fields that its manager owns already, of an object whose owners have hundreds. Those are not
//! decoded, merged and encoded again; the result is the same.

use serde_json::{Map, Value};

use super::{
    Request, STRIPPED,
    managers::{MAX_UPDATE_MANAGERS, Operation},
    path::PathElement,
    set::FieldSet,
};

/// The entries of `metadata.managedFields` after an update of `live`, whose own entries are `entries`, to `new`; `None` where
/// they must be decoded: of other versions, recorded under another schema, too many, or not as this server writes them.
pub(super) fn update(request: &Request<'_>, live: &Value, new: &Value, entries: &[Value]) -> Option<Value> {
    let mut entries: Vec<Entry<'_>> = entries.iter().map(Entry::read).collect::<Option<_>>()?;
    let is_here = |entry: &Entry<'_>| match entry.fields {
        Fields::Stored(fields) => entry.api_version == request.api_version && request.ty.is_current(fields),
        Fields::Owned(_) => false,
    };
    let updates = entries.iter().filter(|entry| entry.operation == Operation::Update).count();
    if entries.is_empty() || updates >= MAX_UPDATE_MANAGERS || !entries.iter().all(is_here) {
        return None;
    }
    let comparison = request.updater().compare(live, new);
    let (changed, removed) = (comparison.changed(), comparison.removed);
    let own = changed.difference(&STRIPPED);
    let manager = if request.manager.is_empty() { "unknown" } else { request.manager };
    let is_own = |entry: &Entry<'_>| {
        (entry.operation, entry.manager, entry.subresource) == (Operation::Update, manager, request.subresource)
    };
    if entries.iter().filter(|entry| is_own(entry)).count() > 1 {
        return None;
    }
    for entry in &mut entries {
        let writes = is_own(entry) && !own.is_empty();
        entry.time = if writes { request.now } else { entry.time };
        let Fields::Stored(stored) = entry.fields else { continue };
        let stays = match writes {
            true => changed == own && has_all(stored, &own) && !has_any(stored, &removed),
            false => !has_any(stored, &changed) && !has_any(stored, &removed),
        };
        if !stays {
            let fields = FieldSet::from_fields_v1(&Value::Object(stored.clone())).ok()?;
            let fields = fields.difference(&changed).difference(&removed);
            entry.fields = Fields::Owned(if writes { fields.union(&own) } else { fields });
        }
    }
    if !own.is_empty() && !entries.iter().any(is_own) {
        entries.push(Entry {
            manager,
            operation: Operation::Update,
            api_version: request.api_version,
            time: request.now,
            subresource: request.subresource,
            fields: Fields::Owned(own),
        });
    }
    entries.retain(|entry| !matches!(&entry.fields, Fields::Owned(fields) if fields.is_empty()));
    entries.sort_by_key(|entry| (entry.operation, entry.time, entry.manager, entry.api_version, entry.subresource));
    (!entries.is_empty()).then(|| entries.iter().map(Entry::write).collect())
}

/// The fields of an entry.
enum Fields<'a> {
    /// As they are stored.
    Stored(&'a Map<String, Value>),
    /// As they are to be stored.
    Owned(FieldSet),
}

/// An entry as it is stored.
struct Entry<'a> {
    manager: &'a str,
    operation: Operation,
    api_version: &'a str,
    time: &'a str,
    subresource: &'a str,
    fields: Fields<'a>,
}

impl<'a> Entry<'a> {
    /// `None` for an entry that is not as this server writes them.
    fn read(entry: &'a Value) -> Option<Self> {
        let text = |field: &str| entry.get(field).map_or(Some(""), Value::as_str);
        let known = ["manager", "operation", "apiVersion", "time", "fieldsType", "subresource", "fieldsV1"];
        if !entry.as_object()?.keys().all(|field| known.contains(&field.as_str())) {
            return None;
        }
        let operation = match text("operation")? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let fields = entry.get("fieldsV1")?.as_object().filter(|fields| !fields.is_empty())?;
        let (manager, api_version) = (text("manager")?, text("apiVersion")?);
        (text("fieldsType")? == "FieldsV1").then_some(())?;
        let (time, subresource) = (text("time")?, text("subresource")?);
        Some(Self { manager, operation, api_version, time, subresource, fields: Fields::Stored(fields) })
    }

    fn write(&self) -> Value {
        let fields = match &self.fields {
            Fields::Owned(fields) => fields.to_fields_v1(),
            Fields::Stored(fields) => Value::Object(Map::clone(fields)),
        };
        super::managers::entry((self.manager, self.operation, self.subresource), (self.api_version, self.time), fields)
    }
}

/// The stored form of what is in a field of a set.
fn inside<'a>(fields: &'a Map<String, Value>, element: &PathElement) -> Option<&'a Map<String, Value>> {
    fields.get(&element.serialize())?.as_object()
}

/// Whether a field is itself in a set, by what is stored of it.
fn is_member(inside: &Map<String, Value>) -> bool {
    inside.is_empty() || inside.contains_key(".")
}

/// Whether a stored set has a field of another.
fn has_any(fields: &Map<String, Value>, set: &FieldSet) -> bool {
    set.members.iter().any(|member| inside(fields, member).is_some_and(is_member))
        || set.children.iter().any(|(field, set)| inside(fields, field).is_some_and(|fields| has_any(fields, set)))
}

/// Whether a stored set has all fields of another.
fn has_all(fields: &Map<String, Value>, set: &FieldSet) -> bool {
    set.members.iter().all(|member| inside(fields, member).is_some_and(is_member))
        && set.children.iter().all(|(field, set)| inside(fields, field).is_some_and(|fields| has_all(fields, set)))
}
