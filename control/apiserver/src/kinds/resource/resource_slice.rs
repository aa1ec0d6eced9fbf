//! ResourceSlice; the time of a taint is taken from the clock.

use serde_json::{Map, Value, json};
use windlass_apimachinery::selectors::SelectableField;
use windlass_kit::objects::pod_defaults::{child, items, set};

use super::{device, lists, names};
use crate::{
    apiserver::{
        Strategy,
        generate::now,
        pipeline::validation::errors::Errors,
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::text,
            field::{Field, immutable},
            internal_version::{Internal, NODE_SELECTOR_TERM},
            tables::{AGE, column, named},
        },
        types,
    },
};

const MAX_DEVICES: usize = 128;
/// Where a device has taints or uses counters.
const MAX_ADVANCED_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("resource.k8s.io", "resourceslices", "ResourceSlice", ResourceSlice);
    resource.namespaced = false;
    resource.returns_deleted = true;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("resource.k8s.io/v1", "ResourceSlice"));
    v1.selectable = vec![SelectableField::path("spec.driver"), SelectableField::path("spec.nodeName")];
    let columns = vec![
        column("Node", "Where its devices are."),
        column("Driver", "The driver of its devices."),
        column("Pool", "The pool of its devices."),
        AGE,
    ];
    v1.table = named(columns, |object, age| {
        let spec = &object["spec"];
        vec![json!(place(spec)), json!(text(&spec["driver"])), json!(text(&spec["pool"]["name"])), json!(age)]
    });
    Definition::single(resource, v1)
}

fn place(spec: &Value) -> &str {
    match spec["nodeName"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => name,
        None => "<unset>",
    }
}

#[derive(Debug)]
struct ResourceSlice;

impl Strategy for ResourceSlice {
    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let driver = new["spec"]["driver"].as_str().unwrap_or("");
        let why = || format!("spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters");
        (driver != driver.to_lowercase()).then(why).into_iter().collect()
    }

    fn default(&self, object: &mut Map<String, Value>) {
        for device in items(child(object, "spec"), "devices") {
            items(device, "taints").for_each(|taint| set(taint, "timeAdded", json!(now())));
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        drop_disabled(object, None);
    }

    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        drop_disabled(object, Some(old));
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        names::driver(&spec.at("driver"), errors);
        validate_pool(&spec.at("pool"), errors);
        if let Some(old) = old {
            immutable(object, old, &["spec.pool.name", "spec.driver", "spec.nodeName"], errors);
        }
        validate_place(&spec, errors);
        let (devices, counters) = (spec.at("devices"), spec.at("sharedCounters"));
        if devices.is_set() && counters.is_set() {
            errors.invalid_text(&spec.path, "", "only one of `sharedCounters` or `devices` is allowed");
        }
        let per_device = *spec.at("perDeviceNodeSelection").value == true;
        let is_advanced =
            |device: Field<'_>| ["taints", "consumesCounters"].iter().any(|field| !device.at(field).is_empty());
        let max = if devices.items().any(is_advanced) { MAX_ADVANCED_DEVICES } else { MAX_DEVICES };
        lists::set(&devices, max, lists::by("name"), errors, |device, errors| {
            let known = old.and_then(|old| old["spec"]["devices"].as_array());
            let before = known.and_then(|known| known.iter().find(|known| known["name"] == *device.at("name").value));
            device::validate(device, before, per_device, errors);
        });
        lists::set(&counters, MAX_COUNTER_SETS, lists::by("name"), errors, |set, errors| {
            names::counter_set(&set.at("name"), errors);
            device::validate_counters(&set.at("counters"), errors);
        });
    }
}

/// Drops fields whose gates are off upstream (`DRAListTypeAttributes`, `DRANodeAllocatableResources`), unless the stored slice
/// has them.
fn drop_disabled(slice: &mut Value, old: Option<&Value>) {
    const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];
    const MAPPINGS: &str = "nodeAllocatableResourceMappings";
    let devices = || old.into_iter().filter_map(|old| old["spec"]["devices"].as_array()).flatten();
    let attributes = |device: &'_ Value| {
        device["attributes"]
            .as_object()
            .is_some_and(|all| all.values().any(|one| LISTS.iter().any(|list| !one[*list].is_null())))
    };
    let (has_lists, has_mappings) = (devices().any(attributes), devices().any(|device| !device[MAPPINGS].is_null()));
    for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        if !has_mappings {
            device.remove(MAPPINGS);
        }
        let attributes = device.get_mut("attributes").and_then(Value::as_object_mut);
        for attribute in attributes.into_iter().flatten().filter_map(|(_, one)| one.as_object_mut()) {
            attribute.retain(|field, _| has_lists || !LISTS.contains(&field.as_str()));
        }
    }
}

/// Refuses a slice that does not say in exactly one way where its devices are.
fn validate_place(spec: &Field<'_>, errors: &mut Errors) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let one_term = |selector: &Field<'_>, errors: &mut Errors| {
        let terms = selector.at("nodeSelectorTerms");
        if terms.len() != 1 {
            let shown = Internal::list(NODE_SELECTOR_TERM, terms.value).text();
            terms.invalid_as(&shown, "must have exactly one node selector term", errors);
        }
    };
    let (empty, flags) = ("must be either unset or set to a non-empty string", ["allNodes", "perDeviceNodeSelection"]);
    let given = device::places(spec, empty, &flags, one_term, errors);
    device::one_place(spec, &given, ONE, &format!("{ONE}, but multiple fields are set"), errors);
}

fn validate_pool(pool: &Field<'_>, errors: &mut Errors) {
    names::pool(&pool.at("name"), errors);
    let (count, generation) = (pool.at("resourceSliceCount"), pool.at("generation"));
    let slices = count.number().unwrap_or(0);
    if slices <= 0 {
        errors.invalid(count.path, &json!(slices), "must be greater than zero");
    }
    if generation.number().is_some_and(|generation| generation < 0) {
        generation.invalid("must be greater than or equal to zero", errors);
    }
}
