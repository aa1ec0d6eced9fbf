//! Decisions about requests, and the way of one from its creation to its certificate.

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use serde_json::{Value, json};
use windlass_identity::pki::CertificateRequest;
use windlass_kit::subject::Subject;

use super::{
    cleaner::end_of,
    decisions::{recognized_by_nodes, validate_for_signer},
};

fn node_request() -> CertificateRequest {
    CertificateRequest {
        subject: Subject::of_user("system:node:n1", &["system:nodes"]),
        ..CertificateRequest::default()
    }
}

fn object(spec: Value, status: Value) -> CertificateSigningRequest {
    let mut object = json!({
        "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"request": "", "signerName": "kubernetes.io/kube-apiserver-client-kubelet"},
        "status": status,
    });
    json_patch::merge(&mut object["spec"], &spec);
    serde_json::from_value(object).unwrap()
}

const CLIENT: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
const SERVING: [&str; 2] = ["digital signature", "server auth"];

#[test]
fn requests_are_good_for_their_signers() {
    let node = node_request;
    let ann = CertificateRequest { subject: Subject::of_user("ann", &[]), ..CertificateRequest::default() };
    for (signer, request, usages, expected) in [
        ("kubernetes.io/kube-apiserver-client", ann.clone(), &CLIENT[..], Some(Ok(()))),
        (
            "kubernetes.io/kube-apiserver-client",
            ann.clone(),
            &SERVING,
            Some(Err("invalid usage for client certificate: server auth")),
        ),
        (
            "kubernetes.io/kube-apiserver-client",
            ann.clone(),
            &CLIENT[..2],
            Some(Err("missing required usage for client certificate: client auth")),
        ),
        ("kubernetes.io/kube-apiserver-client-kubelet", node(), &CLIENT, Some(Ok(()))),
        (
            "kubernetes.io/kube-apiserver-client-kubelet",
            node(),
            &SERVING,
            Some(Err("usages did not match [client auth digital signature key encipherment]")),
        ),
        (
            "kubernetes.io/kube-apiserver-client-kubelet",
            ann.clone(),
            &CLIENT,
            Some(Err("subject organization is not system:nodes")),
        ),
        (
            "kubernetes.io/kube-apiserver-client-kubelet",
            CertificateRequest { ip_addresses: 1, ..node() },
            &CLIENT,
            Some(Err("IP subjectAltNames are not allowed")),
        ),
        (
            "kubernetes.io/kube-apiserver-client-kubelet",
            CertificateRequest { subject: Subject::of_user("x", &["system:nodes"]), ..node() },
            &CLIENT,
            Some(Err("subject common name does not begin with system:node: ")),
        ),
        ("kubernetes.io/kubelet-serving", CertificateRequest { dns_names: 1, ..node() }, &SERVING, Some(Ok(()))),
        ("kubernetes.io/kubelet-serving", node(), &SERVING, Some(Err("DNS or IP subjectAltName is required"))),
        (
            "kubernetes.io/kubelet-serving",
            CertificateRequest { dns_names: 1, uris: 1, ..node() },
            &SERVING,
            Some(Err("URI subjectAltNames are not allowed")),
        ),
        ("kubernetes.io/legacy-unknown", ann.clone(), &SERVING, Some(Ok(()))),
        ("example.com/other", ann.clone(), &CLIENT, None),
    ] {
        let usages: Vec<String> = usages.iter().map(|u| (*u).to_owned()).collect();
        let expected = expected.map(|valid| valid.map_err(str::to_owned));
        assert_eq!(validate_for_signer(signer, &request, &usages), expected, "{signer}");
    }
}

#[test]
fn requests_of_nodes_are_recognized() {
    for (spec, request, expected) in [
        (
            json!({"usages": CLIENT, "username": "system:node:n1"}),
            node_request(),
            &["selfnodeclient", "nodeclient"][..],
        ),
        (json!({"usages": CLIENT, "username": "system:bootstrap:x"}), node_request(), &["nodeclient"]),
        (json!({"usages": SERVING, "username": "system:node:n1"}), node_request(), &[]),
        (json!({"usages": CLIENT, "signerName": "kubernetes.io/kube-apiserver-client"}), node_request(), &[]),
        (json!({"usages": CLIENT}), CertificateRequest { dns_names: 1, ..node_request() }, &[]),
    ] {
        let found: Vec<&str> =
            recognized_by_nodes(&object(spec.clone(), json!({})), &request).into_iter().map(|(of, _)| of).collect();
        assert_eq!(found, expected, "{spec}");
    }
}

#[test]
fn a_request_is_kept_for_a_while() {
    let at = "2026-01-02T00:00:00Z";
    let condition = |kind: &str| json!({"conditions": [{"type": kind, "status": "True", "lastUpdateTime": at}]});
    for (status, end) in [
        (json!({}), Some("2026-01-02T00:00:00Z")),
        (condition("Approved"), Some("2026-01-02T01:00:00Z")),
        (condition("Denied"), Some("2026-01-02T01:00:00Z")),
        (condition("Failed"), Some("2026-01-02T01:00:00Z")),
        (condition("Other"), None),
    ] {
        let end = end.map(|end| end.parse::<Timestamp>().unwrap());
        assert_eq!(end_of(&object(json!({}), status.clone())), end, "{status}");
    }
}
