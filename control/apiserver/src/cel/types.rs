//! The types that expressions of admission can name: those of `request` and `namespaceObject`, the variables of a policy, and
//! what policies that mutate make.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use windlass_cel::{Type, TypeProvider};

pub(super) const REQUEST: &str = "kubernetes.AdmissionRequest";
pub(super) const NAMESPACE: &str = "kubernetes.Namespace";
/// The type of `variables`.
pub(super) const VARIABLES: &str = "kubernetes.variables";
/// What an apply configuration is, and the beginning of the names of what it is made of.
pub(super) const OBJECT: &str = "Object";
/// An operation of a JSON patch.
pub(super) const JSON_PATCH: &str = "JSONPatch";

/// The types of `request` and `namespaceObject`. Upstream: `BuildRequestType` and `BuildNamespaceType`.
#[derive(Debug)]
pub(super) struct AdmissionTypes;

/// The fields of a type, each with its type.
type FieldTypes = &'static [(&'static str, fn() -> Type)];

fn texts() -> Type {
    Type::list(Type::String)
}

impl AdmissionTypes {
    /// The fields of a type.
    fn fields(name: &str) -> Option<FieldTypes> {
        const TEXT: fn() -> Type = || Type::String;
        const INT: fn() -> Type = || Type::Int;
        const TIME: fn() -> Type = || Type::Timestamp;
        const KIND: fn() -> Type = || Type::object("kubernetes.GroupVersionKind");
        const RESOURCE: fn() -> Type = || Type::object("kubernetes.GroupVersionResource");
        const LABELS: fn() -> Type = || Type::map(Type::String, Type::String);
        Some(match name {
            REQUEST => &[
                ("kind", KIND),
                ("resource", RESOURCE),
                ("subResource", TEXT),
                ("requestKind", KIND),
                ("requestResource", RESOURCE),
                ("requestSubResource", TEXT),
                ("name", TEXT),
                ("namespace", TEXT),
                ("operation", TEXT),
                ("userInfo", || Type::object("kubernetes.UserInfo")),
                ("dryRun", || Type::Bool),
                ("options", || Type::Dyn),
            ],
            "kubernetes.GroupVersionKind" => &[("group", TEXT), ("version", TEXT), ("kind", TEXT)],
            "kubernetes.GroupVersionResource" => &[("group", TEXT), ("version", TEXT), ("resource", TEXT)],
            "kubernetes.UserInfo" => {
                &[("username", TEXT), ("uid", TEXT), ("groups", texts), ("extra", || Type::map(Type::String, texts()))]
            }
            NAMESPACE => &[
                ("metadata", || Type::object("kubernetes.NamespaceMetadata")),
                ("spec", || Type::object("kubernetes.NamespaceSpec")),
                ("status", || Type::object("kubernetes.NamespaceStatus")),
            ],
            "kubernetes.NamespaceMetadata" => &[
                ("name", TEXT),
                ("generateName", TEXT),
                ("namespace", TEXT),
                ("labels", LABELS),
                ("annotations", LABELS),
                ("UID", TEXT),
                ("creationTimestamp", TIME),
                ("deletionGracePeriodSeconds", INT),
                ("deletionTimestamp", TIME),
                ("generation", INT),
                ("resourceVersion", TEXT),
                ("finalizers", texts),
            ],
            "kubernetes.NamespaceSpec" => &[("finalizers", texts)],
            "kubernetes.NamespaceStatus" => {
                &[("conditions", || Type::list(Type::object("kubernetes.NamespaceCondition"))), ("phase", TEXT)]
            }
            "kubernetes.NamespaceCondition" => {
                &[("status", TEXT), ("type", TEXT), ("lastTransitionTime", TIME), ("message", TEXT), ("reason", TEXT)]
            }
            _ => return None,
        })
    }
}

impl TypeProvider for AdmissionTypes {
    fn find_type(&self, name: &str) -> Option<Type> {
        Self::fields(name).map(|_| Type::object(name))
    }

    fn find_field(&self, type_name: &str, field: &str) -> Option<Type> {
        let (_, of) = Self::fields(type_name)?.iter().find(|(name, _)| *name == field)?;
        Some(of())
    }
}

/// The variables of a policy, by their names; more are added as they are compiled.
#[derive(Debug, Default)]
pub(super) struct VariableTypes(RwLock<BTreeMap<String, Type>>);

impl VariableTypes {
    /// Adds a variable. Upstream: `convertCelTypeToDeclType`, which keeps scalars, lists and maps.
    pub(super) fn add(&self, name: &str, of: Option<&Type>) {
        self.0.write().insert(name.to_owned(), of.map_or(Type::Dyn, kept));
    }
}

fn kept(of: &Type) -> Type {
    match of {
        Type::Null
        | Type::Bool
        | Type::Int
        | Type::Uint
        | Type::Double
        | Type::String
        | Type::Bytes
        | Type::Duration
        | Type::Timestamp => of.clone(),
        Type::List(element) => Type::list(kept(element)),
        Type::Map(types) => Type::map(kept(&types.0), kept(&types.1)),
        _ => Type::Dyn,
    }
}

impl TypeProvider for VariableTypes {
    fn find_type(&self, name: &str) -> Option<Type> {
        (name == VARIABLES).then(|| Type::object(VARIABLES))
    }

    fn find_field(&self, type_name: &str, field: &str) -> Option<Type> {
        if type_name == VARIABLES { self.0.read().get(field).cloned() } else { None }
    }
}

/// The types that expressions of mutations make. Upstream: `DynamicTypeResolver`.
#[derive(Debug)]
pub(super) struct PatchTypes;

impl TypeProvider for PatchTypes {
    fn find_type(&self, name: &str) -> Option<Type> {
        let is_object = name.strip_prefix(OBJECT).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        (name == JSON_PATCH || is_object).then(|| Type::object(name))
    }

    fn find_field(&self, type_name: &str, field: &str) -> Option<Type> {
        if type_name != JSON_PATCH {
            return self.find_type(type_name).map(|_| Type::Dyn);
        }
        match field {
            "op" | "path" | "from" => Some(Type::String),
            "value" => Some(Type::Dyn),
            _ => None,
        }
    }
}
