//! The cells of a HorizontalPodAutoscaler in tables.

use serde_json::{Value, json};

use crate::kinds::shared::cells::text;

/// The cells of a `v2` object besides its name.
pub(super) fn row(object: &Value, age: &str) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let target = &spec["scaleTargetRef"];
    let least = spec["minReplicas"].as_i64().map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
    vec![
        json!(format!("{}/{}", text(&target["kind"]), text(&target["name"]))),
        json!(metrics(&spec["metrics"], &status["currentMetrics"])),
        json!(least),
        json!(spec["maxReplicas"].as_i64().unwrap_or(0)),
        json!(status["currentReplicas"].as_i64().unwrap_or(0)),
        json!(age),
    ]
}

/// The first two metrics: what is, and what should be.
fn metrics(wanted: &Value, current: &Value) -> String {
    let Some(wanted) = wanted.as_array().filter(|all| !all.is_empty()) else { return "<none>".to_owned() };
    let all: Vec<String> = wanted.iter().enumerate().map(|(at, metric)| one(metric, &current[at])).collect();
    match all.len() {
        0..=2 => all.join(", "),
        many => format!("{} + {} more...", all[..2].join(", "), many - 2),
    }
}

fn one(metric: &Value, current: &Value) -> String {
    let (key, named) = match text(&metric["type"]) {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_owned(),
    };
    let (source, now) = (&metric[key], &current[key]["current"]);
    let known = |value: &Value| value.as_str().unwrap_or("<unknown>").to_owned();
    let target = &source["target"];
    let average = target["averageValue"].as_str();
    if named {
        let name = text(&source["name"]);
        return match average {
            Some(average) => format!("{name}: {}/{average}", known(&now["averageValue"])),
            None => {
                let percent = |value: &Value, unset: &str| value.as_i64().map_or(unset.to_owned(), |n| format!("{n}%"));
                let (is, wanted) = (&now["averageUtilization"], &target["averageUtilization"]);
                format!("{name}: {}/{}", percent(is, "<unknown>"), percent(wanted, "<auto>"))
            }
        };
    }
    match average {
        Some(average) if key == "pods" => format!("{}/{average}", known(&now["averageValue"])),
        Some(average) => format!("{}/{average} (avg)", known(&now["averageValue"])),
        None => format!("{}/{}", known(&now["value"]), text(&target["value"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_what_is_and_what_should_be() {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
        let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
        let object = json!({"type": "Object", "object": {"target": {"type": "Value", "value": "5"}}});
        let now = json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 7}}}]);
        for (wanted, current, shown) in [
            (json!([]), Value::Null, "<none>"),
            (json!([cpu]), Value::Null, "cpu: <unknown>/80%"),
            (json!([cpu]), now.clone(), "cpu: 7%/80%"),
            (json!([cpu, memory, object]), now, "cpu: 7%/80%, memory: <unknown>/1Gi + 1 more..."),
            (json!([object]), Value::Null, "<unknown>/5"),
        ] {
            assert_eq!(metrics(&wanted, &current), shown);
        }
    }
}
