//! IngressClass. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::set_pointer;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Generation, Resource, VersionSpec},
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

const MAX_CONTROLLER_BYTES: usize = 250;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("networking.k8s.io", "ingressclasses", "IngressClass", IngressClass);
    resource.namespaced = false;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("networking.k8s.io/v1", "IngressClass"));
    let columns = vec![column("Controller", "Who serves it."), column("Parameters", "What the controller reads."), AGE];
    v1.table = named(columns, |object, age| {
        let spec = &object["spec"];
        vec![json!(text(&spec["controller"])), json!(parameters(&spec["parameters"])), json!(age)]
    });
    Definition::single(resource, v1)
}

fn parameters(parameters: &Value) -> String {
    if !parameters.is_object() {
        return "<none>".to_owned();
    }
    let group = parameters["apiGroup"].as_str().map_or_else(String::new, |group| format!(".{group}"));
    format!("{}{group}/{}", text(&parameters["kind"]), text(&parameters["name"]))
}

#[derive(Debug)]
struct IngressClass;

impl Strategy for IngressClass {
    fn default(&self, object: &mut Map<String, Value>) {
        let parameters = object.get_mut("spec").and_then(|spec| spec.get_mut("parameters"));
        if let Some(parameters) = parameters.and_then(Value::as_object_mut) {
            set_pointer(parameters, "scope", json!("Cluster"));
        }
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let spec = Field::root(object).at("spec");
        let controller = spec.at("controller");
        controller.max_bytes(MAX_CONTROLLER_BYTES, errors);
        controller.domain_prefixed_path(errors);
        let parameters = spec.at("parameters");
        if !parameters.is_set() {
            return;
        }
        if parameters.at("apiGroup").is_set() {
            parameters.at("apiGroup").fits(names::subdomain, errors);
        }
        parameters.at("kind").named(names::path_segment, errors);
        parameters.at("name").named(names::path_segment, errors);
        let (scope, namespace) = (parameters.at("scope"), parameters.at("namespace"));
        match scope.text() {
            "Namespace" if !namespace.is_set() => {
                namespace.required("`parameters.scope` is set to 'Namespace'", errors);
            }
            "Namespace" => namespace.fits(names::label, errors),
            "Cluster" if namespace.is_set() => {
                namespace.forbidden("`parameters.scope` is set to 'Cluster'", errors);
            }
            "Cluster" => {}
            _ if !scope.is_set() => scope.required("", errors),
            _ => scope.one_of(&["Cluster", "Namespace"], errors),
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["spec.controller"], errors);
    }
}
