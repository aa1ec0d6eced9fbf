//! What one failed request, or a cache that is behind, must not change.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    certificates::v1::CertificateSigningRequest,
    core::v1::{Endpoints, PersistentVolumeClaim, Pod, ResourceQuota, Service},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use windlass_control::apiserver::User;
use windlass_tests::api_faults::RequestFault;

use super::{Bed, events, put};
use crate::Config;

const PROTECTED: &str = "kubernetes.io/pvc-protection";

fn is_protected(claims: &[Value]) -> bool {
    claims
        .first()
        .is_some_and(|c| c["metadata"]["finalizers"].as_array().is_some_and(|f| f.contains(&json!(PROTECTED))))
}

fn claim(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": claim_spec()})
}

fn claim_spec() -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}})
}

fn containers() -> Value {
    json!([{"name": "c", "image": "v1"}])
}

fn user(name: &str, node: Option<&str>) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": node, "containers": containers(),
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, "status": {"phase": "Running"}})
}

#[tokio::test]
async fn a_claim_stays_for_a_pod_that_only_the_api_knows() {
    let bed = Bed::new(Config::default()).await;
    let claims: Api<PersistentVolumeClaim> = bed.api();
    put(&claims, claim("c")).await;
    bed.server.until("persistentvolumeclaims", "protection", is_protected).await;
    bed.server.faults.hold("pods", true);
    put(&bed.api::<Pod>(), user("p", Some("n"))).await;
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(is_protected(&bed.server.all("persistentvolumeclaims")), "no cache shows the pod, but it is there");
    bed.server.faults.hold("pods", false);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(is_protected(&bed.server.all("persistentvolumeclaims")), "and is in use");
    bed.end().await;
}

#[tokio::test]
async fn a_claim_does_not_wait_for_a_pod_without_a_node() {
    let bed = Bed::new(Config::default()).await;
    let claims: Api<PersistentVolumeClaim> = bed.api();
    put(&claims, claim("c")).await;
    bed.server.until("persistentvolumeclaims", "protection", is_protected).await;
    put(&bed.api::<Pod>(), user("pending", None)).await;
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    bed.server.until("persistentvolumeclaims", "it goes", <[Value]>::is_empty).await;
    bed.end().await;
}

#[tokio::test]
async fn the_claim_of_a_pending_pod_is_made_as_soon_as_it_may_be() {
    let bed = Bed::new(Config::default()).await;
    let template = json!({"metadata": {"name": "data"}, "spec": claim_spec()});
    let set = json!({"metadata": {"name": "db"}, "spec": {"replicas": 1, "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}}, "volumeClaimTemplates": [template],
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": containers()}}}});
    put(&bed.api::<StatefulSet>(), set).await;
    bed.server.until("pods", "a pod", |p| p.len() == 1).await;
    let pending = Patch::Merge(json!({"status": {"phase": "Pending"}}));
    bed.api::<Pod>().patch_status("db-0", &PatchParams::default(), &pending).await.unwrap();
    bed.server.until("persistentvolumeclaims", "protection", is_protected).await;
    bed.server.refuse("persistentvolumeclaims", Some("exceeded quota"));
    bed.api::<PersistentVolumeClaim>().delete("data-db-0", &DeleteParams::default()).await.unwrap();
    bed.server.until("events", "the refusal", |e| e.iter().any(|e| e["reason"] == "FailedCreate")).await;
    bed.server.refuse("persistentvolumeclaims", None);
    bed.server.until("persistentvolumeclaims", "another claim", |c| c.len() == 1).await;
    bed.end().await;
}

#[tokio::test]
async fn the_claim_of_an_ephemeral_volume_is_told_of_and_made_again() {
    let bed = Bed::new(Config::default()).await;
    let claims: Api<PersistentVolumeClaim> = bed.api();
    bed.server.refuse("persistentvolumeclaims", Some("exceeded quota"));
    put(
        &bed.api::<Pod>(),
        json!({"metadata": {"name": "p"}, "spec": {"containers": containers(), "volumes": [
            {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec()}}}]}}),
    )
    .await;
    let told = |text: &'static str| move |e: &[Value]| e.iter().any(|e| e["message"] == text && e["type"] == "Warning");
    let refused = "ephemeral volume v: create PVC p-v: exceeded quota";
    bed.server.until("events", "the refusal", told(refused)).await;
    assert_eq!(events(&bed.server, "FailedBinding")[0]["involvedObject"]["kind"], "Pod");
    bed.server.refuse("persistentvolumeclaims", None);
    let made = bed.server.until("persistentvolumeclaims", "the claim", |c| c.len() == 1).await;
    claims.delete("p-v", &DeleteParams::default()).await.unwrap();
    let another = |c: &[Value]| c.len() == 1 && c[0]["metadata"]["uid"] != made[0]["metadata"]["uid"];
    bed.server.until("persistentvolumeclaims", "another one", another).await;

    // Somebody else's claim of that name is not the pod's; when it goes, the pod has its own.
    put(&claims, claim("q-v")).await;
    put(
        &bed.api::<Pod>(),
        json!({"metadata": {"name": "q"}, "spec": {"containers": containers(), "volumes": [
            {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec()}}}]}}),
    )
    .await;
    let foreign = "ephemeral volume v: PVC default/q-v was not created for pod default/q (pod is not owner)";
    bed.server.until("events", "whose it is", told(foreign)).await;
    claims.delete("q-v", &DeleteParams::default()).await.unwrap();
    let own = |c: &[Value]| c.iter().any(|c| c["metadata"]["ownerReferences"][0]["name"] == "q");
    bed.server.until("persistentvolumeclaims", "its own", own).await;
    bed.end().await;
}

