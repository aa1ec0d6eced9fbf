//! Nobody grants rights by RBAC objects that they do not hold (upstream: `policybased` storage of the RBAC resources). Who may
//! `escalate` a role or `bind` to it is free, and so are the members of `system:masters`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Attributes, Operation, Rules},
    pki::MASTERS_GROUP,
    plugin::authorizer::rbac::{RoleRef, SyncedPolicy, is_allowed, rules},
};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Refuses the write.
#[derive(Debug)]
pub(super) struct RbacEscalation {
    pub(super) policy: Arc<SyncedPolicy>,
}

#[async_trait]
impl AdmissionPlugin for RbacEscalation {
    fn name(&self) -> &'static str {
        "RBACEscalation"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let version = &attributes.target.version;
        if version.group != GROUP || attributes.user.is_in(MASTERS_GROUP) {
            return Ok(());
        }
        match version.plural.as_ref() {
            "roles" | "clusterroles" => self.check_role(attributes, object),
            "rolebindings" | "clusterrolebindings" => self.check_binding(attributes, object),
            _ => Ok(()),
        }
    }
}

impl RbacEscalation {
    fn check_role(&self, attributes: &AdmissionAttributes<'_>, role: &Value) -> Result<(), ApiError> {
        let changed = |field: &str| attributes.old.is_none_or(|old| old[field] != role[field]);
        let aggregated = role["aggregationRule"].is_object();
        if !changed("rules") && !changed("aggregationRule") {
            return Ok(());
        }
        let wanted = if aggregated && changed("aggregationRule") { everything() } else { rules::of_role(role) };
        let name = attributes.name(role);
        let may = self.may(attributes, "escalate", &attributes.target.version.plural, name);
        if may { Ok(()) } else { self.check_held(attributes, role, &wanted) }
    }

    fn check_binding(&self, attributes: &AdmissionAttributes<'_>, binding: &Value) -> Result<(), ApiError> {
        let changed = |field: &str| attributes.old.is_none_or(|old| old[field] != binding[field]);
        if !changed("roleRef") && !changed("subjects") {
            return Ok(());
        }
        let role = RoleRef::of(&binding["roleRef"], namespace(attributes));
        let resource = if role.is_cluster_role() { "clusterroles" } else { "roles" };
        if self.may(attributes, "bind", resource, role.name()) {
            return Ok(());
        }
        let granted = self.policy.read(|policy| policy.role(&role).cloned()).flatten();
        // Upstream's error names the binding's resource and the role's name.
        let of = &attributes.target.version.plural;
        let granted = granted.ok_or_else(|| ApiError::not_found_in(GROUP, of, role.name()))?;
        self.check_held(attributes, binding, &granted)
    }

    /// Whether the user has a verb on a role by RBAC.
    fn may(&self, attributes: &AdmissionAttributes<'_>, verb: &str, resource: &str, name: &str) -> bool {
        let what = Attributes {
            verb,
            is_resource: true,
            group: GROUP,
            resource,
            namespace: namespace(attributes),
            name,
            ..Attributes::default()
        };
        self.policy.read(|policy| is_allowed(policy, attributes.user, &what)).unwrap_or(false)
    }

    /// Refuses rights that the user does not hold where the object is.
    fn check_held(&self, attributes: &AdmissionAttributes<'_>, object: &Value, wanted: &Rules) -> Result<(), ApiError> {
        let user = attributes.user;
        let held = self.policy.read(|policy| policy.rules_of(user, namespace(attributes))).unwrap_or_default();
        let mut missing: Vec<String> = rules::uncovered(&held, wanted).iter().map(ToString::to_string).collect();
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort();
        let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
        let mut why = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            groups.join(" "),
            missing.join("\n")
        );
        if !held.unresolved.is_empty() {
            why += &format!("; resolution errors: [{}]", held.unresolved.join(", "));
        }
        Err(attributes.forbidden(object, &why))
    }
}

/// Where the object is; empty for the whole cluster.
fn namespace<'a>(attributes: &'a AdmissionAttributes<'_>) -> &'a str {
    attributes.target.namespace.as_deref().unwrap_or("")
}

/// What an aggregated role may come to hold.
fn everything() -> Rules {
    let all = json!(["*"]);
    rules::of_role(&json!({"rules": [
        {"verbs": all, "apiGroups": all, "resources": all},
        {"verbs": all, "nonResourceURLs": all},
    ]}))
}
