//! Metrics as in versions before `v2beta2`: the target is next to the name, not in a separate object.

use serde_json::{Map, Value, json};

/// The fields of a target in an old source, by the key of the source: name of the metric, value, average value,
/// utilization, selector.
struct Names {
    key: &'static str,
    metric: Option<&'static str>,
    selector: &'static str,
    value: Option<(&'static str, &'static str)>,
    average: (&'static str, &'static str),
    utilization: bool,
}

const SOURCES: [Names; 5] = [
    Names {
        key: "object",
        metric: Some("metricName"),
        selector: "selector",
        value: Some(("targetValue", "currentValue")),
        average: ("averageValue", "averageValue"),
        utilization: false,
    },
    Names {
        key: "pods",
        metric: Some("metricName"),
        selector: "selector",
        value: None,
        average: ("targetAverageValue", "currentAverageValue"),
        utilization: false,
    },
    Names {
        key: "resource",
        metric: None,
        selector: "",
        value: None,
        average: ("targetAverageValue", "currentAverageValue"),
        utilization: true,
    },
    Names {
        key: "containerResource",
        metric: None,
        selector: "",
        value: None,
        average: ("targetAverageValue", "currentAverageValue"),
        utilization: true,
    },
    Names {
        key: "external",
        metric: Some("metricName"),
        selector: "metricSelector",
        value: Some(("targetValue", "currentValue")),
        average: ("targetAverageValue", "currentAverageValue"),
        utilization: false,
    },
];

/// Whether a metric says what should be or what is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Target,
    Current,
}

impl Side {
    fn of(self, names: (&'static str, &'static str)) -> &'static str {
        if self == Self::Target { names.0 } else { names.1 }
    }

    fn key(self) -> &'static str {
        if self == Self::Target { "target" } else { "current" }
    }

    fn utilization(self) -> &'static str {
        if self == Self::Target { "targetAverageUtilization" } else { "currentAverageUtilization" }
    }
}

fn take(from: &Value, to: &mut Map<String, Value>, names: (&str, &str)) {
    if let Some(value) = from.get(names.0).filter(|value| !value.is_null()) {
        to.insert(names.1.to_owned(), value.clone());
    }
}

/// A `v2` metric in the old form.
pub(super) fn to_old(metric: &Value, side: Side) -> Value {
    let mut old = json!({"type": metric["type"]});
    for names in &SOURCES {
        let source = &metric[names.key];
        if !source.is_object() {
            continue;
        }
        let (amount, mut made) = (&source[side.key()], Map::new());
        match names.metric {
            Some(metric_name) => {
                made.insert(metric_name.to_owned(), source["metric"]["name"].clone());
                take(&source["metric"], &mut made, ("selector", names.selector));
            }
            None => {
                take(source, &mut made, ("name", "name"));
                take(source, &mut made, ("container", "container"));
            }
        }
        if names.key == "object" {
            made.insert("target".to_owned(), source["describedObject"].clone());
        }
        if let Some(value) = names.value {
            take(amount, &mut made, ("value", side.of(value)));
            let always = names.key == "object" || side == Side::Current;
            if always {
                made.entry(side.of(value)).or_insert_with(|| json!("0"));
            }
        }
        take(amount, &mut made, ("averageValue", side.of(names.average)));
        if names.utilization {
            take(amount, &mut made, ("averageUtilization", side.utilization()));
        }
        old[names.key] = Value::Object(made);
    }
    old
}

/// A metric of the old form as `v2` has it.
pub(super) fn to_v2(old: &Value, side: Side) -> Value {
    let mut metric = json!({"type": old["type"]});
    for names in &SOURCES {
        let source = &old[names.key];
        if !source.is_object() {
            continue;
        }
        let (mut made, mut amount) = (Map::new(), Map::new());
        if let Some(value) = names.value {
            take(source, &mut amount, (side.of(value), "value"));
        }
        take(source, &mut amount, (side.of(names.average), "averageValue"));
        if names.utilization {
            take(source, &mut amount, (side.utilization(), "averageUtilization"));
        }
        if side == Side::Target {
            let kind = match () {
                () if names.utilization && amount.contains_key("averageUtilization") => "Utilization",
                () if names.utilization || names.key == "pods" || amount.contains_key("averageValue") => "AverageValue",
                () => "Value",
            };
            amount.insert("type".to_owned(), json!(kind));
        }
        match names.metric {
            Some(metric_name) => {
                let mut identifier = Map::new();
                identifier.insert("name".to_owned(), source[metric_name].clone());
                take(source, &mut identifier, (names.selector, "selector"));
                made.insert("metric".to_owned(), Value::Object(identifier));
            }
            None => {
                take(source, &mut made, ("name", "name"));
                take(source, &mut made, ("container", "container"));
            }
        }
        if names.key == "object" {
            made.insert("describedObject".to_owned(), source["target"].clone());
        }
        made.insert(side.key().to_owned(), Value::Object(amount));
        metric[names.key] = Value::Object(made);
    }
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_come_back_as_they_were() {
        for metric in [
            json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}),
            json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 30}}}),
            json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 30}}}),
            json!({"type": "Pods", "pods": {"metric": {"name": "m", "selector": {"matchLabels": {"a": "b"}}}, "target": {"type": "AverageValue", "averageValue": "5"}}}),
            json!({"type": "Object", "object": {"metric": {"name": "m"}, "describedObject": {"kind": "K", "name": "n"}, "target": {"type": "Value", "value": "5"}}}),
            json!({"type": "External", "external": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "5"}}}),
        ] {
            assert_eq!(to_v2(&to_old(&metric, Side::Target), Side::Target), metric);
        }
    }
}
