//! Server-side apply and `metadata.managedFields`: which manager owns which fields of an object.
//!
//! [`update`] records the owners after a create, update or patch; [`apply`] merges what a manager applies. Both are pure:
//! objects are JSON in the version of the request, the time is a value. Knows the schema of a type, no kind; may import
//! nothing else of the crate. Upstream: `apimachinery/pkg/util/managedfields` and `structured-merge-diff`.

mod conflict;
mod fields_v1;
mod last_applied;
mod managers;
mod path;
mod scale;
mod set;
mod typed;
mod unchanged;
mod updater;
mod value;

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::group_version::GroupVersion;

pub use conflict::{Conflict, Conflicts};
pub use fields_v1::FieldsV1Error;
pub use managers::{ManagerId, Managers, ManagersError, Operation, Owned, is_reset};
pub use path::{Path, PathElement, PathElementError};
pub use scale::{ScaleManagers, to_parent, to_scale};
pub use set::FieldSet;
pub use typed::{Comparison, Duplicates, Type, TypeError, TypeErrors};
pub use updater::{ConvertError, OneVersion, Versions};
use updater::{UpdateError, Updater};

/// The manager that owns what was there before the first apply of an object without managers.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Fields of metadata, and of the type, that no manager owns.
static STRIPPED: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_names([
        "apiVersion",
        "kind",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.creationTimestamp",
        "metadata.selfLink",
        "metadata.uid",
        "metadata.clusterName",
        "metadata.generation",
        "metadata.managedFields",
        "metadata.resourceVersion",
    ])
});

/// The request that writes.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)]
pub struct Request<'a> {
    /// The type of the object in the version of the request.
    pub ty: Type<'a>,
    /// The group and version, such as `apps/v1`.
    pub api_version: &'a str,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// The fields that this path does not write: upstream's reset fields of the strategy.
    pub reset: &'a FieldSet,
    /// The other versions of the resource.
    pub versions: &'a dyn Versions,
    /// The name of the manager.
    pub manager: &'a str,
    /// The time, RFC 3339 in whole seconds, UTC.
    pub now: &'a str,
}

impl From<UpdateError> for ApplyError {
    fn from(error: UpdateError) -> Self {
        match error {
            UpdateError::Conflicts(conflicts) => Self::Conflicts(conflicts),
            UpdateError::Conversion(why) => Self::Conversion(why),
        }
    }
}

impl<'a> Request<'a> {
    fn updater(&self) -> Updater<'a> {
        Updater { ty: self.ty, api_version: self.api_version, reset: self.reset, versions: self.versions }
    }
}

/// Why an apply is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own fields with other values: 409.
    #[error("{0}")]
    Conflicts(Conflicts),
    /// What is applied has managed fields itself: 400.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// What is applied does not fit the type: 500, as upstream's.
    #[error("failed to create typed patch object ({of}): {errors}")]
    Patch {
        /// Namespace, name and type of the object.
        of: String,
        /// What does not fit.
        errors: TypeErrors,
    },
    /// The stored object does not fit the type: 500.
    #[error("failed to create typed live object ({of}): {errors}")]
    Live {
        /// Namespace, name and type of the object.
        of: String,
        /// What does not fit.
        errors: TypeErrors,
    },
    /// The object cannot be converted to the version in which a manager owns fields: 500.
    #[error("{0}")]
    Conversion(String),
    /// The stored managed fields cannot be read: 500.
    #[error("failed to decode managed fields: {0}")]
    Managers(#[from] ManagersError),
}

/// Records the owners of a create, update or patch in `new`.
///
/// `live` is the stored object, an empty one for a create; `new` is what the request made of it, before admission. Both are
/// in the form in which objects are stored: canonical and with defaults. Managed fields that the request brings are those
/// before the write; a list without entries, or with one empty entry, resets them. An object that cannot be converted to the
/// version of one of its managers loses them all, as upstream's.
pub fn update(request: &Request<'_>, live: &Value, new: &mut Value) {
    let is_create = live["metadata"]["uid"].as_str().unwrap_or("").is_empty();
    let stored = &live["metadata"]["managedFields"];
    let requested = take_managers(new);
    let is_reset = request.subresource.is_empty() && is_reset(&requested);
    let from_live = !request.subresource.is_empty() || requested.is_null() || requested == *stored;
    let is_same = || owned_in(stored, request.api_version) && is_same_without_managers(live, new);
    if !is_create && !is_reset && from_live && is_same() {
        // Nothing changed, so neither do the owners.
        return set_managers(new, live["metadata"].get("managedFields").cloned());
    }
    if let (true, false, Some(entries)) = (from_live, is_create || is_reset, stored.as_array())
        && let Some(managers) = unchanged::update(request, live, new, entries)
    {
        return set_managers(new, Some(managers));
    }
    let of_live = || Managers::decode(stored).unwrap_or_default();
    let mut managers = match Managers::decode(&requested) {
        _ if is_reset => Managers::default(),
        Ok(managers) if !from_live && !managers.0.is_empty() => managers,
        _ => of_live(),
    };
    // An object whose managers were reset stays without, until it is applied.
    let is_recorded = !managers.0.is_empty() || is_create;
    if is_recorded && record_update(request, live, new, &mut managers).is_err() {
        managers = Managers::default();
    }
    set_managers(new, managers.encode());
}

/// Whether all entries are those of managers in one version.
fn owned_in(entries: &Value, api_version: &str) -> bool {
    entries.as_array().into_iter().flatten().all(|entry| entry["apiVersion"] == api_version)
}

