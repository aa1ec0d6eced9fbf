//! References to the objects that events are about. Pure.
//!
//! With the object's `resourceVersion` the reference is kube's own [`Resource::object_ref`].

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

/// An object, in any of its versions.
#[must_use]
pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    ObjectReference { resource_version: None, ..object.object_ref(&()) }
}

/// A Node. Its UID is its name, as in events of the kubelet.
#[must_use]
pub fn node(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn an_object_is_named_without_its_version() {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.uid = Some("1-2".to_owned());
        pod.metadata.resource_version = Some("7".to_owned());
        let expected = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some("default".to_owned()),
            name: Some("web".to_owned()),
            uid: Some("1-2".to_owned()),
            ..ObjectReference::default()
        };
        assert_eq!(of(&pod), expected);
    }
}
