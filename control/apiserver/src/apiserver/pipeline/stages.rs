//! The write pipeline: every write of the API is a [`Mutation`] and passes the same stages, in the order that the table of
//! [`super`] has.

use std::sync::Arc;

use serde_json::Value;
use windlass_apimachinery::managed_fields::keep_times;

use super::metadata::is_finalized;
use super::{
    admission::{AdmissionAttributes, Operation, WriteOptions},
    commit::{MAX_WRITE_ATTEMPTS, Relations},
    field_manager::FieldManager,
    metadata,
    preconditions::{check_unconditional, check_version},
    reinvocation::Reinvocation,
    validation::{self, FieldError, Validation},
};
use crate::apiserver::{
    request::{api_request::ApiRequest, error::ApiError, request_info::RequestOptions, target::Target},
    types::{Part, Version, keep_field},
};
use crate::store::{Companion, Expected, Object};

/// Attempts to find a free generated name.
const MAX_NAME_ATTEMPTS: usize = 8;

/// What a mutation makes of the stored object.
#[derive(Debug)]
pub(crate) enum Draft {
    /// The object to store.
    Write(Value),
    /// The same, with what changes in its transaction, or refuses it: then the draft is made again.
    WriteWith(Value, Vec<Companion>),
    /// The object is deleted; its last state.
    Remove(Value),
}

impl Draft {
    /// The object, and what changes with it.
    fn into_parts(self) -> (Value, Vec<Companion>) {
        match self {
            Self::Write(object) | Self::Remove(object) => (object, Vec::new()),
            Self::WriteWith(object, companions) => (object, companions),
        }
    }
}

/// Which part of an object a mutation reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// The object itself.
    Object,
    /// Its status.
    Status,
    /// The part of a subresource.
    Part(&'a dyn Part),
    /// What the server itself decides, such as the node of a binding: neither the strategy nor admission is asked.
    Server,
}

/// Another form in which admission sees what is written: the Scale of an object.
pub(crate) trait Presented: Send + Sync {
    /// What the request is about.
    fn target(&self) -> &Target;

    /// The form of an object.
    fn show(&self, object: &Value) -> Value;

    /// Changes the object as its form was changed.
    fn take(&self, shown: &Value, object: &mut Value);
}

/// Makes the new object of the stored one, which is absent for a creation.
pub(crate) type Make<'a> = dyn Fn(Option<&Value>) -> Result<Draft, ApiError> + Send + Sync + 'a;

/// A write.
pub(crate) struct Mutation<'a> {
    pub(crate) target: &'a Target,
    pub(crate) operation: Operation,
    pub(crate) scope: Scope<'a>,
    /// What the client has said besides the object.
    pub(crate) options: WriteOptions<'a>,
    /// Who owns what the write sets; `None` where the object has its owners already.
    pub(crate) manager: Option<&'a FieldManager>,
    /// How admission sees the object, if not as it is.
    pub(crate) presented: Option<&'a dyn Presented>,
    pub(crate) make: &'a Make<'a>,
}

/// How a mutation ended.
#[derive(Debug)]
pub(crate) enum Mutated {
    /// The object as it is stored now.
    Stored(Arc<Object>),
    /// The object as it would be stored: of a dry run.
    Drafted(Value),
    /// The object was deleted; its last state.
    Deleted(Value),
}

impl Mutated {
    /// The object in a version.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub(crate) async fn into_object(self, version: &Version) -> Result<Value, ApiError> {
        match self {
            Self::Stored(object) => Ok(version.read(&object).await?),
            Self::Drafted(object) | Self::Deleted(object) => Ok(object),
        }
    }
}

impl Mutation<'_> {
    fn attributes<'b>(&'b self, request: &'b ApiRequest, old: Option<&'b Value>) -> AdmissionAttributes<'b> {
        request.attributes(self.target, self.operation, self.options, old)
    }
}