/// The object after an apply, with its owners. An apply that changes nothing gives the live object.
///
/// `live` is as for [`update`]; `applied` is what the client sent, as it is. Fields that became empty by the apply may be
/// null in the result, and it has none of the defaults of new fields.
///
/// # Errors
/// When the apply conflicts with other managers and is not forced, or does not fit the type.
pub fn apply(request: &Request<'_>, live: &Value, applied: &Value, force: bool) -> Result<Value, ApplyError> {
    let mut managers = Managers::decode(&live["metadata"]["managedFields"])?;
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(ApplyError::ManagedFields);
    }
    let of = || describe(applied);
    request.ty.check(applied, Duplicates::Refused).map_err(|errors| ApplyError::Patch { of: of(), errors })?;
    request.ty.check(live, Duplicates::Allowed).map_err(|errors| ApplyError::Live { of: of(), errors })?;
    if managers.0.is_empty() && !live["metadata"]["uid"].is_null() {
        let before = Request { manager: BEFORE_FIRST_APPLY, ..*request };
        record_update(&before, &Value::Object(Map::new()), live, &mut managers)?;
    }
    let mut new = match record_apply(request, live, applied, &mut managers, force) {
        Err(UpdateError::Conflicts(conflicts)) => {
            last_applied::resolve(request, live, applied, &mut managers, conflicts)?
        }
        new => new?,
    };
    last_applied::refresh(request, applied, &mut new);
    set_managers(&mut new, managers.encode());
    Ok(new)
}

/// Restores the times of the managers of `old` where nothing but times differs, so that nothing is written.
pub fn keep_times(old: &Value, new: &mut Value) {
    let (Some(old_entries), Some(new_entries)) =
        (old["metadata"]["managedFields"].as_array(), new["metadata"]["managedFields"].as_array())
    else {
        return;
    };
    let same = |old: &Value, new: &Value| {
        let (old, new) = (old.as_object().into_iter().flatten(), new.as_object().into_iter().flatten());
        old.filter(|(name, _)| *name != "time").eq(new.filter(|(name, _)| *name != "time"))
    };
    if old_entries.len() == new_entries.len()
        && old_entries.iter().zip(new_entries).all(|(old, new)| same(old, new))
        && is_same_without_managers(old, new)
    {
        set_managers(new, Some(Value::Array(old_entries.clone())));
    }
}

/// Owners after an update, with the manager's time where it owns more than before.
fn record_update(request: &Request<'_>, live: &Value, new: &Value, managers: &mut Managers) -> Result<(), UpdateError> {
    let manager = ManagerId::of(request.manager, Operation::Update, request.api_version, request.subresource);
    if managers.0.is_empty() {
        // No field has an owner yet, as in most creations: the manager owns all of them.
        let fields = request.updater().compare(live, new).into_changed().difference(&STRIPPED);
        if !fields.is_empty() {
            let (api_version, time) = (request.api_version.to_owned(), request.now.to_owned());
            managers.0.insert(manager, Owned { fields, api_version, time });
        }
        return Ok(());
    }
    // The manager of this write alone: what it had before is added after.
    let current = ManagerId { manager: "\0current-operation".to_owned(), ..manager.clone() };
    request.updater().update(live, new, managers, &current)?;
    if let Some(mut owned) = managers.0.remove(&current) {
        owned.fields = owned.fields.difference(&STRIPPED);
        if !owned.fields.is_empty() {
            if let Some(before) = managers.0.get(&manager) {
                owned.fields = owned.fields.union(&before.fields);
            }
            request.now.clone_into(&mut owned.time);
            managers.0.insert(manager, owned);
        }
    }
    managers.cap();
    Ok(())
}

fn record_apply(
    request: &Request<'_>,
    live: &Value,
    applied: &Value,
    managers: &mut Managers,
    force: bool,
) -> Result<Value, UpdateError> {
    let manager = ManagerId::of(request.manager, Operation::Apply, request.api_version, request.subresource);
    let mut after = managers.clone();
    let new = request.updater().apply(live, applied, &mut after, &manager, force)?;
    *managers = after;
    if let Some(owned) = managers.0.get_mut(&manager) {
        owned.fields = owned.fields.difference(&STRIPPED);
        if new.is_some() {
            request.now.clone_into(&mut owned.time);
        }
        if owned.fields.is_empty() {
            managers.0.remove(&manager);
        }
    }
    Ok(new.unwrap_or_else(|| live.clone()))
}

fn is_same_without_managers(a: &Value, b: &Value) -> bool {
    fn others(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
        fields.iter().filter(|(name, _)| *name != "managedFields")
    }
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
    let same = |name: &str, a: &Value, b: &Value| match (name, a.as_object(), b.as_object()) {
        ("metadata", Some(a), Some(b)) => others(a).eq(others(b)),
        _ => a == b,
    };
    a.len() == b.len() && a.iter().zip(b).all(|((name, a), (of_b, b))| name == of_b && same(name, a, b))
}

fn take_managers(object: &mut Value) -> Value {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.and_then(|metadata| metadata.remove("managedFields")).unwrap_or_default()
}

fn set_managers(object: &mut Value, managers: Option<Value>) {
    let Some(object) = object.as_object_mut() else { return };
    match managers {
        Some(managers) => {
            let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("managedFields".to_owned(), managers);
            }
        }
        None => {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
        }
    }
}

/// Namespace, name and type of an object in error messages.
fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let metadata = &object["metadata"];
    let api_version = text(&object["apiVersion"]);
    let GroupVersion { group, version } = GroupVersion::parse(&api_version);
    let (namespace, name, kind) = (text(&metadata["namespace"]), text(&metadata["name"]), text(&object["kind"]));
    format!("{namespace}/{name}; {group}/{version}, Kind={kind}")
}
