//! `resize`: the resources of a pod and of its containers. Pure.

use serde_json::{Map, Value};
use windlass_kit::objects::resources::Class;

use super::qos::qos_class;
use crate::{
    apiserver::{
        pipeline::validation::errors::Errors,
        types::{FieldResult, Part},
    },
    kinds::shared::field::Field,
};

const ONLY_BASICS: &str = "only cpu and memory resources are mutable";

/// The resources of a pod and of its containers.
#[derive(Debug)]
pub(super) struct Resize;

impl Part for Resize {
    /// The stored pod with the wanted resources; where there are other containers, those, which validation refuses.
    fn apply(&self, new: Value, old: &Value) -> FieldResult<Value> {
        let mut object = old.clone();
        let spec = &new["spec"];
        let count = |of: &Value, list: &str| of["spec"][list].as_array().map_or(0, Vec::len);
        for list in ["containers", "initContainers"] {
            if count(&new, list) == count(old, list) {
                with_resources(&mut object["spec"], spec, list);
            } else {
                copy(&mut object["spec"], spec, list);
            }
        }
        copy(&mut object["spec"], spec, "resources");
        Ok(object)
    }

    fn validate(&self, new: &Value, old: &Value, errors: &mut Errors) -> bool {
        let spec = Field::root(new).at("spec");
        if super::is_mirror(old) {
            errors.forbidden("[]", "static pods cannot be resized");
        } else if old["spec"]["os"]["name"] == "windows" {
            errors.forbidden("[]", "windows pods cannot be resized");
        } else {
            super::validate_whole(new, Some(old), errors);
            validate_resize(&spec, old, errors);
        }
        true
    }
}

/// Takes a field from another object, or removes it as there.
fn copy(to: &mut Value, from: &Value, field: &str) {
    match (from.get(field), to.as_object_mut()) {
        (Some(value), Some(fields)) => drop(fields.insert(field.to_owned(), value.clone())),
        (None, Some(fields)) => drop(fields.remove(field)),
        _ => {}
    }
}

/// Gives as many containers their new resources, if they have their names still.
fn with_resources(spec: &mut Value, wanted: &Value, list: &str) {
    let (Some(containers), Some(new)) = (spec.get_mut(list).and_then(Value::as_array_mut), wanted[list].as_array())
    else {
        return;
    };
    if containers.iter().zip(new).any(|(old, new)| old["name"] != new["name"]) {
        return containers.clone_from(new);
    }
    for (container, new) in containers.iter_mut().zip(new) {
        copy(container, new, "resources");
        copy(container, new, "resizePolicy");
    }
}

fn validate_resize(spec: &Field<'_>, old: &Value, errors: &mut Errors) {
    let before = errors.0.len();
    let was = Field { value: &old["spec"], path: spec.path.clone() };
    let given = old["status"]["qosClass"].as_str();
    let class_of = |spec: &Value| qos_class(spec).map(Class::name).unwrap_or_default();
    if given.unwrap_or_else(|| class_of(was.value)) != class_of(spec.value) {
        let shown = format!("{:?}", given.unwrap_or_default());
        spec.invalid_as(&shown, "Pod QOS Class may not change as a result of resizing", errors);
    }
    let statuses = Field::root(old).below("status.containerStatuses");
    let running = statuses.items().find(|status| status.below("state.running").is_set());
    if running.is_some_and(|status| !status.at("resources").is_set()) {
        spec.forbidden("Pod running on node without support for resize", errors);
    }
    validate_whole(spec, &was, errors);
    if !keep_their_places(spec, &was, errors) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (new, old) in spec.at(list).items().zip(was.at(list).items()) {
            keeps_amounts(&new.at("resources"), &old.at("resources"), "resource", errors);
        }
    }
    for (new, old) in spec.at("containers").items().zip(was.at("containers").items()) {
        if masked(new.value, old.value) != plain(old.value) {
            spec.forbidden(ONLY_BASICS, errors);
        }
    }
    for (new, old) in spec.at("initContainers").items().zip(was.at("initContainers").items()) {
        init_container(&new, &old, errors);
    }
    let others = |spec: &Value| {
        let mut fields = spec.as_object().cloned().unwrap_or_default();
        for field in ["containers", "initContainers", "resources"] {
            fields.remove(field);
        }
        fields
    };
    if errors.0.len() == before && others(spec.value) != others(was.value) {
        spec.forbidden(ONLY_BASICS, errors);
    }
}