impl ApiRequest {
    /// Performs a write.
    ///
    /// # Errors
    /// The refusal of the stage that refuses; nothing is stored then.
    pub(crate) async fn mutate(&self, mutation: Mutation<'_>) -> Result<Mutated, ApiError> {
        if mutation.operation == Operation::Create {
            return self.create_object(&mutation).await;
        }
        let target = mutation.target;
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let Some(existing) = self.find(target)? else {
                // What may never be deleted is refused whether it exists or not.
                if mutation.operation == Operation::Delete {
                    self.api.admission().admit(&mutation.attributes(self, None), &mut Value::Null).await?;
                }
                return Err(ApiError::not_found(&target.version, target.name()));
            };
            let mut old = target.version.read(&existing).await?;
            // A version that knows another default has not stored it: that default is not part of this change.
            if let Some(fields) = old.as_object_mut() {
                target.version.strategy.default(fields);
            }
            let draft = (mutation.make)(Some(&old))?;
            let done = match mutation.operation {
                Operation::Delete => self.delete_object(&mutation, draft, &old, &existing).await?,
                _ => self.update_object(&mutation, draft, &old, &existing).await?,
            };
            if let Some(done) = done {
                return Ok(done);
            }
        }
        Err(ApiError::modified(&target.version, target.name()))
    }

    /// Creates an object. A generated name that is taken is generated again.
    async fn create_object(&self, mutation: &Mutation<'_>) -> Result<Mutated, ApiError> {
        let target = mutation.target;
        let version = &target.version;
        for attempt in 1.. {
            let (mut object, mut companions) = (mutation.make)(None)?.into_parts();
            let name = object["metadata"]["name"].as_str().unwrap_or("");
            if version.terminating {
                let why = "create not allowed while custom resource definition is terminating";
                return Err(ApiError::forbidden(version, name, why));
            }
            let generated = name.is_empty();
            let attributes = mutation.attributes(self, None);
            let is_labelled = object["metadata"]["labels"].as_object().is_some_and(|labels| !labels.is_empty());
            metadata::check_for_create(target, &mut object, mutation.options.are_of_dry_run())?;
            default(version, &mut object);
            if let Some(manager) = mutation.manager {
                manager.record(&Value::Null, &mut object).await;
            }
            self.api.admission().admit(&attributes, &mut object).await?;
            metadata::fill_for_create(target, &mut object)?;
            prepare_for_create(version, &mut object);
            self.warnings.extend(version.strategy.complete_fields(&mut object));
            version.strategy.record_requester(&mut object, &self.user);
            default(version, &mut object);
            version.strategy.complete_create(&mut object, is_labelled);
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let mut found = Validation::of_new(version, &object).complete(version).await?;
            found.errors.extend(validation::validate_writer(version, &object, None, &self.user));
            refuse(version, &name, &found.errors)?;
            self.warnings.extend(version.strategy.warnings(&object, None));
            self.warnings.extend(version.warning_of_no_effect(&object));
            self.api.admission().validate(&attributes, &object).await?;
            let mut key = target.key();
            key.name.clone_from(&name);
            let existing = self.store().get(target.id()?, &key);
            if existing.is_some() {
                // As upstream, which encodes an object before it looks for another one of its name.
                version.convert_to_storage(&mut object).await?;
            } else {
                if mutation.options.are_of_dry_run() {
                    self.api.dry_run(version, &mut object).await?;
                    return Ok(Mutated::Drafted(object));
                }
                let guards = self.api.admission().guards(&attributes);
                companions.extend(self.api.admission().companions(&attributes, Some(&object)));
                let related = Relations { guards, companions };
                let created = self.api.commit(version, key.clone(), Expected::Absent, Some(object), related).await?;
                if let Some(created) = created {
                    return Ok(Mutated::Stored(created));
                }
                // What a plugin relies on has changed since: it says so now.
                if self.store().get(target.id()?, &key).is_none() && attempt < MAX_NAME_ATTEMPTS {
                    continue;
                }
            }
            if !generated || attempt == MAX_NAME_ATTEMPTS {
                if existing.is_some_and(|object| !object.value()["metadata"]["deletionTimestamp"].is_null()) {
                    return Err(ApiError::still_exists(version, &name));
                }
                return Err(ApiError::already_exists(version, &name));
            }
        }
        Err(ApiError::internal("no name was free"))
    }

    /// Validates and stores an update of `old`. `None` on a conflict with another write.
    async fn update_object(
        &self,
        mutation: &Mutation<'_>,
        draft: Draft,
        old: &Value,
        existing: &Arc<Object>,
    ) -> Result<Option<Mutated>, ApiError> {
        let target = mutation.target;
        let version = &target.version;
        let (mut object, companions) = draft.into_parts();
        if !matches!(mutation.scope, Scope::Server) {
            let presented = mutation.presented;
            let shown_old = presented.map(|presented| presented.show(old));
            let attributes = AdmissionAttributes {
                target: presented.map_or(target, |presented| presented.target()),
                ..mutation.attributes(self, Some(shown_old.as_ref().unwrap_or(old)))
            };
            metadata::check_for_update(target, &mut object)?;
            // An empty list has a meaning, which defaulting drops.
            let managers = object["metadata"].get("managedFields").cloned();
            default(version, &mut object);
            // Owners are those of what the client wrote, before the strategy restores what it may not write.
            if let Some(manager) = mutation.manager {
                if let Some(managers) = managers {
                    object["metadata"]["managedFields"] = managers;
                }
                manager.record(old, &mut object).await;
            }
            match presented {
                None => self.api.admission().admit(&attributes, &mut object).await?,
                Some(presented) => {
                    let mut shown = presented.show(&object);
                    self.api.admission().admit(&attributes, &mut shown).await?;
                    presented.take(&shown, &mut object);
                }
            }
            // As upstream, whose mutating webhooks see what is of another revision, too.
            check_unconditional(target, &object)?;
            check_version(target, &object, old)?;
            metadata::restore_system_fields(&mut object, old)?;
            object = prepare_for_update(target, mutation.scope, object, old)?;
            default(version, &mut object);
            if !matches!(mutation.scope, Scope::Status) {
                metadata::bump_generation(version, &mut object, old);
            }
            let mut found = validation_of(version, mutation.scope, &object, old).complete(version).await?;
            found.errors.extend(validation::validate_writer(version, &object, Some(old), &self.user));
            self.warnings.extend(found.warnings);
            refuse(version, target.name(), &found.errors)?;
            match mutation.scope {
                Scope::Object => {
                    self.warnings.extend(version.strategy.warnings(&object, Some(old)));
                    self.warnings.extend(version.warning_of_no_effect(&object));
                }
                Scope::Status => self.warnings.extend(version.strategy.status_warnings(&object, old)),
                Scope::Part(_) | Scope::Server => {}
            }
            let shown = presented.map(|presented| presented.show(&object));
            self.api.admission().validate(&attributes, shown.as_ref().unwrap_or(&object)).await?;
        }
        keep_times(old, &mut object);
        let unchanged = companions.is_empty() && version.spec.schema.same(&object, old);
        if unchanged && version.is_in_storage_version(existing) {
            return Ok(Some(Mutated::Stored(Arc::clone(existing))));
        }
        if mutation.options.are_of_dry_run() {
            self.api.dry_run(version, &mut object).await?;
            return Ok(Some(Mutated::Drafted(object)));
        }
        // An update that removes the last finalizer of a terminating object deletes it.
        let (value, last) = if is_finalized(version, &object) { (None, Some(object)) } else { (Some(object), None) };
        let expected = Expected::Revision(existing.revision);
        let mut related = self.related(mutation, old, value.as_ref());
        related.companions.extend(companions);
        let written = self.api.commit(version, target.key(), expected, value, related).await?;
        Ok(written.map(|written| last.map_or_else(|| Mutated::Stored(written), Mutated::Deleted)))
    }

    /// Stores or completes a deletion. `None` on a conflict with another write.
    async fn delete_object(
        &self,
        mutation: &Mutation<'_>,
        draft: Draft,
        old: &Value,
        existing: &Arc<Object>,
    ) -> Result<Option<Mutated>, ApiError> {
        let target = mutation.target;
        if !matches!(mutation.scope, Scope::Server) {
            let attributes = mutation.attributes(self, Some(old));
            let mut nothing = Value::Null;
            self.api.admission().admit(&attributes, &mut nothing).await?;
            self.api.admission().validate(&attributes, &nothing).await?;
        }
        let removes = matches!(draft, Draft::Remove(_));
        let (object, companions) = draft.into_parts();
        let (value, last) = match removes {
            false if companions.is_empty() && object == *old => {
                return Ok(Some(Mutated::Stored(Arc::clone(existing))));
            }
            false if mutation.options.are_of_dry_run() => return Ok(Some(Mutated::Drafted(object))),
            true if mutation.options.are_of_dry_run() => return Ok(Some(Mutated::Deleted(object))),
            false => (Some(object), None),
            true => (None, Some(object)),
        };
        let expected = Expected::Revision(existing.revision);
        let mut related = self.related(mutation, old, value.as_ref());
        related.companions.extend(companions);
        let written = self.api.commit(&target.version, target.key(), expected, value, related).await?;
        Ok(written.map(|written| last.map_or_else(|| Mutated::Stored(written), Mutated::Deleted)))
    }

    /// What changes with `old`, which becomes `new` or is removed.
    fn related(&self, mutation: &Mutation<'_>, old: &Value, new: Option<&Value>) -> Relations {
        let companions = self.api.admission().companions(&mutation.attributes(self, Some(old)), new);
        Relations { companions, ..Relations::default() }
    }
}

