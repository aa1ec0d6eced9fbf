//! RuntimeClass. Pure.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, VersionSpec},
    },
    kinds::{
        shared::{
            field::{Field, immutable},
            internal_version::{Internal, Table},
            node_selector, pod_template,
            tables::{AGE, column, named},
        },
        types,
    },
};

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("node.k8s.io", "runtimeclasses", "RuntimeClass", RuntimeClass);
    resource.singular = "runtimeclass".into();
    resource.namespaced = false;
    resource.create_on_update = true;
    resource.allow_unconditional_update = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("node.k8s.io/v1", "RuntimeClass"));
    v1.table = named(vec![column("Handler", "The runtime's name on the nodes."), AGE], |object, age| {
        vec![object["handler"].clone(), json!(age)]
    });
    Definition::single(resource, v1)
}

/// Upstream's type of a toleration.
const TOLERATION: Table = "\
Key key \"\"
Operator operator \"\"
Value value \"\"
Effect effect \"\"
TolerationSeconds tolerationSeconds null
";

#[derive(Debug)]
struct RuntimeClass;

impl Strategy for RuntimeClass {
    fn validate(&self, object: &Value, errors: &mut Errors) {
        let class = Field::root(object);
        class.at("handler").named(names::label, errors);
        // The path is upstream's.
        let overhead = Field { value: &object["overhead"]["podFixed"], path: "overhead".to_owned().into() };
        let scheduling = class.at("scheduling");
        names::labels(scheduling.at("nodeSelector").value, "scheduling.nodeSelector", errors);
        pod_template::validate_runtime_class(&overhead, &scheduling.at("tolerations"), errors);
        let mut seen = BTreeSet::new();
        for toleration in scheduling.at("tolerations").items() {
            if !seen.insert(["key", "operator", "value", "effect"].map(|field| toleration.at(field).text())) {
                toleration.duplicate_as(&Internal::new(TOLERATION, toleration.value).text(), errors);
            }
        }
    }

    /// Pods of the class run by its handler.
    fn validate_update(&self, new: &Value, old: &Value, errors: &mut Errors) {
        immutable(new, old, &["handler"], errors);
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let selector = Field::root(new).below("scheduling.nodeSelector");
        let old_labels = selector.entries().filter_map(|(label, _)| node_selector::deprecated(label));
        old_labels.map(|why| format!("{}: {why}", selector.path)).collect()
    }
}
