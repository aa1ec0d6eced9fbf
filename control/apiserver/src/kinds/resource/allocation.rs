//! The status of a claim: what was allocated, for whom, and what drivers say of it. Pure.

use serde_json::{Value, json};

use super::{
    devices::{MAX_CONFIGS, RequestNames, validate_config, validate_raw},
    lists, names,
};
use crate::{
    apiserver::pipeline::validation::{
        errors::{Cause, Errors},
        names::label,
    },
    kinds::shared::{conditions, field::Field, node_selector},
};

/// Upstream's limits.
const MAX_RESULTS: usize = 32;
const MAX_CONSUMERS: usize = 256;
const MAX_CONDITIONS: usize = 8;
const MAX_DATA_BYTES: usize = 10 * 1024;
const MAX_ADDRESSES: usize = 16;
const MAX_INTERFACE_BYTES: usize = 256;
const MAX_HARDWARE_ADDRESS_BYTES: usize = 128;

/// What an allocated device is known by: driver, pool, device and share.
fn shared_id(device: &Value) -> [&str; 4] {
    ["driver", "pool", "device", "shareID"].map(|field| device[field].as_str().unwrap_or(""))
}

/// The same as errors show it, which is as Go's type.
fn shown_id(device: &Value) -> String {
    let [driver, pool, name, share] = shared_id(device).map(|text| json!(text));
    format!("{{\"Driver\":{driver},\"Pool\":{pool},\"Device\":{name},\"ShareID\":{share}}}")
}

fn allocated(claim: &Value) -> Vec<[&str; 4]> {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array();
    results.into_iter().flatten().map(shared_id).collect()
}

/// Drops what drivers said of devices that are given back, so that writers who do not know of it leave nothing behind.
pub(super) fn drop_deallocated(claim: &mut Value, old: &Value) {
    let now: Vec<[String; 4]> = allocated(claim).into_iter().map(|id| id.map(str::to_owned)).collect();
    let is_gone = |id: &[&str; 4]| !now.iter().any(|kept| kept == id);
    let gone: Vec<[&str; 4]> = allocated(old).into_iter().filter(is_gone).collect();
    let Some(status) = claim["status"].as_object_mut() else { return };
    let Some(devices) = status.get_mut("devices").and_then(Value::as_array_mut) else { return };
    devices.retain(|device| !gone.contains(&shared_id(device)));
    if devices.is_empty() {
        status.remove("devices");
    }
}

/// Validates the new status of a claim.
pub(super) fn validate_status(claim: &Field<'_>, old: &Field<'_>, errors: &mut Errors) {
    let (status, before) = (claim.at("status"), old.at("status"));
    let known = RequestNames::of(&claim.at("spec"));
    let consumers = status.at("reservedFor");
    lists::set(&consumers, MAX_CONSUMERS, lists::by("uid"), errors, |consumer, errors| {
        for field in ["resource", "name", "uid"].map(|field| consumer.at(field)).iter().filter(|field| field.is_empty())
        {
            field.required("", errors);
        }
    });
    let ids = allocated(claim.value);
    let shown = |device: &Field<'_>| shown_id(device.value);
    lists::set(&status.at("devices"), usize::MAX, shown, errors, |device, errors| {
        validate_device(device, &ids, errors)
    });
    let allocation = status.at("allocation");
    if !consumers.is_empty() {
        validate_consumers(claim, &before, errors);
    }
    if allocation.is_set() && before.at("allocation").is_set() {
        allocation.unchanged(&before.at("allocation"), errors);
    } else if allocation.is_set() {
        validate_allocation(&allocation, &known, errors);
    }
}

fn validate_consumers(claim: &Field<'_>, before: &Field<'_>, errors: &mut Errors) {
    let consumers = claim.below("status.reservedFor");
    let is_new = |consumer: Field<'_>| !before.at("reservedFor").items().any(|known| known.value == consumer.value);
    if !claim.below("status.allocation").is_set() {
        consumers.forbidden("may not be specified when `allocated` is not set", errors);
    } else if claim.below("metadata.deletionTimestamp").is_set() && consumers.items().any(is_new) {
        let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        consumers.forbidden(why, errors);
    }
}

fn validate_allocation(allocation: &Field<'_>, known: &RequestNames<'_>, errors: &mut Errors) {
    let devices = allocation.at("devices");
    lists::slice(&devices.at("results"), MAX_RESULTS, errors, |result, errors| {
        known.validate_reference(&result.at("request"), errors);
        names::driver(&result.at("driver"), errors);
        names::pool(&result.at("pool"), errors);
        result.at("device").fits(label, errors);
        names::binding_conditions(result, errors);
        if result.at("shareID").is_set() {
            names::uid(&result.at("shareID"), errors);
        }
    });
    // Those of the class and those of the claim.
    lists::slice(&devices.at("config"), 2 * MAX_CONFIGS, errors, |config, errors| {
        config.at("source").required_one_of(&["FromClaim", "FromClass"], errors);
        known.validate_references(&config.at("requests"), errors);
        validate_config(config, false, errors);
    });
    if allocation.at("nodeSelector").is_set() {
        node_selector::validate(&allocation.at("nodeSelector"), errors);
    }
}

fn validate_device(device: &Field<'_>, ids: &[[&str; 4]], errors: &mut Errors) {
    names::driver(&device.at("driver"), errors);
    names::pool(&device.at("pool"), errors);
    device.at("device").fits(label, errors);
    if device.at("shareID").is_set() {
        names::uid(&device.at("shareID"), errors);
    }
    if !ids.contains(&shared_id(device.value)) {
        let shown = shown_id(device.value);
        let why = "must be an allocated device in the claim";
        errors.push(&device.path, Cause::Invalid, format!("Invalid value: {shown}: {why}"));
    }
    device.at("conditions").max_items(MAX_CONDITIONS, errors);
    conditions::validate(&device.at("conditions"), errors);
    if device.at("data").is_set() {
        validate_raw(&device.at("data"), MAX_DATA_BYTES, errors);
    }
    let network = device.at("networkData");
    network.at("interfaceName").max_bytes(MAX_INTERFACE_BYTES, errors);
    network.at("hardwareAddress").max_bytes(MAX_HARDWARE_ADDRESS_BYTES, errors);
    lists::set(&network.at("ips"), MAX_ADDRESSES, lists::itself, errors, |address, errors| {
        address.fits(names::interface_address, errors);
    });
}
