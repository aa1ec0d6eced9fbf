//! ResourceSlice; the time of a taint is taken from the clock.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_apimachinery::selectors::SelectableField;
use windlass_kit::objects::pod_defaults::{child, items, set};

use super::devices;
use crate::{
    apiserver::{
        Strategy,
        generate::now,
        types::{Definition, Generation, Resource, VersionSpec},
        validation::{errors::Errors, names},
    },
    kinds::{
        shared::{
            cells::text,
            field::{Field, immutable},
            tables::{AGE, column, named},
        },
        types,
    },
};

const MAX_DEVICES: usize = 128;
const MAX_POOL_BYTES: usize = 253;
/// How a slice may say where its devices are.
const PLACES: [&str; 4] = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];

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

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        devices::driver(&spec.at("driver"), errors);
        validate_pool(&spec.at("pool"), errors);
        validate_place(&spec, errors);
        if spec.at("nodeName").is_set() {
            spec.at("nodeName").named(names::subdomain, errors);
        }
        let all = spec.at("devices");
        all.max_items(MAX_DEVICES, errors);
        let mut seen = BTreeSet::new();
        for device in all.items() {
            let name = device.at("name");
            name.fits(names::label, errors);
            if !seen.insert(name.text()) {
                errors.duplicate(device.path.as_str(), name.value);
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["spec.nodeName", "spec.driver", "spec.pool.name"], errors);
    }
}

/// Refuses a slice that does not say in exactly one way where its devices are.
fn validate_place(spec: &Field<'_>, errors: &mut Errors) {
    let set = |name: &&&str| !matches!(spec.at(name).value, Value::Null | Value::Bool(false));
    let quoted = |names: Vec<&&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let given: Vec<&&str> = PLACES.iter().filter(set).collect();
    let why = format!("exactly one of {} is required", quoted(PLACES.iter().collect()));
    match given.len() {
        1 => {}
        0 => spec.required(&why, errors),
        _ => {
            let shown = format!("{{{}}}", quoted(given));
            errors.invalid_text(spec.path.as_str(), &shown, &format!("{why}, but multiple fields are set"));
        }
    }
}

fn validate_pool(pool: &Field<'_>, errors: &mut Errors) {
    let name = pool.at("name");
    if name.text().is_empty() {
        name.required("", errors);
    } else {
        name.max_bytes(MAX_POOL_BYTES, errors);
        for part in name.text().split('/') {
            errors.unless(name.path.as_str(), part, names::subdomain(part));
        }
    }
    if pool.at("resourceSliceCount").number().unwrap_or(0) <= 0 {
        errors.invalid(
            pool.at("resourceSliceCount").path,
            &json!(pool.at("resourceSliceCount").number().unwrap_or(0)),
            "must be greater than zero",
        );
    }
    if pool.at("generation").number().is_some_and(|generation| generation < 0) {
        pool.at("generation").invalid("must be greater than or equal to zero", errors);
    }
}
