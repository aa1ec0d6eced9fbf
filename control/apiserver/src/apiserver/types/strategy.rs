//! Strategies: what a resource does at create, update and delete, as upstream's `rest.RESTCreateStrategy` and its
//! relatives. The default of each method is what most resources do, custom ones among them.

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};

use crate::apiserver::{
    pipeline::validation::{Errors, FieldError, names},
    request::user::User,
};
use crate::store::{AllocationError, Allocator};

/// How far a stored object may go on to break a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// As long as it breaks the rule of this name.
    Rule(&'static str),
    /// With the value that it has there.
    Value,
}

/// What the first request to delete an object changes. Upstream's types that end by a controller of their own have a `Delete` of
/// their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstDeletion {
    /// Sets the time, the grace period and the garbage collector's finalizer, and counts as a change of the spec.
    Graceful,
    /// Sets the time and the garbage collector's finalizer: of a namespace.
    Marks,
    /// Sets the time, whatever the client says of dependents: of a CustomResourceDefinition.
    MarksAlone,
}

/// The behaviour of one resource. Pure: objects in, objects and errors out; only timestamps are taken from the clock.
pub trait Strategy: Send + Sync + fmt::Debug {
    /// Fills in defaults that the schema does not state.
    fn default(&self, _object: &mut Map<String, Value>) {}

    /// Sets the fields of a new object that only the server writes. The status is already reset.
    fn prepare_for_create(&self, _object: &mut Value) {}

    /// Sets fields of a new object that follow from its older forms; the warnings about those.
    fn complete_fields(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }

    /// Records who creates an object, where that is a field of it.
    fn record_requester(&self, _object: &mut Value, _requester: &User) {}

    /// Whether a change of metadata counts for the generation.
    fn counts_metadata(&self, _new: &Value, _old: &Value) -> bool {
        false
    }

    /// Whether a new object keeps the status that it is sent with.
    fn keeps_status_on_create(&self) -> bool {
        false
    }

    /// Sets what follows from the rest of a new object, after admission. `is_labelled` says that the client has sent
    /// labels with it, which cannot be distinguished from defaults afterwards.
    fn complete_create(&self, _object: &mut Value, _is_labelled: bool) {}

    /// Restores what an update of the object itself does not change. The status is already restored.
    fn prepare_for_update(&self, _object: &mut Value, _old: &Value) {}

    /// Restores what an update of the status does not change. All but metadata and status are already restored.
    fn prepare_status_update(&self, _object: &mut Value, _old: &Value) {}

    /// The fields that a path does not write, for server-side apply (upstream: `GetResetFields`); `None` for the usual ones:
    /// the status, or through `/status` the spec.
    fn reset_fields(&self, _subresource: &str) -> Option<&'static [&'static str]> {
        None
    }

    /// What is wrong with a name.
    fn validate_name(&self, name: &str) -> Option<String> {
        names::subdomain(name)
    }

    /// What is wrong with a prefix of generated names; a dash at its end is a letter here.
    fn validate_prefix(&self, prefix: &str) -> Option<String> {
        self.validate_name(prefix)
    }

    /// Whether validating an object, or its change, may take as long as what is written in it wants: schemas and expressions are
    /// compiled.
    fn validation_takes_long(&self, _old: Option<&Value>) -> bool {
        false
    }

    /// Validates an object, which has its defaults.
    fn validate(&self, _object: &Value, _errors: &mut Errors) {}

    /// The same against the stored object: rules that it breaks already may be tolerated, so that nothing else of an object
    /// becomes immutable when a rule is added.
    fn validate_against(&self, object: &Value, _old: Option<&Value>, errors: &mut Errors) {
        self.validate(object, errors);
    }

    /// Whether an error is tolerated of a changed object where the stored one has it already, as upstream tolerates those
    /// of rules that were added later.
    fn tolerates(&self, _object: &Value, _error: &FieldError) -> Option<Tolerance> {
        None
    }

    /// Validates a new object beyond what holds for every one, which [`Self::validate`] has checked.
    fn validate_create(&self, _object: &Value, _errors: &mut Errors) {}

    /// Validates what has changed. Both objects are in their canonical form: clients write empty values in several
    /// ways, which is no change.
    fn validate_update(&self, _new: &Value, _old: &Value, _errors: &mut Errors) {}

    /// Validates what not everybody may write. `old` is absent for a creation.
    fn validate_writer(&self, _new: &Value, _old: Option<&Value>, _writer: &User, _errors: &mut Errors) {}

    /// Validates a change through `/status`. Both objects are in their canonical form.
    fn validate_status(&self, _new: &Value, _old: &Value, _errors: &mut Errors) {}

    /// Warnings for the client that writes an object.
    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Warnings for the client that writes a status.
    fn status_warnings(&self, _new: &Value, _old: &Value) -> Vec<String> {
        Vec::new()
    }

    /// The warning for a client that deletes an object without saying what becomes of its dependents.
    fn deletion_warning(&self) -> Option<&'static str> {
        None
    }

    /// The seconds that a graceful deletion takes, with the period that the client requests; `None` if deletions of
    /// this resource are not graceful.
    fn grace_period(&self, _object: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// What the first request to delete an object changes.
    fn first_deletion(&self) -> FirstDeletion {
        FirstDeletion::Graceful
    }

    /// Changes an object whose deletion begins.
    fn begin_deletion(&self, _object: &mut Value) {}

    /// Whether nothing but `metadata.finalizers` and the grace period delays a deletion.
    fn is_finalized(&self, _object: &Value) -> bool {
        true
    }

    /// What allocates unique values for the objects of the resource, in the order of the writes.
    fn allocator(&self) -> Option<Arc<dyn Allocator>> {
        None
    }

    /// Fills in what a write would allocate, without allocating it.
    ///
    /// # Errors
    /// When a requested value cannot be allocated.
    fn dry_run(&self, _object: &mut Value) -> Result<(), AllocationError> {
        Ok(())
    }
}
