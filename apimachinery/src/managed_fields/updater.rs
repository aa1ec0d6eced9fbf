//! Which fields each manager owns after a write. Upstream: `structured-merge-diff/merge/update.go`.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;

use super::{
    conflict::Conflicts,
    managers::{ManagerId, Managers, Owned},
    set::FieldSet,
    typed::{Comparison, Duplicates, Type},
    value::equal,
};

/// The other versions of a resource.
pub trait Versions {
    /// The type of objects in a version; `None` for one that the resource does not have.
    fn type_of(&self, api_version: &str) -> Option<Type<'_>>;

    /// An object in another version.
    ///
    /// # Errors
    /// When there is no such version, or the conversion fails.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, ConvertError>;
}

/// Why an object cannot be shown in another version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConvertError {
    /// There is no such version: who owns fields of it owns nothing any more.
    NoVersion,
    /// The conversion failed, in the words of the answer: nothing is known of the owners.
    Failed(String),
}

/// A resource with one version.
#[derive(Debug, Clone, Copy)]
pub struct OneVersion;

impl Versions for OneVersion {
    fn type_of(&self, _: &str) -> Option<Type<'_>> {
        None
    }

    fn convert(&self, _: &Value, _: &str, _: &str) -> Result<Value, ConvertError> {
        Err(ConvertError::NoVersion)
    }
}

/// Why the owners after a write cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UpdateError {
    /// Other managers own what is applied with other values.
    Conflicts(Conflicts),
    /// The object cannot be converted to the version of a manager, in upstream's words.
    Conversion(String),
}

impl From<String> for UpdateError {
    fn from(why: String) -> Self {
        Self::Conversion(why)
    }
}

/// The version of a request, and the others.
#[derive(Clone, Copy)]
pub(super) struct Updater<'a> {
    pub(super) ty: Type<'a>,
    pub(super) api_version: &'a str,
    /// Fields that the path does not write, and that its managers cannot own.
    pub(super) reset: &'a FieldSet,
    pub(super) versions: &'a dyn Versions,
}

