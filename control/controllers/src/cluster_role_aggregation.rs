//! The rules of a ClusterRole with an `aggregationRule` are those of the roles that it selects.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use windlass_kit::objects::label_selector::selects;

use super::runtime::{Cache, Context, Controller, Error, Key, Outcome, error};

impl crate::runtime::Cached for ClusterRole {}

pub(crate) struct ClusterRoleAggregationController {
    client: Client,
    roles: Cache<ClusterRole>,
}

impl Controller for ClusterRoleAggregationController {
    const NAME: &'static str = "clusterrole-aggregation-controller";
    const QUEUE: &'static str = "ClusterRoleAggregator";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let roles = context.informer::<ClusterRole>();
        let (queue, cache) = (context.queue(), roles.cache());
        roles.on_change(move |old, new| {
            // A selected role is one by its labels before or after the change. Few roles aggregate, as upstream's
            // controller assumes: it looks at all of them for each change.
            if [old, new].into_iter().flatten().any(|role| !role.labels().is_empty() || is_aggregated(role)) {
                let aggregated = cache.all().into_iter().filter(|role| is_aggregated(role));
                aggregated.for_each(|role| queue.add(Key::of(&role.metadata)));
            }
        });
        Self { client: context.client(), roles: roles.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(role) = self.roles.get(&key) else { return Ok(Outcome::Done) };
        let all = self.roles.all();
        let rules = aggregate(&role, all.iter().map(AsRef::as_ref));
        let Some(rules) = rules.filter(|rules| role.rules.as_deref().unwrap_or_default() != rules) else {
            return Ok(Outcome::Done);
        };
        let api: Api<ClusterRole> = Api::all(self.client.clone());
        let meta = &role.metadata;
        let seen = json!({"uid": meta.uid, "resourceVersion": meta.resource_version});
        let patch = Patch::Merge(json!({"metadata": seen, "rules": rules}));
        let patched = api.patch(&key.name, &PatchParams::default(), &patch).await;
        error::of_seen(patched, "aggregate the rules of ClusterRole", &key)?;
        Ok(Outcome::Done)
    }
}

fn is_aggregated(role: &ClusterRole) -> bool {
    role.aggregation_rule.is_some()
}

/// The rules that a role aggregates, each once, in the order of selectors and names; `None` if it aggregates none. Pure.
fn aggregate<'a>(role: &ClusterRole, all: impl Iterator<Item = &'a ClusterRole>) -> Option<Vec<PolicyRule>> {
    let selectors = role.aggregation_rule.as_ref()?.cluster_role_selectors.as_deref().unwrap_or_default();
    let mut others: Vec<&ClusterRole> = all.filter(|other| other.name_any() != role.name_any()).collect();
    others.sort_by_key(|other| other.name_any());
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in selectors {
        for other in others.iter().filter(|other| selects(selector, other.labels())) {
            for rule in other.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn role(name: &str, label: &str, verbs: &[&str]) -> ClusterRole {
        let rules: Vec<Value> =
            verbs.iter().map(|verb| json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]})).collect();
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": rules})).unwrap()
    }

    #[test]
    fn rules_of_selected_roles_are_taken_once_and_in_order() {
        let mut admin = role("admin", "x", &["old"]);
        assert_eq!(aggregate(&admin, std::iter::empty()), None);
        admin.aggregation_rule = serde_json::from_value(json!({"clusterRoleSelectors": [
            {"matchLabels": {"to-admin": "true"}},
            {"matchExpressions": [{"key": "more", "operator": "Exists"}]},
        ]}))
        .unwrap();
        let all = [
            role("b", "to-admin", &["list", "get"]),
            role("a", "to-admin", &["get"]),
            role("c", "more", &["list", "watch"]),
            role("d", "other", &["delete"]),
            admin.clone(),
        ];
        let verbs = |rules: Vec<PolicyRule>| rules.into_iter().flat_map(|rule| rule.verbs).collect::<Vec<_>>();
        assert_eq!(aggregate(&admin, all.iter()).map(verbs).unwrap(), ["get", "list", "watch"]);
        assert_eq!(aggregate(&admin, std::iter::empty()), Some(Vec::new()));
    }
}
