//! The settings of the node's registration, status and lease. Names are kubelet's.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Taint;
use windlass_agent::node::{label_problem, taint_problem};
use windlass_kit::duration;

/// The settings with all defaults filled in; texts are parsed by the functions below.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) node_labels: BTreeMap<String, String>,
    pub(crate) register_with_taints: Vec<Taint>,
    /// Empty for none.
    pub(crate) provider_id: String,
    /// `external`, or empty for none.
    pub(crate) cloud_provider: String,
    pub(crate) node_lease_duration_seconds: i32,
    pub(crate) node_status_update_frequency: String,
    pub(crate) node_status_report_frequency: String,
    /// The proxy's credentials; by default the node's.
    pub(crate) proxy_kubeconfig: Option<PathBuf>,
}

impl Default for Registration {
    /// Upstream's.
    fn default() -> Self {
        Self {
            node_labels: BTreeMap::new(),
            register_with_taints: Vec::new(),
            provider_id: String::new(),
            cloud_provider: String::new(),
            node_lease_duration_seconds: 40,
            node_status_update_frequency: "10s".to_owned(),
            node_status_report_frequency: "5m".to_owned(),
            proxy_kubeconfig: None,
        }
    }
}

impl Registration {
    /// Whether an external cloud controller manager initializes the node.
    pub(crate) fn external_cloud(&self) -> bool {
        self.cloud_provider == "external"
    }

    /// The update and report frequencies of the node's status.
    pub(crate) fn frequencies(&self) -> (Duration, Duration) {
        let read = |text: &str| duration::parse(text.trim()).unwrap_or_default();
        (read(&self.node_status_update_frequency), read(&self.node_status_report_frequency))
    }

    /// All invalid settings.
    pub(super) fn problems(&self, node: &str) -> Vec<String> {
        let mut all: Vec<String> =
            self.node_labels.iter().filter_map(|(key, value)| label_problem(node, key, value)).collect();
        all.extend(self.register_with_taints.iter().filter_map(taint_problem));
        if !matches!(self.cloud_provider.as_str(), "" | "external") {
            all.push(format!("cloudProvider {:?} is not known; it may be \"external\"", self.cloud_provider));
        }
        if self.node_lease_duration_seconds < 1 {
            all.push(format!("nodeLeaseDurationSeconds {} must be above zero", self.node_lease_duration_seconds));
        }
        for (name, text) in [
            ("nodeStatusUpdateFrequency", &self.node_status_update_frequency),
            ("nodeStatusReportFrequency", &self.node_status_report_frequency),
        ] {
            if duration::parse(text.trim()).is_none_or(|period| period < Duration::from_secs(1)) {
                all.push(format!("{name} {text:?} is not a duration of a second or more, such as 10s"));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::{super::setting::FlagValue as _, *};

    fn taints(text: &str) -> Vec<Taint> {
        Vec::read(&[text]).unwrap()
    }

    #[test]
    fn the_defaults_can_be_used() {
        assert_eq!(Registration::default().problems("n"), Vec::<String>::new());
        assert_eq!(Registration::default().frequencies(), (Duration::from_secs(10), Duration::from_secs(300)));
    }

    #[test]
    fn what_the_api_would_reject_is_rejected_here() {
        let problems = |change: fn(&mut Registration)| {
            let mut registration = Registration::default();
            change(&mut registration);
            registration.problems("n1").join("; ")
        };
        let role = problems(|r| drop(r.node_labels.insert("node-role.kubernetes.io/worker".into(), String::new())));
        assert!(role.contains("kubectl label node n1 node-role.kubernetes.io/worker="), "{role}");
        for (told, words) in [
            (problems(|r| drop(r.node_labels.insert("a b".into(), String::new()))), "nodeLabels \"a b\""),
            (problems(|r| r.register_with_taints = taints("a:Never")), "registerWithTaints a"),
            (problems(|r| r.cloud_provider = "aws".into()), "cloudProvider \"aws\""),
            (problems(|r| r.node_lease_duration_seconds = 0), "nodeLeaseDurationSeconds 0"),
            (problems(|r| r.node_status_report_frequency = "soon".into()), "nodeStatusReportFrequency \"soon\""),
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }
}
