//! A rich object of every type, valid as it stands.

use super::*;
use crate::fuzzing::client_types::decode;
use crate::kinds::tests::sample;

/// The path of a type's collection; namespaced ones are in namespace `n`.
pub(crate) fn collection(resource: &Version) -> String {
    let base = if resource.gvk.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", resource.gvk.group) };
    let namespace = if resource.namespaced { "/namespaces/n" } else { "" };
    format!("{base}/{}{namespace}/{}", resource.gvk.version, resource.plural)
}

fn pod_spec() -> Value {
    json!({
        "containers": [{
            "name": "c", "image": "i:1", "command": ["a"], "env": [{"name": "A", "value": "b"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "ports": [{"containerPort": 80, "name": "http"}], "resources": {"requests": {"cpu": "0.5", "memory": "1024Mi"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}], "securityContext": {"runAsNonRoot": false},
            "readinessProbe": {"httpGet": {"port": "http"}}, "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
        }],
        "initContainers": [{"name": "i", "image": "i:1"}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "2048Mi"}}, {"name": "c", "configMap": {"name": "m"}}],
        "tolerations": [{"key": "k", "operator": "Exists"}], "nodeSelector": {"a": "b"}, "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["h"]}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}]}},
    })
}

/// The name of an object: some are named after what they define.
pub(crate) fn name_of(resource: &Version, name: &str) -> String {
    match &*resource.gvk.kind {
        "CustomResourceDefinition" => format!("{name}.test.example"),
        "APIService" => format!("v1.{name}.example"),
        "IPAddress" => {
            let digits: String = name.chars().filter(char::is_ascii_digit).collect();
            format!("10.9.{}.{}", name.as_bytes()[0], digits.parse().unwrap_or(0_u8))
        }
        _ => name.to_owned(),
    }
}

/// An object of a type, under a name.
pub(crate) fn object(resource: &Version, name: &str) -> Value {
    let mut object = match &*resource.gvk.kind {
        "ConfigMap" => json!({"data": {"a": "b"}, "binaryData": {"c": "eA=="}}),
        "Endpoints" => json!({"subsets": [{"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}]}),
        "Event" if resource.gvk.group == "events.k8s.io" => {
            json!({"regarding": {"kind": "Pod", "name": "p", "namespace": "n"}, "reason": "R", "type": "Normal", "action": "A",
            "eventTime": "2020-01-01T00:00:00.000001Z", "reportingController": "x.y/c", "reportingInstance": "c-1"})
        }
        "Event" => {
            json!({"involvedObject": {"kind": "Pod", "name": "p", "namespace": "n"}, "reason": "R", "type": "Normal", "count": 1,
            "firstTimestamp": "2020-01-01T00:00:00Z", "source": {"component": "c"}})
        }
        "Namespace" => json!({"spec": {}}),
        "Node" => {
            json!({"spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"]}, "status": {"capacity": {"cpu": "4000m", "memory": "1024Ki"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]}})
        }
        "Pod" => json!({"spec": pod_spec()}),
        "ReplicationController" => {
            json!({"spec": {"replicas": 0, "selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()}}})
        }
        "Secret" => json!({"data": {"a": "eA=="}}),
        "ServiceAccount" => json!({"imagePullSecrets": [{"name": "s"}]}),
        "Service" => json!({"spec": {"selector": {"a": "b"}, "ports": [{"port": 80, "name": "http"}]}}),
        "Lease" => {
            json!({"spec": {"holderIdentity": "me", "leaseDurationSeconds": 10, "renewTime": "2020-01-01T00:00:00.000001Z"}})
        }
        "EndpointSlice" => {
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true}}], "ports": [{"port": 80}]})
        }
        "RuntimeClass" => {
            json!({"handler": "runc", "overhead": {"podFixed": {"memory": "1024Ki"}}, "scheduling": {"nodeSelector": {"a": "b"}}})
        }
        "CustomResourceDefinition" => {
            let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}});
            json!({"spec": {"group": "test.example", "scope": "Namespaced", "names": {"plural": name, "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}})
        }
        "Widget" => {
            let template = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}});
            json!({"spec": {"size": 1}, "template": template})
        }
        "StorageClass" => json!({"provisioner": "p.q/r", "parameters": {"a": "b"}, "mountOptions": ["ro"]}),
        _ => sample(&resource.gvk.api_version(), &resource.gvk.kind),
    };
    if resource.gvk.kind == "APIService" {
        object["spec"]["group"] = json!(format!("{name}.example"));
    }
    object["kind"] = json!(resource.gvk.kind);
    object["apiVersion"] = json!(resource.gvk.api_version());
    let name = name_of(resource, name);
    object["metadata"] = json!({"name": name, "labels": {"l": "1"}, "annotations": {"an": "1"}});
    object
}

#[tokio::test]
async fn every_type_can_be_created_and_read() {
    let api = with_namespace().await;
    for (at, resource) in stored_versions(&api).iter().enumerate() {
        // Two resources may share their objects.
        let name = format!("x{at}");
        let made = call(&api, "POST", &collection(resource), object(resource, &name)).await;
        let deprecated: Vec<String> = resource.spec.deprecation_warning.iter().cloned().collect();
        assert_eq!(made.code, 201, "{}: {}", resource.gvk.kind, made.body);
        assert!(
            deprecated.iter().zip(&made.warnings).all(|(wanted, found)| found.contains(wanted)),
            "{:?}",
            made.warnings
        );
        let told = made.warnings.iter().filter(|warning| !warning.contains("is stored, but")).count();
        assert_eq!(told, deprecated.len(), "{}: {:?}", resource.gvk.kind, made.warnings);
        let path = format!("{}/{}", collection(resource), made.body["metadata"]["name"].as_str().unwrap());
        let got = call(&api, "GET", &path, Value::Null).await;
        assert_eq!(got.body, made.body);
        decode(&resource.gvk.api_version(), &resource.gvk.kind, got.body.to_string().as_bytes()).unwrap();
    }
}
