//! Conversion of `v1` and `v2`: what `v1` has no field for stands in annotations
//! (`k8s.io/kubernetes/pkg/apis/autoscaling/v1`).

use serde_json::{Map, Value, json};

use super::{
    default_v2,
    old_metrics::{Side, to_old, to_v2},
};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// Annotations that upstream removes, and neither reads nor writes any more.
const TOLERANCES: [&str; 2] =
    ["autoscaling.alpha.kubernetes.io/scale-up-tolerance", "autoscaling.alpha.kubernetes.io/scale-down-tolerance"];
const ALL: [&str; 6] = [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR, TOLERANCES[0], TOLERANCES[1]];

/// The names of fields in the annotation with the behavior, which upstream writes as its internal type has them.
const BEHAVIOR_FIELDS: [(&str, &str); 9] = [
    ("scaleUp", "ScaleUp"),
    ("scaleDown", "ScaleDown"),
    ("stabilizationWindowSeconds", "StabilizationWindowSeconds"),
    ("selectPolicy", "SelectPolicy"),
    ("policies", "Policies"),
    ("tolerance", "Tolerance"),
    ("type", "Type"),
    ("value", "Value"),
    ("periodSeconds", "PeriodSeconds"),
];

fn is_cpu_utilization(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && !metric["resource"]["target"]["averageUtilization"].is_null()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Removes the annotations of a conversion, and gives them.
fn take_annotations(object: &mut Value) -> Map<String, Value> {
    let mut taken = Map::new();
    let Some(metadata) = object["metadata"].as_object_mut() else { return taken };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return taken };
    for key in ALL {
        if let Some(value) = annotations.remove(key) {
            taken.insert(key.to_owned(), value);
        }
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    taken
}

/// Makes the `v1` object of a stored one.
pub(super) fn v1_of_v2(object: &mut Value) {
    take_annotations(object);
    let (spec, status) = (object["spec"].clone(), object["status"].clone());
    let mut annotations = Map::new();
    let mut annotate = |key: &str, value: Value| drop(annotations.insert(key.to_owned(), json!(value.to_string())));
    let (cpu, others): (Vec<&Value>, Vec<&Value>) =
        list(&spec["metrics"]).iter().partition(|metric| is_cpu_utilization(metric));
    if !others.is_empty() {
        annotate(METRICS, others.iter().map(|metric| to_old(metric, Side::Target)).collect());
    }
    let current = list(&status["currentMetrics"]);
    if !current.is_empty() {
        annotate(CURRENT_METRICS, current.iter().map(|metric| to_old(metric, Side::Current)).collect());
    }
    if !list(&status["conditions"]).is_empty() {
        annotate(CONDITIONS, status["conditions"].clone());
    }
    if spec["behavior"].is_object() {
        annotate(BEHAVIOR, internal(&spec["behavior"]));
    }
    if let Some(fields) = object["spec"].as_object_mut() {
        fields.remove("metrics");
        fields.remove("behavior");
        if let Some(metric) = cpu.last() {
            let target = metric["resource"]["target"]["averageUtilization"].clone();
            fields.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
    }
    if let Some(fields) = object["status"].as_object_mut() {
        for count in ["currentReplicas", "desiredReplicas"] {
            fields.entry(count).or_insert_with(|| json!(0));
        }
        fields.remove("currentMetrics");
        fields.remove("conditions");
        let cpu = current.iter().find(|metric| metric["type"] == "Resource" && metric["resource"]["name"] == "cpu");
        let utilization = cpu.map(|metric| metric["resource"]["current"]["averageUtilization"].clone());
        if let Some(utilization) = utilization.filter(|value| !value.is_null()) {
            fields.insert("currentCPUUtilizationPercentage".to_owned(), utilization);
        }
    }
    if !annotations.is_empty() {
        let metadata = &mut object["metadata"];
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        if let Some(all) = metadata["annotations"].as_object_mut() {
            all.extend(annotations);
        }
    }
}

/// Makes the stored object of a `v1` one. Annotations that cannot be read are dropped, as upstream drops them.
pub(super) fn v2_of_v1(object: &mut Value) {
    let annotations = take_annotations(object);
    let parsed = |key: &str| annotations.get(key)?.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut metrics: Vec<Value> = Vec::new();
    if let Some(others) = parsed(METRICS).filter(Value::is_array) {
        metrics.extend(list(&others).iter().map(|metric| to_v2(metric, Side::Target)));
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        if let Some(percentage) = spec.remove("targetCPUUtilizationPercentage").filter(|value| !value.is_null()) {
            let target = json!({"type": "Utilization", "averageUtilization": percentage});
            metrics.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
        }
        if !metrics.is_empty() {
            spec.insert("metrics".to_owned(), json!(metrics));
        }
        if let Some(behavior) = parsed(BEHAVIOR).filter(Value::is_object) {
            let behavior = renamed(&behavior, |(_, internal)| internal, |(own, _)| own);
            spec.insert("behavior".to_owned(), behavior);
        }
        default_v2(spec);
    }
    let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else { return };
    let utilization = status.remove("currentCPUUtilizationPercentage").filter(|value| !value.is_null());
    if let Some(utilization) = utilization {
        let current = json!({"averageUtilization": utilization});
        status.insert(
            "currentMetrics".to_owned(),
            json!([{"type": "Resource", "resource": {"name": "cpu", "current": current}}]),
        );
    }
    if let Some(current) = parsed(CURRENT_METRICS).filter(Value::is_array) {
        let current: Value = list(&current).iter().map(|metric| to_v2(metric, Side::Current)).collect();
        status.insert("currentMetrics".to_owned(), current);
    }
    if let Some(conditions) = parsed(CONDITIONS).filter(Value::is_array) {
        status.insert("conditions".to_owned(), conditions);
    }
}

/// The lists of metrics, and what they say.
const LISTS: [(&str, &str, Side); 2] = [("spec", "metrics", Side::Target), ("status", "currentMetrics", Side::Current)];

fn each_metric(object: &mut Value, convert: fn(&Value, Side) -> Value) {
    for (part, list, side) in LISTS {
        let metrics = object.get_mut(part).and_then(|part| part.get_mut(list)).and_then(Value::as_array_mut);
        metrics.into_iter().flatten().for_each(|metric| *metric = convert(metric, side));
    }
}

/// Makes the `v2beta1` object of a stored one: the behavior stands in an annotation.
pub(super) fn v2beta1_of_v2(object: &mut Value) {
    take_annotations(object);
    each_metric(object, to_old);
    let behavior = object["spec"].as_object_mut().and_then(|spec| spec.remove("behavior"));
    if let Some(behavior) = behavior.filter(Value::is_object) {
        let metadata = &mut object["metadata"];
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"][BEHAVIOR] = json!(internal(&behavior).to_string());
    }
    let status = &mut object["status"];
    if status.is_object() && status["currentReplicas"].is_null() {
        status["currentReplicas"] = json!(0);
    }
}

/// Makes the stored object of a `v2beta1` one.
pub(super) fn v2_of_v2beta1(object: &mut Value) {
    let annotations = take_annotations(object);
    each_metric(object, to_v2);
    let behavior = annotations.get(BEHAVIOR).and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    if let Some(spec) = object["spec"].as_object_mut() {
        if let Some(behavior) = behavior.filter(Value::is_object) {
            spec.insert("behavior".to_owned(), renamed(&behavior, |(_, internal)| internal, |(own, _)| own));
        }
        default_v2(spec);
    }
}

type Names = (&'static str, &'static str);

/// A behavior with the fields of the other naming: rules, their policies, and what these hold.
fn renamed(behavior: &Value, from: fn(Names) -> &'static str, to: fn(Names) -> &'static str) -> Value {
    let rename = |object: &Value, inner: &dyn Fn(&Value) -> Value| -> Value {
        let mut made = Map::new();
        for names in BEHAVIOR_FIELDS {
            if let Some(value) = object.get(from(names)).filter(|value| !value.is_null()) {
                made.insert(to(names).to_owned(), inner(value));
            }
        }
        Value::Object(made)
    };
    let policy = |value: &Value| rename(value, &Value::clone);
    let rule = |value: &Value| match value {
        Value::Array(policies) => policies.iter().map(policy).collect(),
        other => other.clone(),
    };
    rename(behavior, &|rules| rename(rules, &rule))
}

/// A behavior as upstream's internal type has it, with all fields of its rules.
fn internal(behavior: &Value) -> Value {
    let named = renamed(behavior, |(own, _)| own, |(_, internal)| internal);
    let rules = |direction: &str| match &named[direction] {
        given @ Value::Object(_) => ["StabilizationWindowSeconds", "SelectPolicy", "Policies", "Tolerance"]
            .map(|name| (name.to_owned(), given[name].clone()))
            .into_iter()
            .collect(),
        _ => Value::Null,
    };
    json!({"ScaleUp": rules("ScaleUp"), "ScaleDown": rules("ScaleDown")})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What kube-apiserver 1.36.2 makes of `v1` objects.
    #[test]
    fn annotations_are_read_and_written_as_by_kube_apiserver() {
        let at = |name: &str| format!("autoscaling.alpha.kubernetes.io/{name}");
        let read = |annotations: Value, percentage: Value| {
            let spec = json!({"maxReplicas": 5, "minReplicas": 1, "targetCPUUtilizationPercentage": percentage});
            let mut object = json!({"metadata": {"name": "h", "annotations": annotations}, "spec": spec});
            v2_of_v1(&mut object);
            object
        };
        let cpu = |percentage: i32| {
            let target = json!({"type": "Utilization", "averageUtilization": percentage});
            json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
        };
        let qps = json!([{"type": "Pods", "pods": {"metricName": "qps", "targetAverageValue": "10"}}]);
        let object = read(json!({at("metrics"): qps.to_string()}), json!(30));
        let target = json!({"type": "AverageValue", "averageValue": "10"});
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "qps"}, "target": target}});
        assert_eq!(object["spec"]["metrics"], json!([pods, cpu(30)]));
        for unread in ["metrics", "conditions", "scale-up-tolerance", "scale-down-tolerance"] {
            let object = read(json!({at(unread): "[{", "a": "b"}), Value::Null);
            assert_eq!(object["spec"]["metrics"], json!([cpu(80)]), "{unread}");
            assert_eq!(object["metadata"]["annotations"], json!({"a": "b"}), "{unread}");
        }

        let policies = json!([{"Type": "Pods", "Value": 2, "PeriodSeconds": 60}]);
        let up = json!({"StabilizationWindowSeconds": 60, "SelectPolicy": "Min", "Policies": policies});
        let given = json!({"ScaleUp": up, "ScaleDown": null}).to_string();
        let mut object = read(json!({at("behavior"): given, at("scale-up-tolerance"): "0.2"}), Value::Null);
        let policies = json!([{"type": "Pods", "value": 2, "periodSeconds": 60}]);
        let all = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
        let behavior = json!({
            "scaleUp": {"stabilizationWindowSeconds": 60, "selectPolicy": "Min", "policies": policies},
            "scaleDown": {"selectPolicy": "Max", "policies": all},
        });
        assert_eq!(object["spec"]["behavior"], behavior);
        v1_of_v2(&mut object);
        let written = object["metadata"]["annotations"][at("behavior")].as_str().unwrap();
        let expected = concat!(
            r#"{"ScaleUp":{"StabilizationWindowSeconds":60,"SelectPolicy":"Min","Policies":"#,
            r#"[{"Type":"Pods","Value":2,"PeriodSeconds":60}],"Tolerance":null},"#,
            r#""ScaleDown":{"StabilizationWindowSeconds":null,"SelectPolicy":"Max","Policies":"#,
            r#"[{"Type":"Percent","Value":100,"PeriodSeconds":15}],"Tolerance":null}}"#
        );
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(parse(written), parse(expected));
        assert_eq!(object["metadata"]["annotations"].as_object().unwrap().len(), 1);
    }

    #[test]
    fn nothing_is_lost_through_v1() {
        let stored = json!({
            "metadata": {"name": "h", "annotations": {"a": "b"}},
            "spec": {"maxReplicas": 3, "minReplicas": 1, "scaleTargetRef": {"kind": "K", "name": "n"},
                "metrics": [
                    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
                ],
                "behavior": {
                    "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]},
                    "scaleDown": {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
                }},
            "status": {"currentReplicas": 1, "desiredReplicas": 1,
                "conditions": [{"type": "AbleToScale", "status": "True"}],
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 7, "averageValue": "1m"}}}]},
        });
        let mut converted = stored.clone();
        v1_of_v2(&mut converted);
        assert_eq!(converted["spec"]["targetCPUUtilizationPercentage"], 50);
        assert_eq!(converted["status"]["currentCPUUtilizationPercentage"], 7);
        assert_eq!(converted["spec"].get("metrics"), None);
        assert_eq!(converted["metadata"]["annotations"].as_object().unwrap().len(), 5);
        v2_of_v1(&mut converted);
        assert_eq!(converted, stored);
        v2beta1_of_v2(&mut converted);
        let memory = json!({"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}});
        assert_eq!((&converted["spec"]["metrics"][0], converted["spec"].get("behavior")), (&memory, None));
        v2_of_v2beta1(&mut converted);
        assert_eq!(converted, stored);
    }
}
