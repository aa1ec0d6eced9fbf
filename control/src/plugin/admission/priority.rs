//! Priority: a pod's number comes from its class.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::Store,
};

const CLASSES: &str = "priorityclasses.scheduling.k8s.io";

/// Sets the number, and lets one class alone be the default.
#[derive(Debug)]
pub(super) struct Priority {
    pub(super) store: Store,
}

impl Priority {
    /// All classes; there are few.
    fn classes(&self) -> Vec<Value> {
        let objects = self.store.list(self.store.resource(CLASSES), None).0;
        objects.iter().map(|object| object.value()).collect()
    }
}

#[async_trait]
impl AdmissionPlugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let is_new_pod = attributes.operation == Operation::Create && attributes.is_core("pods");
        if is_new_pod && attributes.target.subresource.is_none() {
            set_priority(object, &self.classes()).map_err(|why| attributes.forbidden(object, &why))?;
        }
        Ok(())
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        if !attributes.target.is("scheduling.k8s.io", "priorityclasses") || object["globalDefault"] != true {
            return Ok(());
        }
        let classes = self.classes();
        match default_class(&classes).filter(|class| name_of(class) != name_of(object)) {
            Some(class) => {
                let name = name_of(class);
                let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(attributes.forbidden(object, &why))
            }
            None => Ok(()),
        }
    }
}

fn name_of(class: &Value) -> &str {
    class["metadata"]["name"].as_str().unwrap_or("")
}

/// The default class; of several the one with the lowest value.
fn default_class(classes: &[Value]) -> Option<&Value> {
    let defaults = classes.iter().filter(|class| class["globalDefault"] == true);
    defaults.min_by_key(|class| class["value"].as_i64())
}

/// Sets the priority of the pod's class. Clients may not choose a number: pods are preempted by it. Pure.
fn set_priority(object: &mut Value, classes: &[Value]) -> Result<(), String> {
    if !object["spec"].is_object() {
        return Ok(());
    }
    let spec = &mut object["spec"];
    let asked = spec["priorityClassName"].as_str().unwrap_or("");
    let class = if asked.is_empty() {
        default_class(classes)
    } else {
        let class = classes.iter().find(|class| name_of(class) == asked);
        Some(class.ok_or_else(|| format!("no PriorityClass with name {asked} was found"))?)
    };
    let priority = class.and_then(|class| class["value"].as_i64()).unwrap_or(0);
    let policy = class.and_then(|class| class["preemptionPolicy"].as_str()).unwrap_or("PreemptLowerPriority");
    if let Some(class) = class {
        spec["priorityClassName"] = json!(name_of(class));
    }
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != policy) {
        return Err(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    spec["priority"] = json!(priority);
    spec["preemptionPolicy"] = json!(policy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_that_of_the_class() {
        let class = |name: &str, value: i64, policy: &str, default: bool| json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy, "globalDefault": default});
        let classes = [class("high", 1000, "Never", false), class("usual", 5, "PreemptLowerPriority", true)];
        let of = |spec: Value, classes: &[Value]| {
            let mut pod = json!({"spec": spec});
            set_priority(&mut pod, classes).map(|()| {
                let spec = &pod["spec"];
                (spec["priorityClassName"].clone(), spec["priority"].clone(), spec["preemptionPolicy"].clone())
            })
        };
        let is = |name: Value, value: i64, policy: &str| Ok((name, json!(value), json!(policy)));
        assert_eq!(of(json!({}), &[]), is(Value::Null, 0, "PreemptLowerPriority"));
        assert_eq!(of(json!({}), &classes), is(json!("usual"), 5, "PreemptLowerPriority"));
        assert_eq!(of(json!({"priorityClassName": "high"}), &classes), is(json!("high"), 1000, "Never"));
        assert_eq!(
            of(json!({"priorityClassName": "x"}), &classes).unwrap_err(),
            "no PriorityClass with name x was found"
        );
        assert!(of(json!({"priority": 7}), &classes).is_err());
        assert!(of(json!({"preemptionPolicy": "Never"}), &classes).is_err());
        assert!(
            of(json!({"priority": 1000, "preemptionPolicy": "Never", "priorityClassName": "high"}), &classes).is_ok()
        );
    }
}
