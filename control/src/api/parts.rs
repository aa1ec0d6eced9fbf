//! Subresources that change one part of a pod and leave the rest as it was. Pure.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::Value;
use windlass_kit::objects::resources::{Class, class};

/// The pod that a request to `sub` makes of `old`; nothing for other subresources.
///
/// # Errors
/// What may not be changed.
pub(super) fn take(sub: &str, old: &Value, wanted: &Value) -> Option<Result<Value, String>> {
    match sub {
        "resize" => Some(resized(old, wanted)),
        "ephemeralcontainers" => Some(visited(old, wanted)),
        _ => None,
    }
}

/// A pod with the resources that are wanted of its containers.
fn resized(old: &Value, wanted: &Value) -> Result<Value, String> {
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
    if class_of(&object["spec"])? != class_of(&old["spec"])? {
        return Err("Pod QOS Class may not change as a result of resizing".to_owned());
    }
    match removed(&object["spec"], &old["spec"]) {
        Some(what) => Err(format!("resource {what} cannot be removed")),
        None => Ok(object),
    }
}

/// Which list of amounts has lost one of those that a resize may change; upstream takes none away either.
fn removed(new: &Value, old: &Value) -> Option<&'static str> {
    let lost = |kind: &&'static str| {
        ["containers", "initContainers"].iter().any(|list| {
            let mut pairs =
                old[*list].as_array().into_iter().flatten().zip(new[*list].as_array().into_iter().flatten());
            pairs.any(|(old, new)| {
                let amount = |container: &Value, resource| container["resources"][*kind][resource].clone();
                ["cpu", "memory"].iter().any(|r| !amount(old, *r).is_null() && amount(new, *r).is_null())
            })
        })
    };
    ["requests", "limits"].into_iter().find(|kind| lost(kind))
}

/// A pod with more containers to look at it; those that are there stay as they are.
fn visited(old: &Value, wanted: &Value) -> Result<Value, String> {
    let mut object = old.clone();
    let before = old["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    let after = wanted["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    for one in &before {
        match after.iter().find(|c| c["name"] == one["name"]) {
            Some(same) if same == one => {}
            Some(_) => return Err(format!("existing ephemeral containers {} may not be changed", one["name"])),
            None => return Err(format!("existing ephemeral containers {} may not be removed", one["name"])),
        }
    }
    object["spec"]["ephemeralContainers"] = Value::Array(after);
    Ok(object)
}

/// The quality of service that a spec gives its pod.
pub(super) fn class_of(spec: &Value) -> Result<Class, String> {
    let spec: PodSpec = windlass_kit::json::from_value(spec).map_err(|e| format!("the spec cannot be read: {e}"))?;
    Ok(class(&spec))
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
        let made = take("resize", &old, &wanted).unwrap().unwrap();
        assert_eq!(made, pod(json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}})));
        let guaranteed = pod(json!({"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}));
        assert!(take("resize", &old, &guaranteed).unwrap().unwrap_err().contains("QOS"));
        assert!(take("resize", &old, &json!({"spec": {"containers": []}})).unwrap().is_err());
        let both = pod(json!({"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}));
        assert!(take("resize", &both, &old).unwrap().unwrap_err().contains("limits cannot be removed"));
        let other = pod(json!({"name": "c", "resources": {"requests": {"memory": "1Gi"}}}));
        assert!(take("resize", &old, &other).unwrap().unwrap_err().contains("requests cannot be removed"));
        assert!(take("status", &old, &wanted).is_none());
    }

    #[test]
    fn visitors_come_and_stay() {
        let with = |visitors: Value| json!({"spec": {"nodeName": "n", "ephemeralContainers": visitors}});
        let old = with(json!([{"name": "a", "image": "i"}]));
        let more = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
        let mut wanted = with(more.clone());
        wanted["spec"]["nodeName"] = json!("other");
        assert_eq!(take("ephemeralcontainers", &old, &wanted).unwrap().unwrap(), with(more));
        for bad in [json!([]), json!([{"name": "a", "image": "j"}])] {
            assert!(take("ephemeralcontainers", &old, &with(bad)).unwrap().is_err());
        }
    }
}