/// Refuses other changes of an init container than of CPU and memory, and any of one that would have to run again.
fn init_container(new: &Field<'_>, old: &Field<'_>, errors: &mut Errors) {
    if masked(new.value, old.value) != plain(old.value) {
        new.forbidden("only cpu and memory resources for init or sidecar containers are mutable", errors);
    }
    let is_sidecar = new.at("restartPolicy").text() == "Always";
    if is_sidecar || plain(new.value) == plain(old.value) {
        return;
    }
    for policy in new.at("resizePolicy").items() {
        if policy.at("restartPolicy").text() == "RestartContainer" {
            let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            new.forbidden(why, errors);
        }
    }
}

/// Validates the resources of the pod as a whole.
fn validate_whole(spec: &Field<'_>, old: &Field<'_>, errors: &mut Errors) {
    let (new, old) = (spec.at("resources"), old.at("resources"));
    let has_amounts = |of: &Field<'_>| !of.at("requests").is_empty() || !of.at("limits").is_empty();
    if !has_amounts(&new) && !has_amounts(&old) {
        return;
    }
    if old.is_set() && !new.is_set() {
        return new.forbidden("pod-level resources cannot be removed", errors);
    }
    if old.is_set() {
        keeps_amounts(&new, &old, "pod-level resource", errors);
    }
    let [is, was] = [&new, &old].map(|of| masked_resources(of.value, old.value));
    if is != was || new.at("claims").value != old.at("claims").value {
        spec.forbidden("only cpu and memory resources are mutable at pod-level", errors);
    }
}

/// Whether the containers are those that they were, in their order.
fn keep_their_places(spec: &Field<'_>, old: &Field<'_>, errors: &mut Errors) -> bool {
    let before = errors.0.len();
    for list in ["containers", "initContainers"] {
        let (new, old) = (spec.at(list), old.at(list));
        if new.len() != old.len() {
            new.forbidden(&format!("{list} may not be added or removed on resize"), errors);
            continue;
        }
        for (new, old) in new.items().zip(old.items()) {
            if new.at("name").text() != old.at("name").text() {
                new.at("name").forbidden(&format!("{list} may not be renamed or reordered on resize"), errors);
            }
        }
    }
    errors.0.len() == before
}

/// Refuses the loss of an amount.
fn keeps_amounts(new: &Field<'_>, old: &Field<'_>, what: &str, errors: &mut Errors) {
    for list in ["requests", "limits"] {
        let (is, was) = (new.at(list), old.at(list));
        if was.entries().any(|(name, _)| is.value.get(name).is_none()) {
            is.forbidden(&format!("{what} {list} cannot be removed"), errors);
        }
    }
}

/// Limits and requests with the CPU and memory of others; without those that are empty.
fn masked_resources(new: &Value, old: &Value) -> Map<String, Value> {
    let mut made = Map::new();
    for list in ["limits", "requests"] {
        let mut amounts = new[list].as_object().cloned().unwrap_or_default();
        for name in ["cpu", "memory"] {
            amounts.remove(name);
            if let Some(amount) = old[list].get(name) {
                amounts.insert(name.to_owned(), amount.clone());
            }
        }
        if !amounts.is_empty() {
            made.insert(list.to_owned(), Value::Object(amounts));
        }
    }
    made
}

/// A container with the CPU and memory of an older one. Claims are dropped, as upstream, so that containers with claims
/// are not resized.
fn masked(new: &Value, old: &Value) -> Value {
    let mut container = new.clone();
    container["resources"] = Value::Object(masked_resources(&new["resources"], &old["resources"]));
    container
}

/// A container without empty lists of resources.
fn plain(container: &Value) -> Value {
    let mut made = container.clone();
    let own = container["resources"].as_object().into_iter().flatten();
    let lists = own.filter(|(_, list)| !Field::root(list).is_empty());
    made["resources"] = Value::Object(lists.map(|(name, list)| (name.clone(), list.clone())).collect());
    made
}
