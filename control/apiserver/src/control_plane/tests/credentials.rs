//! Credentials from outside: a certificate that the cluster signs, tokens of a file; and the record of their use.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{SelfSubjectReview, UserInfo},
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        core::v1::{Secret, ServiceAccount},
    },
};
use kube::{
    ResourceExt as _,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::*;
use crate::plugin::audit::AuditConfig;

/// Whom the API takes a client for.
async fn who(kubeconfig: Kubeconfig) -> UserInfo {
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let reviews: KubeApi<SelfSubjectReview> = KubeApi::all(Client::try_from(config).unwrap());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
    review.status.unwrap().user_info.unwrap()
}

/// The administrator's kubeconfig with the credentials of another.
fn with_credentials(served: &Served, change: impl FnOnce(&mut kube::config::AuthInfo)) -> Kubeconfig {
    let mut kubeconfig = Kubeconfig::from_yaml(&served.kubeconfig()).unwrap();
    let user = kubeconfig.auth_infos[0].auth_info.as_mut().unwrap();
    (user.client_certificate_data, user.client_key_data) = (None, None);
    change(user);
    kubeconfig
}

fn request(name: &str, signer: &str, user: (&str, &str), usages: &[&str]) -> (CertificateSigningRequest, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, user.1);
    params.distinguished_name.push(rcgen::DnType::CommonName, user.0);
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let spec = CertificateSigningRequestSpec {
        request: ByteString(pem.into_bytes()),
        signer_name: signer.to_owned(),
        usages: Some(usages.iter().map(|usage| (*usage).to_owned()).collect()),
        expiration_seconds: Some(3600),
        ..CertificateSigningRequestSpec::default()
    };
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    (CertificateSigningRequest { metadata, spec, status: None }, key.serialize_pem())
}

