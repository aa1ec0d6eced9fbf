//! The questions of `tests/node/record.py` and what a kube-apiserver answered them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Kind, Relations as _, Vertex, graph::Graph};
use crate::{
    apiserver::{self, Attributes, User, tests::rbac::add_default_roles},
    control_plane::instance::{ApiConfig, Instance as Api},
    kinds,
    store::{Key, Memory},
};

const ANSWERS: &str = include_str!("../../../../tests/node/answers.json");

fn api() -> Api {
    let store = kinds::open_store(Box::new(Memory::default())).unwrap();
    let service_cidr = ("10.96.0.0".parse().unwrap(), 24);
    let tokens = windlass_identity::service_account_tokens::TokenIssuer::from_pem(
        &rcgen::KeyPair::generate().unwrap().serialize_pem(),
    )
    .unwrap();
    Api::new(&store, &ApiConfig::new(service_cidr, 30000..=30009), None, Some(tokens))
}

async fn send(api: &Api, user: User, method: &str, path: &str, kind: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = apiserver::tests::send(api, &user, method, path, kind, "", &body).await;
    (reply.code, reply.body)
}

/// What `${uid:PATH}` stands for.
async fn filled(api: &Api, text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${uid:") {
        let (path, behind) = after.split_once('}').unwrap();
        let (_, object) = send(api, User::internal("test"), "GET", path, "", &Value::Null).await;
        out.push_str(before);
        out.push_str(object["metadata"]["uid"].as_str().unwrap());
        rest = behind;
    }
    out + rest
}

/// The cluster that the questions are about.
async fn cluster() -> (Api, Value) {
    let api = api();
    let answers: Value = serde_json::from_str(ANSWERS).unwrap();
    // What the server or a controller makes before anybody asks.
    for namespace in ["kube-node-lease", "kube-system"] {
        let body = json!({"metadata": {"name": namespace}});
        send(&api, User::internal("test"), "POST", "/api/v1/namespaces", "application/json", &body).await;
    }
    add_default_roles(&api).await;
    for step in answers["setup"].as_array().unwrap() {
        let (method, path) = (step[0].as_str().unwrap(), step[1].as_str().unwrap());
        let kind = if method == "PATCH" { "application/strategic-merge-patch+json" } else { "application/json" };
        let (code, answer) = send(&api, User::internal("test"), method, path, kind, &step[2]).await;
        assert!(code < 300, "{method} {path}: {answer}");
        if path == "/api/v1/namespaces" {
            let body = json!({"metadata": {"name": "default"}});
            let path = "/api/v1/namespaces/apps/serviceaccounts";
            send(&api, User::internal("test"), "POST", path, "application/json", &body).await;
        }
    }
    (api, answers)
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap_or("")
}

/// The one right that this API gives nodes beyond upstream's.
fn is_ours(case: &Value) -> bool {
    text(case, "resource") == "endpointslices" && matches!(text(case, "verb"), "list" | "watch")
}

