//! Access by roles and bindings, and prevention of privilege escalation.

use super::*;
use crate::control_plane::rbac_defaults;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.to_owned(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..User::default() }
}

async fn post(api: &Api, user: &User, path: &str, object: &Value) -> Reply {
    send(api, user, "POST", path, "application/json", "application/json", &object.to_string()).await
}

fn role(name: &str, verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"metadata": {"name": name}, "rules": [{"verbs": verbs, "apiGroups": [group], "resources": resources}]})
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user}],
    })
}

/// Makes the roles and bindings that every cluster has, and the namespaces that they are in.
pub(crate) async fn add_default_roles(api: &Api) {
    for object in rbac_defaults::objects(true) {
        let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
        let mut path = RBAC.to_owned();
        if let Some(namespace) = object["metadata"]["namespace"].as_str() {
            call(api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
            path = format!("{path}/namespaces/{namespace}");
        }
        let made = call(api, "POST", &format!("{path}/{plural}"), object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
}

/// An API where `eve` may read config maps and write RBAC objects in the namespace `n`.
async fn with_eve() -> (Api, User) {
    let (api, admin) = (api(), User::internal("t"));
    let made = post(&api, &admin, "/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let mut role = role("eves", &["get", "list"], "", &["configmaps"]);
    let rbac = json!({"verbs": ["create", "patch"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"]});
    role["rules"].as_array_mut().unwrap().push(rbac);
    for (path, object) in [
        (format!("{RBAC}/namespaces/n/roles"), role),
        (format!("{RBAC}/namespaces/n/rolebindings"), binding("eves", "Role", "eves", "eve")),
    ] {
        let made = post(&api, &admin, &path, &object).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    (api, user("eve", &["g"]))
}

#[tokio::test]
async fn a_binding_gives_rights_in_its_namespace_from_then_on() {
    let (api, eve) = with_eve().await;
    let list = async |path: &str| send(&api, &eve, "GET", path, "", "*/*", "").await.code;
    assert_eq!(list("/api/v1/namespaces/n/configmaps").await, 200);
    for path in ["/api/v1/namespaces/n/secrets", "/api/v1/namespaces/default/configmaps", "/api/v1/configmaps"] {
        assert_eq!(list(path).await, 403, "{path}");
    }
    let gone = call(&api, "DELETE", &format!("{RBAC}/namespaces/n/rolebindings/eves"), json!({})).await;
    assert_eq!(gone.code, 200, "{}", gone.body);
    assert_eq!(list("/api/v1/namespaces/n/configmaps").await, 403);
}

#[tokio::test]
async fn nobody_grants_what_it_does_not_hold() {
    let (api, eve) = with_eve().await;
    let (roles, bindings) = (format!("{RBAC}/namespaces/n/roles"), format!("{RBAC}/namespaces/n/rolebindings"));
    let held = post(&api, &eve, &roles, &role("held", &["get"], "", &["configmaps"])).await;
    assert_eq!(held.code, 201, "{}", held.body);
    let refused = post(&api, &eve, &roles, &role("more", &["get", "delete"], "", &["configmaps", "secrets"])).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.body["message"],
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"eve\" (groups=[\"g\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"configmaps\"], Verbs:[\"delete\"]}\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"delete\"]}"
    );
    // By a change as well.
    let patch = |body: Value| body.to_string();
    let path = format!("{roles}/held");
    let more = patch(json!({"rules": [{"verbs": ["*"], "apiGroups": [""], "resources": ["secrets"]}]}));
    let merge = "application/merge-patch+json";
    assert_eq!(send(&api, &eve, "PATCH", &path, merge, "application/json", &more).await.code, 403);
    let label = patch(json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!(send(&api, &eve, "PATCH", &path, merge, "application/json", &label).await.code, 200, "she holds it");

    // Bindings: to a role whose rights she holds, to one with more, to one that is missing.
    let admin = User::internal("t");
    let strong = post(&api, &admin, &format!("{RBAC}/clusterroles"), &role("strong", &["*"], "*", &["*"])).await;
    assert_eq!(strong.code, 201, "{}", strong.body);
    for (name, kind, role, code) in [
        ("weak", "Role", "held", 201),
        ("strong", "ClusterRole", "strong", 403),
        ("missing", "ClusterRole", "missing", 404),
    ] {
        let answer = post(&api, &eve, &bindings, &binding(name, kind, role, "bob")).await;
        assert_eq!(answer.code, code, "{}", answer.body);
        if code == 404 {
            assert_eq!(answer.body["message"], "rolebindings.rbac.authorization.k8s.io \"missing\" not found");
        }
    }
    // A user with the verb `bind` on a role may bind it.
    let mut may_bind = role("binder", &["bind"], "rbac.authorization.k8s.io", &["clusterroles"]);
    may_bind["rules"][0]["resourceNames"] = json!(["strong"]);
    assert_eq!(post(&api, &admin, &format!("{RBAC}/clusterroles"), &may_bind).await.code, 201);
    let bound = post(&api, &admin, &bindings, &binding("binder", "ClusterRole", "binder", "eve")).await;
    assert_eq!(bound.code, 201, "{}", bound.body);
    let now = post(&api, &eve, &bindings, &binding("strong", "ClusterRole", "strong", "bob")).await;
    assert_eq!(now.code, 201, "{}", now.body);
}

#[tokio::test]
async fn every_change_of_a_role_is_one_of_its_rights() {
    let (api, eve) = with_eve().await;
    let (admin, merge) = (User::internal("t"), "application/merge-patch+json");
    let (roles, bindings) = (format!("{RBAC}/clusterroles"), format!("{RBAC}/clusterrolebindings"));
    let mut aggregated = role("gathers", &["get"], "", &["configmaps"]);
    aggregated["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "gathers"}}]});
    aggregated.as_object_mut().unwrap().remove("rules");
    for object in [
        role("editor", &["patch", "create"], "rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"]),
        role("admin", &["*"], "*", &["*"]),
        role("weak", &["get"], "", &["configmaps"]),
        role("reads", &["get", "list"], "", &["configmaps"]),
        aggregated,
    ] {
        assert_eq!(post(&api, &admin, &roles, &object).await.code, 201, "{object}");
    }
    for (name, of) in [("eves-editor", "editor"), ("eves-reads", "reads")] {
        assert_eq!(post(&api, &admin, &bindings, &binding(name, "ClusterRole", of, "eve")).await.code, 201);
    }
    assert_eq!(post(&api, &admin, &bindings, &binding("strong", "ClusterRole", "admin", "bob")).await.code, 201);
    let label = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}});
    let no_rule = json!({"aggregationRule": null, "metadata": {"labels": {"a": "b"}}});
    for (path, change, code, words) in [
        // By its labels others gather it.
        ("clusterroles/admin", label.clone(), 403, "is attempting to grant RBAC permissions not currently held"),
        ("clusterroles/weak", label.clone(), 200, ""),
        (
            "clusterrolebindings/strong",
            label.clone(),
            403,
            "is attempting to grant RBAC permissions not currently held",
        ),
        // What the garbage collector changes.
        ("clusterroles/admin", json!({"metadata": {"finalizers": ["a/b"]}}), 200, ""),
        ("clusterroles/admin", json!({"metadata": {"finalizers": null}}), 200, ""),
        ("clusterroles/gathers", label, 403, "must have cluster-admin privileges to use the aggregationRule"),
        ("clusterroles/gathers", no_rule, 403, "must have cluster-admin privileges to use the aggregationRule"),
        (
            "clusterroles/weak",
            json!({"aggregationRule": {"clusterRoleSelectors": [{}]}}),
            403,
            "must have cluster-admin privileges to use the aggregationRule",
        ),
    ] {
        let (path, change) = (format!("{RBAC}/{path}"), change.to_string());
        let answer = send(&api, &eve, "PATCH", &path, merge, "application/json", &change).await;
        assert_eq!(answer.code, code, "{path} {change}: {}", answer.body);
        assert!(code == 200 || answer.body["message"].as_str().unwrap().contains(words), "{}", answer.body);
    }
    // The right to escalate one role by its name does not allow creating one of that name.
    let mut escalates = role("escalates", &["escalate"], "rbac.authorization.k8s.io", &["clusterroles"]);
    escalates["rules"][0]["resourceNames"] = json!(["mine"]);
    assert_eq!(post(&api, &admin, &roles, &escalates).await.code, 201);
    assert_eq!(post(&api, &admin, &bindings, &binding("e", "ClusterRole", "escalates", "eve")).await.code, 201);
    assert_eq!(post(&api, &eve, &roles, &role("mine", &["*"], "*", &["*"])).await.code, 403);
    assert_eq!(post(&api, &eve, &roles, &role("mine", &["get"], "", &["configmaps"])).await.code, 201);
    let more = json!({"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}).to_string();
    let answer = send(&api, &eve, "PATCH", &format!("{roles}/mine"), merge, "application/json", &more).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
}
