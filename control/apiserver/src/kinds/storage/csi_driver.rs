//! CSIDriver. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set, set_pointer};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{joined, text},
            field::{Field, immutable},
            tables::{AGE, column, flag, named},
        },
        types,
    },
};

const LEAST_TOKEN_SECONDS: i64 = 600;
const MOST_TOKEN_SECONDS: i64 = 1 << 32;
const LEAST_UPDATE_SECONDS: i64 = 10;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("storage.k8s.io", "csidrivers", "CSIDriver", CsiDriver);
    resource.namespaced = false;
    resource.returns_deleted = true;
    resource.allow_unconditional_update = false;
    resource.generation = Generation::CountedFromUnset;
    let mut v1 = VersionSpec::new("v1", types::built_in("storage.k8s.io/v1", "CSIDriver"));
    let columns = vec![
        flag("AttachRequired", "Whether volumes are attached."),
        flag("PodInfoOnMount", "Whether the driver is given the pod."),
        flag("StorageCapacity", "Whether the driver reports its capacity."),
        column("TokenRequests", "The audiences of the tokens that the driver gets."),
        flag("RequiresRepublish", "Whether volumes are mounted again and again."),
        column("Modes", "How long volumes live."),
        AGE,
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let spec = &object["spec"];
    let flag = |field: &str| json!(spec[field].as_bool().unwrap_or(field == "attachRequired"));
    let tokens = spec["tokenRequests"].as_array().map_or_else(
        || "<unset>".to_owned(),
        |all| joined(all.iter().map(|token| text(&token["audience"]).to_owned())),
    );
    let modes = joined(spec["volumeLifecycleModes"].as_array().into_iter().flatten().map(|m| text(m).to_owned()));
    vec![
        flag("attachRequired"),
        flag("podInfoOnMount"),
        flag("storageCapacity"),
        json!(tokens),
        flag("requiresRepublish"),
        json!(if modes.is_empty() { "<none>" } else { &modes }),
        json!(age),
    ]
}

#[derive(Debug)]
struct CsiDriver;

impl Strategy for CsiDriver {
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        const RECOMMENDED: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
        let requests = Field::root(new).below("spec.tokenRequests");
        let changed = old.is_none_or(|old| old["spec"]["tokenRequests"] != *requests.value);
        let is_unset = new["spec"]["serviceAccountTokenInSecrets"].is_null();
        (changed && is_unset && !requests.is_empty()).then(|| RECOMMENDED.to_owned()).into_iter().collect()
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        set(spec, "attachRequired", json!(true));
        for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            set(spec, field, json!(false));
        }
        set_pointer(spec, "fsGroupPolicy", json!("ReadWriteOnceWithFSType"));
        if spec.get("volumeLifecycleModes").is_none_or(|modes| modes.as_array().is_none_or(Vec::is_empty)) {
            spec.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
        }
        // The feature of this field is off.
        spec.remove("preventPodSchedulingIfMissing");
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        spec.at("fsGroupPolicy").optional_one_of(&["File", "None", "ReadWriteOnceWithFSType"], errors);
        let mut audiences = BTreeSet::new();
        for request in spec.at("tokenRequests").items() {
            let (audience, seconds) = (request.at("audience"), request.at("expirationSeconds"));
            if !audiences.insert(audience.text()) {
                errors.duplicate(&audience.path, &json!(audience.text()));
            }
            match seconds.number() {
                Some(n) if n < LEAST_TOKEN_SECONDS => {
                    seconds.invalid("may not specify a duration less than 10 minutes", errors);
                }
                Some(n) if n > MOST_TOKEN_SECONDS => {
                    seconds.invalid("may not specify a duration larger than 2^32 seconds", errors);
                }
                _ => {}
            }
        }
        let modes = spec.at("volumeLifecycleModes");
        for mode in modes.texts() {
            errors.one_of(&modes.path, &json!(mode), &["Persistent", "Ephemeral"]);
        }
        let period = spec.at("nodeAllocatableUpdatePeriodSeconds");
        if period.number().is_some_and(|seconds| seconds < LEAST_UPDATE_SECONDS) {
            period.invalid("must be greater than or equal to 10 seconds", errors);
        }
        let in_secrets = spec.at("serviceAccountTokenInSecrets");
        if in_secrets.is_set() && spec.at("tokenRequests").is_empty() {
            in_secrets.invalid("serviceAccountTokenInSecrets is set but no tokenRequests are specified", errors);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        if new["spec"]["attachRequired"] != old["spec"]["attachRequired"] {
            errors.invalid("spec.attachedRequired", &new["spec"]["attachRequired"], "field is immutable");
        }
        immutable(new, old, &["spec.volumeLifecycleModes"], errors);
    }
}
