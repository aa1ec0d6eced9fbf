//! How traffic of this node's pods is detected, under kube-proxy's names: `detectLocalMode` and `detectLocal`.

use std::{fmt, str::FromStr};

use windlass_proxy::DetectLocal;

use super::setting::Assign;

/// `detectLocalMode`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum DetectLocalMode {
    /// By the ranges of `clusterCIDR`.
    #[default]
    ClusterCidr,
    /// By the pod ranges of the Node.
    NodeCidr,
    /// By the bridge that pods are on.
    BridgeInterface,
    /// By the names of the pods' interfaces.
    InterfaceNamePrefix,
}

const MODES: [(DetectLocalMode, &str); 4] = [
    (DetectLocalMode::ClusterCidr, "ClusterCIDR"),
    (DetectLocalMode::NodeCidr, "NodeCIDR"),
    (DetectLocalMode::BridgeInterface, "BridgeInterface"),
    (DetectLocalMode::InterfaceNamePrefix, "InterfaceNamePrefix"),
];

impl FromStr for DetectLocalMode {
    type Err = String;

    /// An empty text is the default.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let found = MODES.iter().find(|(_, name)| *name == text).map(|(mode, _)| *mode);
        found.ok_or_else(|| format!("{text:?} is none of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix"))
    }
}

impl TryFrom<String> for DetectLocalMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for DetectLocalMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MODES.iter().find(|(mode, _)| mode == self).map_or("", |(_, name)| name))
    }
}

/// The mode and what it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DetectLocalSettings {
    pub(crate) mode: DetectLocalMode,
    pub(crate) bridge_interface: String,
    pub(crate) interface_name_prefix: String,
}

/// The file's `detectLocal`, as in a KubeProxyConfiguration.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct DetectLocalFields {
    bridge_interface: Option<String>,
    interface_name_prefix: Option<String>,
}

impl Assign<DetectLocalFields> for DetectLocalSettings {
    fn assign(&mut self, value: DetectLocalFields) {
        if let Some(name) = value.bridge_interface {
            self.bridge_interface = name;
        }
        if let Some(prefix) = value.interface_name_prefix {
            self.interface_name_prefix = prefix;
        }
    }
}

impl DetectLocalSettings {
    /// As the proxy takes it, which checks the names.
    pub(crate) fn config(&self) -> DetectLocal {
        match self.mode {
            DetectLocalMode::ClusterCidr => DetectLocal::ClusterCidr,
            DetectLocalMode::NodeCidr => DetectLocal::NodeCidr,
            DetectLocalMode::BridgeInterface => DetectLocal::BridgeInterface(self.bridge_interface.clone()),
            DetectLocalMode::InterfaceNamePrefix => {
                DetectLocal::InterfaceNamePrefix(self.interface_name_prefix.clone())
            }
        }
    }
}
