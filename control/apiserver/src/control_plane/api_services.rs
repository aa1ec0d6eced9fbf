//! The APIServices of the groups that this server serves itself, with upstream's priorities.

use std::collections::BTreeSet;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{
    Api as KubeApi, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use super::{ControlPlane, Error, bootstrap::create};
use crate::apiserver::User;

/// The priority of each group among the groups; a group that is not here has upstream's of an aggregated one.
const GROUPS: [(&str, i64); 20] = [
    ("", 18_000),
    ("apps", 17_800),
    ("events.k8s.io", 17_750),
    ("authentication.k8s.io", 17_700),
    ("authorization.k8s.io", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates.k8s.io", 17_300),
    ("networking.k8s.io", 17_200),
    ("policy", 17_100),
    ("rbac.authorization.k8s.io", 17_000),
    ("storage.k8s.io", 16_800),
    ("admissionregistration.k8s.io", 16_700),
    ("apiextensions.k8s.io", 16_700),
    ("scheduling.k8s.io", 16_600),
    ("coordination.k8s.io", 16_500),
    ("node.k8s.io", 16_300),
    ("discovery.k8s.io", 16_200),
    ("resource.k8s.io", 16_200),
    ("flowcontrol.apiserver.k8s.io", 16_100),
];
const OTHER_GROUP: i64 = 100;
const METRICS: &str = "metrics.k8s.io";
/// The label of those that are made by the server.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The priority of a version in its group.
fn version_priority(group: &str, version: &str) -> i64 {
    match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("autoscaling", "v2beta1") => 9,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", _) => 21,
        (group, _) if GROUPS.iter().any(|(known, _)| *known == group) => 15,
        _ => 100,
    }
}

/// The APIService of a version of a group.
fn api_service(group: &str, version: &str) -> Value {
    let found = GROUPS.iter().find(|(known, _)| *known == group);
    let priority = found.map_or(OTHER_GROUP, |(_, priority)| *priority);
    let mut spec = json!({
        "version": version, "groupPriorityMinimum": priority, "versionPriority": version_priority(group, version),
    });
    if !group.is_empty() {
        spec["group"] = json!(group);
    }
    let labels = json!({(MANAGED): "onstart"});
    json!({"metadata": {"name": format!("{version}.{group}"), "labels": labels}, "spec": spec})
}

/// Whether an APIService of `metrics.k8s.io` was made by an earlier version of this server: a chart with its own would
/// refuse to take it over.
fn is_left_behind(service: &APIService) -> bool {
    let is_automatic = service.labels().get(MANAGED).is_some_and(|how| how == "onstart");
    is_automatic && service.spec.as_ref().is_none_or(|spec| spec.service.is_none())
}

impl ControlPlane {
    /// Makes the APIServices that are missing.
    pub(super) async fn register_api_services(&self) -> Result<(), Error> {
        let services: KubeApi<APIService> = KubeApi::all(self.client(User::internal("system:apiserver")));
        let failed = |source| Error::Bootstrap { what: "the API services".to_owned(), source: Box::new(source) };
        let known = services.list_metadata(&ListParams::default()).await.map_err(failed)?;
        let known: BTreeSet<String> = known.items.iter().map(|service| service.name_any()).collect();
        let metrics = format!("v1beta1.{METRICS}");
        if known.contains(&metrics) {
            let found = services.get_opt(&metrics).await.map_err(failed)?;
            if found.as_ref().is_some_and(is_left_behind) {
                let own = found
                    .map(|service| Preconditions { uid: service.uid(), resource_version: service.resource_version() });
                let parameters = DeleteParams { preconditions: own, ..DeleteParams::default() };
                match services.delete(&metrics, &parameters).await {
                    // Somebody has taken it over meanwhile.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                    deleted => drop(deleted.map_err(failed)?),
                }
            }
        }
        let catalog = self.api.catalogs().current();
        for group in &catalog.groups {
            for version in group.versions.iter().filter(|version| {
                // Definitions of custom resources may be there at a later start. metrics.k8s.io is an aggregated API elsewhere,
                // whose APIService belongs to who installs one: a chart refuses to take over ours.
                group.name != METRICS && version.resources.iter().all(|resource| resource.spec.schema.is_built_in())
            }) {
                let service = api_service(&group.name, &version.version);
                let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                if !known.contains(&name) {
                    create(&services, &PostParams::default(), &service, &format!("API service {name}")).await?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_own_service_of_metrics_goes() {
        let own = api_service(METRICS, "v1beta1");
        let of = |change: fn(&mut Value)| {
            let mut service = own.clone();
            change(&mut service);
            is_left_behind(&serde_json::from_value(service).unwrap())
        };
        assert!(of(|_| {}));
        assert!(!of(|service| service["metadata"]["labels"] = json!({"app": "metrics-server"})));
        assert!(!of(
            |service| service["spec"]["service"] = json!({"namespace": "kube-system", "name": "metrics-server"})
        ));
    }

    #[test]
    fn each_group_has_its_priority() {
        for (group, version, name, priorities) in [
            ("", "v1", "v1.", (18_000, 1)),
            ("apps", "v1", "v1.apps", (17_800, 15)),
            ("autoscaling", "v2", "v2.autoscaling", (17_500, 30)),
            ("autoscaling", "v1", "v1.autoscaling", (17_500, 15)),
            ("metrics.k8s.io", "v1beta1", "v1beta1.metrics.k8s.io", (100, 100)),
        ] {
            let service = api_service(group, version);
            let spec = &service["spec"];
            assert_eq!(service["metadata"]["name"], name);
            assert_eq!(
                (&spec["groupPriorityMinimum"], &spec["versionPriority"]),
                (&json!(priorities.0), &json!(priorities.1))
            );
        }
    }
}
