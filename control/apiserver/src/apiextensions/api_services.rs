//! The APIServices of the groups that definitions add, as upstream's `crdregistration` and `autoregister` controllers keep
//! them: `kubectl get apiservice v1.GROUP` finds one for every version that is served.

use std::collections::BTreeSet;

use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
};
use serde_json::{Value, json};

use crate::{apiserver::types::Catalog, store::Store};

const GROUP_RESOURCE: &str = "apiservices.apiregistration.k8s.io";
/// Says that an APIService is always as its controller wants it; others are left alone.
const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
const ALWAYS: &str = "true";
/// Upstream's priorities: lower than those of all built-in groups.
const GROUP_PRIORITY: i64 = 1000;
const VERSION_PRIORITY: i64 = 100;

/// The versions of groups that have custom resources.
fn wanted(catalog: &Catalog) -> BTreeSet<(String, String)> {
    let groups = catalog.groups.iter().flat_map(|group| group.versions.iter().map(move |version| (group, version)));
    let custom = groups.filter(|(_, version)| version.resources.iter().any(|one| !one.spec.schema.is_built_in()));
    custom.map(|(group, version)| (group.name.to_string(), version.version.to_string())).collect()
}

fn api_service(group: &str, version: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("{version}.{group}"), "labels": {LABEL: ALWAYS}},
        "spec": {"group": group, "version": version, "groupPriorityMinimum": GROUP_PRIORITY,
            "versionPriority": VERSION_PRIORITY},
    })
}

/// Makes those that are missing and deletes those of versions that are no longer served.
pub(super) async fn keep(client: &Client, store: &Store, catalog: &Catalog) -> Result<(), kube::Error> {
    let resource = ApiResource {
        group: "apiregistration.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiregistration.k8s.io/v1".to_owned(),
        kind: "APIService".to_owned(),
        plural: "apiservices".to_owned(),
    };
    let services: KubeApi<DynamicObject> = KubeApi::all_with(client.clone(), &resource);
    let wanted = wanted(catalog);
    let names: BTreeSet<String> = wanted.iter().map(|(group, version)| format!("{version}.{group}")).collect();
    let known = store.list(store.resource(GROUP_RESOURCE), None).0;
    for service in known.iter().filter(|service| !names.contains(&service.key.name)) {
        if service.value()["metadata"]["labels"][LABEL] == ALWAYS {
            ignoring(404, services.delete(&service.key.name, &DeleteParams::default()).await.map(drop))?;
        }
    }
    for (group, version) in &wanted {
        let service = api_service(group, version);
        if known.iter().any(|known| service["metadata"]["name"] == known.key.name.as_str()) {
            continue;
        }
        let service: DynamicObject = serde_json::from_value(service).map_err(kube::Error::SerdeError)?;
        ignoring(409, services.create(&PostParams::default(), &service).await.map(drop))?;
    }
    Ok(())
}

/// Without the error that says that another has done it already.
fn ignoring(code: u16, done: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match done {
        Err(kube::Error::Api(status)) if status.code == code => Ok(()),
        done => done,
    }
}
