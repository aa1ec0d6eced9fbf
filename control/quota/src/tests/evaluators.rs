//! What objects use, and which quotas are about them.

use super::*;

#[test]
fn pods_use_what_they_request_until_they_end() {
    let requests = json!({"cpu": "500m", "memory": "252Mi", "ephemeral-storage": "30Gi", "example.com/dongle": "2", "hugepages-2Mi": "4Mi"});
    let object = pod(json!([container("c", &requests, &json!({"cpu": "1"}))]));
    let all = "count/pods=1,cpu=500m,ephemeral-storage=30Gi,hugepages-2Mi=4Mi,limits.cpu=1,memory=252Mi,pods=1,requests.cpu=500m,requests.ephemeral-storage=30Gi,requests.example.com/dongle=2,requests.hugepages-2Mi=4Mi,requests.memory=252Mi";
    assert_eq!(usage("pods", &object), all);
    let with = |field: &str, value: Value| {
        let mut object = object.clone();
        object[field] = value;
        usage("pods", &object)
    };
    for (phase, used) in [("Running", all), ("Failed", "count/pods=1"), ("Succeeded", "count/pods=1")] {
        assert_eq!(with("status", json!({"phase": phase})), used);
    }
    // It counts for as long as it has to go, and after that no more, wherever its node is.
    for (deletion, used) in [("2025-12-31T23:59:30Z", all), ("2025-12-31T23:59:29Z", "count/pods=1")] {
        let metadata = json!({"deletionTimestamp": deletion, "deletionGracePeriodSeconds": 30});
        assert_eq!(with("metadata", metadata), used);
    }
}

#[test]
fn a_pod_is_counted_as_a_whole() {
    let cpu = |name: &str, amount: &str| container(name, &json!({"cpu": amount}), &json!({}));
    let used = |object: &Value| evaluator("pods").usage(object, now()).get("requests.cpu").unwrap().to_string();
    let mut object = pod(json!([cpu("a", "100m"), cpu("b", "200m")]));
    assert_eq!(used(&object), "300m");
    let mut sidecar = cpu("s", "100m");
    sidecar["restartPolicy"] = json!("Always");
    object["spec"]["initContainers"] = json!([sidecar, cpu("i", "350m")]);
    assert_eq!(used(&object), "450m");
    object["spec"]["overhead"] = json!({"cpu": "50m"});
    assert_eq!(used(&object), "500m");
    object["spec"]["resources"] = json!({"requests": {"cpu": "1"}});
    assert_eq!(used(&object), "1050m");
}

#[test]
fn a_resize_counts_what_a_container_has_and_what_it_is_to_have() {
    let mut object = pod(json!([container("c", &json!({"cpu": "100m"}), &json!({}))]));
    let held = |cpu: &str| json!({"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": cpu}}, "allocatedResources": {"cpu": cpu}}]});
    for (cpu, used) in [("50m", "100m"), ("200m", "200m")] {
        object["status"] = held(cpu);
        assert_eq!(evaluator("pods").usage(&object, now()).get("cpu").unwrap().to_string(), used);
    }
    object["status"] = held("50m");
    object["status"]["conditions"] = json!([{"type": "PodResizePending", "reason": "Infeasible"}]);
    assert_eq!(evaluator("pods").usage(&object, now()).get("cpu").unwrap().to_string(), "50m");
}

#[test]
fn services_claims_and_others_use_what_they_ask_for() {
    let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30000}]);
    for (spec, used) in [
        (json!({"ports": ports}), "count/services=1,services=1,services.loadbalancers=0,services.nodeports=0"),
        (
            json!({"type": "NodePort", "ports": ports}),
            "count/services=1,services=1,services.loadbalancers=0,services.nodeports=2",
        ),
        (
            json!({"type": "LoadBalancer", "ports": ports}),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=2",
        ),
        (
            json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=1",
        ),
    ] {
        assert_eq!(usage("services", &json!({"spec": spec})), used);
    }
    let claim = json!({
        "spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"allocatedResources": {"storage": "2Gi"}},
    });
    assert_eq!(
        usage("persistentvolumeclaims", &claim),
        "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=2Gi,persistentvolumeclaims=1,requests.storage=2Gi"
    );
    let device =
        |class: &str, count: i64| json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
    let claim = json!({"spec": {"devices": {"requests": [
        {"name": "a", "exactly": device("x", 2)},
        {"name": "b", "exactly": {"deviceClassName": "y", "allocationMode": "All"}},
        {"name": "c", "firstAvailable": [device("x", 1), device("x", 3), device("z", 1)]},
    ]}}});
    assert_eq!(
        usage("resourceclaims.resource.k8s.io", &claim),
        "count/resourceclaims.resource.k8s.io=1,x.deviceclass.resource.k8s.io/devices=5,y.deviceclass.resource.k8s.io/devices=32,z.deviceclass.resource.k8s.io/devices=1"
    );
    assert_eq!(usage("secrets", &json!({})), "count/secrets=1,secrets=1");
    assert_eq!(usage("widgets.example.com", &json!({})), "count/widgets.example.com=1");
    assert_eq!(Evaluator::of("", "events"), None);
}

