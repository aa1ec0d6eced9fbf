//! The IPAddress objects of services that an earlier version has made without them.

use std::collections::BTreeSet;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::networking::v1::IPAddress;
use kube::{Api as KubeApi, Client, api::PostParams};

use super::{ControlPlane, Error, FIELD_MANAGER, create};
use crate::kinds::core::service::{IP_ADDRESSES, cluster_ip, ip_address};

/// Writes at a time: they share commits.
const WRITES: usize = 16;

impl ControlPlane {
    /// Makes those that are missing. What is wrong with them otherwise is for their controller to find.
    pub(super) async fn bootstrap_ip_addresses(&self, client: &Client) -> Result<(), Error> {
        let list = |name: &str| self.store.list(self.store.resource(name), None).0;
        let known: BTreeSet<String> = list(IP_ADDRESSES).iter().map(|object| object.key.name.clone()).collect();
        let addresses = list("services").into_iter().filter_map(|service| {
            let address = cluster_ip(&service.value())?;
            (!known.contains(&address.to_string())).then(|| ip_address(&service.key, address))
        });
        let addresses: Vec<_> = addresses.collect();
        let all: KubeApi<IPAddress> = KubeApi::all(client.clone());
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let make = |object| {
            let (all, params) = (&all, &params);
            async move { create(all, params, &object, "the address of a service").await }
        };
        stream::iter(addresses).map(make).buffer_unordered(WRITES).try_collect::<Vec<()>>().await.map(drop)
    }
}
