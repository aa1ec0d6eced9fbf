//! StatefulSet. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, items, set, set_pointer};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, ScalePaths, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            field::{Field, none_negative},
            selector,
            tables::{AGE, column, named, wide},
            volume_claims,
            workload::{self, containers, number},
        },
        types,
    },
};

/// The fields of the spec that may change, in the order of upstream's words.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("apps", "statefulsets", "StatefulSet", StatefulSet);
    resource.short_names = vec!["sts".into()];
    resource.categories = vec!["all".into()];
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("apps/v1", "StatefulSet"));
    v1.subresources = vec![Subresource::scale(ScalePaths::built_in()), Subresource::status()];
    let columns = vec![
        column("Ready", "Pods that are ready, of those that are wanted."),
        AGE,
        wide("Containers", "Names of the template's containers."),
        wide("Images", "Images of the template's containers."),
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let [names, images] = containers(&spec["template"]);
    vec![
        json!(format!("{}/{}", number(&status["readyReplicas"]), number(&spec["replicas"]))),
        json!(age),
        names,
        images,
    ]
}

#[derive(Debug)]
struct StatefulSet;

impl Strategy for StatefulSet {
    fn default(&self, object: &mut Map<String, Value>) {
        let spec = child(object, "spec");
        set(spec, "podManagementPolicy", json!("OrderedReady"));
        let strategy = child(spec, "updateStrategy");
        if strategy.get("type").and_then(Value::as_str).is_none_or(str::is_empty) {
            strategy.insert("type".to_owned(), json!("RollingUpdate"));
            child(strategy, "rollingUpdate");
        }
        if strategy["type"] == "RollingUpdate"
            && let Some(rolling) = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut)
        {
            set(rolling, "partition", json!(0));
        }
        let retention = child(spec, "persistentVolumeClaimRetentionPolicy");
        set(retention, "whenDeleted", json!("Retain"));
        set(retention, "whenScaled", json!("Retain"));
        set(spec, "replicas", json!(1));
        set(spec, "revisionHistoryLimit", json!(10));
        workload::default_template(spec);
        for claim in items(spec, "volumeClaimTemplates") {
            // Whatever the client says: of another version or kind, it could not be read again.
            claim.insert("apiVersion".to_owned(), json!("v1"));
            claim.insert("kind".to_owned(), json!("PersistentVolumeClaim"));
            set_pointer(child(claim, "spec"), "volumeMode", json!("Filesystem"));
            set(child(claim, "status"), "phase", json!("Pending"));
        }
    }

    fn validate_name(&self, name: &str) -> Option<String> {
        names::label(name)
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        // As upstream, the template of a set whose stored spec is broken is not looked at: its pods may need another.
        let is_broken = old.is_some_and(|old| {
            let mut errors = Errors::default();
            validate_spec(old, Some(old), true, &mut errors);
            !errors.0.is_empty()
        });
        validate_spec(object, old, !is_broken, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let fixed = |object: &Value| {
            let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
            spec.retain(|field, _| !MUTABLE.contains(&field.as_str()));
            spec
        };
        if fixed(new) != fixed(old) {
            let (last, others) = MUTABLE.split_last().unwrap_or((&"", &[]));
            let others = others.iter().map(|field| format!("'{field}'")).collect::<Vec<_>>().join(", ");
            let why = format!("updates to statefulset spec for fields other than {others} and '{last}' are forbidden");
            errors.forbidden("spec", &why);
        }
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut found = workload::template_warnings(new, old, &Field::root(new).below("spec.template"));
        let templates = Field::root(new).below("spec.volumeClaimTemplates");
        // The path is upstream's.
        let specs = templates.items().map(|claim| Field { value: &claim.value["spec"], path: claim.path });
        found.extend(specs.flat_map(|spec| volume_claims::fractions(&spec)));
        if new["spec"]["revisionHistoryLimit"].as_i64().is_some_and(|limit| limit < 0) {
            let why = "a negative value retains all historical revisions; a value >= 0 is recommended";
            found.push(format!("spec.revisionHistoryLimit: {why}"));
        }
        found
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let status = Field::root(new).at("status");
        let counts = [
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ];
        none_negative(&status, &counts, errors);
        workload::at_most_replicas(
            &status,
            &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
            errors,
        );
        workload::available_at_most_ready(&status, "cannot be greater than status.readyReplicas", errors);
        workload::collisions_grow(&status, old, errors);
    }
}