#[test]
fn each_name_is_of_one_resource() {
    for (name, resource) in [
        ("pods", Some("pods")),
        ("limits.cpu", Some("pods")),
        ("requests.example.com/dongle", Some("pods")),
        ("requests.hugepages-2Mi", Some("pods")),
        ("requests.storage", Some("persistentvolumeclaims")),
        ("gold.storageclass.storage.k8s.io/requests.storage", Some("persistentvolumeclaims")),
        ("services.nodeports", Some("services")),
        ("x.deviceclass.resource.k8s.io/devices", Some("resourceclaims.resource.k8s.io")),
        ("configmaps", Some("configmaps")),
        ("resourcequotas", Some("resourcequotas")),
        ("count/pods", Some("pods")),
        ("count/deployments.apps", Some("deployments.apps")),
        ("example.com/dongle", None),
    ] {
        assert_eq!(Evaluator::resource_of(name), resource, "{name}");
        if let Some(resource) = resource {
            assert!(evaluator(resource).counts(name), "{name}");
        }
    }
}

#[test]
fn scopes_select_pods_and_claims() {
    let best_effort = pod(json!([{"name": "c"}]));
    let mut other = pod(json!([container("c", &json!({"cpu": "1"}), &json!({}))]));
    other["spec"]["activeDeadlineSeconds"] = json!(3600);
    other["spec"]["priorityClassName"] = json!("high");
    other["spec"]["affinity"] = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaces": ["n"]}}]}});
    let counted = |spec: &Value, resource: &str, object: &Value| {
        let mut spec = spec.clone();
        spec["hard"] = json!({format!("count/{resource}"): "5"});
        let quota = json!({"metadata": {"name": "q"}, "spec": spec});
        let evaluator = evaluator(resource);
        recount(&quota, [(&evaluator, Some(std::slice::from_ref(object)))], now())["used"][format!("count/{resource}")]
            == "1"
    };
    let selector = |name: &str, operator: &str, values: &[&str]| json!({"scopeSelector": {"matchExpressions": [{"scopeName": name, "operator": operator, "values": values}]}});
    for (spec, wanted) in [
        (json!({}), [true, true]),
        (json!({"scopes": ["Terminating"]}), [false, true]),
        (json!({"scopes": ["NotTerminating"]}), [true, false]),
        (json!({"scopes": ["BestEffort"]}), [true, false]),
        (json!({"scopes": ["NotBestEffort", "Terminating"]}), [false, true]),
        (json!({"scopes": ["PriorityClass"]}), [false, true]),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), [false, true]),
        (selector("PriorityClass", "In", &["high", "low"]), [false, true]),
        (selector("PriorityClass", "NotIn", &["high"]), [true, false]),
        (selector("PriorityClass", "DoesNotExist", &[]), [true, false]),
        (selector("VolumeAttributesClass", "Exists", &[]), [false, false]),
    ] {
        let found = [&best_effort, &other].map(|object| counted(&spec, "pods", object));
        assert_eq!(found, wanted, "{spec}");
        // Scopes are of pods: nothing else is in one.
        assert_eq!(counted(&spec, "secrets", &json!({})), spec == json!({}), "{spec}");
    }
    let claim =
        json!({"spec": {"volumeAttributesClassName": "new"}, "status": {"currentVolumeAttributesClassName": "old"}});
    for (spec, wanted) in [
        (selector("VolumeAttributesClass", "In", &["old"]), true),
        (selector("VolumeAttributesClass", "In", &["other"]), false),
        (selector("VolumeAttributesClass", "NotIn", &["old"]), true),
        (selector("VolumeAttributesClass", "DoesNotExist", &[]), false),
        (json!({"scopes": ["Terminating"]}), false),
    ] {
        assert_eq!(counted(&spec, "persistentvolumeclaims", &claim), wanted, "{spec}");
    }
}