#[tokio::test]
async fn a_pod_that_was_never_scheduled_fails_before_it_goes() {
    let bed = Bed::new(Config::default()).await;
    let pod =
        json!({"metadata": {"name": "p", "finalizers": ["example.com/held"]}, "spec": {"containers": containers()}});
    put(&bed.api::<Pod>(), pod).await;
    bed.api::<Pod>().delete("p", &DeleteParams::default()).await.unwrap();
    let failed = bed.server.until("pods", "failed", |p| p[0]["status"]["phase"] == "Failed").await;
    assert_eq!(failed[0]["status"]["observedGeneration"], failed[0]["metadata"]["generation"]);
    assert!(failed[0]["status"]["conditions"].is_null());
    bed.end().await;
}

#[tokio::test]
async fn endpoints_by_hand_go_with_their_service_and_not_before_it_comes() {
    let mut bed = Bed::new(Config::default()).await;
    let (services, endpoints): (Api<Service>, Api<Endpoints>) = (bed.api(), bed.api());
    let selecting = json!({"clusterIP": "10.96.0.9", "selector": {"app": "web"}, "ports": [{"port": 80}]});
    put(&services, json!({"metadata": {"name": "web"}, "spec": selecting})).await;
    bed.server.until("endpoints", "the controller works", |e| e.len() == 1).await;
    services.delete("web", &DeleteParams::default()).await.unwrap();
    bed.server.until("endpoints", "its own go", <[Value]>::is_empty).await;
    for name in ["early", "late"] {
        put(&endpoints, json!({"metadata": {"name": name}, "subsets": []})).await;
    }
    put(&services, json!({"metadata": {"name": "early"}, "spec": {"ports": [{"port": 80}]}})).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(bed.server.all("endpoints").len(), 2);
    services.delete("early", &DeleteParams::default()).await.unwrap();
    let left = bed.server.until("endpoints", "one goes", |e| e.len() == 1).await;
    assert_eq!(left[0]["metadata"]["name"], "late", "its service is still to come");
    // Endpoints whose service was deleted while no controller ran are removed at a start; a lock belongs to no service.
    let lock = json!({"control-plane.alpha.kubernetes.io/leader": "{}"});
    put(&endpoints, json!({"metadata": {"name": "lock", "annotations": lock}, "subsets": []})).await;
    bed.restart(Config::default()).await;
    let left = bed.server.until("endpoints", "another one goes", |e| e.len() == 1).await;
    assert_eq!(left[0]["metadata"]["name"], "lock");
    bed.end().await;
}