/// Validates the spec. What may not change is not looked at again.
fn validate_spec(object: &Value, old: Option<&Value>, with_template: bool, errors: &mut Errors) {
    let spec = Field::root(object).at("spec");
    policies(&spec, errors);
    if old.is_none() {
        for claim in spec.at("volumeClaimTemplates").items() {
            volume_claims::validate_spec(&claim.at("spec"), errors);
        }
    }
    none_negative(&spec, &["replicas", "minReadySeconds"], errors);
    spec.below("ordinals.start").at_least_0(errors);
    if old.is_none() {
        spec.at("serviceName").optionally_fits(names::label, errors);
    }
    selector::validate_workload(&spec, "statefulset", errors);
    let selector = spec.at("selector");
    if !selector::is_readable(&selector) {
        // Upstream says no more.
        selector::unreadable(&selector, "", errors);
    } else if with_template {
        let with_claims = with_claim_volumes(spec.value);
        let spec = Field { value: &with_claims, path: spec.path.clone() };
        workload::validate_lasting_template(&spec, old, "StatefulSet", errors);
    } else {
        workload::lasting(&spec.at("template"), "StatefulSet", errors);
    }
}

/// The spec with a volume in the template for each claim: containers mount claims by their names.
fn with_claim_volumes(spec: &Value) -> Value {
    let mut spec = spec.clone();
    let claims = spec["volumeClaimTemplates"].as_array().into_iter().flatten();
    // Of two claims with one name upstream has the last.
    let mut names: Vec<Value> = Vec::new();
    for name in claims.map(|claim| &claim["metadata"]["name"]) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let template = spec["template"]["spec"].as_object_mut();
    let volumes = template.map(|template| template.entry("volumes").or_insert_with(|| json!([])));
    if let Some(volumes) = volumes.and_then(Value::as_array_mut) {
        // The volume of a claim takes the place of the template's own.
        volumes.retain(|volume| !names.contains(&volume["name"]));
        volumes.splice(0..0, names.into_iter().map(|name| json!({"name": name, "emptyDir": {}})));
    }
    spec
}

fn policies(spec: &Field<'_>, errors: &mut Errors) {
    let management = spec.at("podManagementPolicy");
    match management.text() {
        "" => management.required("", errors),
        "OrderedReady" | "Parallel" => {}
        _ => management.invalid("must be 'OrderedReady' or 'Parallel'", errors),
    }
    let strategy = spec.at("updateStrategy");
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").text() {
        "" => strategy.required("", errors),
        "OnDelete" if rolling.is_set() => {
            let shown = rolling.internal(&[("Partition", "partition"), ("MaxUnavailable", "maxUnavailable")]);
            rolling.invalid_as(&shown, "only allowed for updateStrategy 'RollingUpdate'", errors);
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            rolling.at("partition").at_least_0(errors);
            let unavailable = rolling.at("maxUnavailable");
            workload::int_or_percent(&unavailable, errors);
            if unavailable.is_set() && workload::int_or_percent_value(&unavailable) == 0 {
                unavailable.invalid("cannot be 0", errors);
            }
            workload::at_most_100_percent(&unavailable, errors);
        }
        _ => {
            let shown = strategy.internal(&[("Type", "type"), ("RollingUpdate", "rollingUpdate")]);
            strategy.invalid_as(&shown, "must be 'RollingUpdate' or 'OnDelete'", errors);
        }
    }
    let retention = spec.at("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        retention.at(field).optional_one_of(&["Retain", "Delete"], errors);
    }
}
