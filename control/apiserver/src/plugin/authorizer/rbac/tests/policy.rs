use serde_json::{Value, json};

use super::super::{Policy, decide, reason};
use crate::{
    apiserver::{Attributes, Decision, User},
    store::Key,
};

fn key(namespace: &str, name: &str) -> Key {
    Key { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn role(resource: &str) -> Value {
    json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]})
}

fn binding(kind: &str, role: &str, subject: &Value) -> Value {
    json!({"roleRef": {"kind": kind, "name": role}, "subjects": [subject]})
}

fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.set_role(&key("", "all"), Some(&role("pods")));
    policy.set_role(&key("n", "own"), Some(&role("secrets")));
    let group = json!({"kind": "Group", "name": "team"});
    policy.set_binding(&key("", "everywhere"), Some(&binding("ClusterRole", "all", &group)));
    let user = json!({"kind": "User", "name": "eve"});
    policy.set_binding(&key("n", "a"), Some(&binding("Role", "own", &user)));
    let account = json!({"kind": "ServiceAccount", "name": "robot"});
    policy.set_binding(&key("n", "b"), Some(&binding("ClusterRole", "all", &account)));
    policy.set_binding(&key("m", "c"), Some(&binding("ClusterRole", "missing", &user)));
    policy
}

fn user(name: &str, groups: &[&str]) -> User {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    User { name: name.to_owned(), groups, ..User::default() }
}

fn asks(policy: &Policy, user: &User, resource: &str, namespace: &str) -> Decision {
    let what = Attributes { verb: "get", is_resource: true, resource, namespace, ..Attributes::default() };
    decide(policy, user, &what)
}

#[test]
fn roles_hold_where_they_are_bound() {
    let policy = policy();
    let no = Decision::NoOpinion(String::new());
    let missing = Decision::NoOpinion("RBAC: clusterrole.rbac.authorization.k8s.io \"missing\" not found".to_owned());
    let (eve, member) = (user("eve", &[]), user("bob", &["team"]));
    let robot = user("system:serviceaccount:n:robot", &[]);
    for (who, resource, namespace, decided) in [
        (&member, "pods", "x", Decision::Allow),
        (&member, "pods", "", Decision::Allow),
        (&member, "secrets", "n", no.clone()),
        (&eve, "secrets", "n", Decision::Allow),
        (&eve, "secrets", "", no.clone()),
        (&eve, "secrets", "o", no.clone()),
        (&eve, "pods", "n", no.clone()),
        (&eve, "pods", "m", missing),
        (&robot, "pods", "n", Decision::Allow),
        (&robot, "pods", "m", no),
    ] {
        assert_eq!(asks(&policy, who, resource, namespace), decided, "{} {resource} {namespace}", who.name);
    }
}

/// Texts of kube-apiserver 1.36.2.
#[test]
fn what_allows_is_told() {
    let policy = policy();
    let robot = user("system:serviceaccount:n:robot", &[]);
    for (who, resource, namespace, told) in [
        (
            &user("bob", &["team"]),
            "pods",
            "x",
            r#"RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "all" to Group "team""#,
        ),
        (&user("eve", &[]), "secrets", "n", r#"RBAC: allowed by RoleBinding "a/n" of Role "own" to User "eve""#),
        (&robot, "pods", "n", r#"RBAC: allowed by RoleBinding "b/n" of ClusterRole "all" to ServiceAccount "robot/n""#),
        (&robot, "pods", "m", ""),
    ] {
        let what = Attributes { verb: "get", is_resource: true, resource, namespace, ..Attributes::default() };
        assert_eq!(reason(&policy, who, &what), told);
    }
}

#[test]
fn changes_of_roles_and_bindings_count_at_once() {
    let mut policy = policy();
    let eve = user("eve", &[]);
    policy.set_role(&key("n", "own"), Some(&role("configmaps")));
    assert_eq!(asks(&policy, &eve, "configmaps", "n"), Decision::Allow);
    assert_ne!(asks(&policy, &eve, "secrets", "n"), Decision::Allow);
    let bob = json!({"kind": "User", "name": "bob"});
    policy.set_binding(&key("n", "a"), Some(&binding("Role", "own", &bob)));
    assert_ne!(asks(&policy, &eve, "configmaps", "n"), Decision::Allow);
    assert_eq!(asks(&policy, &user("bob", &[]), "configmaps", "n"), Decision::Allow);
    policy.set_binding(&key("n", "a"), None);
    assert_ne!(asks(&policy, &user("bob", &[]), "configmaps", "n"), Decision::Allow);
    policy.set_role(&key("", "all"), None);
    let missing = "RBAC: clusterrole.rbac.authorization.k8s.io \"all\" not found".to_owned();
    assert_eq!(asks(&policy, &user("bob", &["team"]), "pods", ""), Decision::NoOpinion(missing));
}

#[test]
fn rules_of_a_user_are_those_of_all_its_roles() {
    let policy = policy();
    let both = user("eve", &["team"]);
    let resources = |namespace: &str| {
        let rules = policy.rules_of(&both, namespace);
        (rules.resource.iter().flat_map(|rule| rule.resources.clone()).collect::<Vec<_>>(), rules.unresolved.len())
    };
    assert_eq!(resources("n"), (vec!["pods".to_owned(), "secrets".to_owned()], 0));
    assert_eq!(resources("m"), (vec!["pods".to_owned()], 1));
    assert_eq!(resources(""), (vec!["pods".to_owned()], 0));
}