impl Updater<'_> {
    /// Owners after an update by `manager`: it owns the fields that it changed; removed fields have no owner.
    ///
    /// # Errors
    /// When the object cannot be converted to the version of a manager.
    pub(super) fn update(
        &self,
        live: &Value,
        new: &Value,
        managers: &mut Managers,
        manager: &ManagerId,
    ) -> Result<(), UpdateError> {
        self.reconcile(live, managers)?;
        let comparison = self.compare(live, new);
        // Without conflicts: an update takes what it changes.
        self.take((live, new), &comparison, managers, manager, true)?;
        let owned = managers.0.remove(manager).map(|owned| owned.fields).unwrap_or_default();
        let fields = owned.difference(&comparison.removed).union(&comparison.changed());
        let fields = fields.recursive_difference(self.reset);
        if !fields.is_empty() {
            let api_version = self.api_version.to_owned();
            managers.0.insert(manager.clone(), Owned { fields, api_version, time: String::new() });
        }
        Ok(())
    }

    /// The object after an apply, or `None` if it is the live one; and its owners.
    pub(super) fn apply(
        &self,
        live: &Value,
        applied: &Value,
        managers: &mut Managers,
        manager: &ManagerId,
        force: bool,
    ) -> Result<Option<Value>, UpdateError> {
        self.reconcile(live, managers)?;
        let merged = self.ty.merge(live, applied);
        let fields = self.ty.to_set(applied).recursive_difference(self.reset);
        let time = managers.0.get(manager).map(|last| last.time.clone()).unwrap_or_default();
        let last = managers.0.insert(manager.clone(), Owned { fields, api_version: self.api_version.to_owned(), time });
        let new = self.prune(merged, managers, last.as_ref())?;
        let comparison = self.compare(live, &new);
        self.take((live, &new), &comparison, managers, manager, force)?;
        Ok((!equal(live, &new)).then_some(new))
    }

    pub(super) fn compare(&self, live: &Value, new: &Value) -> Comparison {
        let comparison = self.ty.compare(live, new);
        if self.reset.is_empty() {
            return comparison;
        }
        comparison.map(|set| set.recursive_difference(self.reset))
    }

    /// Takes what has changed from other managers, and what is gone from all.
    fn take(
        &self,
        (live, new): (&Value, &Value),
        comparison: &Comparison,
        managers: &mut Managers,
        manager: &ManagerId,
        force: bool,
    ) -> Result<(), UpdateError> {
        let mut changes: BTreeMap<String, Option<(FieldSet, FieldSet)>> = BTreeMap::new();
        let of_request = (comparison.changed(), comparison.removed.clone());
        changes.insert(self.api_version.to_owned(), Some(of_request));
        let mut conflicts = Vec::new();
        for (id, owned) in managers.0.iter().filter(|(id, _)| *id != manager) {
            if !changes.contains_key(&owned.api_version) {
                changes.insert(owned.api_version.clone(), self.changes_at(live, new, &owned.api_version)?);
            }
            let Some(Some((changed, _))) = changes.get(&owned.api_version) else { continue };
            let conflict = owned.fields.intersection(changed);
            if !conflict.is_empty() {
                conflicts.push((id.clone(), conflict));
            }
        }
        if !force && !conflicts.is_empty() {
            return Err(UpdateError::Conflicts(Conflicts::of(conflicts)));
        }
        managers.0.retain(|id, owned| {
            if id != manager {
                // A version that there is not has no owners.
                let Some(Some((changed, removed))) = changes.get(&owned.api_version) else { return false };
                owned.fields = owned.fields.difference(changed).difference(removed);
            }
            !owned.fields.is_empty()
        });
        Ok(())
    }

    /// What has changed and what is gone, as fields of a version; `None` if there is no such version.
    fn changes_at(
        &self,
        live: &Value,
        new: &Value,
        api_version: &str,
    ) -> Result<Option<(FieldSet, FieldSet)>, UpdateError> {
        let failed = |what: &'static str| move |why| format!("failed to convert {what} object: {why}");
        let Some((live, ty)) = self.at(live, self.api_version, api_version).map_err(failed("old"))? else {
            return Ok(None);
        };
        let Some((new, _)) = self.at(new, self.api_version, api_version).map_err(failed("new"))? else {
            return Ok(None);
        };
        let comparison = ty.compare(&live, &new).map(|set| set.recursive_difference(self.reset));
        Ok(Some((comparison.changed(), comparison.removed)))
    }

    /// Removes the fields and items that the manager applied last time and does not apply now, unless another manager owns
    /// them.
    fn prune(&self, merged: Value, managers: &Managers, last: Option<&Owned>) -> Result<Value, UpdateError> {
        let Some(last) = last.filter(|last| !last.fields.is_empty()) else { return Ok(merged) };
        let version = last.api_version.as_str();
        let to_last = self.at(&merged, self.api_version, version);
        let to_last =
            to_last.map_err(|why| format!("failed to convert merged object to last applied version: {why}"))?;
        let Some((in_last, ty)) = to_last else { return Ok(merged) };
        let last_fields = ty.with_named_fields(&last.fields);
        let mut pruned = ty.remove(&in_last, &last_fields);
        for (other, owned) in owned_by_version(managers, version) {
            let failed = |what: &'static str| {
                move |why| {
                    format!("failed add back owned items: failed to convert {what} object at version {other}: {why}")
                }
            };
            let Some((in_other, ty)) = self.at(&in_last, version, other).map_err(failed("merged"))? else { continue };
            let Some((pruned_there, _)) = self.at(&pruned, version, other).map_err(failed("pruned"))? else { continue };
            let all = ty.with_named_fields(&ty.to_set(&in_other));
            let left = ty.with_named_fields(&ty.to_set(&pruned_there)).union(&ty.with_named_fields(&owned));
            let kept = ty.remove(&in_other, &all.difference(&left));
            pruned = self.at(&kept, other, version)?.map_or(pruned, |(kept, _)| kept.into_owned());
        }
        // Only what the manager applied last time is removed; what no manager applied stays.
        let left = ty.with_named_fields(&ty.to_set(&pruned));
        let gone = ty.with_named_fields(&ty.to_set(&in_last)).difference(&left).intersection(&last_fields);
        let pruned = ty.remove(&in_last, &gone);
        let back = self.at(&pruned, version, self.api_version)?;
        Ok(back.map(|(pruned, _)| pruned.into_owned()).unwrap_or(merged))
    }

    /// An object in another version, and its type there; `None` if there is no such version.
    ///
    /// # Errors
    /// Why it cannot be converted, or does not fit the type.
    fn at<'b>(&'b self, object: &'b Value, from: &str, to: &str) -> Result<Option<(Cow<'b, Value>, Type<'b>)>, String> {
        if from == to {
            let ty = if to == self.api_version { Some(self.ty) } else { self.versions.type_of(to) };
            return Ok(ty.map(|ty| (Cow::Borrowed(object), ty)));
        }
        let converted = match self.versions.convert(object, from, to) {
            Ok(converted) => converted,
            Err(ConvertError::NoVersion) => return Ok(None),
            Err(ConvertError::Failed(why)) => return Err(why),
        };
        let ty = if to == self.api_version { Some(self.ty) } else { self.versions.type_of(to) };
        let Some(ty) = ty else { return Ok(None) };
        ty.check(&converted, Duplicates::Allowed).map_err(|errors| errors.to_string())?;
        Ok(Some((Cow::Owned(converted), ty)))
    }

    /// Brings what is owned to the types as they are now, and drops the owners in versions that there are not.
    fn reconcile(&self, live: &Value, managers: &mut Managers) -> Result<(), UpdateError> {
        let mut types: BTreeMap<String, Option<Type<'_>>> = BTreeMap::new();
        for owned in managers.0.values_mut() {
            if owned.api_version == self.api_version {
                owned.fields = self.ty.reconcile(&owned.fields);
                continue;
            }
            if !types.contains_key(&owned.api_version) {
                let there = self.at(live, self.api_version, &owned.api_version)?;
                types.insert(owned.api_version.clone(), there.and_then(|_| self.versions.type_of(&owned.api_version)));
            }
            if let Some(Some(ty)) = types.get(&owned.api_version) {
                owned.fields = ty.reconcile(&owned.fields);
            }
        }
        managers.0.retain(|_, owned| types.get(&owned.api_version).is_none_or(Option::is_some));
        Ok(())
    }
}

/// What is owned in each version, that of `first` first: what is kept there may be needed to convert.
fn owned_by_version<'a>(managers: &'a Managers, first: &str) -> Vec<(&'a str, FieldSet)> {
    let mut out: Vec<(&str, FieldSet)> = Vec::new();
    for owned in managers.0.values() {
        match out.iter_mut().find(|(version, _)| *version == owned.api_version) {
            Some((_, fields)) => *fields = fields.union(&owned.fields),
            None => out.push((&owned.api_version, owned.fields.clone())),
        }
    }
    out.sort_by_key(|(version, _)| *version != first);
    out
}
