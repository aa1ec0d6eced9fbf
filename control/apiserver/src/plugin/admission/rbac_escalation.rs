//! Users cannot grant rights by RBAC objects that they do not hold (upstream: `policybased` storage of the RBAC
//! resources). The verbs `escalate` and `bind` on a role exempt from this, as does membership in `system:masters`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use windlass_identity::pki::MASTERS_GROUP;

use super::changes::only_changes;
use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Attributes, Operation, Rules},
    plugin::{
        authorizer::rbac::{Policy, RoleRef, is_allowed, rules},
        store_view::StoreView,
    },
};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Refuses the write.
#[derive(Debug)]
pub(super) struct RbacEscalation {
    pub(super) policy: Arc<StoreView<Policy>>,
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
        // A new role has no name yet that a right could be limited to.
        let name = attributes.target.name();
        if is_harmless(attributes, role) || self.may(attributes, "escalate", &attributes.target.version.plural, name) {
            return Ok(());
        }
        self.check_held(attributes, role, &rules::of_role(role))?;
        // A role that gathers others may come to hold anything, and one that does so no longer may keep it.
        let gathers = |role: &Value| {
            role["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|selectors| !selectors.is_empty())
        };
        if (gathers(role) || attributes.old.is_some_and(gathers))
            && !rules::uncovered(&self.held(attributes), &everything()).is_empty()
        {
            return Err(attributes.forbidden(role, "must have cluster-admin privileges to use the aggregationRule"));
        }
        Ok(())
    }

    fn check_binding(&self, attributes: &AdmissionAttributes<'_>, binding: &Value) -> Result<(), ApiError> {
        if is_harmless(attributes, binding) {
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

    /// What the user holds where the object is.
    fn held(&self, attributes: &AdmissionAttributes<'_>) -> Rules {
        let rules = self.policy.read(|policy| policy.rules_of(attributes.user, namespace(attributes)));
        rules.unwrap_or_default()
    }

    /// Refuses rights that the user does not hold where the object is.
    fn check_held(&self, attributes: &AdmissionAttributes<'_>, object: &Value, wanted: &Rules) -> Result<(), ApiError> {
        let (user, held) = (attributes.user, self.held(attributes));
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

/// Whether an update changes nothing but what the garbage collector changes to delete the object in the end. Labels are
/// not among that: other roles gather this one by them.
fn is_harmless(attributes: &AdmissionAttributes<'_>, new: &Value) -> bool {
    attributes.old.is_some_and(|old| only_changes(old, new, &["/metadata/ownerReferences", "/metadata/finalizers"]))
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
