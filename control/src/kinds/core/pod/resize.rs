//! `resize`: the resources of a pod's containers. Pure.

use serde_json::Value;

use super::qos::qos_class;
use crate::apiserver::{
    subresource::{FieldResult, Part},
    validation::{Cause, FieldError},
};

/// The resources of the containers.
#[derive(Debug)]
pub(super) struct Resize;

impl Part for Resize {
    fn apply(&self, new: Value, old: &Value) -> FieldResult<Value> {
        resize_pod(old, &new).map_err(|why| FieldError {
            field: "spec".to_owned(),
            cause: Cause::Forbidden,
            detail: format!("Forbidden: {why}"),
        })
    }
}

/// The pod with the requested resources of its containers.
fn resize_pod(old: &Value, wanted: &Value) -> Result<Value, String> {
    let mut object = old.clone();
    for list in ["containers", "initContainers"] {
        let Some(containers) = object["spec"].get_mut(list).and_then(Value::as_array_mut) else { continue };
        for container in containers {
            let same = |c: &&Value| c["name"] == container["name"];
            let Some(new) = wanted["spec"][list].as_array().into_iter().flatten().find(same) else {
                return Err(format!("containers may not be removed: {}", container["name"]));
            };
            for field in ["resources", "resizePolicy"] {
                match new.get(field) {
                    Some(value) => container[field] = value.clone(),
                    None => drop(container.as_object_mut().map(|c| c.remove(field))),
                }
            }
        }
    }
    // Those of the pod as a whole.
    match wanted["spec"].get("resources") {
        Some(value) => object["spec"]["resources"] = value.clone(),
        None => drop(object["spec"].as_object_mut().map(|spec| spec.remove("resources"))),
    }
    if qos_class(&object["spec"])? != qos_class(&old["spec"])? {
        return Err("Pod QOS Class may not change as a result of resizing".to_owned());
    }
    match removed_resource(&object["spec"], &old["spec"]) {
        Some(what) => Err(format!("resource {what} cannot be removed")),
        None => Ok(object),
    }
}

/// Which of requests and limits has lost an amount that a resize may change; upstream refuses that too.
fn removed_resource(new: &Value, old: &Value) -> Option<&'static str> {
    let has_lost = |kind: &&'static str| {
        let loses = |(old, new): (&Value, &Value)| {
            let amount = |of: &Value, resource| of["resources"][*kind][resource].clone();
            ["cpu", "memory"].iter().any(|r| !amount(old, *r).is_null() && amount(new, *r).is_null())
        };
        loses((old, new))
            || ["containers", "initContainers"].iter().any(|list| {
                let [old, new] = [old, new].map(|spec| spec[*list].as_array().into_iter().flatten());
                old.zip(new).any(loses)
            })
    };
    ["requests", "limits"].into_iter().find(|kind| has_lost(kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(container: Value) -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"containers": [container], "nodeName": "n"}})
    }

    #[test]
    fn a_resize_takes_resources_alone() {
        let old = pod(json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}));
        let wanted = pod(json!({"name": "c", "image": "other", "resources": {"requests": {"cpu": "2"}}}));
        let made = resize_pod(&old, &wanted).unwrap();
        assert_eq!(made, pod(json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}})));
        let level = |cpu: &str| json!({"metadata": {"name": "p"}, "spec": {"containers": [], "resources": {"requests": {"cpu": cpu}}}});
        assert_eq!(resize_pod(&level("1"), &level("2")).unwrap(), level("2"));
        assert!(resize_pod(&level("1"), &json!({"spec": {"containers": []}})).is_err());
        let guaranteed = pod(json!({"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}));
        assert!(resize_pod(&old, &guaranteed).unwrap_err().contains("QOS"));
        assert!(resize_pod(&old, &json!({"spec": {"containers": []}})).is_err());
        let both = pod(json!({"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}));
        assert!(resize_pod(&both, &old).unwrap_err().contains("limits cannot be removed"));
        let other = pod(json!({"name": "c", "resources": {"requests": {"memory": "1Gi"}}}));
        assert!(resize_pod(&old, &other).unwrap_err().contains("requests cannot be removed"));
    }
}