fn refuse(version: &Version, name: &str, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(version, name, errors)) }
}

/// Removes fields that the type does not have, and fills in defaults.
pub(crate) fn default(version: &Version, object: &mut Value) {
    version.spec.schema.prune(object);
    if let Some(fields) = object.as_object_mut() {
        version.strategy.default(fields);
    }
}

/// Resets the status of a new object, which has what Go's type always writes, and sets what only the server writes.
fn prepare_for_create(version: &Version, object: &mut Value) {
    if version.has_status() && !version.strategy.keeps_status_on_create() {
        object.as_object_mut().map(|fields| fields.remove("status"));
    }
    if object.get("status").is_none()
        && let Some(status) = version.spec.schema.unset("status")
    {
        object["status"] = status;
    }
    version.strategy.prepare_for_create(object);
}

/// The object with the fields of `old` that the path does not reach.
fn prepare_for_update(target: &Target, scope: Scope<'_>, mut object: Value, old: &Value) -> Result<Value, ApiError> {
    let version = &target.version;
    match scope {
        Scope::Part(part) => {
            let managers = object["metadata"].get("managedFields").cloned();
            object = part.apply(object, old).map_err(|error| ApiError::invalid(version, target.name(), &[error]))?;
            if let Some(managers) = managers {
                object["metadata"]["managedFields"] = managers;
            }
        }
        Scope::Status => {
            let others = old.as_object().into_iter().flatten().map(|(field, _)| field.clone());
            let own = object.as_object().into_iter().flatten().map(|(field, _)| field.clone());
            let fields: std::collections::BTreeSet<String> = others.chain(own).collect();
            for field in fields.iter().filter(|f| !matches!(f.as_str(), "metadata" | "status")) {
                keep_field(&mut object, old, field);
            }
            version.strategy.prepare_status_update(&mut object, old);
        }
        Scope::Object | Scope::Server => {
            if version.has_status() {
                keep_field(&mut object, old, "status");
            }
            version.strategy.prepare_for_update(&mut object, old);
        }
    }
    Ok(object)
}

