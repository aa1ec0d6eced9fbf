use super::*;

fn node(value: Value) -> Node {
    serde_json::from_value(value).unwrap()
}

/// A Node as kube-apiserver 1.36 gives it back.
fn answered() -> Value {
    json!({
        "metadata": {
            "name": "n", "uid": "u", "resourceVersion": "244",
            "labels": {"kubernetes.io/os": "linux", "rack": "7"},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"podCIDR": "10.244.0.0/24", "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n"}],
            "capacity": {"cpu": "2", "ephemeral-storage": "1k", "hugepages-2Mi": "0", "memory": "4Gi"},
            "allocatable": {"cpu": "1900m", "memory": "4Gi"},
            "conditions": [
                {"type": "NetworkUnavailable", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
                 "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"machineID": "", "systemUUID": "", "bootID": "b", "kernelVersion": "6", "osImage": "x",
                "containerRuntimeVersion": "docker://20", "kubeletVersion": "v1.36.2", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64"},
            "runtimeHandlers": [{"name": "", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": false}}],
            "features": {"supplementalGroupsPolicy": true},
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
            "volumesAttached": [{"name": "v", "devicePath": ""}],
        },
    })
}

/// The patch after one change of what is wanted.
fn after(change: impl FnOnce(&mut Value)) -> Option<Value> {
    let mut wanted = answered();
    change(&mut wanted);
    diff(&node(answered()), &node(wanted))
}

#[test]
fn canonical_forms_are_no_difference() {
    assert_eq!(after(|_| {}), None);
    assert_eq!(
        after(|wanted| {
            wanted["status"]["capacity"]["ephemeral-storage"] = json!("1000");
            wanted["status"]["capacity"]["memory"] = json!("4194304Ki");
            wanted["status"]["allocatable"]["cpu"] = json!("1.9");
            wanted["status"]["images"] = json!([]);
            wanted["status"]["volumesAttached"] = Value::Null;
            wanted["status"]["conditions"].as_array_mut().unwrap().remove(0);
            wanted["spec"] = json!({});
        }),
        None
    );
    let absent: Node = node(json!({"metadata": {}}));
    assert_eq!(diff(&absent, &absent), None);
}

#[test]
fn only_what_differs_is_sent() {
    let heartbeat = "2026-01-01T00:05:00Z";
    for (change, patch) in [
        (
            (|w| w["metadata"]["labels"]["kubernetes.io/os"] = json!("plan9")) as fn(&mut Value),
            json!({"metadata": {"labels": {"kubernetes.io/os": "plan9"}}}),
        ),
        (
            |w| drop(w["metadata"]["annotations"].as_object_mut().unwrap().remove("node.alpha.kubernetes.io/ttl")),
            json!({"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": null}}}),
        ),
        (|w| w["status"]["capacity"]["cpu"] = json!("4"), json!({"status": {"capacity": {"cpu": "4"}}})),
        (
            |w| drop(w["status"]["capacity"].as_object_mut().unwrap().remove("hugepages-2Mi")),
            json!({"status": {"capacity": {"hugepages-2Mi": null}}}),
        ),
        (
            |w| w["status"]["nodeInfo"]["swap"] = json!({"capacity": 7}),
            json!({"status": {"nodeInfo": {"swap": {"capacity": 7}}}}),
        ),
        (
            |w| w["status"]["nodeInfo"]["kubeletVersion"] = json!("v1.36.3"),
            json!({"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}}),
        ),
        (|w| w["status"]["declaredFeatures"] = json!([]), json!({"status": {"declaredFeatures": null}})),
        (
            |w| w["status"]["images"] = json!([{"names": ["a"], "sizeBytes": 5}]),
            json!({"status": {"images": [{"names": ["a"], "sizeBytes": 5}]}}),
        ),
    ] {
        assert_eq!(after(change), Some(patch));
    }
    let beat = after(|w| w["status"]["conditions"][1]["lastHeartbeatTime"] = json!(heartbeat)).unwrap();
    let sent = beat["status"]["conditions"].as_array().unwrap();
    assert_eq!((sent.len(), &sent[0]["type"], &sent[0]["lastHeartbeatTime"]), (1, &json!("Ready"), &json!(heartbeat)));
    assert_eq!(sent[0]["lastTransitionTime"], "2026-01-01T00:00:00Z", "a condition is sent whole");
}

#[test]
fn a_removed_nested_field_is_null() {
    let mut seen = answered();
    seen["status"]["nodeInfo"]["swap"] = json!({"capacity": 7});
    let patch = diff(&node(seen), &node(answered())).unwrap();
    assert_eq!(patch, json!({"status": {"nodeInfo": {"swap": null}}}));
}

#[test]
fn addresses_are_replaced() {
    let two = json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"}]);
    let patch = after(|w| w["status"]["addresses"] = two.clone()).unwrap();
    let sent = patch["status"]["addresses"].as_array().unwrap();
    assert_eq!((&sent[..2], &sent[2]), (&two.as_array().unwrap()[..], &json!({"$patch": "replace"})));
}

#[test]
fn a_later_heartbeat_alone_needs_no_report() {
    let mut wanted = answered();
    wanted["status"]["conditions"][1]["lastHeartbeatTime"] = json!("2026-01-01T00:05:00Z");
    assert!(!needs_report(&node(answered()), &node(wanted.clone()), None));
    wanted["status"]["conditions"][1]["reason"] = json!("KubeletNotReady");
    assert!(needs_report(&node(answered()), &node(wanted), None));
    let mut new = answered();
    new["status"]["conditions"] = json!([]);
    assert!(needs_report(&node(new), &node(answered()), None), "it has no condition yet");
}

#[test]
fn refused_fields_are_not_sent_again() {
    let wanted = node(answered());
    // An API that is older than the field.
    let mut older = answered();
    older["status"]["declaredFeatures"] = Value::Null;
    let answer = node(older.clone());
    assert!(needs_report(&answer, &wanted, None));
    let sent = LastReport { desired: wanted.clone(), answer: answer.clone() };
    assert!(!needs_report(&answer, &wanted, Some(&sent)));
    older["status"]["runtimeHandlers"] = Value::Null;
    assert!(needs_report(&node(older), &wanted, Some(&sent)), "another has written to it");
    let mut other = answered();
    other["status"]["nodeInfo"]["kernelVersion"] = json!("7");
    assert!(needs_report(&answer, &node(other), Some(&sent)), "there is something else to say");
}

#[test]
fn newer_resource_versions() {
    let at = |version: &str| node(json!({"metadata": {"resourceVersion": version}}));
    assert!(is_newer(&at("10"), Some("9")) && !is_newer(&at("9"), Some("10")) && !is_newer(&at("9"), Some("9")));
    assert!(is_newer(&at("9"), None) && is_newer(&at("b"), Some("a")) && !is_newer(&at("a"), Some("a")));
}
