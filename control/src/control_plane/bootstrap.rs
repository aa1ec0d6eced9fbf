//! Objects that every cluster has.

use std::net::Ipv4Addr;

use k8s_openapi::api::{
    core::v1::{Endpoints, Namespace, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api as KubeApi,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{ControlPlane, Error};
use crate::apiserver::User;

impl ControlPlane {
    /// Objects that every cluster has.
    pub(super) async fn bootstrap(&self) -> Result<(), Error> {
        let client = self.client(User::api_server());
        let namespaces: KubeApi<Namespace> = KubeApi::all(client.clone());
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            create(&namespaces, json!({"metadata": {"name": name}}), &format!("namespace {name}")).await?;
        }
        let first = Ipv4Addr::from_bits(self.config.service_cidr.0.to_bits() + 1).to_string();
        let services: KubeApi<Service> = KubeApi::namespaced(client.clone(), "default");
        let labels = json!({"component": "apiserver", "provider": "kubernetes"});
        let port = json!({"name": "https", "port": 443, "protocol": "TCP", "targetPort": self.port()});
        let service = json!({"metadata": {"name": "kubernetes", "labels": labels}, "spec": {"clusterIP": first, "ports": [port]}});
        create(&services, service, "the kubernetes service").await?;
        let slices: KubeApi<EndpointSlice> = KubeApi::namespaced(client.clone(), "default");
        let slice = json!({
            "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes", "endpointslice.kubernetes.io/managed-by": "windlass"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.config.advertise.to_string()], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": self.port(), "protocol": "TCP"}],
        });
        create(&slices, slice.clone(), "the kubernetes endpoints").await?;
        let failed =
            |source| Error::Bootstrap { what: "the kubernetes endpoints".to_owned(), source: Box::new(source) };
        // The address may have changed since they were made.
        slices.patch("kubernetes", &PatchParams::default(), &Patch::Merge(slice)).await.map_err(failed)?;
        let _ = slices.list(&ListParams::default().limit(1)).await.map_err(failed)?;
        // Endpoints take no loopback address, which a slice does.
        if let Err(error) = self.write_endpoints(client).await {
            tracing::warn!(%error, "failed to write the Endpoints of the kubernetes service; clients find the API by its EndpointSlice alone");
        }
        Ok(())
    }

    /// The Endpoints of the kubernetes service, for clients that still find API servers by them, such as Prometheus.
    async fn write_endpoints(&self, client: kube::Client) -> Result<(), Error> {
        let failed =
            |source| Error::Bootstrap { what: "the kubernetes endpoints".to_owned(), source: Box::new(source) };
        let endpoints: KubeApi<Endpoints> = KubeApi::namespaced(client, "default");
        let object = json!({
            "metadata": {"name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{
                "addresses": [{"ip": self.config.advertise.to_string()}],
                "ports": [{"name": "https", "port": self.port(), "protocol": "TCP"}],
            }],
        });
        create(&endpoints, object.clone(), "the kubernetes endpoints").await?;
        endpoints.patch("kubernetes", &PatchParams::default(), &Patch::Merge(object)).await.map_err(failed)?;
        Ok(())
    }
}

pub(super) async fn create<K>(api: &KubeApi<K>, object: Value, what: &str) -> Result<(), Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let failed = |source| Error::Bootstrap { what: what.to_owned(), source: Box::new(source) };
    let object: K = windlass_kit::json::from_value(&object).map_err(|e| failed(kube::Error::SerdeError(e)))?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(failed(error)),
    }
}
