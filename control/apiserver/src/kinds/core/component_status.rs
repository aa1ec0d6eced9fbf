//! ComponentStatus: the parts of the control plane, which run in one process with the API server. Computed on request.

use async_trait::async_trait;
use axum::{body::Bytes, http::StatusCode};
use serde_json::{Value, json};

use crate::{
    apiserver::{
        ApiError, ApiRequest, ApiResult, Selectors, Strategy, Target, VirtualResource,
        request::request_info::RequestOptions,
        types::{Definition, Resource, Storage, VersionSpec},
    },
    kinds::{
        shared::{
            cells::text,
            tables::{column, named},
        },
        types,
    },
};

/// Upstream's names of the parts.
const COMPONENTS: [&str; 3] = ["controller-manager", "etcd-0", "scheduler"];

/// The resource.
pub(crate) fn definition() -> Definition {
    let mut resource = Resource::new("", "componentstatuses", "ComponentStatus", ComponentStatus);
    resource.short_names = vec!["cs".into()];
    resource.namespaced = false;
    resource.verbs = vec!["get", "list"];
    resource.storage = Storage::computed(Components);
    let mut v1 = VersionSpec::new("v1", types::built_in("v1", "ComponentStatus"));
    v1.deprecation_warning = Some("v1 ComponentStatus is deprecated in v1.19+".to_owned());
    let columns = vec![
        column("Status", "Whether it is healthy."),
        column("Message", "What it says."),
        column("Error", "What is wrong."),
    ];
    v1.table = named(columns, |object, _| {
        let condition = &object["conditions"][0];
        let status = if condition["status"] == "True" { "Healthy" } else { "Unhealthy" };
        vec![json!(status), json!(text(&condition["message"])), json!(text(&condition["error"]))]
    });
    Definition::single(resource, v1)
}

#[derive(Debug)]
struct ComponentStatus;

impl Strategy for ComponentStatus {}

#[derive(Debug)]
struct Components;

/// A part is healthy as long as the process answers.
fn component(name: &str) -> Value {
    json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": "True", "message": "ok"}]})
}

#[async_trait]
impl VirtualResource for Components {
    async fn handle(
        &self,
        request: &ApiRequest,
        target: &Target,
        options: &RequestOptions,
        _body: &Bytes,
    ) -> ApiResult {
        let (version, accept) = (&target.version, request.accept);
        if target.name.is_some() {
            let found = COMPONENTS.iter().find(|name| **name == target.name());
            let found = found.ok_or_else(|| ApiError::not_found(version, target.name()))?;
            return Ok(accept.object(StatusCode::OK, version, component(found), &options.include_object));
        }
        let selectors = Selectors::read(target, options)?;
        let all = COMPONENTS.iter().map(|name| component(name));
        let items: Vec<Value> = all.filter(|object| selectors.matches(object)).collect();
        Ok(accept.computed_list(version, items, &options.include_object))
    }
}
