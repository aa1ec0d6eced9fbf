//! What the proxy's events are about. Pure.

use k8s_openapi::api::core::v1::ObjectReference;

/// Our Node. Its uid is its name, as upstream's node components have it.
pub(crate) fn node(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// The Service `namespace/name`; `None` for a text of another form.
pub(crate) fn service(id: &str) -> Option<ObjectReference> {
    let (namespace, name) = id.split_once('/')?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    })
}
