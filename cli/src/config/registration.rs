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

/// The flags of these settings, in kubelet's syntax.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct RegistrationFlags {
    /// Labels of the node when it registers [default: none]
    #[arg(long, global = true, value_name = "LABEL=VALUE,…", value_parser = labels)]
    node_labels: Option<Labels>,
    /// Taints of the node when it registers [default: none]
    #[arg(long, global = true, value_name = "KEY=VALUE:EFFECT,…", value_parser = taints)]
    register_with_taints: Option<Taints>,
    /// Provider ID of the machine, set when the node registers [default: none]
    #[arg(long, global = true, value_name = "ID")]
    provider_id: Option<String>,
    /// external: a cloud controller manager initializes the node, and no pods run before [default: none]
    #[arg(long, global = true, value_name = "KIND")]
    cloud_provider: Option<String>,
    /// How often the node's status is computed [default: 10s]
    #[arg(long, global = true, value_name = "DURATION")]
    node_status_update_frequency: Option<String>,
    /// Credentials of the service proxy, if the node's own may not watch services [default: the node's]
    #[arg(long, global = true, value_name = "FILE")]
    proxy_kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct Labels(BTreeMap<String, String>);

/// Parses `zone=a,disk=ssd`.
fn labels(text: &str) -> Result<Labels, String> {
    let one = |part: &str| {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not of the form LABEL=VALUE"))?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts.map(one).collect::<Result<_, String>>().map(Labels)
}

#[derive(Debug, Clone)]
struct Taints(Vec<Taint>);

/// Parses `dedicated=db:NoSchedule,gpu:NoExecute`.
fn taints(text: &str) -> Result<Taints, String> {
    let one = |part: &str| {
        let (what, effect) =
            part.trim().rsplit_once(':').ok_or_else(|| format!("{part:?} is not of the form KEY=VALUE:EFFECT"))?;
        let (key, value) = what.split_once('=').map_or((what, None), |(key, value)| (key, Some(value)));
        let value = value.filter(|value| !value.is_empty()).map(str::to_owned);
        Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None })
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts.map(one).collect::<Result<_, String>>().map(Taints)
}

impl RegistrationFlags {
    pub(super) fn apply(&self, to: &mut Registration) {
        if let Some(Labels(given)) = &self.node_labels {
            to.node_labels.clone_from(given);
        }
        if let Some(Taints(given)) = &self.register_with_taints {
            to.register_with_taints.clone_from(given);
        }
        for (given, to) in [
            (&self.provider_id, &mut to.provider_id),
            (&self.cloud_provider, &mut to.cloud_provider),
            (&self.node_status_update_frequency, &mut to.node_status_update_frequency),
        ] {
            if let Some(given) = given {
                to.clone_from(given);
            }
        }
        to.proxy_kubeconfig = self.proxy_kubeconfig.clone().or(to.proxy_kubeconfig.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_used() {
        assert_eq!(Registration::default().problems("n"), Vec::<String>::new());
        assert_eq!(Registration::default().frequencies(), (Duration::from_secs(10), Duration::from_secs(300)));
    }

    #[test]
    fn flags_are_written_as_kubelets() {
        let wanted = [("zone", "a"), ("example.com/disk", "")];
        assert_eq!(labels("zone=a, example.com/disk=").unwrap().0, wanted.map(|(k, v)| (k.into(), v.into())).into());
        assert!(labels("zone").unwrap_err().contains("LABEL=VALUE"));
        let read: Vec<(String, Option<String>, String)> =
            taints("a=b:NoSchedule,c:NoExecute").unwrap().0.into_iter().map(|t| (t.key, t.value, t.effect)).collect();
        assert_eq!(read, [("a".into(), Some("b".into()), "NoSchedule".into()), ("c".into(), None, "NoExecute".into())]);
        assert!(taints("a=b").unwrap_err().contains("KEY=VALUE:EFFECT"));
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
            (problems(|r| r.register_with_taints = taints("a:Never").unwrap().0), "registerWithTaints a"),
            (problems(|r| r.cloud_provider = "aws".into()), "cloudProvider \"aws\""),
            (problems(|r| r.node_lease_duration_seconds = 0), "nodeLeaseDurationSeconds 0"),
            (problems(|r| r.node_status_report_frequency = "soon".into()), "nodeStatusReportFrequency \"soon\""),
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }
}
