//! The way of every write, whatever the type: `stages` has the order, the other files what each stage does.
//!
//! | stage | create | update, patch | delete |
//! |---|---|---|---|
//! | read | | the stored object, in the version of the request | the same |
//! | make | the body | the body, the patch applied, or the part of a subresource | the options applied: times, finalizers |
//! | metadata | namespace | namespace, name | |
//! | default | of the type and of the strategy | the same | |
//! | owners | `managedFields` | the same | |
//! | mutating admission | the plugins' `admit`, in their order | the same | the same, of no object |
//! | revision | | that of the object is that of the stored one | |
//! | prepare | uid, time, name; the strategy resets the status and sets what the server decides | what only the server writes, and what the path does not reach, is that of the stored object; generation | |
//! | validate | the strategy, by the rules of the type | the same, against the stored object | |
//! | warn | of the strategy; of what has no effect | the same | |
//! | validating admission | the plugins' `validate` | the same | the same, of no object |
//! | convert | to the version that is stored; a webhook may be asked | the same | the same, of what is left |
//! | commit | with what plugins rely on and what changes with it, in one transaction | the same; nothing if nothing has changed | the same; removes what is left without finalizers |
//!
//! After a conflict with another write all of it happens once more, as in upstream's `GuaranteedUpdate`. The order is that of
//! upstream's `endpoints/handlers/{create,update,patch,delete}.go` with `registry/generic/registry/store.go` and
//! `registry/rest`: an object that is invalid and over its quota is invalid. Mutating webhooks stand at the end of mutating admission, after
//! which all plugins have a second turn if one has changed something (`reinvocation`); validating ones at the end of
//! validating admission.

pub(crate) mod admission;
pub(crate) mod commit;
pub(crate) mod decode;
pub(crate) mod field_manager;
pub(crate) mod field_versions;
pub(crate) mod long_work;
pub(crate) mod metadata;
pub(crate) mod preconditions;
pub(crate) mod reinvocation;
pub(crate) mod repair;
pub(crate) mod stages;
pub(crate) mod validation;
