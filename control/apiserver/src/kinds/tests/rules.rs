use serde_json::{Value, json};

use super::*;

/// Every rule once: the kind, what stands at a pointer of a good object, and what is told.
#[test]
fn rules_of_each_kind() {
    let pod = json!({"metadata": {"name": "x"}, "spec": {"volumes": [{"name": "v"}], "containers": [{"name": "c", "image": "i",
        "ports": [{"containerPort": 80, "name": "http"}], "env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "livenessProbe": {"httpGet": {"port": 80}}, "lifecycle": {"preStop": {"exec": {"command": ["true"]}}}}],
        "initContainers": [{"name": "init", "image": "i"}], "tolerations": [{"operator": "Exists"}]}});
    let service = json!({"metadata": {"name": "s"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]}});
    let rc = json!({"metadata": {"name": "r"}, "spec": {"selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let slice = json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]});
    let config = json!({"metadata": {"name": "m"}, "data": {"a": "b"}, "binaryData": {"c": "eA=="}});
    let secret = json!({"metadata": {"name": "t"}, "type": "Opaque", "data": {"tls.crt": "eA=="}});
    let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let lease = json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 40}});
    let endpoints =
        json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]});
    let event =
        json!({"metadata": {"name": "e.1", "namespace": "default"}, "involvedObject": {"namespace": "default"}});
    let namespace = json!({"metadata": {"name": "n"}});
    let set = |base: &Value, pointer: &str, value: Value| {
        let mut out = base.clone();
        let (holder, key) = pointer.rsplit_once('/').unwrap();
        match out.pointer_mut(holder).unwrap() {
            Value::Array(items) => match key.parse::<usize>() {
                Ok(at) if at < items.len() => items[at] = value,
                _ => items.push(value),
            },
            other => other[key] = value,
        }
        out
    };
    for (kind, base) in [
        ("Pod", &pod),
        ("Service", &service),
        ("ReplicationController", &rc),
        ("EndpointSlice", &slice),
        ("ConfigMap", &config),
        ("Secret", &secret),
        ("Node", &node),
        ("Lease", &lease),
        ("Endpoints", &endpoints),
        ("Event", &event),
        ("Namespace", &namespace),
    ] {
        assert_eq!(errors(kind, base.clone()), Vec::<String>::new(), "{kind} is fine");
        assert_eq!(unknown_fields(gvk(kind), &defaulted(kind, base.clone())), FieldProblems::default(), "{kind}");
    }
    let container = "/spec/containers/0";
    let at = |tail: &str| format!("{container}{tail}");
    for (kind, base, pointer, value, words) in [
        ("Pod", &pod, at("/name"), json!("init"), "spec.initContainers[0].name: Duplicate value: \"init\""),
        (
            "Pod",
            &pod,
            at("/image"),
            json!(" i"),
            "spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace",
        ),
        (
            "Pod",
            &pod,
            at("/ports/1"),
            json!({"containerPort": 81, "name": "http"}),
            "spec.containers[0].ports[1].name: Duplicate value: \"http\"",
        ),
        (
            "Pod",
            &pod,
            at("/ports/0/containerPort"),
            json!(0),
            "spec.containers[0].ports[0].containerPort: Required value",
        ),
        (
            "Pod",
            &pod,
            at("/ports/0/hostPort"),
            json!(65536),
            "spec.containers[0].ports[0].hostPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
        ),
        (
            "Pod",
            &pod,
            at("/ports/0/protocol"),
            json!("ICMP"),
            "spec.containers[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            "Pod",
            &pod,
            at("/env/0/name"),
            json!("A=B"),
            "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must",
        ),
        (
            "Pod",
            &pod,
            at("/env/0/valueFrom"),
            json!({"fieldRef": {"fieldPath": "metadata.name"}}),
            "may not be specified when `value` is not empty",
        ),
        (
            "Pod",
            &pod,
            at("/env/0"),
            json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.color"}}}),
            "Invalid value: \"spec.color\": error converting fieldPath: field label not supported: spec.color",
        ),
        (
            "Pod",
            &pod,
            at("/volumeMounts/1"),
            json!({"name": "v", "mountPath": "/v"}),
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/v\": must be unique",
        ),
        ("Pod", &pod, at("/volumeMounts/0/subPath"), json!("../x"), "must not contain '..'"),
        (
            "Pod",
            &pod,
            at("/livenessProbe/successThreshold"),
            json!(2),
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            "Pod",
            &pod,
            at("/livenessProbe/tcpSocket"),
            json!({"port": 80}),
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
        ),
        (
            "Pod",
            &pod,
            at("/livenessProbe"),
            json!({}),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        ("Pod", &pod, at("/livenessProbe/periodSeconds"), json!(-1), "must be greater than or equal to 0"),
        (
            "Pod",
            &pod,
            at("/lifecycle/preStop/exec"),
            json!({}),
            "spec.containers[0].lifecycle.preStop.exec.command: Required value",
        ),
        (
            "Pod",
            &pod,
            at("/resources"),
            json!({"limits": {"cpus": "1"}}),
            "spec.containers[0].resources.limits[cpus]: Invalid value: \"cpus\": must be a standard resource",
        ),
        (
            "Pod",
            &pod,
            "/spec/initContainers/0/readinessProbe".to_owned(),
            json!({"tcpSocket": {"port": 1}}),
            "may not be set for init containers without restartPolicy=Always",
        ),
        (
            "Pod",
            &pod,
            "/spec/restartPolicy".to_owned(),
            json!("Sometimes"),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (
            "Pod",
            &pod,
            "/spec/volumes/1".to_owned(),
            json!({"name": "v"}),
            "spec.volumes[1].name: Duplicate value: \"v\"",
        ),
        (
            "Pod",
            &pod,
            "/spec/volumes/0".to_owned(),
            json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}),
            "may not specify more than 1 volume type",
        ),
        (
            "Pod",
            &pod,
            "/spec/volumes/0".to_owned(),
            json!({"name": "v", "secret": {}}),
            "spec.volumes[0].secret.secretName: Required value",
        ),
        (
            "Pod",
            &pod,
            "/spec/volumes/0".to_owned(),
            json!({"name": "v", "hostPath": {"path": "/a/../b"}}),
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
        ),
        ("Pod", &pod, "/spec/hostNetwork".to_owned(), json!(true), ""),
        (
            "Pod",
            &pod,
            "/spec/activeDeadlineSeconds".to_owned(),
            json!(0),
            "must be between 1 and 2147483647, inclusive",
        ),
        (
            "Pod",
            &pod,
            "/spec/tolerations/0".to_owned(),
            json!({"operator": "Equal"}),
            "operator must be Exists when `key` is empty",
        ),
        (
            "Pod",
            &pod,
            "/metadata/labels".to_owned(),
            json!({"a": "b c"}),
            "metadata.labels: Invalid value: \"b c\": a valid label must be",
        ),
        (
            "Pod",
            &pod,
            "/metadata/labels".to_owned(),
            json!({"-": "b"}),
            "metadata.labels: Invalid value: \"-\": name part must consist of",
        ),
        (
            "Pod",
            &pod,
            "/metadata/annotations".to_owned(),
            json!({"a": "x".repeat(300_000)}),
            "metadata.annotations: Too long: may not be more than 262144 bytes",
        ),
        (
            "Pod",
            &pod,
            "/metadata/ownerReferences".to_owned(),
            json!([{"apiVersion": "v1", "kind": "K", "name": "n"}]),
            "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
        ),
        (
            "Service",
            &service,
            "/spec/ports/1/name".to_owned(),
            json!("a"),
            "spec.ports[1].name: Duplicate value: \"a\"",
        ),
        ("Service", &service, "/spec/ports/1/name".to_owned(), json!(""), "spec.ports[1].name: Required value"),
        (
            "Service",
            &service,
            "/spec/ports/1/port".to_owned(),
            json!(80),
            "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,",
        ),
        (
            "Service",
            &service,
            "/spec/ports/1/targetPort".to_owned(),
            json!("Web!"),
            "spec.ports[1].targetPort: Invalid value: \"Web!\": must contain only",
        ),
        (
            "Service",
            &service,
            "/spec/ports/1/targetPort".to_owned(),
            json!(70_000),
            "spec.ports[1].targetPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            "Service",
            &service,
            "/spec/ports/1/nodePort".to_owned(),
            json!(30_000),
            "spec.ports[1].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        ("Service", &service, "/spec/type".to_owned(), json!("ExternalName"), "spec.externalName: Required value"),
        (
            "Service",
            &service,
            "/spec/type".to_owned(),
            json!("Magic"),
            "spec.type: Unsupported value: \"Magic\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ),
        (
            "Service",
            &service,
            "/spec/sessionAffinity".to_owned(),
            json!("Cookie"),
            "spec.sessionAffinity: Unsupported value",
        ),
        (
            "Service",
            &service,
            "/spec/externalIPs".to_owned(),
            json!(["x"]),
            "spec.externalIPs[0]: Invalid value: \"x\": must be a valid IP address",
        ),
        (
            "Service",
            &service,
            "/metadata/name".to_owned(),
            json!("a.b"),
            "metadata.name: Invalid value: \"a.b\": must not contain dots",
        ),
        (
            "ReplicationController",
            &rc,
            "/spec/replicas".to_owned(),
            json!(-1),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        ),
        ("ReplicationController", &rc, "/spec/template".to_owned(), Value::Null, "spec.template: Required value"),
        (
            "ReplicationController",
            &rc,
            "/spec/template/spec/restartPolicy".to_owned(),
            json!("OnFailure"),
            "spec.template.spec.restartPolicy: Unsupported value: \"OnFailure\": supported values: \"Always\"",
        ),
        (
            "ReplicationController",
            &rc,
            "/spec/template/spec/activeDeadlineSeconds".to_owned(),
            json!(5),
            "activeDeadlineSeconds in ReplicationController is not Supported",
        ),
        (
            "ReplicationController",
            &rc,
            "/spec/template/spec/containers/0/image".to_owned(),
            json!(""),
            "spec.template.spec.containers[0].image: Required value",
        ),
        (
            "EndpointSlice",
            &slice,
            "/addressType".to_owned(),
            json!("IPv6"),
            "endpoints[0].addresses: Invalid value: \"10.0.0.1\": must be an IPv6 address",
        ),
        (
            "EndpointSlice",
            &slice,
            "/endpoints/0/addresses".to_owned(),
            json!([]),
            "endpoints[0].addresses: Required value",
        ),
        ("EndpointSlice", &slice, "/ports/1".to_owned(), json!({"port": 81}), "ports[1].name: Duplicate value: \"\""),
        ("Endpoints", &endpoints, "/subsets/0/addresses/0/ip".to_owned(), json!("0.0.0.0"), "may not be unspecified"),
        (
            "ConfigMap",
            &config,
            "/data/a b".to_owned(),
            json!("x"),
            "data[a b]: Invalid value: \"a b\": a valid config key must",
        ),
        (
            "ConfigMap",
            &config,
            "/data/c".to_owned(),
            json!("x"),
            "data[c]: Invalid value: \"c\": duplicate of key present in binaryData",
        ),
        (
            "ConfigMap",
            &config,
            "/data/a".to_owned(),
            json!("x".repeat(1_100_000)),
            "Too long: may not be more than 1048576 bytes",
        ),
        ("Secret", &secret, "/type".to_owned(), json!("kubernetes.io/tls"), "data[tls.key]: Required value"),
        (
            "Secret",
            &secret,
            "/type".to_owned(),
            json!("kubernetes.io/dockerconfigjson"),
            "data[.dockerconfigjson]: Required value",
        ),
        (
            "Node",
            &node,
            "/spec/taints/0/effect".to_owned(),
            json!("Never"),
            "metadata.taints[0].effect: Unsupported value: \"Never\"",
        ),
        (
            "Lease",
            &lease,
            "/spec/leaseDurationSeconds".to_owned(),
            json!(0),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "Event",
            &event,
            "/involvedObject/namespace".to_owned(),
            json!("other"),
            "involvedObject.namespace: Invalid value: \"other\": does not match event.namespace",
        ),
        (
            "Namespace",
            &namespace,
            "/metadata/name".to_owned(),
            json!("A"),
            "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 label must",
        ),
        (
            "Namespace",
            &namespace,
            "/metadata/name".to_owned(),
            json!("a".repeat(64)),
            "must be no more than 63 characters",
        ),
    ] {
        let found = errors(kind, set(base, &pointer, value.clone()));
        if words.is_empty() {
            assert!(found.is_empty(), "{kind} {pointer} = {value}: {found:?}");
        } else {
            assert!(found.iter().any(|e| e.contains(words)), "{words:?} is missing for {kind} {pointer}: {found:?}");
        }
    }
}
