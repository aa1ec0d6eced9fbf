//! The service proxy's configuration from the settings.

use windlass_proxy::{Config, rules::Layout};

use super::{RulesLayout, Settings};

/// The configuration of the service proxy, which also determines the expected rules.
pub(crate) fn proxy_config(settings: &Settings) -> Config {
    Config {
        node_name: settings.node_name.clone(),
        node_ips: settings.node_ips().iter().collect(),
        cluster_cidrs: settings.cluster_cidr.iter().copied().collect(),
        healthz_bind: Some(settings.proxy_health_bind),
        metrics_bind: Some(settings.proxy_metrics_bind),
        layout: match settings.rules_layout {
            RulesLayout::Auto => Layout::Auto,
            RulesLayout::Flat => Layout::Flat,
            RulesLayout::Tree => Layout::Tree,
        },
        table_snapshot: settings.run_dir.join("proxy-before.json"),
        ..Config::default()
    }
}