#[tokio::test]
async fn one_pod_that_cannot_be_released_does_not_keep_the_others() {
    let bed = Bed::new(Config::default()).await;
    let pods: Api<Pod> = bed.api();
    for i in 0..5 {
        let metadata = json!({"name": format!("p{i}"), "labels": {"app": "web"}});
        put(&pods, json!({"metadata": metadata, "spec": {"containers": containers()}})).await;
    }
    bed.server.faults.fail(Method::PATCH, "pods", RequestFault::InternalError, 1);
    bed.rc(5).await;
    bed.server
        .until("pods", "all are adopted", |p| p.iter().all(|p| !p["metadata"]["ownerReferences"].is_null()))
        .await;
    assert_eq!(bed.server.all("pods").len(), 5);
    assert_eq!(bed.server.requests(Method::PATCH, "pods"), 6, "four at the first try");
    bed.end().await;
}

/// A request as a node makes it.
pub(super) fn node_request() -> Value {
    let mut name = rcgen::DistinguishedName::new();
    name.push(rcgen::DnType::CommonName, "system:node:n1");
    name.push(rcgen::DnType::OrganizationName, "system:nodes");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = name;
    let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let now = jiff::Timestamp::now().to_string();
    json!({"metadata": {"name": "r", "creationTimestamp": now}, "spec": {"request": k8s_openapi::ByteString(pem.into_bytes()),
        "username": "system:bootstrap:abcdef", "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"]}})
}

/// Lets who joins with a token create these, and is its client.
pub(super) async fn allow_to_join(bed: &Bed, name: &str, resource: &str) -> Client {
    let rule = json!({"apiGroups": ["certificates.k8s.io"], "verbs": ["create"], "resources": [resource]});
    let roles: Api<ClusterRole> = Api::all(bed.client.clone());
    put(&roles, json!({"metadata": {"name": name}, "rules": [rule]})).await;
    let (group, user) = ("rbac.authorization.k8s.io", "system:bootstrap:abcdef");
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}]});
    put(&Api::<ClusterRoleBinding>::all(bed.client.clone()), binding).await;
    bed.server.as_user(User { name: user.to_owned(), ..User::default() })
}

/// The right often comes after the request: a node is started, it does not get ready, and a binding is made.
#[tokio::test]
async fn a_node_whose_right_comes_later_gets_its_certificate() {
    let bed = Bed::new(Config::default()).await;
    let joining = allow_to_join(&bed, "ask", "certificatesigningrequests").await;
    put(&Api::<CertificateSigningRequest>::all(joining), node_request()).await;
    while bed.server.requests(Method::POST, "subjectaccessreviews") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(bed.server.all("certificatesigningrequests")[0]["status"]["conditions"].is_null());
    allow_to_join(&bed, "join", "certificatesigningrequests/nodeclient").await;
    let approved = |r: &[Value]| r[0]["status"]["conditions"][0]["type"] == "Approved";
    bed.server.until("certificatesigningrequests", "the approval", approved).await;
    bed.end().await;
}

#[tokio::test]
async fn an_unlistable_type_does_not_stop_other_counts() {
    let bed = Bed::new(Config::default()).await;
    let failure = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500}).to_string();
    let secrets = "/api/v1/namespaces/default/secrets";
    bed.server.faults.answer(secrets, Some((500, "application/json", &failure)));
    for name in ["a", "b"] {
        put(&bed.api::<Service>(), json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}})).await;
    }
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/services": "5", "count/secrets": "5"}}});
    put(&bed.api::<ResourceQuota>(), quota).await;
    let counted = |q: &[Value]| q[0]["status"]["used"]["count/services"] == "2";
    let quota = bed.server.until("resourcequotas", "what can be listed", counted).await;
    assert!(quota[0]["status"]["used"]["count/secrets"].is_null(), "{}", quota[0]);
    // And that one as soon as it can.
    bed.server.faults.answer(secrets, None);
    bed.server.until("resourcequotas", "the rest", |q| q[0]["status"]["used"]["count/secrets"] == "0").await;
    bed.end().await;
}