#[tokio::test]
async fn rights_are_those_of_a_kube_apiserver() {
    let (api, answers) = cluster().await;
    let reviews = answers["reviews"].as_array().unwrap();
    assert!(reviews.len() > 800 && reviews.iter().filter(|r| r["allowed"] == true).count() > 150);
    let mut wrong = Vec::new();
    // Upstream ignores subresources of leases; leases have none, and the table has none.
    for case in reviews.iter().filter(|case| case["resource"] != "leases" || text(case, "subresource").is_empty()) {
        let selector: Vec<Value> = case["fieldSelector"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
            .collect();
        let user = case["user"].as_str().unwrap_or("system:node:n1");
        let groups = case.get("groups").cloned().unwrap_or_else(|| json!(["system:nodes"]));
        let mut attributes = json!({});
        for field in ["verb", "group", "resource", "subresource", "namespace", "name"] {
            attributes[field] = json!(text(case, field));
        }
        if !selector.is_empty() {
            attributes["fieldSelector"] = json!({"requirements": selector});
        }
        let review = json!({"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}});
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let (_, answer) = send(&api, User::internal("test"), "POST", path, "application/json", &review).await;
        let allowed = case["allowed"] == true || (user == "system:node:n1" && is_ours(case));
        let reason = if allowed && case["allowed"] != true { "" } else { text(case, "reason") };
        let found = (answer["status"]["allowed"] == true, text(&answer["status"], "reason"));
        if found != (allowed, reason) {
            wrong.push(format!("{case}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn node_restriction_answers_as_kube_apiserver() {
    let (api, answers) = cluster().await;
    let mut wrong = Vec::new();
    for case in answers["requests"].as_array().unwrap() {
        let user = if case["as"] == "admin" { User::internal("test") } else { User::node("n1") };
        let body: Value = serde_json::from_str(&filled(&api, &case["body"].to_string()).await).unwrap();
        let mut expected = filled(&api, text(case, "message")).await;
        let (code, answer) =
            send(&api, user, text(case, "method"), text(case, "path"), text(case, "type"), &body).await;
        // Upstream could not look at the driver of a volume, which may want a token of an audience of its own.
        if expected.contains("error validating audience") {
            expected = text(&answer, "message").to_owned();
        }
        let same_words = code != 403 || text(&answer, "message") == expected;
        if u64::from(code) != case["code"].as_u64().unwrap() || !same_words {
            wrong.push(format!(
                "{} {}\n  body {body}\n  wanted {} {expected}\n  found  {code} {}",
                text(case, "method"),
                text(case, "path"),
                case["code"],
                text(&answer, "message")
            ));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn a_node_reads_the_objects_of_its_pods_until_they_are_deleted() {
    let (api, _) = cluster().await;
    let read = async |secret: &str| {
        let path = format!("/api/v1/namespaces/apps/secrets/{secret}");
        send(&api, User::node("n1"), "GET", &path, "", &Value::Null).await.0
    };
    let admin = async |method: &str, path: &str, body: Value| {
        let path = format!("/api/v1/namespaces/apps/{path}");
        let (code, answer) = send(&api, User::internal("test"), method, &path, "application/json", &body).await;
        assert!(code < 300, "{answer}");
    };
    let pod = |name: &str, node: &str| json!({"metadata": {"name": name}, "spec": {"nodeName": node, "imagePullSecrets": [{"name": "late"}], "containers": [{"name": "c", "image": "i"}]}});
    admin("POST", "secrets", json!({"metadata": {"name": "late"}})).await;
    assert_eq!(read("late").await, 403);
    admin("POST", "pods", pod("a", "n2")).await;
    assert_eq!(read("late").await, 403, "another node's");
    for round in 0..3 {
        admin("POST", "pods", pod("b", "n1")).await;
        assert_eq!(read("late").await, 200, "{round}");
        admin("DELETE", "pods/b?gracePeriodSeconds=0", Value::Null).await;
        assert_eq!(read("late").await, 403, "{round}");
    }
    let binding = json!({"metadata": {"name": "pending"}, "target": {"kind": "Node", "name": "n1"}});
    assert_eq!(read("pending").await, 403);
    admin("POST", "pods/pending/binding", binding).await;
    assert_eq!(read("pending").await, 404, "it may be read, and is not there");
}

#[tokio::test]
async fn only_nodes_make_mirror_pods() {
    let (api, _) = cluster().await;
    let admin = async |method: &str, path: &str, body: Value| {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let path = format!("/api/v1/namespaces/apps/pods{path}");
        let (code, answer) = send(&api, User::internal("test"), method, &path, kind, &body).await;
        (code, text(&answer, "message").to_owned())
    };
    let mark = json!({"kubernetes.io/config.mirror": "x"});
    let body = json!({"metadata": {"name": "m", "annotations": mark}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
    let (code, said) = admin("POST", "", body).await;
    assert!(code == 403 && said.contains("only a node may create pods with the annotation"), "{said}");
    let (code, said) = admin("PATCH", "/web", json!({"metadata": {"annotations": mark}})).await;
    assert!(code == 422 && said.contains("may not add mirror pod annotation"), "{said}");
}

/// A pod of a few names on one of a few nodes, or on none, or gone.
fn step() -> impl Strategy<Value = (u8, Option<(u8, Vec<u8>)>)> {
    (0..4u8, proptest::option::of((0..3u8, proptest::collection::vec(0..4u8, 0..4))))
}

proptest! {
    /// Whatever is added and removed, the graph agrees with a scan of all pods, and is empty in the end.
    #[test]
    fn the_graph_matches_the_pods(steps in proptest::collection::vec(step(), 0..40)) {
        let mut graph = Graph::default();
        let mut all: std::collections::BTreeMap<u8, (u8, Vec<u8>)> = std::collections::BTreeMap::new();
        let key = |pod: u8| Key { namespace: "d".into(), name: format!("p{pod}") };
        graph.volume("v", Some(&json!({"spec": {"claimRef": {"namespace": "d", "name": "s0"}, "csi": {"nodeStageSecretRef": {"namespace": "d", "name": "staged"}}}})));
        for (pod, now) in steps {
            match &now {
                Some((node, secrets)) => {
                    let mut volumes: Vec<Value> = secrets.iter().map(|s| json!({"secret": {"secretName": format!("s{s}")}})).collect();
                    volumes.extend(secrets.iter().map(|s| json!({"persistentVolumeClaim": {"claimName": format!("s{s}")}})));
                    let on = if *node == 0 { String::new() } else { format!("n{node}") };
                    graph.pod(&key(pod), Some(&json!({"spec": {"nodeName": on, "volumes": volumes}})));
                    all.insert(pod, (*node, secrets.clone()));
                }
                None => {
                    graph.pod(&key(pod), None);
                    all.remove(&pod);
                }
            }
            for node in 1..3u8 {
                let names = |secret: u8| all.values().any(|(of, secrets)| *of == node && secrets.contains(&secret));
                for secret in 0..4u8 {
                    let name = format!("s{secret}");
                    for kind in [Kind::Secret, Kind::PersistentVolumeClaim] {
                        prop_assert_eq!(graph.related(&format!("n{node}"), &Vertex::new(kind, "d", &name)), names(secret));
                    }
                    let elsewhere = graph.related(&format!("n{node}"), &Vertex::new(Kind::Secret, "e", &name));
                    prop_assert!(!elsewhere);
                }
                for staged in [Vertex::new(Kind::PersistentVolume, "", "v"), Vertex::new(Kind::Secret, "d", "staged")] {
                    prop_assert_eq!(graph.related(&format!("n{node}"), &staged), names(0));
                }
                for pod in 0..4u8 {
                    let there = all.get(&pod).is_some_and(|(of, _)| *of == node);
                    prop_assert_eq!(graph.related(&format!("n{node}"), &Vertex::new(Kind::Pod, "d", &format!("p{pod}"))), there);
                }
            }
        }
        for pod in 0..4 {
            graph.pod(&key(pod), None);
        }
        graph.volume("v", None);
        prop_assert!(graph.is_empty());
    }
}

#[tokio::test]
async fn nodes_have_rights_and_others_none() {
    let user = |name: &str, groups: &[&str]| User {
        name: name.to_owned(),
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        ..User::default()
    };
    let api = api();
    add_default_roles(&api).await;
    let services = Attributes { verb: "list", is_resource: true, resource: "services", ..Attributes::default() };
    for (user, allowed) in [
        (User::internal("x"), true),
        (User::node("n1"), true),
        (User::proxy(), true),
        (user("eve", &[]), false),
        (user("system:node:n1", &["system:authenticated"]), false),
        (user("n1", &["system:nodes"]), false),
        (user("system:node:", &["system:nodes"]), false),
        (User::anonymous(), false),
    ] {
        assert_eq!(api.authorizer().authorize(&user, &services).is_ok(), allowed, "{user:?}");
    }
    let may = |verb| {
        let slices = Attributes { verb, group: "discovery.k8s.io", resource: "endpointslices", ..services };
        api.authorizer().authorize(&User::node("n1"), &slices).is_ok()
    };
    assert!(may("list") && may("watch") && !may("get") && !may("create"));
    let policies = |user: &User, verb, resource, group| {
        let what = Attributes { verb, group, resource, ..services };
        api.authorizer().authorize(user, &what).is_ok()
    };
    for (resource, group) in [("networkpolicies", "networking.k8s.io"), ("namespaces", ""), ("pods", "")] {
        let may = |user: &User, verb| policies(user, verb, resource, group);
        let own = User::network_policies();
        assert!(may(&own, "list") && may(&own, "watch") && !may(&own, "get") && !may(&own, "update"), "{resource}");
        assert!(!may(&User::proxy(), "list") && !may(&User::proxy(), "watch"), "{resource}");
    }
    assert!(!policies(&User::network_policies(), "list", "secrets", ""));
}

/// A node to which everything is related.
#[derive(Debug)]
struct All;

impl super::Relations for All {
    fn related(&self, _: &str, _: &Vertex) -> bool {
        true
    }
}

/// What the authorizer allows some node is in the table, and each row of it is allowed; so NodeRestriction, which reads the
/// same rows, knows each write of a node.
#[test]
fn each_right_has_a_row() {
    let catalog = api().catalogs().current();
    let verbs = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "connect",
        "impersonate",
        "*",
    ];
    let mut resources: std::collections::BTreeSet<(String, String, String)> = super::rights::RIGHTS
        .iter()
        .map(|right| (right.group.to_owned(), right.resource.to_owned(), right.subresource.to_owned()))
        .collect();
    for version in catalog.all() {
        let subresources = version.spec.subresources.iter().map(|one| one.name.to_string());
        for subresource in subresources.chain([String::new(), "unknown".to_owned()]) {
            resources.insert((version.group.to_string(), version.plural.to_string(), subresource));
        }
    }
    let mut allowed = 0;
    for (group, resource, subresource) in &resources {
        for verb in verbs {
            let may = |namespace: &str, name: &str, field_selector: &str| {
                let what = Attributes {
                    verb,
                    is_resource: true,
                    group,
                    resource,
                    subresource,
                    namespace,
                    name,
                    field_selector,
                    ..Attributes::default()
                };
                super::decide("n1", &what, &All).is_ok()
            };
            let may = may("kube-node-lease", "n1", "") || may("", "n1", "") || may("", "", "spec.nodeName=n1");
            let row = super::rights::RIGHTS.iter().any(|right| {
                (right.group, right.resource, right.subresource) == (group, resource, subresource)
                    && right.verbs.contains(&verb)
            });
            assert_eq!(may, row, "{verb} {group} {resource}/{subresource}");
            allowed += usize::from(may);
        }
    }
    assert!(allowed > 50, "{allowed}");
}

/// A row without a check would be free by oversight: each is named here as free.
#[test]
fn each_write_has_a_check() {
    use super::rights::{Admission, RIGHTS, admission};
    use crate::apiserver::Operation;
    for right in RIGHTS {
        for verb in right.verbs {
            let operation = match *verb {
                "create" => Operation::Create,
                "update" | "patch" => Operation::Update,
                "delete" | "deletecollection" => Operation::Delete,
                _ => continue,
            };
            let found = admission(right.group, right.resource, right.subresource, operation);
            let free = matches!(
                right.resource,
                "events" | "tokenreviews" | "subjectaccessreviews" | "localsubjectaccessreviews"
            );
            assert_eq!(found == Some(Admission::Anything), free, "{verb} {}", right.resource);
            assert!(found.is_some(), "{verb} {}", right.resource);
        }
    }
}

/// Recorded from kube-apiserver, as `tests/node/record.py` does.
#[tokio::test]
async fn a_node_speaks_for_itself_alone() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let (api, _) = cluster().await;
    let request = |user: &str, groups: &[&[u8]]| {
        let key = rcgen::KeyPair::generate().unwrap();
        let groups = groups.iter().map(|group| (10, 12, *group));
        let name: Vec<(u8, u8, &[u8])> = groups.chain([(3, 12, user.as_bytes())]).collect();
        let pem =
            windlass_identity::pki::unusual::request(&windlass_identity::pki::unusual::name(&name), &[], &key).unwrap();
        STANDARD.encode(pem)
    };
    let certificate = |name: &str, user: &str, signer: &str| {
        let usages = ["digital signature", if signer.ends_with("serving") { "server auth" } else { "client auth" }];
        let spec = json!({"request": request(user, &[b"system:nodes"]), "signerName": format!("kubernetes.io/{signer}"), "usages": usages});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let csi = |name: &str| json!({"metadata": {"name": name}, "spec": {"drivers": []}});
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let csi_nodes = "/apis/storage.k8s.io/v1/csinodes";
    for (path, body, code, words) in [
        (csi_nodes, csi("n2"), 403, "can only access CSINode with the same name as the requesting node"),
        (csi_nodes, csi("n1"), 201, ""),
        (
            requests,
            certificate("a", "system:node:n2", "kubelet-serving"),
            403,
            "can only create a node CSR with CN=system:node:n1",
        ),
        (
            requests,
            certificate("b", "system:node:n2", "kube-apiserver-client-kubelet"),
            403,
            "can only create a node CSR with CN=system:node:n1",
        ),
        (requests, certificate("c", "system:node:n1", "kubelet-serving"), 201, ""),
        (requests, certificate("d", "system:node:n1", "kube-apiserver-client-kubelet"), 201, ""),
        (requests, certificate("e", "anybody", "kube-apiserver-client"), 201, ""),
    ] {
        let (status, answer) = send(&api, User::node("n1"), "POST", path, "application/json", &body).await;
        assert_eq!(status, code, "{path} {answer}");
        assert!(text(&answer, "message").ends_with(words), "{answer}");
    }
    // A node that is also bound to a role is still restricted.
    let nameless = User { name: "system:node:".to_owned(), ..User::node("") };
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let all = json!({"metadata": {"name": "all"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    let binding = json!({
        "metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"},
        "subjects": [{"kind": "Group", "name": "system:nodes"}],
    });
    for (path, body) in [(format!("{rbac}/clusterroles"), all), (format!("{rbac}/clusterrolebindings"), binding)] {
        let (code, answer) = send(&api, User::internal("t"), "POST", &path, "application/json", &body).await;
        assert_eq!(code, 201, "{answer}");
    }
    let maps = "/api/v1/namespaces/apps/configmaps";
    let map = |name: &str| json!({"metadata": {"name": name}});
    for (user, path, body, code, words) in [
        (User::node("n1"), maps, map("a"), 201, ""),
        (nameless, maps, map("b"), 403, "could not determine node from user \"system:node:\""),
        (
            User::node("n1"),
            "/api/v1/namespaces/apps/persistentvolumeclaims",
            map("c"),
            403,
            "may only update PVC status",
        ),
        (
            User::node("n1"),
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
            map("n1"),
            403,
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
    ] {
        let (status, answer) = send(&api, user, "POST", path, "application/json", &body).await;
        assert_eq!(status, code, "{path} {answer}");
        assert!(text(&answer, "message").ends_with(words), "{answer}");
    }
}
