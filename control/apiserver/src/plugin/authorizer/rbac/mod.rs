//! The RBAC authorizer: what roles allow to those who are bound to them.
//!
//! `rules.rs` says what a rule allows and whether some rules cover others, `policy.rs` holds roles and bindings by subject
//! (both pure); `plugin/store_view.rs` feeds them from the store. Nothing here may import handlers.

mod policy;
pub(crate) mod rules;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use policy::Bound;
pub(crate) use policy::{Policy, RoleRef};

use crate::{
    apiserver::{Attributes, Authorizer, Decision, Rules, User},
    plugin::store_view::StoreView,
    store::Store,
};

/// The authorizer.
#[derive(Debug)]
pub(crate) struct RbacAuthorizer {
    policy: Arc<StoreView<Policy>>,
}

impl RbacAuthorizer {
    /// An authorizer that follows the roles and bindings of the store.
    pub(crate) fn new(store: Store) -> Self {
        Self { policy: Arc::new(StoreView::new(store)) }
    }

    /// What it decides by, for the check of escalations.
    pub(crate) fn policy(&self) -> Arc<StoreView<Policy>> {
        Arc::clone(&self.policy)
    }
}

impl Authorizer for RbacAuthorizer {
    fn decide(&self, user: &User, what: &Attributes<'_>) -> Decision {
        // Without roles nothing is allowed.
        self.policy.read(|policy| decide(policy, user, what)).unwrap_or(Decision::NoOpinion(String::new()))
    }

    fn reason(&self, user: &User, what: &Attributes<'_>) -> String {
        self.policy.read(|policy| reason(policy, user, what)).unwrap_or_default()
    }

    fn rules(&self, user: &User, namespace: &str) -> Rules {
        self.policy.read(|policy| policy.rules_of(user, namespace)).unwrap_or_default()
    }
}

/// Whether a policy allows a request.
pub(crate) fn is_allowed(policy: &Policy, user: &User, what: &Attributes<'_>) -> bool {
    decide(policy, user, what) == Decision::Allow
}

/// What allows a request, in upstream's words.
fn reason(policy: &Policy, user: &User, what: &Attributes<'_>) -> String {
    let mut bound = policy.bindings_of(user, what.namespace);
    let allows = |rules: &Rules| rules::allows(rules, what);
    let allowing = bound.find(|bound| policy.role(bound.role).is_some_and(allows));
    allowing.map_or_else(String::new, |bound| format!("RBAC: allowed by {bound}"))
}

/// Decides by a policy. Missing roles are reported only if nothing allows the request, as upstream.
fn decide(policy: &Policy, user: &User, what: &Attributes<'_>) -> Decision {
    let mut missing = Vec::new();
    for Bound { role, .. } in policy.bindings_of(user, what.namespace) {
        match policy.role(role) {
            Some(rules) if rules::allows(rules, what) => return Decision::Allow,
            Some(_) => {}
            None => missing.push(role.not_found()),
        }
    }
    Decision::NoOpinion(match missing.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        many => format!("RBAC: [{}]", many.join(", ")),
    })
}
