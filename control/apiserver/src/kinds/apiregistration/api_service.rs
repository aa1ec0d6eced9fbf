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
            conditions::get,
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

    fn prepare_for_create(&self, object: &mut Value) {
        object["status"] = json!({"conditions": [condition(object)]});
    }

    /// As upstream's controller, which looks again when a service is named, or none any more.
    fn prepare_for_update(&self, object: &mut Value, old: &Value) {
        let new = condition(object);
        let same = |known: &Value| ["status", "reason", "message"].iter().all(|field| known[field] == new[field]);
        if old["spec"] != object["spec"] && !get(object, "Available").is_some_and(same) {
            object["status"]["conditions"] = json!([new]);
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

/// Groups that this server serves itself and that are an aggregated server's elsewhere.
const SERVED_HERE: [(&str, &str); 1] = [("metrics.k8s.io", "v1beta1")];

/// Whether an API is available: one that this server serves itself is, and a service is not called.
fn condition(object: &Value) -> Value {
    let (spec, service) = (&object["spec"], &object["spec"]["service"]);
    let (group, version) = (text(&spec["group"]), text(&spec["version"]));
    let (status, reason, message) = if !service.is_object() {
        ("True", "Local", "Local APIServices are always available".to_owned())
    } else if SERVED_HERE.contains(&(group, version)) {
        ("True", "Passed", format!("{group}/{version} is served by this API server itself; the service is not called"))
    } else {
        let server = format!("{}/{}", text(&service["namespace"]), text(&service["name"]));
        (
            "False",
            "FailedDiscoveryCheck",
            format!("the service {server} is not called: this API server does not aggregate APIs"),
        )
    };
    json!({"type": "Available", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": crate::apiserver::generate::now()})
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::{call, with_namespace};

    /// `kubectl wait apiservice` must end, and a chart with its own must install.
    #[tokio::test]
    async fn a_service_that_is_not_called_is_not_available() {
        let api = with_namespace().await;
        let path = "/apis/apiregistration.k8s.io/v1/apiservices";
        let service = json!({"namespace": "n", "name": "s"});
        let of = |group: &str, service: Value| {
            json!({"metadata": {"name": format!("v1beta1.{group}")}, "spec": {"group": group, "version": "v1beta1",
                "service": service, "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": !service.is_null()}})
        };
        let shown = |object: &Value| {
            let found = get(object, "Available").cloned().unwrap_or_default();
            (text(&found["status"]).to_owned(), text(&found["reason"]).to_owned())
        };
        for (group, service, wanted) in [
            ("a.example", service.clone(), ("False", "FailedDiscoveryCheck")),
            ("metrics.k8s.io", service.clone(), ("True", "Passed")),
            ("b.example", Value::Null, ("True", "Local")),
        ] {
            let made = call(&api, "POST", path, of(group, service)).await;
            assert_eq!(made.code, 201, "{}", made.body);
            assert_eq!(shown(&made.body), (wanted.0.to_owned(), wanted.1.to_owned()), "{group}");
        }
        let one = format!("{path}/v1beta1.b.example");
        let remote = json!({"spec": {"service": service, "insecureSkipTLSVerify": true}});
        assert_eq!(shown(&call(&api, "PATCH", &one, remote).await.body).0, "False");
        let local = json!({"spec": {"service": null, "insecureSkipTLSVerify": null}});
        let back = call(&api, "PATCH", &one, local).await.body;
        assert_eq!(shown(&back).0, "True", "{back}");
        let labelled = call(&api, "PATCH", &one, json!({"metadata": {"labels": {"a": "b"}}})).await.body;
        assert_eq!(labelled["status"], back["status"], "nothing has changed for it");
    }
}
