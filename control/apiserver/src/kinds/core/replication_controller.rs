//! ReplicationController. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::{child, set};

use windlass_apimachinery::selectors::SelectableField;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{
            errors::{Cause, Errors},
            names,
        },
        types::{Definition, GcPolicy, Generation, Resource, ScalePaths, Subresource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{joined, map_of, or_none, text},
            field::Field,
            set_status,
            tables::{AGE, count, named, wide},
            workload,
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "replicationcontrollers", "ReplicationController", ReplicationController);
    resource.short_names = vec!["rc".into()];
    resource.categories = vec!["all".into()];
    resource.gc = GcPolicy::Orphan;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "ReplicationController"));
    v1.selectable = vec![SelectableField::with_absent("status.replicas", "0")];
    v1.subresources = vec![Subresource::scale(ScalePaths::built_in()), Subresource::status()];
    let columns = vec![
        count("Desired", "Pods that are wanted."),
        count("Current", "Pods that there are."),
        count("Ready", "Pods that are ready."),
        AGE,
        wide("Containers", "Names of the template's containers."),
        wide("Images", "Images of the template's containers."),
        wide("Selector", "Labels of its pods."),
    ];
    v1.table = named(columns, cells_of);
    Definition::single(resource, v1)
}

fn cells_of(object: &Value, age: &str) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let containers = spec["template"]["spec"]["containers"].as_array();
    let all = |key: &str| joined(containers.into_iter().flatten().map(|c| text(&c[key]).to_owned()));
    let number = |v: &Value| json!(v.as_i64().unwrap_or(0));
    vec![
        number(&spec["replicas"]),
        number(&status["replicas"]),
        number(&status["readyReplicas"]),
        json!(age),
        json!(all("name")),
        json!(all("image")),
        json!(or_none(map_of(&spec["selector"]))),
    ]
}

/// What begins the names of annotations about fields that a conversion could not keep.
const NON_CONVERTIBLE: &str = "non-convertible.kubernetes.io/";

#[derive(Debug)]
struct ReplicationController;

impl Strategy for ReplicationController {
    /// As upstream, whose generated validation looks at the name alone: it only must fit into a path.
    fn validate_prefix(&self, prefix: &str) -> Option<String> {
        names::path_segment(prefix)
    }

    fn default(&self, object: &mut Map<String, Value>) {
        let template = object.get("spec").and_then(|s| s.get("template")).cloned().unwrap_or_default();
        let labels = template["metadata"]["labels"].clone();
        let spec = child(object, "spec");
        set(spec, "replicas", json!(1));
        if spec.get("selector").is_none_or(|s| s.as_object().is_none_or(Map::is_empty)) && labels.is_object() {
            spec.insert("selector".to_owned(), labels.clone());
        }
        if let Some(template) = spec.get_mut("template").and_then(Value::as_object_mut) {
            workload::default_pod_template(template);
        }
        let metadata = child(object, "metadata");
        if metadata.get("labels").is_none_or(|l| l.as_object().is_none_or(Map::is_empty)) && labels.is_object() {
            metadata.insert("labels".to_owned(), labels);
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        set_status(object, json!({"replicas": 0}));
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        let spec = &object["spec"];
        errors.at_least_0("spec.replicas", &spec["replicas"]);
        errors.at_least_0("spec.minReadySeconds", &spec["minReadySeconds"]);
        let selector = &spec["selector"];
        if selector.as_object().is_none_or(Map::is_empty) {
            errors.required("spec.selector", "");
        }
        let template = &spec["template"];
        if !template.is_object() {
            return errors.required("spec.template", "");
        }
        let labels = &template["metadata"]["labels"];
        if selector.as_object().into_iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
            let carried = Field::root(object).below("spec.template.metadata.labels");
            carried.invalid("`selector` does not match template `labels`", errors);
        }
        workload::validate_template_at(object, old, "spec.template", errors);
        errors.one_of("spec.template.spec.restartPolicy", &template["spec"]["restartPolicy"], &["Always"]);
        if !template["spec"]["activeDeadlineSeconds"].is_null() {
            errors.forbidden(
                "spec.template.spec.activeDeadlineSeconds",
                "activeDeadlineSeconds in ReplicationController is not Supported",
            );
        }
    }

    /// Fields that a conversion could not keep, as annotations say. Upstream: `rcStrategy.ValidateUpdate`.
    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        let annotations = old["metadata"]["annotations"].as_object().into_iter().flatten();
        let fields = annotations.filter_map(|(key, value)| Some((key.strip_prefix(NON_CONVERTIBLE)?, value)));
        for (field, value) in fields.filter(|(field, _)| !field.contains('/')) {
            let (selector, before) = (&new["spec"]["selector"], &old["spec"]["selector"]);
            if !field.contains("selector") {
                let detail = format!("Not found: {value}: unknown non-convertible field");
                errors.push(field, Cause::NotFound, detail);
            } else if selector != before {
                errors.invalid("spec.selector", selector, "cannot update non-convertible selector");
            }
        }
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        // Upstream warns about the previous template.
        match old.filter(|old| old["metadata"]["generation"] != new["metadata"]["generation"]) {
            Some(old) => workload::template_warnings(old, None, &Field::root(old).below("spec.template")),
            None => workload::warnings(new, old, &Field::root(new).below("spec.template")),
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        let status = &new["status"];
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        for field in ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"] {
            errors.at_least_0(format!("status.{field}"), &status[field]);
        }
        for field in ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"] {
            if count(field) > count("replicas") {
                errors.invalid(
                    format!("status.{field}"),
                    &json!(count(field)),
                    "cannot be greater than status.replicas",
                );
            }
        }
        if count("availableReplicas") > count("readyReplicas") {
            let field = "availableReplicas";
            errors.invalid(format!("status.{field}"), &json!(count(field)), "cannot be greater than readyReplicas");
        }
    }
}
