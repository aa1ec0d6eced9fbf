//! What claims use of a quota: of volumes and of devices. Pure.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass_kit::{objects::claims::CLASS_ANNOTATION, quantity::Quantity};

use super::ResourceList;

const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";
/// Between the name of a storage class and what is counted of it.
const OF_STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
/// What follows the name of a device class.
const OF_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// What a request for all devices may be given at most.
const MAX_DEVICES: i64 = 32;

/// Whether a resource of a quota is one of volume claims.
pub(super) fn counts_volumes(name: &str) -> bool {
    let of_class = name.split_once(OF_STORAGE_CLASS).map(|(_, resource)| resource);
    matches!(of_class.unwrap_or(name), CLAIMS | STORAGE)
}

/// What a volume claim uses.
pub(super) fn usage_of_volume(claim: &Value) -> ResourceList {
    let mut usage = ResourceList::default();
    usage.set(CLAIMS, Quantity::from_units(1));
    if let Some(storage) = storage(claim) {
        usage.set(STORAGE, storage);
    }
    let class = storage_class(claim);
    if !class.is_empty() {
        let of_class = usage.0.iter().map(|(name, amount)| (format!("{class}{OF_STORAGE_CLASS}{name}"), *amount));
        let of_class: Vec<(String, Quantity)> = of_class.collect();
        usage.0.extend(of_class);
    }
    usage
}

/// The storage class of a volume claim; the annotation from before the field wins.
pub fn storage_class(claim: &Value) -> &str {
    let beta = claim["metadata"]["annotations"][CLASS_ANNOTATION].as_str();
    beta.or_else(|| claim["spec"]["storageClassName"].as_str()).unwrap_or("")
}

/// What is requested, or what was allocated if that is more; in whole bytes.
fn storage(claim: &Value) -> Option<Quantity> {
    let amount = |list: &Value| ResourceList::read(list).get("storage");
    let requested = amount(&claim["spec"]["resources"]["requests"])?;
    let allocated = amount(&claim["status"]["allocatedResources"]);
    let more = allocated.filter(|allocated| *allocated > requested).unwrap_or(requested);
    let is_whole = more.minus(Quantity::from_units(more.units())).is_zero();
    Some(if is_whole { more } else { Quantity::from_units(more.units()) })
}

/// The classes of attributes that a volume claim has, gets or asks for.
pub(super) fn attributes_classes(claim: &Value) -> impl Iterator<Item = &str> {
    let status = &claim["status"];
    [
        &claim["spec"]["volumeAttributesClassName"],
        &status["currentVolumeAttributesClassName"],
        &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ]
    .into_iter()
    .filter_map(|class| class.as_str().filter(|class| !class.is_empty()))
}

/// Whether a resource of a quota is one of claims for devices.
pub(super) fn counts_devices(name: &str) -> bool {
    name.ends_with(OF_DEVICE_CLASS)
}

/// What a claim for devices uses. Of alternatives the one with the most of each class counts.
pub(super) fn usage_of_devices(claim: &Value) -> ResourceList {
    let mut usage = ResourceList::default();
    for request in claim["spec"]["devices"]["requests"].as_array().into_iter().flatten() {
        let mut of_request = ResourceList::default();
        match request["firstAvailable"].as_array().filter(|alternatives| !alternatives.is_empty()) {
            Some(alternatives) => alternatives.iter().for_each(|one| of_request.at_least(&devices(one))),
            None => of_request = devices(request.get("exactly").unwrap_or(request)),
        }
        usage.add(&of_request);
    }
    usage
}

fn devices(request: &Value) -> ResourceList {
    let count = match request["allocationMode"].as_str() {
        Some("ExactCount") => request["count"].as_i64().unwrap_or(1),
        Some("All") => MAX_DEVICES,
        _ => return ResourceList::default(),
    };
    let class = request["deviceClassName"].as_str().unwrap_or("");
    ResourceList(BTreeMap::from([(format!("{class}{OF_DEVICE_CLASS}"), Quantity::from_units(count))]))
}
