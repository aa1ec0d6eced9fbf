//! The roles and bindings that every cluster has (upstream: `bootstrappolicy`), one a line in `objects.jsonl`, and those of
//! parts of this process that upstream does not have, in `own.jsonl`. At a start
//! missing ones are made, and missing rules and subjects are added, unless the object says otherwise.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use serde_json::{Value, json};

use super::{ControlPlane, Error};
use crate::{apiserver::User, plugin::authorizer::rbac::rules};

const OBJECTS: &str = include_str!("objects.jsonl");
const OWN: &str = include_str!("own.jsonl");

/// An object with this annotation set to `false` is left as it is.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Writes at a time: they share commits.
const WRITES: usize = 16;

#[cfg(test)]
mod tests;

/// The objects, with their kinds; those of parts of this process only `with_own`.
pub(crate) fn objects(with_own: bool) -> impl Iterator<Item = Value> {
    OBJECTS.lines().chain(OWN.lines().filter(move |_| with_own)).map(|line| {
        let mut object: Value = serde_json::from_str(line).unwrap_or_default();
        let mut metadata = json!({"annotations": {AUTOUPDATE: "true"}, "labels": object["labels"].take()});
        metadata["labels"]["kubernetes.io/bootstrapping"] = json!("rbac-defaults");
        for field in ["name", "namespace", "labels"] {
            let value = object.as_object_mut().and_then(|fields| fields.remove(field));
            if let Some(value) = value.filter(|value| !value.is_null()) {
                metadata[field] = value;
            }
        }
        object["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
        object["metadata"] = metadata;
        object
    })
}

/// What a stored object becomes; `None` if it has all that it must have, or is not to be changed.
pub(super) fn reconciled(stored: &Value, wanted: &Value) -> Option<Value> {
    if stored["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return None;
    }
    let mut object = stored.clone();
    let list = if wanted["roleRef"].is_object() { "subjects" } else { "rules" };
    let is_there = |item: &Value| {
        if list == "subjects" {
            return stored[list].as_array().is_some_and(|all| all.contains(item));
        }
        rules::uncovered(&rules::of_role(stored), &rules::of_role(&json!({"rules": [item]}))).is_empty()
    };
    // The rules of an aggregated role are its controller's.
    let missing: Vec<Value> =
        wanted[list].as_array().into_iter().flatten().filter(|item| !is_there(item)).cloned().collect();
    if missing.is_empty() {
        return None;
    }
    match object[list].as_array_mut() {
        Some(all) => all.extend(missing),
        None => object[list] = json!(missing),
    }
    Some(object)
}

impl ControlPlane {
    /// Makes what is missing.
    pub(super) async fn bootstrap_rbac(&self) -> Result<(), Error> {
        let client = self.client(User::api_server());
        let mut stored = Vec::new();
        for kind in ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"] {
            let all: KubeApi<DynamicObject> = KubeApi::all_with(client.clone(), &resource(kind));
            let list = all.list(&ListParams::default()).await.map_err(|source| failed(kind, source))?;
            stored.extend(list.items.into_iter().map(|object| (kind, object)));
        }
        let find = |wanted: &Value| {
            let is = |(kind, object): &&(&str, DynamicObject)| {
                let (namespace, name) = (object.metadata.namespace.as_deref(), object.metadata.name.as_deref());
                wanted["kind"] == *kind
                    && wanted["metadata"]["name"].as_str() == name
                    && wanted["metadata"]["namespace"].as_str() == namespace
            };
            let mut found = serde_json::to_value(&stored.iter().find(is)?.1).ok()?;
            // Items of a list do not say what they are.
            for field in ["apiVersion", "kind"] {
                found[field] = wanted[field].clone();
            }
            Some(found)
        };
        let writes = objects(self.config.options.node_components).filter_map(|wanted| match find(&wanted) {
            None => Some((wanted, true)),
            Some(stored) => Some((reconciled(&stored, &wanted)?, false)),
        });
        let writes: Vec<_> = writes.map(|(object, is_new)| write(&client, object, is_new)).collect();
        stream::iter(writes).buffer_unordered(WRITES).try_collect::<Vec<()>>().await.map(drop)
    }
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind))
}

fn failed(what: &str, source: kube::Error) -> Error {
    Error::Bootstrap { what: format!("the default {what}"), source: Box::new(source) }
}

async fn write(client: &Client, object: Value, is_new: bool) -> Result<(), Error> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let what = format!("{kind} {name}");
    let api: KubeApi<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => KubeApi::namespaced_with(client.clone(), namespace, &resource(&kind)),
        None => KubeApi::all_with(client.clone(), &resource(&kind)),
    };
    let object: DynamicObject =
        serde_json::from_value(object).map_err(|error| failed(&what, kube::Error::SerdeError(error)))?;
    let written = if is_new {
        api.create(&PostParams::default(), &object).await
    } else {
        api.replace(&name, &PostParams::default(), &object).await
    };
    written.map(drop).map_err(|source| failed(&what, source))
}