async fn until_issued(requests: &KubeApi<CertificateSigningRequest>, name: &str) -> CertificateSigningRequest {
    for _ in 0..500 {
        let found = requests.get(name).await.unwrap();
        if found.status.as_ref().is_some_and(|status| status.certificate.is_some()) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no certificate came for {name}");
}

#[tokio::test]
async fn a_certificate_that_was_asked_for_authenticates() {
    const CLIENT: [&str; 2] = ["digital signature", "client auth"];
    let dir = tempfile::tempdir().unwrap();
    let served = Served::new(dir.path(), Lifetimes::default()).await;
    let stop = CancellationToken::new();
    let config = windlass_controllers::Config {
        signer: served.plane.signer(),
        tokens: Some(Arc::new(served.plane.token_issuer().unwrap())),
        ..windlass_controllers::Config::default()
    };
    let client = served.plane.client(User::internal("system:kube-controller-manager"));
    let running = tokio::spawn(windlass_controllers::run(client, config, stop.clone()));

    let requests: KubeApi<CertificateSigningRequest> = KubeApi::all(served.plane.client(User::internal("t")));
    let signer = "kubernetes.io/kube-apiserver-client";
    let (ann, key) = request("ann", signer, ("ann", "dev"), &CLIENT);
    requests.create(&PostParams::default(), &ann).await.unwrap();
    let condition = json!({"type": "Approved", "status": "True", "reason": "KubectlApprove", "message": "approved"});
    let approved = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    requests.patch_subresource("approval", "ann", &PatchParams::default(), &approved).await.unwrap();
    let issued = until_issued(&requests, "ann").await.status.unwrap().certificate.unwrap();
    let kubeconfig = with_credentials(&served, |user| {
        user.client_certificate_data = Some(STANDARD.encode(&issued.0));
        user.client_key_data = Some(STANDARD.encode(&key).into());
    });
    let user = who(kubeconfig).await;
    assert_eq!(
        (user.username.as_deref(), user.groups.unwrap()),
        (Some("ann"), vec!["dev".to_owned(), "system:authenticated".to_owned()])
    );

    // A node's renewal is approved automatically, unlike other requests.
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    let as_node: KubeApi<CertificateSigningRequest> = KubeApi::all(served.plane.client(User::node("n1")));
    let node = ("system:node:n1", "system:nodes");
    let may = json!({
        "metadata": {"name": "renewal"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
    });
    let bindings: KubeApi<k8s_openapi::api::rbac::v1::ClusterRoleBinding> =
        KubeApi::all(served.plane.client(User::internal("t")));
    bindings.create(&PostParams::default(), &serde_json::from_value(may).unwrap()).await.unwrap();
    as_node.create(&PostParams::default(), &request("n1", signer, node, &CLIENT).0).await.unwrap();
    let issued = until_issued(&requests, "n1").await;
    let conditions = issued.status.unwrap().conditions.unwrap();
    assert_eq!(conditions[0].reason.as_deref(), Some("AutoApproved"));

    // A secret gets a token that is valid while the secret exists.
    let secrets: KubeApi<Secret> = KubeApi::namespaced(served.plane.client(User::internal("t")), "default");
    let wanted = json!({
        "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "default"}},
        "type": "kubernetes.io/service-account-token",
    });
    let accounts: KubeApi<ServiceAccount> = KubeApi::namespaced(served.plane.client(User::internal("t")), "default");
    while accounts.get_opt("default").await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    secrets.create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await.unwrap();
    let token = loop {
        let data = secrets.get("s").await.unwrap().data.unwrap_or_default();
        if let Some(token) = data.get("token") {
            assert_eq!(data["namespace"].0, b"default");
            break String::from_utf8(token.0.clone()).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let kubeconfig = with_credentials(&served, |user| user.token = Some(token.clone().into()));
    assert_eq!(who(kubeconfig.clone()).await.username.as_deref(), Some("system:serviceaccount:default:default"));

    // Its use is noted, the token that an account names is warned of, and one that is marked is not taken.
    let noting = tokio::spawn(served.plane.clone().note_token_uses(stop.clone()));
    let today = || jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let used = |secret: &Secret| secret.labels().get("kubernetes.io/legacy-token-last-used").cloned();
    while used(&secrets.get("s").await.unwrap()).is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(used(&secrets.get("s").await.unwrap()), Some(today()));
    let api = served.plane.api.clone();
    assert_eq!(api.authenticate_token(&token, &[]).unwrap().remarks.warning, None);
    let named = Patch::Merge(json!({"secrets": [{"name": "s"}]}));
    accounts.patch("default", &PatchParams::default(), &named).await.unwrap();
    let warning = api.authenticate_token(&token, &[]).unwrap().remarks.warning.unwrap();
    assert!(warning.contains("instead of auto-generated secret-based tokens"), "{warning}");
    let mark = |day: Option<String>| {
        Patch::Merge(json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": day}}}))
    };
    secrets.patch("s", &PatchParams::default(), &mark(Some(today()))).await.unwrap();
    let refused = api.authenticate_token(&token, &[]).unwrap_err();
    let note = ("authentication.k8s.io/legacy-token-invalidated", "s/default".to_owned());
    assert_eq!(refused.audit, Some(note));
    assert!(
        refused
            .why
            .contains("the token in secret default/s for service account default/default has been marked invalid"),
        "{refused:?}"
    );
    secrets.patch("s", &PatchParams::default(), &mark(None)).await.unwrap();
    api.authenticate_token(&token, &[]).unwrap();

    accounts.delete("default", &kube::api::DeleteParams::default()).await.unwrap();
    while secrets.get_opt("s").await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    stop.cancel();
    noting.await.unwrap();
    running.await.unwrap().unwrap();
    served.end().await;
}

#[tokio::test]
async fn a_token_of_the_file_authenticates_and_its_use_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, log) = (dir.path().join("tokens.csv"), dir.path().join("audit.log"));
    fs::write(&tokens, "t0p-secret,bob,7,\"dev,ops\"\n").unwrap();
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    let audit = AuditConfig { path: log.clone(), policy: None, max_size: 1, max_backups: 1, max_age_days: 0 };
    let settings = Config { token_auth_file: Some(tokens.clone()), audit: Some(audit), ..config(dir.path()) };
    let served = Served::of(settings).await;
    let kubeconfig = with_credentials(&served, |user| user.token = Some("t0p-secret".to_owned().into()));
    let user = who(kubeconfig).await;
    assert_eq!((user.username.as_deref(), user.uid.as_deref()), (Some("bob"), Some("7")));
    assert_eq!(user.groups.unwrap(), ["dev", "ops", "system:authenticated"]);

    let mut events = Vec::new();
    for _ in 0..500 {
        let text = fs::read_to_string(&log).unwrap();
        assert!(!text.contains("t0p-secret"), "{text}");
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events = lines.filter(|event| event["user"]["username"] == "bob").collect();
        if events.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let [received, complete] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&received["stage"], &complete["stage"]), (&json!("RequestReceived"), &json!("ResponseComplete")));
    assert_eq!(received["auditID"], complete["auditID"]);
    assert_eq!(complete["objectRef"]["resource"], "selfsubjectreviews");
    assert_eq!((&complete["level"], &complete["responseStatus"]["code"]), (&json!("Metadata"), &json!(201)));
    assert_eq!((&complete["requestObject"], &complete["sourceIPs"]), (&Value::Null, &json!(["127.0.0.1"])));
    served.end().await;

    // A file that others can read is refused before anything is served.
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o644)).unwrap();
    let other = dir.path().join("other");
    let refused = ControlPlane::open(Config { token_auth_file: Some(tokens), ..config(&other) }).await.unwrap_err();
    assert!(refused.to_string().contains("mode is 0644"), "{refused}");
}
