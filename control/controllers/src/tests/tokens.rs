//! Tokens in secrets: bootstrap tokens of nodes, and unused ones of service accounts.

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};

use super::*;

fn encoded(data: &[(&str, &str)]) -> Value {
    data.iter().map(|(key, value)| ((*key).to_owned(), json!(ByteString(value.as_bytes().to_vec())))).collect()
}

#[tokio::test]
async fn what_joining_nodes_read_is_signed_while_their_token_is_good() {
    let bed = Bed::new(Config::default()).await;
    let secrets: Api<Secret> = Api::namespaced(bed.client.clone(), "kube-system");
    let token = |id: &str, until: Timestamp| {
        let data = encoded(&[
            ("token-id", id),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-signing", "true"),
            ("expiration", &until.to_string()),
        ]);
        let name = format!("bootstrap-token-{id}");
        json!({"metadata": {"name": name}, "type": "bootstrap.kubernetes.io/token", "data": data})
    };
    let now = Timestamp::now();
    put(&secrets, token("longer", now + Duration::from_secs(3600))).await;
    put(&secrets, token("sooner", now + Duration::from_secs(3600))).await;
    let maps: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "kube-public");
    put(&maps, json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "x"}})).await;
    let signed = |ids: &'static [&'static str]| {
        move |maps: &[Value]| {
            let map = maps.iter().find(|map| map["metadata"]["name"] == "cluster-info").unwrap();
            let names: Vec<&String> = map["data"].as_object().unwrap().keys().collect();
            let expected: Vec<String> = ids.iter().map(|id| format!("jws-kubeconfig-{id}")).collect();
            names.into_iter().filter(|name| name.starts_with("jws-")).eq(&expected)
        }
    };
    bed.server.until("configmaps", "both signatures", signed(&["longer", "sooner"])).await;
    let expired = json!({"data": encoded(&[("expiration", &now.to_string())])});
    secrets.patch("bootstrap-token-sooner", &PatchParams::default(), &Patch::Merge(expired)).await.unwrap();
    bed.server.until("secrets", "one token expires", |s| s.len() == 1).await;
    bed.server.until("configmaps", "its signature goes", signed(&["longer"])).await;
    bed.end().await;
}

#[tokio::test]
async fn a_token_that_nobody_uses_is_marked_and_then_removed() {
    let mut bed = Bed::stopped().await;
    let maps: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "kube-system");
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    put(&maps, json!({"metadata": {"name": tracking}, "data": {"since": "2020-01-01"}})).await;
    let names = ["unused", "used", "invalid", "mounted"];
    let account: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    put(&bed.api::<ServiceAccount>(), json!({"metadata": {"name": "a"}, "secrets": account})).await;
    put(
        &bed.api::<Pod>(),
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "v1"}],
            "volumes": [{"name": "v", "secret": {"secretName": "mounted"}}]}}),
    )
    .await;
    let today = Timestamp::now().strftime("%Y-%m-%d").to_string();
    let secret = |name: &str, labels: Value| {
        json!({"metadata": {"name": name, "labels": labels,
            "annotations": {"kubernetes.io/service-account.name": "a"}}, "type": "kubernetes.io/service-account-token"})
    };
    let since = "kubernetes.io/legacy-token-invalid-since";
    for (name, labels) in [
        ("unused", json!({})),
        ("used", json!({"kubernetes.io/legacy-token-last-used": today})),
        ("invalid", json!({since: "2021-01-01"})),
        ("mounted", json!({})),
        ("by-hand", json!({})),
    ] {
        put(&bed.api::<Secret>(), secret(name, labels)).await;
        bed.server.backdate("secrets", "default", name, "2020-01-01T00:00:00Z").await;
    }
    bed.start(Config::default());
    let left = bed.server.until("secrets", "one goes", |s| s.len() == 4).await;
    assert!(left.iter().all(|secret| secret["metadata"]["name"] != "invalid"));
    let marked = |s: &[Value]| s.iter().filter(|s| !s["metadata"]["labels"][since].is_null()).count() == 1;
    let left = bed.server.until("secrets", "one is marked", marked).await;
    let marked = left.iter().find(|secret| secret["metadata"]["labels"][since] == today.as_str()).unwrap();
    assert_eq!(marked["metadata"]["name"], "unused");
    bed.end().await;
}
