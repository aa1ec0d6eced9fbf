//! RoleBinding and ClusterRoleBinding. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, items};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::text,
            field::Field,
            tables::{AGE, column, named, wide},
        },
        types,
    },
};

const GROUP: &str = "rbac.authorization.k8s.io";

/// The resource of ClusterRoleBindings.
pub(crate) fn cluster_role_binding() -> Definition {
    definition("clusterrolebindings", "ClusterRoleBinding", false)
}

/// The resource of RoleBindings.
pub(crate) fn role_binding() -> Definition {
    definition("rolebindings", "RoleBinding", true)
}

fn definition(plural: &'static str, kind: &'static str, namespaced: bool) -> Definition {
    let mut resource = Resource::new(GROUP, plural, kind, Binding { namespaced });
    resource.namespaced = namespaced;
    resource.create_on_update = true;
    let mut v1 = VersionSpec::new("v1", types::built_in("rbac.authorization.k8s.io/v1", kind));
    let columns = vec![
        column("Role", "The role that it gives."),
        AGE,
        wide("Users", "Users that get it."),
        wide("Groups", "Groups that get it."),
        wide("ServiceAccounts", "Service accounts that get it."),
    ];
    v1.table = named(columns, |object, age| {
        let role = &object["roleRef"];
        let [users, groups, accounts] = ["User", "Group", "ServiceAccount"].map(|kind| json!(subjects(object, kind)));
        vec![json!(format!("{}/{}", text(&role["kind"]), text(&role["name"]))), json!(age), users, groups, accounts]
    });
    Definition::single(resource, v1)
}

/// The subjects of a kind.
fn subjects(object: &Value, kind: &str) -> String {
    let all = object["subjects"].as_array().into_iter().flatten().filter(|subject| subject["kind"] == kind);
    let name = |subject: &Value| match kind {
        "ServiceAccount" => format!("{}/{}", text(&subject["namespace"]), text(&subject["name"])),
        _ => text(&subject["name"]).to_owned(),
    };
    all.map(name).collect::<Vec<_>>().join(", ")
}

#[derive(Debug)]
struct Binding {
    namespaced: bool,
}

impl Strategy for Binding {
    fn default(&self, object: &mut Map<String, Value>) {
        let set_group = |fields: &mut Map<String, Value>| {
            if fields.get("apiGroup").and_then(Value::as_str).is_none_or(str::is_empty) {
                fields.insert("apiGroup".to_owned(), json!(GROUP));
            }
        };
        set_group(child(object, "roleRef"));
        items(object, "subjects")
            .filter(|subject| matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")))
            .for_each(set_group);
    }

    fn validate_name(&self, name: &str) -> Option<String> {
        names::path_segment(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        let role = root.at("roleRef");
        role.at("apiGroup").one_of(&[GROUP], errors);
        let kinds: &[&str] = if self.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
        role.at("kind").one_of(kinds, errors);
        role.at("name").named(names::path_segment, errors);
        for subject in root.at("subjects").items() {
            validate_subject(&subject, self.namespaced, errors);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let (now, before) = (&new["roleRef"], &old["roleRef"]);
        if now != before {
            // Upstream writes its internal type.
            let shown = json!({"APIGroup": now["apiGroup"], "Kind": now["kind"], "Name": now["name"]});
            errors.invalid("roleRef", &shown, "cannot change roleRef");
        }
    }
}

fn validate_subject(subject: &Field<'_>, namespaced: bool, errors: &mut Errors) {
    let (name, group) = (subject.at("name"), subject.at("apiGroup"));
    if name.text().is_empty() {
        name.required("", errors);
    }
    match subject.at("kind").text() {
        "ServiceAccount" => {
            name.optionally_fits(names::subdomain, errors);
            if !group.text().is_empty() {
                group.one_of(&[""], errors);
            }
            if !namespaced && subject.at("namespace").text().is_empty() {
                subject.at("namespace").required("", errors);
            }
        }
        "User" | "Group" => group.one_of(&[GROUP], errors),
        _ => subject.at("kind").one_of(&["ServiceAccount", "User", "Group"], errors),
    }
}
