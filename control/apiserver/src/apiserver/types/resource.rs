//! A resource: a name in a group, and how its objects behave in every version.

use std::{fmt, sync::Arc};

use serde_json::Value;
use windlass_apimachinery::group_version::GroupVersion;

use super::{Conversion, Handler, Name, Strategy, TypeSchema};
use crate::store::{RelaxedDurability, ResourceId};

/// The garbage collection policy of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcPolicy {
    /// Dependents are deleted in the background.
    Background,
    /// Dependents are orphaned.
    Orphan,
    /// The resource never has dependents.
    Unsupported,
}

/// How `metadata.generation` counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// A new object has what the client sends; nothing is counted.
    Unset,
    /// It is 1, whatever changes.
    Fixed,
    /// It is 1, and changes of the spec are counted.
    Counted,
    /// A new object has what the client sends, and changes of the spec are counted.
    CountedFromUnset,
}

/// Where the objects of a resource come from.
#[derive(Debug, Clone)]
pub enum Storage {
    /// The store, under the name of this group resource; two resources may share one, as events do.
    Store {
        /// The group resource in the store: `leases.coordination.k8s.io`.
        name: Name,
        /// The `apiVersion` of the stored objects.
        api_version: String,
    },
    /// They are computed on request, or only answered to.
    Virtual(Handler),
}

/// Which component acts on the objects of a resource. Writers of accepted objects without effect get a warning: a guard
/// that is stored and does not guard is worse than none.
#[derive(Debug, Clone, Copy)]
pub enum Effect {
    /// All that they say is done, by whom.
    Full(&'static str),
    /// No component acts on some of what they say.
    Stored(Inert),
}

/// What has no effect.
#[derive(Debug, Clone, Copy)]
pub struct Inert {
    /// Of which objects; empty for all.
    pub of: &'static str,
    /// What is not done, as what follows "it is stored, but ".
    pub undone: &'static str,
    /// Whether this applies to an object.
    pub holds: fn(&Value) -> bool,
}

/// A resource in a group.
pub struct Resource {
    /// The API group, empty for the core group.
    pub group: Name,
    /// The kind of its objects.
    pub kind: Name,
    /// The kind of its lists.
    pub list_kind: Name,
    /// The plural name, as in paths.
    pub plural: Name,
    /// The singular name.
    pub singular: Name,
    /// Short names for kubectl.
    pub short_names: Vec<Name>,
    /// Categories, such as `all` of `kubectl get all`.
    pub categories: Vec<Name>,
    /// Whether the objects have a namespace.
    pub namespaced: bool,
    /// The verbs of discovery.
    pub verbs: Vec<&'static str>,
    /// Where the objects come from; filled in by [`Definition`](super::Definition) for stored resources.
    pub storage: Storage,
    /// The id in the store; `None` for virtual resources, and before the resource is installed.
    pub(in crate::apiserver) id: Option<ResourceId>,
    /// Whether a PUT creates a missing object.
    pub create_on_update: bool,
    /// Whether a PUT without a resource version is allowed.
    pub allow_unconditional_update: bool,
    /// The garbage collection policy of a deletion without one.
    pub gc: GcPolicy,
    /// Whether an immediate deletion returns the object instead of a `Status`.
    pub returns_deleted: bool,
    /// How `metadata.generation` counts.
    pub generation: Generation,
    /// Which writes may reach the disk a few seconds later: those that nothing depends on and that recur anyway.
    pub relaxed_durability: RelaxedDurability,
    /// Whether the resource itself is going: nothing is created any more.
    pub terminating: bool,
    /// Distinguishes a custom resource from others that have had its name: the uid of its definition. Empty for built-in ones.
    pub identity: Name,
    /// The schemas of all versions of a custom resource by `apiVersion`, of those that are not served too: objects may be
    /// stored in any of them. Empty for built-in resources.
    pub schemas: Vec<(String, TypeSchema)>,
    /// What the resource does at create, update and delete.
    pub strategy: Arc<dyn Strategy>,
    /// Who acts on its objects.
    pub effect: Effect,
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("name", &self.group_resource()).finish_non_exhaustive()
    }
}

impl Resource {
    /// A namespaced, stored resource with upstream's usual behaviour.
    #[must_use]
    pub fn new(
        group: impl Into<Name>,
        plural: impl Into<Name>,
        kind: impl Into<Name>,
        strategy: impl Strategy + 'static,
    ) -> Self {
        let (group, plural, kind) = (group.into(), plural.into(), kind.into());
        let name = group_resource(&group, &plural);
        Self {
            list_kind: format!("{kind}List").into(),
            singular: kind.to_lowercase().into(),
            group,
            kind,
            plural,
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: vec!["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            storage: Storage::Store { name: name.into(), api_version: String::new() },
            id: None,
            create_on_update: false,
            allow_unconditional_update: true,
            gc: GcPolicy::Background,
            returns_deleted: false,
            generation: Generation::Unset,
            relaxed_durability: RelaxedDurability::Never,
            identity: "".into(),
            terminating: false,
            schemas: Vec::new(),
            strategy: Arc::new(strategy),
            effect: Effect::Full("whoever has defined it"),
        }
    }

    /// The group resource, as in errors: `leases.coordination.k8s.io`.
    #[must_use]
    pub fn group_resource(&self) -> String {
        group_resource(&self.group, &self.plural)
    }

    /// The verbs that discovery shows.
    #[must_use]
    pub fn discovered_verbs(&self) -> Vec<&'static str> {
        let shown = |verb: &&'static str| !self.terminating || !matches!(*verb, "create" | "patch" | "update");
        self.verbs.iter().copied().filter(shown).collect()
    }

    /// The group kind, as in validation errors: `Lease.coordination.k8s.io`.
    #[must_use]
    pub fn group_kind(&self) -> String {
        group_resource(&self.group, &self.kind)
    }

    /// The group of the stored type, which is that of upstream's internal type.
    #[must_use]
    pub(crate) fn stored_group(&self) -> &str {
        match &self.storage {
            Storage::Store { api_version, .. } => GroupVersion::parse(api_version).group,
            Storage::Virtual(_) => &self.group,
        }
    }

    /// The schema of a version of a custom resource, served or not.
    #[must_use]
    pub fn schema_of(&self, api_version: &str) -> Option<&TypeSchema> {
        self.schemas.iter().find(|(known, _)| known == api_version).map(|(_, schema)| schema)
    }

    /// The id in the store; `None` for virtual resources.
    #[must_use]
    pub fn id(&self) -> Option<ResourceId> {
        self.id
    }

    /// The warning for a write of an object that no component acts on.
    #[must_use]
    pub fn warning_of_no_effect(&self, object: &Value) -> Option<String> {
        let Effect::Stored(inert) = self.effect else { return None };
        let name = object["metadata"]["name"].as_str().unwrap_or("");
        (inert.holds)(object).then(|| format!("{} {name:?} is stored, but {}", self.kind, inert.undone))
    }
}

fn group_resource(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

impl Resource {
    /// Whether objects of this version are stored in its own form.
    pub(super) fn stores(&self, conversion: &Conversion) -> bool {
        matches!((&self.storage, conversion), (Storage::Store { .. }, Conversion::None))
    }
}