fn validation_of<'a>(version: &'a Version, scope: Scope<'a>, new: &'a Value, old: &'a Value) -> Validation<'a> {
    match scope {
        Scope::Status => Validation::of_status(version, new, old),
        Scope::Part(part) => Validation::of_part(version, part, new, old),
        Scope::Object | Scope::Server => Validation::of_change(version, new, old),
    }
}

impl ApiRequest {
    fn attributes<'a>(
        &'a self,
        target: &'a Target,
        operation: Operation,
        options: WriteOptions<'a>,
        old: Option<&'a Value>,
    ) -> AdmissionAttributes<'a> {
        AdmissionAttributes {
            user: &self.user,
            operation,
            method: &self.method,
            target,
            old,
            warnings: &self.warnings,
            audit: &self.audit,
            options,
            catalog: self.api.catalogs().current(),
            deadline: self.write_deadline(),
            is_own_component: self.is_of_own_component(),
            reinvocation: Reinvocation::default(),
        }
    }

    /// Runs admission on what is posted to a subresource, and returns what the plugins make of it; `parent` is its object.
    ///
    /// # Errors
    /// The first refusal.
    pub(crate) async fn admit_posted(
        &self,
        target: &Target,
        options: &RequestOptions,
        posted: Value,
        parent: Option<&Value>,
    ) -> Result<Value, ApiError> {
        self.admit(target, Operation::Create, WriteOptions::Query(options), posted, parent).await
    }

    /// Runs admission on what is not stored itself, and returns what the plugins make of it.
    ///
    /// # Errors
    /// The first refusal.
    pub(crate) async fn admit(
        &self,
        target: &Target,
        operation: Operation,
        options: WriteOptions<'_>,
        mut object: Value,
        old: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let attributes = self.attributes(target, operation, options, old);
        self.api.admission().admit(&attributes, &mut object).await?;
        self.api.admission().validate(&attributes, &object).await?;
        Ok(object)
    }
}
