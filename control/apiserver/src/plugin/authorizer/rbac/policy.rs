//! Roles and bindings, found by the subjects that are bound. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use serde_json::Value;

use super::rules;
use crate::{
    apiserver::{Rules, User},
    plugin::store_view::{Apply, View},
    store::Key,
};

/// A role that a binding refers to: the namespace is empty for a ClusterRole.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RoleRef(Key);

impl RoleRef {
    /// What a binding of a namespace (empty for a ClusterRoleBinding) refers to.
    pub(crate) fn of(reference: &Value, namespace: &str) -> Self {
        let namespace = if reference["kind"] == "Role" { namespace } else { "" };
        Self(Key { namespace: namespace.to_owned(), name: text(&reference["name"]).to_owned() })
    }

    /// Whether it is a ClusterRole.
    pub(crate) fn is_cluster_role(&self) -> bool {
        self.0.namespace.is_empty()
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Upstream's words for a role that is missing.
    pub(super) fn not_found(&self) -> String {
        let resource = if self.is_cluster_role() { "clusterrole" } else { "role" };
        format!("{resource}.rbac.authorization.k8s.io {:?} not found", self.0.name)
    }
}

/// Who is bound. A service account is the user that its tokens name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    User(String),
    Group(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(name) => write!(f, "Group {name:?}"),
            Self::User(name) => {
                match name.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':')) {
                    Some((namespace, name)) => write!(f, "ServiceAccount \"{name}/{namespace}\""),
                    None => write!(f, "User {name:?}"),
                }
            }
        }
    }
}

/// A binding of a user: displayed as upstream's reason for allowing a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound<'a> {
    binding: &'a Key,
    pub(super) role: &'a RoleRef,
    subject: &'a Subject,
}

impl fmt::Display for Bound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { namespace, name } = self.binding;
        match namespace.as_str() {
            "" => write!(f, "ClusterRoleBinding {name:?}")?,
            namespace => write!(f, "RoleBinding \"{name}/{namespace}\"")?,
        }
        let kind = if self.role.is_cluster_role() { "ClusterRole" } else { "Role" };
        write!(f, " of {kind} {:?} to {}", self.role.name(), self.subject)
    }
}

/// A binding: where it holds (empty for everywhere), the role, and the subjects.
#[derive(Debug)]
struct Binding {
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// All roles and bindings.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    roles: HashMap<Key, Rules>,
    bindings: HashMap<Key, Binding>,
    /// The bindings of each subject, in order.
    of_subject: HashMap<Subject, BTreeSet<Key>>,
}

impl View for Policy {
    const RESOURCES: &'static [(&'static str, Apply<Self>)] = &[
        ("clusterroles.rbac.authorization.k8s.io", Self::set_role),
        ("roles.rbac.authorization.k8s.io", Self::set_role),
        ("clusterrolebindings.rbac.authorization.k8s.io", Self::set_binding),
        ("rolebindings.rbac.authorization.k8s.io", Self::set_binding),
    ];
}

impl Policy {
    /// A Role, or with an empty namespace a ClusterRole, as it is now; `None` when it is gone.
    pub(super) fn set_role(&mut self, key: &Key, object: Option<&Value>) {
        match object {
            Some(object) => drop(self.roles.insert(key.clone(), rules::of_role(object))),
            None => drop(self.roles.remove(key)),
        }
    }

    /// A RoleBinding, or with an empty namespace a ClusterRoleBinding, as it is now; `None` when it is gone.
    pub(super) fn set_binding(&mut self, key: &Key, object: Option<&Value>) {
        for subject in self.bindings.remove(key).into_iter().flat_map(|old| old.subjects) {
            if let Some(bindings) = self.of_subject.get_mut(&subject) {
                bindings.remove(key);
                if bindings.is_empty() {
                    self.of_subject.remove(&subject);
                }
            }
        }
        let Some(object) = object else { return };
        let subjects = object["subjects"].as_array().into_iter().flatten();
        let subjects: Vec<Subject> = subjects.filter_map(|each| subject(each, &key.namespace)).collect();
        for subject in &subjects {
            self.of_subject.entry(subject.clone()).or_default().insert(key.clone());
        }
        let role = RoleRef::of(&object["roleRef"], &key.namespace);
        self.bindings.insert(key.clone(), Binding { role, subjects });
    }

    /// The rules of a role, if it exists.
    pub(crate) fn role(&self, role: &RoleRef) -> Option<&Rules> {
        self.roles.get(&role.0)
    }

    /// The bindings of a user in a namespace, those of the whole cluster first.
    pub(super) fn bindings_of<'a>(
        &'a self,
        user: &User,
        namespace: &'a str,
    ) -> impl Iterator<Item = Bound<'a>> + use<'a> {
        let subjects = std::iter::once(Subject::User(user.name.clone()))
            .chain(user.groups.iter().map(|group| Subject::Group(group.clone())));
        let mut bound: BTreeMap<&Key, &Subject> = BTreeMap::new();
        for (subject, keys) in subjects.filter_map(|subject| self.of_subject.get_key_value(&subject)) {
            for key in keys.iter().filter(|key| key.namespace.is_empty() || key.namespace == namespace) {
                bound.entry(key).or_insert(subject);
            }
        }
        bound
            .into_iter()
            .filter_map(|(binding, subject)| Some(Bound { binding, role: &self.bindings.get(binding)?.role, subject }))
    }

    /// What a user may do in a namespace; missing roles are reported.
    pub(crate) fn rules_of(&self, user: &User, namespace: &str) -> Rules {
        let mut all = Rules::default();
        for Bound { role, .. } in self.bindings_of(user, namespace) {
            match self.role(role) {
                Some(rules) => {
                    all.resource.extend(rules.resource.iter().cloned());
                    all.non_resource.extend(rules.non_resource.iter().cloned());
                }
                None => all.unresolved.push(role.not_found()),
            }
        }
        all
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn subject(subject: &Value, namespace: &str) -> Option<Subject> {
    let name = text(&subject["name"]);
    match text(&subject["kind"]) {
        "User" => Some(Subject::User(name.to_owned())),
        "Group" => Some(Subject::Group(name.to_owned())),
        "ServiceAccount" => {
            let own = text(&subject["namespace"]);
            let of = if own.is_empty() { namespace } else { own };
            (!of.is_empty()).then(|| Subject::User(format!("system:serviceaccount:{of}:{name}")))
        }
        _ => None,
    }
}
