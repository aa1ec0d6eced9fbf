//! Creates and changes Services and EndpointSlices in the API.

use std::{net::Ipv4Addr, path::Path};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

/// The address of the listener that answers for a service.
pub(crate) const LISTENER: &str = "198.18.0.1:9999";

pub(crate) struct Cluster {
    runtime: tokio::runtime::Runtime,
    client: Client,
    endpoints: usize,
}

fn service(i: usize) -> anyhow::Result<Service> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("s{i}")},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    }))?)
}

/// The address of a pod, one of 16 million.
fn pod(n: usize) -> String {
    Ipv4Addr::from_bits(0x0b00_0000 + u32::try_from(n).unwrap_or(0)).to_string()
}

impl Cluster {
    /// Waits for the API. Services are given so many endpoints.
    pub(crate) fn create(kubeconfig: &Path, endpoints: usize) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = windlass_tests::eventually(windlass_tests::DEFAULT_TIMEOUT, "the API answers", || {
            runtime.block_on(async {
                let read = Kubeconfig::read_from(kubeconfig)?;
                let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
                let client = Client::try_from(config)?;
                client.apiserver_version().await?;
                anyhow::Ok(client)
            })
        });
        Ok(Self { runtime, client, endpoints })
    }

    pub(crate) fn add_services(&self, numbers: std::ops::Range<usize>) -> anyhow::Result<()> {
        let all = futures::stream::iter(numbers).map(|i| self.put(i)).buffer_unordered(64);
        self.runtime.block_on(all.try_for_each(|()| async { Ok(()) }))
    }

    fn slice(&self, i: usize, moved: usize) -> anyhow::Result<EndpointSlice> {
        let list: Vec<_> = (0..self.endpoints)
            .map(|e| {
                // Each change replaces one endpoint of the service.
                let n = if e == 0 && moved > 0 { 8_000_000 + i * 100 + moved % 100 } else { i * 100 + e };
                json!({"addresses": [pod(n)], "nodeName": "elsewhere", "conditions": {"ready": true}})
            })
            .collect();
        Ok(serde_json::from_value(json!({
            "metadata": {"name": format!("s{i}-1"), "labels": {"kubernetes.io/service-name": format!("s{i}")}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": list,
        }))?)
    }

    async fn put(&self, i: usize) -> anyhow::Result<()> {
        let services: Api<Service> = Api::default_namespaced(self.client.clone());
        let slices: Api<EndpointSlice> = Api::default_namespaced(self.client.clone());
        slices.create(&PostParams::default(), &self.slice(i, 0)?).await?;
        services.create(&PostParams::default(), &service(i)?).await?;
        Ok(())
    }

    pub(crate) fn add_service(&self, i: usize) -> anyhow::Result<()> {
        self.runtime.block_on(self.put(i))
    }

    pub(crate) fn change_endpoint(&self, i: usize, moved: usize) -> anyhow::Result<()> {
        let slices: Api<EndpointSlice> = Api::default_namespaced(self.client.clone());
        let patch = json!({"endpoints": self.slice(i, moved + 1)?.endpoints});
        self.runtime.block_on(slices.patch(&format!("s{i}-1"), &PatchParams::default(), &Patch::Merge(patch)))?;
        Ok(())
    }

    /// Sends the first, middle and last service by address to the listener; returns their addresses.
    pub(crate) fn answering_services(&self) -> anyhow::Result<(String, String, String)> {
        let services: Api<Service> = Api::default_namespaced(self.client.clone());
        let slices: Api<EndpointSlice> = Api::default_namespaced(self.client.clone());
        self.runtime.block_on(async {
            let mut all: Vec<(Ipv4Addr, String)> = services
                .list(&ListParams::default())
                .await?
                .items
                .into_iter()
                .filter(|s| s.metadata.name.as_deref().is_some_and(|n| n.starts_with('s')))
                .filter_map(|s| Some((s.spec?.cluster_ip?.parse().ok()?, s.metadata.name?)))
                .collect();
            all.sort();
            let chosen = [0, all.len() / 2, all.len() - 1].map(|i| all[i].clone());
            let (ip, port) = LISTENER.split_once(':').context("a listener")?;
            let patch = json!({
                "endpoints": [{"addresses": [ip], "nodeName": "node", "conditions": {"ready": true}}],
                "ports": [{"name": "http", "port": port.parse::<u16>()?, "protocol": "TCP"}],
            });
            for (_, name) in &chosen {
                slices.patch(&format!("{name}-1"), &PatchParams::default(), &Patch::Merge(&patch)).await?;
            }
            let [first, middle, last] = chosen.map(|(ip, _)| format!("{ip}:80"));
            Ok((first, middle, last))
        })
    }
}
