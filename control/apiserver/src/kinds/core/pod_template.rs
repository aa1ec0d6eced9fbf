//! PodTemplate. Pure.

use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::child;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::errors::Errors,
        types::{Definition, Generation, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            cells::{map_of, or_none},
            field::Field,
            tables::{column, named},
            workload,
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "podtemplates", "PodTemplate", PodTemplate);
    resource.returns_deleted = true;
    resource.generation = Generation::Counted;
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "PodTemplate"));
    let columns = vec![
        column("Containers", "Names of its containers."),
        column("Images", "Images of its containers."),
        column("Pod Labels", "Labels of its pods."),
    ];
    v1.table = named(columns, |object, _| {
        let template = &object["template"];
        let [names, images] = workload::containers(template);
        vec![names, images, json!(or_none(map_of(&template["metadata"]["labels"])))]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct PodTemplate;

impl Strategy for PodTemplate {
    fn default(&self, object: &mut Map<String, Value>) {
        workload::default_pod_template(child(object, "template"));
    }

    fn validate_against(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        workload::validate_template_at(object, old, "template", errors);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        workload::template_warnings(new, old, &Field::root(new).below("template"))
    }
}
