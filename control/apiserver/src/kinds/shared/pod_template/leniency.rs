//! What is tolerated of a spec because the stored one has it already (upstream: `pkg/api/pod/util.go`), so that nothing
//! else of an object becomes immutable when a rule is added. Pure.

use serde_json::Value;

use super::{annotations, containers, resources, scheduling, security, volume};
use crate::{apiserver::pipeline::validation::errors::Errors, kinds::shared::field::Field};

/// A rule that the stored spec breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Huge pages are whole pages.
    WholeHugePages,
    /// Values in selectors of pod affinity are values of labels.
    AffinityValues,
    /// The same, in required node affinity.
    NodeAffinityValues,
    /// Selectors of spread constraints are valid.
    SpreadSelectors,
    /// `matchLabelKeys` of spread constraints name no key of the selector.
    SpreadKeys,
    /// Sysctls are those of namespaces that the pod has for itself.
    OwnSysctls,
    /// Tokens stay in their volume.
    TokenPaths,
    /// Block devices are not for user namespaces.
    DevicesOfUsers,
    /// User namespaces are not for the network of the host.
    HostNetworkOfUsers,
    /// Only sidecars and containers are restarted to be resized.
    RestartToResize,
    /// Tolerations do not compare.
    Comparisons,
    /// The policy of SELinux is `Recursive`.
    SeLinuxPolicy,
    /// The cost of a pod's deletion is a number.
    DeletionCost,
}

/// The rules that need not be kept, looked for when one is not: nearly all objects keep them all.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Leniency<'a> {
    stored: Option<&'a Value>,
}

impl<'a> Leniency<'a> {
    /// What the stored pod or template violates: an object with `metadata` and `spec`; nothing for a new one.
    pub(crate) fn of(stored: Option<&'a Value>) -> Self {
        Self { stored }
    }

    /// Whether a rule need not be kept.
    pub(super) fn allows(self, rule: Broken) -> bool {
        let Some(stored) = self.stored else { return false };
        let old = &Field::root(stored).at("spec");
        match rule {
            Broken::WholeHugePages => resources::has_torn_huge_pages(old),
            Broken::AffinityValues => has_errors(|errors| scheduling::validate_affinity_selectors(old, errors)),
            Broken::NodeAffinityValues => scheduling::has_odd_node_values(old),
            Broken::SpreadSelectors => has_errors(|errors| scheduling::validate_spread_selectors(old, errors)),
            Broken::SpreadKeys => has_errors(|errors| scheduling::validate_spread_keys(old, errors)),
            Broken::OwnSysctls => security::sysctls_of_host(old).next().is_some(),
            Broken::TokenPaths => has_errors(|errors| volume::validate_token_paths(old, errors)),
            Broken::DevicesOfUsers => security::has_users(old) && has_devices(old),
            Broken::HostNetworkOfUsers => security::has_users(old) && old.value["hostNetwork"] == true,
            Broken::RestartToResize => restarts_to_resize(old),
            Broken::Comparisons => compares(old),
            Broken::DeletionCost => annotations::has_odd_cost(&stored["metadata"]["annotations"]),
            Broken::SeLinuxPolicy => old.below("securityContext.seLinuxChangePolicy").is_set(),
        }
    }
}

fn has_errors(check: impl FnOnce(&mut Errors)) -> bool {
    let mut errors = Errors::default();
    check(&mut errors);
    !errors.0.is_empty()
}

fn has_devices(spec: &Field<'_>) -> bool {
    containers(spec).any(|container| !container.at("volumeDevices").is_empty())
}

fn restarts_to_resize(spec: &Field<'_>) -> bool {
    let once = spec.at("initContainers").items().filter(|container| container.value["restartPolicy"] != "Always");
    once.flat_map(|container| container.at("resizePolicy").items())
        .any(|policy| policy.value["restartPolicy"] == "RestartContainer")
}

fn compares(spec: &Field<'_>) -> bool {
    spec.at("tolerations").items().any(|toleration| matches!(toleration.at("operator").text(), "Lt" | "Gt"))
}
