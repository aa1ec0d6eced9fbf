//! Bodies as kubectl 1.37 sent them.

use serde_json::json;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn bodies_of_kubectl() {
    for (body, wanted) in [
        (
            "6b3873000a0f0a0276311209436f6e6669674d617012270a110a016d12001a0022002a0032003800420012060a01611201621a0a0a0162120562696eff001a002200",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}, "binaryData": {"b": "Ymlu/wA="}}),
        ),
        (
            "6b3873000a0c0a0276311206536563726574121e0a110a017312001a0022002a0032003800420012060a01611201621a01781a002200",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "x", "data": {"a": "Yg=="}}),
        ),
        (
            "6b3873000a0f0a02763112094e616d65737061636512190a110a016e12001a0022002a0032003800420012001a020a001a002200",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}),
        ),
        (
            "6b3873000a140a027631120e536572766963654163636f756e7412130a110a017812001a0022002a003200380042001a002200",
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x"}}),
        ),
        (
            "6b3873000a0d0a0276311207536572766963651284010a1d0a02737612001a0022002a003200380042005a090a0361707012027376125f0a1b0a0738302d38303830120354435018502207080010903f1a0028000a1c0a0638312d776562120354435018512209080110001a03776562280012090a03617070120273761a002209436c757374657249503a00420052005a00600068001a020a001a002200",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "sv", "labels": {"app": "sv"}}, "spec": {"type": "ClusterIP", "selector": {"app": "sv"},
                "ports": [{"name": "80-8080", "protocol": "TCP", "port": 80, "targetPort": 8080}, {"name": "81-web", "protocol": "TCP", "port": 81, "targetPort": "web"}]}}),
        ),
        (
            "6b3873000a0d0a02763112075365727669636512610a1d0a026e7012001a0022002a003200380042005a090a0361707012026e70123c0a170a023830120354435018502206080010501a0028b1ea0112090a0361707012026e701a0022084e6f6465506f72743a00420052005a00600068001a020a001a002200",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "np", "labels": {"app": "np"}}, "spec": {"type": "NodePort", "selector": {"app": "np"},
                "ports": [{"name": "80", "protocol": "TCP", "port": 80, "targetPort": 80, "nodePort": 30001}]}}),
        ),
        (
            "6b3873000a0d0a02763112075365727669636512510a1d0a02656e12001a0022002a003200380042005a090a036170701202656e122c12090a036170701202656e1a00220c45787465726e616c4e616d653a0042005205782e6f72675a00600068001a020a001a002200",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "en", "labels": {"app": "en"}},
                "spec": {"type": "ExternalName", "selector": {"app": "en"}, "externalName": "x.org"}}),
        ),
        (
            "6b3873000a280a1861757468656e7469636174696f6e2e6b38732e696f2f7631120c546f6b656e5265717565737412200a100a0012001a0022002a0032003800420012060a017820901c1a040a0012001a002200",
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["x"], "expirationSeconds": 3600}}),
        ),
        (
            "6b3873000a320a17617574686f72697a6174696f6e2e6b38732e696f2f7631121753656c665375626a65637441636365737352657669657712430a100a0012001a0022002a0032003800420012250a230a0b6b7562652d73797374656d12036765741a0022002a04706f647332036c6f673a001a08080012001a0020001a002200",
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes":
                {"namespace": "kube-system", "verb": "get", "resource": "pods", "subresource": "log"}}}),
        ),
    ] {
        let decoded = decode(&bytes(body), ContentType::Json).unwrap();
        assert_eq!(decoded.value, wanted);
        for shorter in 4..body.len() / 2 {
            let _ = decode(&bytes(&body[..shorter * 2]), ContentType::Json);
        }
    }
    let quota = "6b3873000a130a027631120d5265736f7572636551756f746112230a110a017112001a0022002a00320038004200120c0a0a0a0363707512030a01311a001a002200";
    let wanted =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"cpu": "1"}}});
    assert_eq!(decode_protobuf(&bytes(quota)).unwrap().value, wanted);
    // An unknown kind, and a body that is not protobuf.
    let unknown = quota.replace("5265736f7572636551756f7461", "5265736f7572636551756f7a61");
    assert!(decode(&bytes(&unknown), ContentType::Json).unwrap_err().contains("v1 ResourceQuoza"));
    assert!(decode_protobuf(b"{}").unwrap_err().contains("magic number"));
}

proptest! {
    #[test]
    fn never_panics(kind in "(ConfigMap|Service|Secret|TokenRequest)", body in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut all = b"k8s\0".to_vec();
        all.extend([0x0a, u8::try_from(kind.len()).unwrap() + 2, 0x12, u8::try_from(kind.len()).unwrap()]);
        all.extend(kind.bytes());
        all.extend([0x12, u8::try_from(body.len()).unwrap()]);
        all.extend(body);
        let _ = decode(&all, ContentType::Json);
    }
}
