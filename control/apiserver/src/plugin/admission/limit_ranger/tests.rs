use serde_json::json;

use super::{aggregate, bounds::*};

fn pod(containers: serde_json::Value) -> serde_json::Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})
}

#[test]
fn containers_get_what_they_lack() {
    let range = json!({"spec": {"limits": [
        {"type": "Pod", "max": {"cpu": "4"}},
        {"type": "Container", "default": {"cpu": "500m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m", "memory": "1Mi"}},
    ]}});
    let mut object = pod(json!([
        {"name": "a"},
        {"name": "b", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1", "memory": "5Mi"}}},
    ]));
    object["spec"]["initContainers"] = json!([{"name": "i", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]);
    set_defaults(&range, &mut object);
    let both = json!({"requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"cpu": "500m", "memory": "1Gi"}});
    assert_eq!(object["spec"]["containers"][0]["resources"], both);
    let resources = json!({"requests": {"cpu": "1", "memory": "5Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    assert_eq!(object["spec"]["containers"][1]["resources"], resources);
    assert_eq!(
        object["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu, memory request for container a; cpu, memory limit for container a; memory limit for container b; cpu, memory request for init container i"
    );
    // Nothing is left to set.
    object["metadata"] = json!({"name": "p"});
    let before = object.clone();
    set_defaults(&range, &mut object);
    assert_eq!(object, before);
}

#[test]
fn bounds_are_refused_in_upstreams_words() {
    for (limit, resources, wanted) in [
        (
            json!({"min": {"cpu": "100m"}}),
            json!({}),
            "minimum cpu usage per Container is 100m.  No request is specified",
        ),
        (
            json!({"min": {"memory": "128Mi"}}),
            json!({"requests": {"memory": "64Mi"}}),
            "minimum memory usage per Container is 128Mi, but request is 64Mi",
        ),
        (
            json!({"min": {"cpu": "1"}}),
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "500m"}}),
            "minimum cpu usage per Container is 1, but limit is 500m",
        ),
        (json!({"max": {"cpu": "1"}}), json!({}), "maximum cpu usage per Container is 1.  No limit is specified"),
        (
            json!({"max": {"cpu": "1"}}),
            json!({"requests": {"cpu": "3"}, "limits": {"cpu": "2"}}),
            "maximum cpu usage per Container is 1, but limit is 2",
        ),
        (
            json!({"max": {"cpu": "1"}}),
            json!({"requests": {"cpu": "3"}, "limits": {"cpu": "1"}}),
            "maximum cpu usage per Container is 1, but request is 3",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "2"}}),
            json!({"limits": {"cpu": "1"}}),
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "2"}}),
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "0"}}),
            "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "2"}}),
            json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "400m"}}),
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "1500m"}}),
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}),
            "",
        ),
        (
            json!({"min": {"cpu": "1"}, "max": {"cpu": "1"}}),
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1000m"}}),
            "",
        ),
        (
            json!({"min": {"cpu": "2"}, "max": {"memory": "1"}}),
            json!({"requests": {"cpu": "1"}, "limits": {"memory": "2"}}),
            "[minimum cpu usage per Container is 2, but request is 1, maximum memory usage per Container is 1, but limit is 2]",
        ),
    ] {
        let mut limit = limit;
        limit["type"] = json!("Container");
        let range = json!({"spec": {"limits": [limit]}});
        let containers = json!([{"name": "a", "resources": resources}, {"name": "same", "resources": resources}]);
        let violations = violations_of_pod(&range, &pod(containers));
        let message = aggregate(violations).unwrap_or_default();
        assert_eq!(message, wanted, "{range}");
    }
}

#[test]
fn pod_request_is_max_of_containers_and_init_containers() {
    let range = json!({"spec": {"limits": [{"type": "Pod", "max": {"cpu": "2"}}]}});
    let of = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}});
    let mut object = pod(json!([of("1"), of("1")]));
    assert!(violations_of_pod(&range, &object).is_empty());
    object["spec"]["initContainers"] = json!([of("3")]);
    let too_much = ["maximum cpu usage per Pod is 2, but limit is 3"];
    assert_eq!(violations_of_pod(&range, &object), too_much);
    let mut sidecar = of("1");
    sidecar["restartPolicy"] = json!("Always");
    object["spec"]["initContainers"] = json!([sidecar]);
    assert_eq!(violations_of_pod(&range, &object), too_much);
    // What is stated for the whole pod counts.
    object["spec"]["resources"] = json!({"limits": {"cpu": "2"}, "requests": {"cpu": "2"}});
    assert!(violations_of_pod(&range, &object).is_empty());
}

#[test]
fn claims_are_bounded_by_their_requests() {
    let range = json!({"spec": {"limits": [
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}},
    ]}});
    let claim = |storage: &str| json!({"spec": {"resources": {"requests": {"storage": storage}}}});
    assert!(violations_of_claim(&range, &claim("2Gi")).is_empty());
    let least = "minimum storage usage per PersistentVolumeClaim is 1Gi";
    let most = "maximum storage usage per PersistentVolumeClaim is 2Gi";
    assert_eq!(violations_of_claim(&range, &claim("1Mi")), [format!("{least}, but request is 1Mi")]);
    assert_eq!(violations_of_claim(&range, &claim("3Gi")), [format!("{most}, but request is 3Gi")]);
    let none = [format!("{least}.  No request is specified"), format!("{most}.  No request is specified")];
    assert_eq!(violations_of_claim(&range, &json!({"spec": {}})), none);
}
