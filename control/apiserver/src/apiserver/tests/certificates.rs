//! Who may decide about requests for certificates, and what they may not ask for.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::*;

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn request(name: &str, signer: &str, group: &str) -> Value {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({
        "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(pem), "signerName": signer, "usages": ["client auth"]},
    })
}

#[tokio::test]
async fn nobody_becomes_an_administrator_by_a_certificate() {
    let api = api();
    let client = "kubernetes.io/kube-apiserver-client";
    let refused = call(&api, "POST", PATH, request("r", client, "system:masters")).await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    assert_eq!(
        refused.body["message"],
        "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    );
    for (name, signer, group) in [("a", client, "dev"), ("b", "example.com/other", "system:masters")] {
        let made = call(&api, "POST", PATH, request(name, signer, group)).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
}

#[tokio::test]
async fn who_decides_needs_the_right_on_the_signer() {
    let api = api();
    for name in ["one", "two"] {
        let signer = if name == "one" { "example.com/one" } else { "other.example/two" };
        assert_eq!(call(&api, "POST", PATH, request(name, signer, "dev")).await.code, 201);
    }
    let rules = json!([
        {"verbs": ["patch"], "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval", "certificatesigningrequests/status"]},
        {"verbs": ["approve", "sign"], "apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": ["example.com/*"]},
    ]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "r"}, "rules": rules});
    assert_eq!(call(&api, "POST", &format!("{rbac}/clusterroles"), role).await.code, 201);
    let binding = json!({
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "name": "eve"}],
    });
    assert_eq!(call(&api, "POST", &format!("{rbac}/clusterrolebindings"), binding).await.code, 201);
    let eve = User { name: "eve".to_owned(), ..User::default() };
    let patch = async |path: &str, condition: &str| {
        let condition = json!({"type": condition, "status": "True", "reason": "x", "message": "x"});
        let body = json!({"status": {"conditions": [condition]}}).to_string();
        let path = format!("{PATH}/{path}");
        send(&api, &eve, "PATCH", &path, "application/merge-patch+json", "application/json", &body).await
    };
    for (path, condition, code, words) in [
        ("one/approval", "Approved", 200, ""),
        (
            "two/approval",
            "Approved",
            403,
            "user not permitted to approve requests with signerName \"other.example/two\"",
        ),
        ("two/status", "Failed", 403, "user not permitted to sign requests with signerName \"other.example/two\""),
    ] {
        let answer = patch(path, condition).await;
        assert_eq!(answer.code, code, "{}", answer.body);
        assert!(code == 200 || answer.body["message"].as_str().unwrap().ends_with(words), "{}", answer.body);
    }
}
