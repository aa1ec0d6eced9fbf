//! Objects that every cluster has: made at a start, and put back while the server runs. `objects` and `flow_control` say
//! what they are and are pure; `cluster_dns` is about the Service of the cluster's DNS, `ip_addresses` gives the services
//! of earlier versions their IPAddress objects.
//!
//! RBAC has its own, in `rbac_defaults`, and the API services of this server theirs, in `aggregator/auto_register.rs`.

mod cluster_dns;
mod flow_control;
mod ip_addresses;
mod objects;

use std::time::Duration;

use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use windlass_apimachinery::group_version::GroupVersion;

use super::{ControlPlane, Error};
use crate::apiserver::{User, handlers::proxy::is_proxyable};
use objects::Identity;

/// How often objects that somebody has changed or deleted are put back (upstream: 10 s to a minute).
const INTERVAL: Duration = Duration::from_secs(60);
/// As upstream's server calls itself.
const FIELD_MANAGER: &str = "kube-apiserver";
/// Attempts to write an object that others write too.
const MAX_ATTEMPTS: usize = 5;

#[cfg(test)]
mod tests;

/// What a stored object becomes, or a missing one; `None` if it is as it must be.
type Revise = Box<dyn Fn(Option<&Value>) -> Option<Value> + Send + Sync>;

/// An object that must be there.
pub(super) struct Wanted {
    /// Group and version, such as `v1` or `apps/v1`.
    api_version: &'static str,
    kind: &'static str,
    /// Empty for cluster-scoped objects.
    namespace: &'static str,
    name: String,
    /// Whether its status is written too, by a second request.
    has_status: bool,
    /// What becomes of it.
    revise: Revise,
}

impl ControlPlane {
    /// Makes what is missing, and changes what is not as it must be; services of earlier versions get their IPAddresses.
    pub(super) async fn bootstrap(&self) -> Result<(), Error> {
        self.ensure_objects().await?;
        self.bootstrap_ip_addresses(&self.client(User::api_server())).await
    }

    /// Makes what is missing, and changes what is not as it must be.
    async fn ensure_objects(&self) -> Result<(), Error> {
        let client = self.client(User::api_server());
        let (hooks, service_cidr) = (self.api.post_start_hooks(), objects::service_cidr(&self.service_cidr()));
        hooks.run("start-system-namespaces-controller", ensure_all(&client, objects::namespaces())).await?;
        hooks.run("start-kubernetes-service-cidr-controller", ensure(&client, &service_cidr)).await?;
        let identity = self.identity();
        let own = async {
            ensure_all(&client, objects::cluster(&identity)).await?;
            if is_proxyable(identity.address) {
                ensure(&client, &objects::endpoints(&identity)).await?;
            }
            Ok::<_, Error>(())
        };
        hooks.run("bootstrap-controller", own).await?;
        let classes = ensure_all(&client, objects::priority_classes());
        hooks.run("scheduling/bootstrap-system-priority-classes", classes).await?;
        let flow_control = async {
            ensure_all(&client, flow_control::objects()).await?;
            self.set_flow_schema_status(&client).await
        };
        hooks.run("priority-and-fairness-config-producer", flow_control).await?;
        self.ensure_cluster_dns(&client).await
    }

    /// Puts back what every cluster has, until `shutdown`.
    pub(super) async fn keep_bootstrap_objects(self, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            if let Err(error) = self.ensure_objects().await {
                tracing::warn!(error = %windlass_kit::client::message(&error), "failed to check the objects that every cluster has; retrying in a minute");
            }
        }
    }

    fn service_cidr(&self) -> String {
        let (first, length) = self.config.service_cidr;
        format!("{first}/{length}")
    }

    fn identity(&self) -> Identity {
        Identity {
            host: self.config.node_name.clone(),
            instance: self.instance.clone(),
            address: self.config.advertise,
            port: self.port(),
            first_cluster_ip: self.first_cluster_ip(),
            client_ca: self.client_ca_pem(),
            front_proxy_ca: self.front_proxy_ca_pem(),
        }
    }
}

async fn ensure_all(client: &Client, all: impl Iterator<Item = Wanted>) -> Result<(), Error> {
    for wanted in all {
        ensure(client, &wanted).await?;
    }
    Ok(())
}

fn api_of(client: &Client, wanted: &Wanted) -> KubeApi<DynamicObject> {
    let GroupVersion { group, version } = GroupVersion::parse(wanted.api_version);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, wanted.kind));
    if wanted.namespace.is_empty() {
        KubeApi::all_with(client.clone(), &resource)
    } else {
        KubeApi::namespaced_with(client.clone(), wanted.namespace, &resource)
    }
}

/// Makes or changes an object.
async fn ensure(client: &Client, wanted: &Wanted) -> Result<(), Error> {
    let what = format!("{} {}", wanted.kind, wanted.name);
    let failed = |source| Error::Bootstrap { what: what.clone(), source: Box::new(source) };
    let api = api_of(client, wanted);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    for attempt in 1.. {
        let stored = api.get_opt(&wanted.name).await.map_err(failed)?;
        let stored = stored.map(serde_json::to_value).transpose().map_err(|e| failed(kube::Error::SerdeError(e)))?;
        let Some(mut object) = (wanted.revise)(stored.as_ref()) else { return Ok(()) };
        complete(&mut object, wanted);
        let object: DynamicObject = serde_json::from_value(object).map_err(|e| failed(kube::Error::SerdeError(e)))?;
        let written = match &stored {
            None => api.create(&params, &object).await,
            Some(_) => api.replace(&wanted.name, &params, &object).await,
        };
        let written = match written {
            Ok(mut written) if wanted.has_status => {
                if let Some(status) = object.data.get("status") {
                    written.data["status"] = status.clone();
                }
                api.replace_status(&wanted.name, &params, &written).await
            }
            written => written,
        };
        match written {
            // Another one has written it.
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < MAX_ATTEMPTS => {}
            written => return written.map(drop).map_err(failed),
        }
    }
    Ok(())
}

/// Creates an object unless it exists.
pub(super) async fn create<K>(api: &KubeApi<K>, params: &PostParams, object: &Value, what: &str) -> Result<(), Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let failed = |source| Error::Bootstrap { what: what.to_owned(), source: Box::new(source) };
    let object: K = windlass_kit::json::from_value(object).map_err(|e| failed(kube::Error::SerdeError(e)))?;
    match api.create(params, &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        made => made.map(drop).map_err(failed),
    }
}

/// Adds what identifies an object.
fn complete(object: &mut Value, wanted: &Wanted) {
    object["apiVersion"] = wanted.api_version.into();
    object["kind"] = wanted.kind.into();
    object["metadata"]["name"] = wanted.name.as_str().into();
    if !wanted.namespace.is_empty() {
        object["metadata"]["namespace"] = wanted.namespace.into();
    }
}
