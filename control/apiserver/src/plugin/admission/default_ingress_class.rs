//! DefaultIngressClass: an ingress that names no class gets the default one.

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::Store,
};

/// Marks the default.
const MARK: &str = "ingressclass.kubernetes.io/is-default-class";

/// Sets the class.
#[derive(Debug)]
pub(super) struct DefaultIngressClass {
    pub(super) store: Store,
}

#[async_trait]
impl AdmissionPlugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn admit(&self, attributes: &AdmissionAttributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        let is_ingress = attributes.target.is("networking.k8s.io", "ingresses");
        let is_named = !object["spec"]["ingressClassName"].is_null()
            || !object["metadata"]["annotations"]["kubernetes.io/ingress.class"].is_null();
        if !is_ingress || attributes.target.subresource.is_some() || is_named || !object["spec"].is_object() {
            return Ok(());
        }
        if let Some(name) = default_class(&self.store) {
            object["spec"]["ingressClassName"] = name;
        }
        Ok(())
    }
}

/// The name of the class that is marked as the default: of several the newest, and the first by name of those that are
/// as old.
fn default_class(store: &Store) -> Option<Value> {
    let (classes, _) = store.list(store.resource("ingressclasses.networking.k8s.io"), None);
    newest(classes.iter().map(|class| class.value()))
}

/// Pure.
fn newest(classes: impl Iterator<Item = Value>) -> Option<Value> {
    let is_marked = |class: &Value| class["metadata"]["annotations"][MARK] == "true";
    let created = |class: &Value| class["metadata"]["creationTimestamp"].as_str().unwrap_or("").to_owned();
    // Of several maxima the last counts, and classes come in the order of their names.
    let mut all: Vec<Value> = classes.filter(is_marked).collect();
    all.reverse();
    all.into_iter().max_by_key(created).map(|class| class["metadata"]["name"].clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_default_counts() {
        let class = |name: &str, created: &str, mark: &str| json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": {MARK: mark}}});
        let all = [class("a", "1", "true"), class("b", "2", "true"), class("c", "2", "true"), class("d", "3", "false")];
        assert_eq!(newest(all.into_iter()), Some(json!("b")));
        assert_eq!(newest([class("d", "3", "false")].into_iter()), None);
    }
}
