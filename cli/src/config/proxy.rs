//! The service proxy's configuration from the settings.

use windlass_proxy::{Config, ValidConfig, rules::Layout};

use super::{RulesLayout, Settings};

/// The configuration of the service proxy, which also determines the expected rules.
pub(crate) fn proxy_config(settings: &Settings) -> Config {
    Config {
        node_name: settings.node_name.clone(),
        node_ips: settings.node_ips().iter().collect(),
        cluster_cidrs: settings.cluster_cidr().iter().copied().collect(),
        detect_local: settings.detect_local.config(),
        cluster_ips_check: settings.cluster_ips_check == Some(true),
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

/// The same, validated, to be run.
///
/// # Errors
/// All problems, which [`Settings`] has reported before.
pub(crate) fn valid_proxy_config(settings: &Settings) -> anyhow::Result<ValidConfig> {
    proxy_config(settings).validated().map_err(|problems| anyhow::anyhow!(problems.join("; ")))
}
