//! The Service of the cluster's DNS, which leads to the socket of this process. Somebody's own DNS takes its place when
//! the Service gets a selector.

use std::net::{Ipv4Addr, SocketAddr};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api as KubeApi, Client, api::DeleteParams};
use serde_json::json;
use windlass_kit::cluster_dns::{SERVICE, SERVICE_NAMESPACE, SERVICE_PORT, service_ip};

use super::{
    ControlPlane, Error, Wanted, ensure,
    objects::{kept, made, set},
};

/// What is to be done with the two objects.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Both are to be as they must.
    Keep,
    /// Another DNS has the Service.
    RemoveSlice,
    /// There is no DNS here any more.
    RemoveBoth,
    Nothing,
}

/// Decides by whether this process serves DNS, whether the Service has a selector if it exists, and whether our slice
/// exists. Pure.
fn step(serves: bool, has_selector: Option<bool>, has_slice: bool) -> Step {
    match (serves, has_selector, has_slice) {
        (_, Some(true), true) => Step::RemoveSlice,
        (_, Some(true), false) | (false, _, false) => Step::Nothing,
        (true, ..) => Step::Keep,
        (false, _, true) => Step::RemoveBoth,
    }
}

impl ControlPlane {
    /// Makes the Service and its slice, or removes them.
    pub(super) async fn ensure_cluster_dns(&self, client: &Client) -> Result<(), Error> {
        let address = self.config.cluster_dns.map(|address| self.reached_at(address));
        ensure_service(client, address, service_ip(self.config.service_cidr)).await
    }

    /// Where the cluster reaches a socket.
    fn reached_at(&self, socket: SocketAddr) -> SocketAddr {
        let ip = if socket.ip().is_unspecified() { self.config.advertise } else { socket.ip() };
        SocketAddr::new(ip, socket.port())
    }
}

/// `address`: where the cluster's DNS is reached, if this process serves it. The slice marks the Service as ours: it is
/// created first and deleted last, so that a start after an interruption can rely on it.
async fn ensure_service(client: &Client, address: Option<SocketAddr>, cluster_ip: Ipv4Addr) -> Result<(), Error> {
    let services: KubeApi<Service> = KubeApi::namespaced(client.clone(), SERVICE_NAMESPACE);
    let slices: KubeApi<EndpointSlice> = KubeApi::namespaced(client.clone(), SERVICE_NAMESPACE);
    let failed = |source| Error::Bootstrap { what: "the cluster's DNS".to_owned(), source: Box::new(source) };
    let service = services.get_opt(SERVICE).await.map_err(failed)?;
    let has_slice = slices.get_opt(SERVICE).await.map_err(failed)?.is_some();
    let has_selector =
        service.map(|service| service.spec.and_then(|spec| spec.selector).is_some_and(|labels| !labels.is_empty()));
    match (step(address.is_some(), has_selector, has_slice), address) {
        (Step::Keep, Some(address)) => {
            ensure(client, &slice_object(address)).await?;
            match ensure(client, &service_object(cluster_ip)).await {
                // Another Service may have the address, which is no reason not to start.
                Err(Error::Bootstrap { source, .. }) if is_invalid(&source) => {
                    tracing::error!(error = %windlass_kit::client::message(&source), "failed to create the Service {SERVICE} of the cluster's DNS, so that pods have no DNS; delete what has its address, or set clusterDNS for pods");
                    Ok(())
                }
                ensured => ensured,
            }
        }
        (Step::RemoveBoth, _) => {
            delete(&services).await.map_err(failed)?;
            delete(&slices).await.map_err(failed)
        }
        (Step::RemoveSlice, _) => delete(&slices).await.map_err(failed),
        (Step::Keep | Step::Nothing, _) => Ok(()),
    }
}

async fn delete<K>(api: &KubeApi<K>) -> kube::Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match api.delete(SERVICE, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop),
    }
}

fn is_invalid(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422)
}

/// As kubeadm's, without a selector.
fn service_object(cluster_ip: Ipv4Addr) -> Wanted {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": SERVICE_PORT, "protocol": protocol, "targetPort": SERVICE_PORT});
    let labels = json!({
        "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
    });
    let object = json!({
        "metadata": {"labels": labels},
        "spec": {"clusterIP": cluster_ip.to_string(), "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")]},
    });
    made("v1", "Service", SERVICE_NAMESPACE, SERVICE, object)
}

fn slice_object(address: SocketAddr) -> Wanted {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": address.port(), "protocol": protocol});
    let labels = json!({
        "kubernetes.io/service-name": SERVICE, "endpointslice.kubernetes.io/managed-by": "windlass", "k8s-app": "kube-dns",
    });
    let object = json!({
        "metadata": {"labels": labels},
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
    });
    kept("discovery.k8s.io/v1", "EndpointSlice", SERVICE_NAMESPACE, SERVICE, object, |stored, wanted| {
        let labels = set(&mut stored["metadata"], &wanted["metadata"], "labels");
        let endpoints = set(stored, wanted, "endpoints");
        set(stored, wanted, "ports") || labels || endpoints
    })
}

#[cfg(test)]
mod tests {
    use windlass_tests::api_faults::{Fault, RequestFault};

    use super::*;
    use windlass_test_api::TestApi;

    /// A start that serves DNS ends before or after any of its requests, and the next one serves none.
    #[tokio::test]
    async fn what_a_start_has_made_half_is_taken_away_by_the_next() {
        let (address, ip) = ("192.0.2.1:53".parse().unwrap(), Ipv4Addr::new(10, 96, 0, 10));
        let is_there =
            |api: &TestApi, plural: &str| api.all(plural).iter().any(|object| object["metadata"]["name"] == SERVICE);
        let whole = TestApi::new().await;
        whole.faults.arm(None);
        ensure_service(&whole.client(), Some(address), ip).await.unwrap();
        let requests = whole.faults.calls().made.len();
        assert!(is_there(&whole, "services") && is_there(&whole, "endpointslices") && requests >= 4, "{requests}");
        for (at, fault) in
            (0..requests).flat_map(|at| [RequestFault::NotConnected, RequestFault::AnswerLost].map(|fault| (at, fault)))
        {
            let api = TestApi::new().await;
            api.faults.arm(Some(Fault::Request(at, fault)));
            assert!(ensure_service(&api.client(), Some(address), ip).await.is_err(), "{at} {fault:?}");
            ensure_service(&api.client(), None, ip).await.unwrap();
            let left = (is_there(&api, "services"), is_there(&api, "endpointslices"));
            assert_eq!(left, (false, false), "{at} {fault:?}");
        }
    }

    #[test]
    fn the_service_is_ours_until_it_has_a_selector() {
        for (serves, has_selector, has_slice, expected) in [
            (true, None, false, Step::Keep),
            (true, Some(false), false, Step::Keep),
            (true, Some(false), true, Step::Keep),
            (true, None, true, Step::Keep),
            (true, Some(true), true, Step::RemoveSlice),
            (true, Some(true), false, Step::Nothing),
            (false, Some(true), true, Step::RemoveSlice),
            (false, Some(false), true, Step::RemoveBoth),
            // The Service is gone already.
            (false, None, true, Step::RemoveBoth),
            // Somebody's own, without a selector.
            (false, Some(false), false, Step::Nothing),
            (false, None, false, Step::Nothing),
        ] {
            assert_eq!(step(serves, has_selector, has_slice), expected, "{serves} {has_selector:?} {has_slice}");
        }
    }
}
