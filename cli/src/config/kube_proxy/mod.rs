//! kube-proxy's configuration file (`kubeproxy.config.k8s.io/v1alpha1`), so that `windlass proxy` can replace
//! kube-proxy. There is one pipeline: `types` decodes a file, `defaults` fills in what it leaves out, as upstream does
//! first, and `conversion` combines it with the flags and our own settings into the proxy's configuration. A start, a
//! change of the file, `--write-config-to` and `windlass config check` all use it.

mod conversion;
mod defaults;
mod effective;
mod types;

#[cfg(test)]
mod tests;

pub(crate) use conversion::{Overrides, bind, config, foreign_ranges};
pub(crate) use types::{Conntrack, DetectLocalFile, Iptables, KubeProxy, Logging};

use serde_json::Value;

/// The file's version and kind.
const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";
/// The proxy's default OOM score adjustment; upstream's.
pub(crate) const OOM_SCORE_ADJ: i32 = -999;

/// Whether a text is a KubeProxyConfiguration.
pub(crate) fn is_kube_proxy(text: &str) -> bool {
    serde_saphyr::from_str::<Value>(text).is_ok_and(|v| v["kind"] == KIND)
}

/// Reads the file with its defaults; also returns the paths of fields that upstream's type does not have, which are
/// ignored as upstream ignores them.
///
/// # Errors
/// Text that is not YAML, another version, or a setting of the wrong type.
pub(crate) fn parse(text: &str) -> anyhow::Result<(KubeProxy, Vec<String>)> {
    let file: KubeProxy = serde_saphyr::from_str(text).map_err(|e| anyhow::anyhow!("{e}"))?;
    let version = file.api_version.as_deref().unwrap_or_default();
    anyhow::ensure!(
        version == API_VERSION,
        "apiVersion is {version:?}; this version of windlass reads {API_VERSION:?}"
    );
    let unknown = types::unknown_fields(&serde_saphyr::from_str(text).unwrap_or_default());
    Ok((defaults::set_defaults(file), unknown))
}
