//! What the cluster says about its nodes, as settings of this one.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::json;

use super::step;
use crate::{
    config::{Flags, Settings},
    join::{cluster, discovery::DiscoveredCluster, join_dir::JoinDir, kubelet_config},
};

/// The configuration file with the cluster's settings, validated as the node will read it, and whether another service
/// proxy runs.
pub(super) fn cluster_settings(
    flags: &Flags,
    found: &DiscoveredCluster,
    facts: &cluster::ClusterFacts,
    place: &JoinDir,
    force: bool,
) -> anyhow::Result<(String, bool)> {
    let mut settings = vec![("kubeconfig", json!(place.kubeconfig()))];
    if let Some(typed) = &found.typed {
        settings.push(("servers", json!([typed.to_string().trim_end_matches('/')])));
    }
    let mut from_kubeadm = facts.kubeadm.as_deref().map(kubelet_config::from_cluster_configuration).unwrap_or_default();
    match &facts.kubelet {
        None => {
            step("cluster", "kube-system/kubelet-config is missing or not readable: using the defaults of Windlass")
        }
        Some(text) => {
            let imported = kubelet_config::import(text, Path::exists)
                .map_err(|why| anyhow::anyhow!("the cluster's kube-system/kubelet-config cannot be used: {why}"))?;
            let names: Vec<&str> = imported.settings.iter().map(|(name, _)| *name).collect();
            if !names.is_empty() {
                step("cluster", format!("imported from kube-system/kubelet-config: {}", names.join(", ")));
            }
            let skipped: Vec<String> = imported.skipped.iter().map(|(name, why)| format!("{name} ({why})")).collect();
            if !skipped.is_empty() {
                step("cluster", format!("not imported: {}", skipped.join("; ")));
            }
            let refused: Vec<String> = imported.refused.iter().map(|(name, why)| format!("{name} ({why})")).collect();
            match refused.as_slice() {
                [] => {}
                all if force => step("cluster", format!("does not hold here: {}", all.join("; "))),
                all => bail!(
                    "the cluster's kube-system/kubelet-config restricts what this node does not: {}. Use --force to join anyway",
                    all.join("; ")
                ),
            }
            from_kubeadm.retain(|(name, _)| !names.contains(name));
            settings.extend(imported.settings);
        }
    }
    settings.extend(from_kubeadm);
    if let Some(proxy) = facts.service_proxy.filter(|_| !flags.cluster_access.has("no-proxy")) {
        step(
            "cluster",
            format!(
                "{proxy} of the cluster is the service proxy of every node, so this one runs none; set --no-proxy=false to run it, and keep {proxy} off this node"
            ),
        );
        settings.push(("noProxy", json!(true)));
    }
    let heading = format!(
        "Settings of the cluster {}, imported by `windlass join`. /etc/windlass/config.yaml and flags override them.",
        found.server
    );
    let text = kubelet_config::config_file(&settings, &heading);
    let read = Settings::with_cluster(flags, &text)
        .context("the cluster's settings are invalid for this machine; override them in /etc/windlass/config.yaml")?;
    Ok((text, read.cluster_access.no_proxy))
}
