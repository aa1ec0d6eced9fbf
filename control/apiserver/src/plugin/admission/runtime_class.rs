//! RuntimeClass: a pod gets the overhead of its class, and is scheduled only to nodes that have it.

use async_trait::async_trait;
use serde_json::{Value, json};
use windlass_quota::ResourceList;

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::{Key, ResourceId, Store},
};

/// Applies the class.
#[derive(Debug)]
pub(super) struct RuntimeClass {
    store: Store,
    classes: ResourceId,
}

impl RuntimeClass {
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone(), classes: store.resource("runtimeclasses.node.k8s.io") }
    }

    /// The class that a pod names.
    fn class_of(&self, pod: &Value) -> Result<Option<Value>, String> {
        let Some(name) = pod["spec"]["runtimeClassName"].as_str() else { return Ok(None) };
        let key = Key { namespace: String::new(), name: name.to_owned() };
        let class = self.store.get(self.classes, &key).map(|class| class.value());
        class.map(Some).ok_or_else(|| format!("pod rejected: RuntimeClass {name:?} not found"))
    }
}

fn is_new_pod(attributes: &AdmissionAttributes<'_>) -> bool {
    attributes.is_core("pods") && attributes.target.subresource.is_none()
}

#[async_trait]
impl AdmissionPlugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        if !is_new_pod(attributes) {
            return Ok(());
        }
        let applied = self.class_of(object).and_then(|class| class.map_or(Ok(()), |class| apply(&class, object)));
        applied.map_err(|why| attributes.forbidden(object, &why))
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        if !is_new_pod(attributes) {
            return Ok(());
        }
        let checked = self.class_of(object).and_then(|class| check_overhead(class.as_ref(), object));
        checked.map_err(|why| attributes.forbidden(object, &why))
    }
}

fn overhead_of_class(class: Option<&Value>) -> ResourceList {
    class.map(|class| ResourceList::read(&class["overhead"]["podFixed"])).unwrap_or_default()
}

/// Sets overhead, node selector and tolerations. Pure.
fn apply(class: &Value, pod: &mut Value) -> Result<(), String> {
    let spec = &mut pod["spec"];
    if class["overhead"].is_object() {
        let (own, of_class) = (ResourceList::read(&spec["overhead"]), overhead_of_class(Some(class)));
        if !own.is_empty() && own != of_class {
            return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned());
        }
        if !of_class.is_empty() {
            spec["overhead"] = class["overhead"]["podFixed"].clone();
        }
    }
    let scheduling = &class["scheduling"];
    for (key, wanted) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        if !spec["nodeSelector"].is_object() {
            spec["nodeSelector"] = json!({});
        }
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        match &spec["nodeSelector"][key] {
            Value::Null => spec["nodeSelector"][key] = wanted.clone(),
            own if own == wanted => {}
            own => {
                return Err(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                    text(wanted),
                    text(own)
                ));
            }
        }
    }
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of_class = list(&scheduling["tolerations"]);
    if !of_class.is_empty() {
        spec["tolerations"] = Value::Array(merge_tolerations([list(&spec["tolerations"]), of_class].concat()));
    }
    Ok(())
}

/// Tolerations without those that others include. Pure.
fn merge_tolerations(all: Vec<Value>) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for (at, toleration) in all.iter().enumerate() {
        // Of equal ones the first stays.
        let later = all[at + 1..].iter().filter(|later| *later != toleration);
        if !merged.iter().chain(later).any(|other| includes(other, toleration)) {
            merged.push(toleration.clone());
        }
    }
    merged
}

/// Whether a toleration tolerates all that another one does, and for as long. Pure.
fn includes(wide: &Value, narrow: &Value) -> bool {
    fn text<'a>(toleration: &'a Value, field: &str) -> &'a str {
        toleration[field].as_str().unwrap_or("")
    }
    let same = |field: &str| text(wide, field) == text(narrow, field);
    let exists = text(wide, "operator") == "Exists";
    let for_longer = match (wide["tolerationSeconds"].as_i64(), narrow["tolerationSeconds"].as_i64()) {
        (Some(wide), Some(narrow)) => narrow <= wide,
        (Some(_), None) => false,
        (None, _) => true,
    };
    let is_equal = |toleration: &Value| matches!(text(toleration, "operator"), "" | "Equal");
    wide == narrow
        || ((same("key") || (exists && text(wide, "key").is_empty()))
            && (same("effect") || text(wide, "effect").is_empty())
            && (for_longer || text(wide, "effect") != "NoExecute")
            && (exists || (is_equal(wide) && is_equal(narrow) && same("value"))))
}

/// The overhead must be that of the class, and unset without one. Pure.
fn check_overhead(class: Option<&Value>, pod: &Value) -> Result<(), String> {
    let (own, of_class) = (ResourceList::read(&pod["spec"]["overhead"]), overhead_of_class(class));
    let why = match (own.is_empty(), of_class.is_empty()) {
        (true, true) => return Ok(()),
        (false, true) => "Pod Overhead set without corresponding RuntimeClass defined Overhead",
        _ if own == of_class => return Ok(()),
        _ => "Pod's Overhead doesn't match RuntimeClass's defined Overhead",
    };
    Err(format!("pod rejected: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_merged_into_the_pod() {
        let class = json!({
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}]},
        });
        let mut pod = json!({"spec": {"nodeSelector": {"c": "d"}, "overhead": {"cpu": "0.25"}}});
        apply(&class, &mut pod).unwrap();
        let wanted =
            json!({"nodeSelector": {"a": "b", "c": "d"}, "overhead": {"cpu": "250m"}, "tolerations": [{"key": "k"}]});
        assert_eq!(pod["spec"], wanted);
        apply(&class, &mut pod).unwrap();
        assert_eq!(pod["spec"], wanted);
        check_overhead(Some(&class), &pod).unwrap();
        for (spec, why) in [
            (
                json!({"nodeSelector": {"a": "x"}}),
                "conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = x",
            ),
            (
                json!({"overhead": {"cpu": "1"}}),
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
            ),
        ] {
            assert_eq!(apply(&class, &mut json!({"spec": spec})).unwrap_err(), why);
        }
    }

    #[test]
    fn tolerations_that_others_include_are_left_out() {
        let equal = json!({"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"});
        let exists = json!({"key": "a", "operator": "Exists", "effect": "NoSchedule"});
        let everything = json!({"operator": "Exists"});
        let seconds = |n: i64| json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": n});
        for (all, wanted) in [
            (vec![equal.clone(), exists.clone()], vec![exists.clone()]),
            (vec![exists.clone(), equal.clone(), exists.clone()], vec![exists.clone()]),
            (vec![everything.clone(), exists], vec![everything]),
            (vec![seconds(5), seconds(10)], vec![seconds(10)]),
            (vec![equal.clone(), seconds(5)], vec![equal, seconds(5)]),
        ] {
            assert_eq!(merge_tolerations(all), wanted);
        }
    }

    #[test]
    fn there_is_no_overhead_without_a_class() {
        let with = json!({"spec": {"overhead": {"cpu": "1"}}});
        let class = json!({"overhead": {"podFixed": {"cpu": "2"}}});
        let differs = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
        let alone = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        assert_eq!(check_overhead(None, &with).unwrap_err(), alone);
        assert_eq!(check_overhead(Some(&json!({})), &with).unwrap_err(), alone);
        assert_eq!(check_overhead(Some(&class), &with).unwrap_err(), differs);
        assert_eq!(check_overhead(Some(&class), &json!({"spec": {}})).unwrap_err(), differs);
        check_overhead(None, &json!({"spec": {}})).unwrap();
    }
}
