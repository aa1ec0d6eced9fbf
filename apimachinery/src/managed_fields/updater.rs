//! Which fields each manager owns after a write. Upstream: `structured-merge-diff/merge/update.go`.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;

use super::{
    conflict::Conflicts,
    managers::{ManagerId, Managers, Owned},
    set::FieldSet,
    typed::{Comparison, Type},
    value::equal,
};

/// The other versions of a resource.
pub trait Versions {
    /// The type of objects in a version; `None` for one that is no longer served.
    fn type_of(&self, api_version: &str) -> Option<Type<'_>>;

    /// An object in another version; `None` if it cannot be converted.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Option<Value>;
}

/// A resource with one version.
#[derive(Debug, Clone, Copy)]
pub struct OneVersion;

impl Versions for OneVersion {
    fn type_of(&self, _: &str) -> Option<Type<'_>> {
        None
    }

    fn convert(&self, _: &Value, _: &str, _: &str) -> Option<Value> {
        None
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
    /// Owners after an update by `manager`: it owns what it changed, and nobody what is gone.
    pub(super) fn update(&self, live: &Value, new: &Value, managers: &mut Managers, manager: &ManagerId) {
        self.reconcile(managers);
        let comparison = self.compare(live, new);
        // Without conflicts: an update takes what it changes.
        let _ = self.take((live, new), &comparison, managers, manager, true);
        let owned = managers.0.remove(manager).map(|owned| owned.fields).unwrap_or_default();
        let fields = owned.difference(&comparison.removed).union(&comparison.changed());
        let fields = fields.recursive_difference(self.reset);
        if !fields.is_empty() {
            let api_version = self.api_version.to_owned();
            managers.0.insert(manager.clone(), Owned { fields, api_version, time: String::new() });
        }
    }

    /// The object after an apply, or `None` if it is the live one; and its owners.
    pub(super) fn apply(
        &self,
        live: &Value,
        applied: &Value,
        managers: &mut Managers,
        manager: &ManagerId,
        force: bool,
    ) -> Result<Option<Value>, Conflicts> {
        self.reconcile(managers);
        let merged = self.ty.merge(live, applied);
        let fields = self.ty.to_set(applied).recursive_difference(self.reset);
        let time = managers.0.get(manager).map(|last| last.time.clone()).unwrap_or_default();
        let last = managers.0.insert(manager.clone(), Owned { fields, api_version: self.api_version.to_owned(), time });
        let new = self.prune(merged, managers, last.as_ref());
        let comparison = self.compare(live, &new);
        self.take((live, &new), &comparison, managers, manager, force)?;
        Ok((!equal(live, &new)).then_some(new))
    }

    pub(super) fn compare(&self, live: &Value, new: &Value) -> Comparison {
        self.ty.compare(live, new).map(|set| set.recursive_difference(self.reset))
    }

    /// Takes what has changed from other managers, and what is gone from all.
    fn take(
        &self,
        (live, new): (&Value, &Value),
        comparison: &Comparison,
        managers: &mut Managers,
        manager: &ManagerId,
        force: bool,
    ) -> Result<(), Conflicts> {
        let mut changes: BTreeMap<String, Option<(FieldSet, FieldSet)>> = BTreeMap::new();
        let of_request = (comparison.changed(), comparison.removed.clone());
        changes.insert(self.api_version.to_owned(), Some(of_request));
        let mut conflicts = Vec::new();
        for (id, owned) in managers.0.iter().filter(|(id, _)| *id != manager) {
            let changes = changes.entry(owned.api_version.clone()).or_insert_with(|| {
                let (live, ty) = self.at(live, self.api_version, &owned.api_version)?;
                let (new, _) = self.at(new, self.api_version, &owned.api_version)?;
                let comparison = ty.compare(&live, &new).map(|set| set.recursive_difference(self.reset));
                Some((comparison.changed(), comparison.removed))
            });
            let Some((changed, _)) = changes else { continue };
            let conflict = owned.fields.intersection(changed);
            if !conflict.is_empty() {
                conflicts.push((id.clone(), conflict));
            }
        }
        if !force && !conflicts.is_empty() {
            return Err(Conflicts::of(conflicts));
        }
        managers.0.retain(|id, owned| {
            if id != manager {
                // A version that is no longer served has no owners.
                let Some(Some((changed, removed))) = changes.get(&owned.api_version) else { return false };
                owned.fields = owned.fields.difference(changed).difference(removed);
            }
            !owned.fields.is_empty()
        });
        Ok(())
    }

    /// Removes the fields and items that the manager applied last time and does not apply now, unless another manager owns
    /// them.
    fn prune(&self, merged: Value, managers: &Managers, last: Option<&Owned>) -> Value {
        let Some(last) = last.filter(|last| !last.fields.is_empty()) else { return merged };
        let version = last.api_version.as_str();
        let Some((in_last, ty)) = self.at(&merged, self.api_version, version) else { return merged };
        let last_fields = ty.with_named_fields(&last.fields);
        let mut pruned = ty.remove(&in_last, &last_fields);
        for (other, owned) in owned_by_version(managers, version) {
            let there = self.at(&in_last, version, other).zip(self.at(&pruned, version, other));
            let Some(((in_other, ty), (pruned_there, _))) = there else { continue };
            let all = ty.with_named_fields(&ty.to_set(&in_other));
            let left = ty.with_named_fields(&ty.to_set(&pruned_there)).union(&ty.with_named_fields(&owned));
            let kept = ty.remove(&in_other, &all.difference(&left));
            pruned = self.at(&kept, other, version).map_or(pruned, |(kept, _)| kept.into_owned());
        }
        // Only what the manager applied last time goes; what nobody applied stays.
        let left = ty.with_named_fields(&ty.to_set(&pruned));
        let gone = ty.with_named_fields(&ty.to_set(&in_last)).difference(&left).intersection(&last_fields);
        let pruned = ty.remove(&in_last, &gone);
        self.at(&pruned, version, self.api_version).map(|(pruned, _)| pruned.into_owned()).unwrap_or(merged)
    }

    /// An object in another version, and its type there.
    fn at<'b>(&'b self, object: &'b Value, from: &str, to: &str) -> Option<(Cow<'b, Value>, Type<'b>)> {
        let ty = if to == self.api_version { self.ty } else { self.versions.type_of(to)? };
        if from == to {
            return Some((Cow::Borrowed(object), ty));
        }
        Some((Cow::Owned(self.versions.convert(object, from, to)?), ty))
    }

    fn reconcile(&self, managers: &mut Managers) {
        for owned in managers.0.values_mut() {
            let here = owned.api_version == self.api_version;
            if let Some(ty) = if here { Some(self.ty) } else { self.versions.type_of(&owned.api_version) } {
                owned.fields = ty.reconcile(&owned.fields);
            }
        }
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
