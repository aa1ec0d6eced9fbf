//! APIService. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use windlass_kit::objects::pod_defaults::set;

use crate::{
    apiserver::{
        Strategy,
        pipeline::validation::{errors::Errors, names},
        types::{Definition, Resource, Subresource, VersionSpec, keep_metadata, status_keeps_metadata},
    },
    kinds::{
        shared::{
            cells::text,
            conditions::{self, get},
            field::Field,
            tables::{AGE, column, named},
        },
        types,
    },
};

const MAX_GROUP_PRIORITY: i64 = 20_000;
const MAX_VERSION_PRIORITY: i64 = 1000;

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("apiregistration.k8s.io", "apiservices", "APIService", ApiService);
    resource.categories = vec!["api-extensions".into()];
    resource.namespaced = false;
    resource.allow_unconditional_update = false;
    let mut v1 = VersionSpec::new("v1", types::built_in("apiregistration.k8s.io/v1", "APIService"));
    v1.subresources = vec![Subresource::status()];
    let columns =
        vec![column("Service", "The service that serves it."), column("Available", "Whether it answers."), AGE];
    v1.table = named(columns, |object, age| {
        let service = &object["spec"]["service"];
        let server = match service.is_object() {
            true => format!("{}/{}", text(&service["namespace"]), text(&service["name"])),
            false => "Local".to_owned(),
        };
        vec![json!(server), json!(available(object)), json!(age)]
    });
    Definition::single(resource, v1)
}

fn available(object: &Value) -> String {
    match get(object, "Available") {
        None => "Unknown".to_owned(),
        Some(condition) if condition["status"] == "True" => "True".to_owned(),
        Some(condition) => format!("{} ({})", text(&condition["status"]), text(&condition["reason"])),
    }
}

#[derive(Debug)]
struct ApiService;

impl Strategy for ApiService {
    fn default(&self, object: &mut Map<String, Value>) {
        let service = object.get_mut("spec").and_then(|spec| spec.get_mut("service"));
        if let Some(service) = service.and_then(Value::as_object_mut) {
            set(service, "port", json!(443));
        }
    }

    /// One that this server serves itself is available at once.
    fn prepare_for_create(&self, object: &mut Value) {
        if !object["spec"]["service"].is_object() {
            let message = "Local APIServices are always available";
            conditions::set(object, "Available", "True", "Local", message, &crate::apiserver::generate::now());
        }
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        keep_metadata(object, old);
    }

    fn reset_fields(&self, subresource: &str) -> Option<&'static [&'static str]> {
        status_keeps_metadata(subresource)
    }

    fn validate_name(&self, name: &str) -> Option<String> {
        names::path_segment(name)
    }

    fn validate(&self, object: &Value, errors: &mut Errors) {
        let root = Field::root(object);
        let spec = root.at("spec");
        let (group, version) = (spec.at("group"), spec.at("version"));
        let wanted = format!("{}.{}", version.text(), group.text());
        // One that is missing, or is no path segment, has been reported already.
        let told = |name: &Field<'_>| name.is_empty() || names::path_segment(name.text()).is_some();
        for field in ["metadata.generateName", "metadata.name"] {
            let name = root.below(field);
            if !told(&name) && name.text() != wanted {
                name.invalid(&format!("must be `spec.version+\".\"+spec.group`: {wanted:?}"), errors);
            }
        }
        if group.text().is_empty() {
            if version.text() != "v1" {
                group.required("only v1 may have an empty group and it better be legacy kube", errors);
            }
        } else {
            group.fits(names::subdomain, errors);
        }
        errors.unless("spec.version", version.text(), names::dns1035_label(version.text()));
        for (field, most) in [("groupPriorityMinimum", MAX_GROUP_PRIORITY), ("versionPriority", MAX_VERSION_PRIORITY)] {
            let priority = spec.at(field).number().unwrap_or(0);
            if !(1..=most).contains(&priority) {
                errors.invalid(
                    format!("spec.{field}"),
                    &json!(priority),
                    &format!("must be positive and less than {most}"),
                );
            }
        }
        validate_server(&spec, errors);
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut Errors) {
        for condition in Field::root(new).below("status.conditions").items() {
            condition.at("status").one_of(&["True", "False", "Unknown"], errors);
        }
    }
}

fn validate_server(spec: &Field<'_>, errors: &mut Errors) {
    let (bundle, insecure) = (spec.at("caBundle"), spec.at("insecureSkipTLSVerify"));
    let service = spec.at("service");
    if !service.is_set() {
        if !bundle.text().is_empty() {
            let bytes = STANDARD.decode(bundle.text()).map_or(0, |bytes| bytes.len());
            let why = "local APIServices may not have a caBundle";
            errors.invalid_text(&bundle.path, &format!("{bytes} bytes"), why);
        }
        if insecure.value == &Value::Bool(true) {
            insecure.invalid("local APIServices may not have insecureSkipTLSVerify", errors);
        }
        return;
    }
    for field in ["namespace", "name"].map(|field| service.at(field)) {
        if field.text().is_empty() {
            field.required("", errors);
        }
    }
    if let Some(why) = service.at("port").number().and_then(names::port_number) {
        service.at("port").invalid(&format!("port is not valid: {why}"), errors);
    }
    if insecure.value == &Value::Bool(true) && !bundle.text().is_empty() {
        insecure.invalid("may not be true if caBundle is present", errors);
    }
}
