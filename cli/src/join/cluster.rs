//! Reads what a bootstrap token may read of the cluster: its version, its kubelet configuration, whether it has a
//! service proxy and a node of this name.

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
use windlass_kit::client::message;

/// The facts; what is forbidden or missing is absent.
#[derive(Debug, Default)]
pub(crate) struct ClusterFacts {
    pub(crate) version: Option<Info>,
    /// `kube-system/kubelet-config`.
    pub(crate) kubelet: Option<String>,
    /// `kube-system/kubeadm-config`.
    pub(crate) kubeadm: Option<String>,
    /// The service proxy that runs on every node.
    pub(crate) service_proxy: Option<&'static str>,
    /// The Node of this name.
    pub(crate) node: Option<Node>,
}

/// Maps forbidden and not found to `None`.
fn optional<T>(answer: Result<T, kube::Error>) -> anyhow::Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(answer)) if matches!(answer.code, 403 | 404) => Ok(None),
        Err(kube::Error::Api(answer)) if answer.code == 401 => bail!(
            "the API server does not accept the token: it has expired, or its usages do not include authentication; create another with `kubeadm token create`"
        ),
        Err(error) => bail!("the request to the API server failed: {}", message(&error)),
    }
}

async fn config_map_data(client: &Client, name: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    Ok(optional(api.get(name).await)?.and_then(|map| map.data).unwrap_or_default())
}

/// Reads all facts.
pub(crate) async fn read_cluster(client: &Client, node: &str) -> anyhow::Result<ClusterFacts> {
    let version = optional(client.apiserver_version().await)?;
    let take = |mut data: BTreeMap<String, String>, key: &str| data.remove(key);
    let kubelet = take(config_map_data(client, "kubelet-config").await?, "kubelet");
    let kubeadm = take(config_map_data(client, "kubeadm-config").await?, "ClusterConfiguration");
    let kube_proxy = !config_map_data(client, "kube-proxy").await?.is_empty();
    let cilium = take(config_map_data(client, "cilium-config").await?, "kube-proxy-replacement");
    let node = optional(Api::<Node>::all(client.clone()).get(node).await)?;
    Ok(ClusterFacts { version, kubelet, kubeadm, service_proxy: service_proxy(kube_proxy, cilium.as_deref()), node })
}

/// The service proxy that runs on every node of the cluster.
pub(super) fn service_proxy(kube_proxy: bool, cilium: Option<&str>) -> Option<&'static str> {
    if kube_proxy {
        return Some("kube-proxy");
    }
    cilium.is_some_and(|value| matches!(value, "true" | "strict" | "partial" | "probe")).then_some("Cilium")
}

/// An existing Node of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExistingNode {
    /// There is no Node of this name.
    None,
    /// It is not running, or is this machine since the same boot: the Node is taken over.
    TakeOver,
    /// It is another machine that is running.
    Alive,
}

/// Classifies the Node of this name.
pub(crate) fn check_existing_node(node: Option<&Node>, boot_id: &str) -> ExistingNode {
    let Some(node) = node else { return ExistingNode::None };
    let status = node.status.as_ref();
    let is_ready = status
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    let id = status.and_then(|s| s.node_info.as_ref()).map_or("", |info| info.boot_id.as_str());
    let was_us = !boot_id.is_empty() && id == boot_id;
    if is_ready && !was_us { ExistingNode::Alive } else { ExistingNode::TakeOver }
}

/// Why a node is not Ready, by its own status; `None` if it is.
pub(crate) fn not_ready_reason(node: Option<&Node>) -> Option<String> {
    let Some(node) = node else { return Some("the node has not registered".to_owned()) };
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|all| all.iter().find(|c| c.type_ == "Ready"));
    match ready {
        None => Some("the node has registered but not reported a status yet".to_owned()),
        Some(ready) if ready.status == "True" => None,
        Some(ready) => {
            let words = [ready.reason.as_deref(), ready.message.as_deref()];
            let words: Vec<&str> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
            Some(format!("Ready is {}: {}", ready.status, words.join(": ")))
        }
    }
}

/// Whether the node may watch services with its own credentials; `None` if the review failed.
pub(crate) async fn can_watch_services(client: &Client) -> Option<bool> {
    may(client, "watch", "discovery.k8s.io", "endpointslices").await.ok()
}

/// What enforcing NetworkPolicies needs and these credentials do not allow, as `verb resource`.
///
/// # Errors
/// When a review failed: what is allowed is not known.
pub(crate) async fn missing_policy_rights(client: &Client) -> kube::Result<Vec<String>> {
    let mut missing = Vec::new();
    for (group, resource) in [("networking.k8s.io", "networkpolicies"), ("", "namespaces"), ("", "pods")] {
        for verb in ["list", "watch"] {
            if !may(client, verb, group, resource).await? {
                missing.push(format!("{verb} {resource}"));
            }
        }
    }
    Ok(missing)
}

/// Whether these credentials allow a verb on all objects of a resource.
async fn may(client: &Client, verb: &str, group: &str, resource: &str) -> kube::Result<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
