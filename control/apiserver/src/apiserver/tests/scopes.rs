//! No path reaches what its rights are not about.

use super::*;
use crate::apiserver::types::{Handler, Serves, Subresource};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A user with every right in the namespace `n`, and none elsewhere.
async fn with_bob() -> (Api, User) {
    let api = with_namespace().await;
    let all = json!({"metadata": {"name": "all"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    assert_eq!(call(&api, "POST", &format!("{RBAC}/clusterroles"), all).await.code, 201);
    let binding = json!({
        "metadata": {"name": "bobs"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"},
        "subjects": [{"kind": "User", "name": "bob"}],
    });
    assert_eq!(call(&api, "POST", &format!("{RBAC}/namespaces/n/rolebindings"), binding).await.code, 201);
    (api, User { name: "bob".to_owned(), ..User::default() })
}

/// The path of a version of an API group.
fn root(version: &Version) -> String {
    let gvk = &version.gvk;
    if gvk.group.is_empty() { format!("/api/{}", gvk.version) } else { format!("/apis/{}/{}", gvk.group, gvk.version) }
}

#[tokio::test]
async fn nothing_of_the_cluster_is_served_below_a_namespace() {
    let (api, bob) = with_bob().await;
    let catalog = api.catalogs().current();
    let of_cluster: Vec<_> = catalog.all().filter(|version| !version.namespaced).cloned().collect();
    assert!(of_cluster.len() > 20, "{}", of_cluster.len());
    for version in of_cluster {
        let subresources = version.spec.subresources.iter().map(|one| format!("/{}", one.name));
        let ends: Vec<String> = [String::new(), "/n".to_owned()]
            .into_iter()
            .chain(subresources.flat_map(|one| [format!("/n{one}"), format!("/n{one}/more")]))
            .collect();
        for prefix in ["", "/watch"] {
            for end in &ends {
                let path = format!("{}{prefix}/namespaces/n/{}{end}", root(&version), version.plural);
                for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
                    for user in [&bob, &User::internal("t")] {
                        let kind = "application/merge-patch+json";
                        let answer = send(&api, user, method, &path, kind, "*/*", "{}").await;
                        assert_eq!(answer.code, 404, "{method} {path} by {}: {}", user.name, answer.body);
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn rights_in_a_namespace_reach_no_cluster_object_of_its_name() {
    let (api, bob) = with_bob().await;
    let node = json!({"metadata": {"name": "n"}});
    assert_eq!(call(&api, "POST", "/api/v1/nodes", node).await.code, 201);
    for (method, path, code) in [
        ("GET", "/api/v1/namespaces/n", 200),
        ("GET", "/api/v1/namespaces/n/pods", 200),
        ("GET", "/api/v1/namespaces/other", 403),
        ("GET", "/api/v1/namespaces/n/nodes/n", 404),
        ("GET", "/api/v1/namespaces/n/nodes/n/proxy/pods", 404),
        ("GET", "/api/v1/namespaces/n/namespaces/n", 404),
        ("GET", "/api/v1/nodes/n", 403),
        // An update that creates is about the same object.
        ("PUT", "/api/v1/namespaces/n", 400),
    ] {
        let answer = send(&api, &bob, method, path, "application/json", "*/*", "").await;
        assert_eq!(answer.code, code, "{method} {path}: {}", answer.body);
    }
}

#[tokio::test]
async fn paths_that_begin_with_a_verb_watch_and_do_nothing_else() {
    let (api, bob) = with_bob().await;
    assert_eq!(call(&api, "POST", PODS, pod("p")).await.code, 201);
    for (method, path, code) in [
        ("GET", "/api/v1/watch/namespaces/n/pods?timeoutSeconds=1", 200),
        ("GET", "/api/v1/watch/namespaces/n/pods/p?timeoutSeconds=1", 200),
        ("GET", "/api/v1/watch/namespaces/n/pods/p/log", 404),
        ("GET", "/api/v1/watch/namespaces/n/pods/p/proxy/", 404),
        ("GET", "/api/v1/proxy/namespaces/n/pods/p", 404),
        ("POST", "/api/v1/watch/namespaces/n/pods", 405),
        ("DELETE", "/api/v1/watch/namespaces/n/pods/p", 405),
        // What has a name is not watched by its own path.
        ("GET", "/api/v1/namespaces/n/pods/p?watch=true", 200),
    ] {
        let answer = send(&api, &bob, method, path, "application/json", "*/*", "{}").await;
        assert_eq!(answer.code, code, "{method} {path}: {}", answer.body);
    }
    let one = send(&api, &bob, "GET", "/api/v1/namespaces/n/pods/p?watch=true", "", "application/json", "").await;
    assert_eq!(one.body["metadata"]["name"], "p", "{}", one.body);
}

/// What types hold of their handlers is what handlers put there.
#[tokio::test]
async fn each_subresource_and_computed_resource_has_its_handler() {
    let (mut custom, mut passed_on, mut computed) = (0, 0, 0);
    for version in api().catalogs().current().all() {
        computed += usize::from(version.as_virtual().unwrap().is_some());
        for subresource in &version.spec.subresources {
            custom += usize::from(subresource.handler().unwrap().is_some());
            passed_on += usize::from(subresource.locate().unwrap().is_some());
            let is_own = matches!(subresource.serves, Serves::Custom(_) | Serves::Proxy(_));
            let has = subresource.handler().unwrap().is_some() || subresource.locate().unwrap().is_some();
            assert_eq!(has, is_own, "{}/{}", version.plural, subresource.name);
        }
    }
    assert!(custom >= 7 && passed_on >= 3 && computed >= 8, "{custom} {passed_on} {computed}");
    let wrong = Subresource::of_object("x", &[], Serves::Custom(Handler::new(Arc::new(1))));
    assert_eq!(wrong.handler().unwrap_err().code, 500);
}
