//! What the cluster tells whoever has a token: its version, its settings, whether it has a proxy and a node of this name.

use std::collections::BTreeMap;

use anyhow::bail;
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        core::v1::{ConfigMap, Node},
    },
    apimachinery::pkg::version::Info,
};
use kube::{Api, Client, api::PostParams};

use super::discovery::reason;

/// What was read; what may not be read, or is not there, is absent.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) version: Option<Info>,
    /// `kube-system/kubelet-config`.
    pub(crate) kubelet: Option<String>,
    /// `kube-system/kubeadm-config`.
    pub(crate) kubeadm: Option<String>,
    /// Who writes the rules of services on every node.
    pub(crate) proxy: Option<&'static str>,
    /// The node of our name.
    pub(crate) node: Option<Node>,
}

/// An answer, or nothing where there is none or it may not be had.
fn optional<T>(answer: Result<T, kube::Error>) -> anyhow::Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(answer)) if matches!(answer.code, 403 | 404) => Ok(None),
        Err(kube::Error::Api(answer)) if answer.code == 401 => bail!(
            "the API server does not know the token any more: it has ended, or may not be used to authenticate; make another with `kubeadm token create`"
        ),
        Err(error) => bail!("the API server could not be asked: {}", reason(&error)),
    }
}

async fn map(client: &Client, name: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    Ok(optional(api.get(name).await)?.and_then(|map| map.data).unwrap_or_default())
}

/// Asks for all of it.
pub(crate) async fn ask(client: &Client, node: &str) -> anyhow::Result<Told> {
    let version = optional(client.apiserver_version().await)?;
    let of = |mut map: BTreeMap<String, String>, key: &str| map.remove(key);
    let kubelet = of(map(client, "kubelet-config").await?, "kubelet");
    let kubeadm = of(map(client, "kubeadm-config").await?, "ClusterConfiguration");
    let kube_proxy = !map(client, "kube-proxy").await?.is_empty();
    let cilium = of(map(client, "cilium-config").await?, "kube-proxy-replacement");
    let node = optional(Api::<Node>::all(client.clone()).get(node).await)?;
    Ok(Told { version, kubelet, kubeadm, proxy: proxy(kube_proxy, cilium.as_deref()), node })
}

/// Who writes the rules of services on every node of the cluster.
pub(super) fn proxy(kube_proxy: bool, cilium: Option<&str>) -> Option<&'static str> {
    if kube_proxy {
        return Some("kube-proxy");
    }
    cilium.is_some_and(|value| matches!(value, "true" | "strict" | "partial" | "probe")).then_some("Cilium")
}

/// What a node of our name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namesake {
    /// There is none.
    None,
    /// There is one that does not run, or it was this machine, not started anew since: it is taken over.
    TakenOver,
    /// It is another machine, which runs.
    Alive,
}

/// Judges the node of our name.
pub(crate) fn namesake(node: Option<&Node>, boot_id: &str) -> Namesake {
    let Some(node) = node else { return Namesake::None };
    let status = node.status.as_ref();
    let is_ready = status
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    let id = status.and_then(|s| s.node_info.as_ref()).map_or("", |info| info.boot_id.as_str());
    let was_us = !boot_id.is_empty() && id == boot_id;
    if is_ready && !was_us { Namesake::Alive } else { Namesake::TakenOver }
}

/// Why a node is not Ready, as its own word has it; `None` where it is.
pub(crate) fn unready(node: Option<&Node>) -> Option<String> {
    let Some(node) = node else { return Some("the node has not registered".to_owned()) };
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|all| all.iter().find(|c| c.type_ == "Ready"));
    match ready {
        None => Some("the node has registered and told no status yet".to_owned()),
        Some(ready) if ready.status == "True" => None,
        Some(ready) => {
            let words = [ready.reason.as_deref(), ready.message.as_deref()];
            let words: Vec<&str> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
            Some(format!("Ready is {}: {}", ready.status, words.join(": ")))
        }
    }
}

/// Whether the node may follow services with its own credentials; `None` where that could not be asked.
pub(crate) async fn may_follow_services(client: &Client) -> Option<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some("discovery.k8s.io".to_owned()),
                resource: Some("endpointslices".to_owned()),
                verb: Some("watch".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await;
    answer.ok().and_then(|review| review.status).map(|status| status.allowed)
}
