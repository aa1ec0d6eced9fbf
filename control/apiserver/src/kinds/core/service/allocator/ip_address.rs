//! The IPAddress object of a cluster IP. Pure.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::{
    apiserver::generate::now,
    store::{Change, Key, Object},
};

/// The resource in the store.
pub(crate) const IP_ADDRESSES: &str = "ipaddresses.networking.k8s.io";

/// The object for the address of a service, without what the API server gives every object.
pub(crate) fn ip_address(service: &Key, address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": address.to_string(),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {"resource": "services", "namespace": service.namespace, "name": service.name}},
    })
}

/// The same as it is stored.
pub(super) fn stored(service: &Key, address: Ipv4Addr, uid: &str) -> Value {
    let mut object = ip_address(service, address);
    let now = now();
    object["metadata"]["uid"] = json!(uid);
    object["metadata"]["managedFields"] = json!([{
        "manager": "kube-apiserver", "operation": "Update", "apiVersion": "networking.k8s.io/v1", "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {"f:labels": {
                ".": {}, "f:ipaddress.kubernetes.io/ip-family": {}, "f:ipaddress.kubernetes.io/managed-by": {},
            }},
            "f:spec": {"f:parentRef": {".": {}, "f:name": {}, "f:namespace": {}, "f:resource": {}}},
        },
    }]);
    object["metadata"]["creationTimestamp"] = json!(now);
    object
}

/// The change of the object when its service no longer has the address: it is deleted, unless it has another parent by
/// now or a finalizer holds it.
pub(super) fn released(service: &Key, current: Option<&Object>) -> Change {
    let Some(current) = current else { return Change::Keep };
    let mut object = current.value();
    let parent = &object["spec"]["parentRef"];
    let is_own = parent["resource"] == "services"
        && parent["group"].as_str().is_none_or(str::is_empty)
        && parent["namespace"] == service.namespace
        && parent["name"] == service.name;
    if !is_own {
        return Change::Keep;
    }
    if object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
        return Change::Delete;
    }
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return Change::Keep;
    }
    object["metadata"]["deletionTimestamp"] = json!(now());
    object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    Change::Put(object)
}
