//! The settings of KubeletConfiguration on eviction, reserved resources, images and shutdown. Names are kubelet's.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use windlass_agent::{
    SwapBehavior,
    images::PullVerificationPolicy,
    node::{
        Amounts,
        eviction::thresholds::{self, Threshold, ThresholdMap},
        parse_reserved,
        shutdown::{GracePeriod, from_two},
    },
};
use windlass_kit::duration;

/// The settings with all defaults filled in; texts are parsed by the functions below.
#[derive(Debug, Clone)]
pub(crate) struct KubeletSettings {
    pub(crate) eviction_hard: ThresholdMap,
    pub(crate) eviction_soft: ThresholdMap,
    pub(crate) eviction_soft_grace_period: ThresholdMap,
    pub(crate) eviction_minimum_reclaim: ThresholdMap,
    pub(crate) eviction_pressure_transition_period: String,
    pub(crate) eviction_max_pod_grace_period: i64,
    pub(crate) image_gc_high_threshold_percent: u8,
    pub(crate) image_gc_low_threshold_percent: u8,
    pub(crate) image_minimum_gc_age: String,
    pub(crate) image_maximum_gc_age: String,
    pub(crate) image_gc_foreign_images: bool,
    pub(crate) kube_reserved: ThresholdMap,
    pub(crate) system_reserved: ThresholdMap,
    pub(crate) enforce_node_allocatable: Vec<String>,
    /// `None` for the default.
    pub(crate) max_parallel_image_pulls: Option<usize>,
    pub(crate) image_pull_progress_deadline: String,
    pub(crate) image_pull_credentials_verification_policy: String,
    pub(crate) preloaded_images_verification_allowlist: Vec<String>,
    /// Set together with the directory of the plugins, or neither.
    pub(crate) image_credential_provider_config: Option<PathBuf>,
    pub(crate) image_credential_provider_bin_dir: Option<PathBuf>,
    pub(crate) node_status_max_images: i32,
    /// Below one means no limit, as upstream.
    pub(crate) pod_pids_limit: i64,
    pub(crate) memory_swap: MemorySwap,
    /// Upstream's default is true.
    pub(crate) fail_swap_on: bool,
    pub(crate) shutdown_grace_period: String,
    pub(crate) shutdown_grace_period_critical_pods: String,
    pub(crate) shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
}

/// How pods use the machine's swap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct MemorySwap {
    pub(crate) swap_behavior: SwapBehavior,
}

/// The grace period of pods of a priority at shutdown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ShutdownGracePeriodByPodPriority {
    pub(crate) priority: i32,
    pub(crate) shutdown_grace_period_seconds: u64,
}

impl Default for KubeletSettings {
    /// Upstream's.
    fn default() -> Self {
        Self {
            eviction_hard: thresholds::default_hard(),
            eviction_soft: ThresholdMap::new(),
            eviction_soft_grace_period: ThresholdMap::new(),
            eviction_minimum_reclaim: ThresholdMap::new(),
            eviction_pressure_transition_period: "5m".to_owned(),
            eviction_max_pod_grace_period: 0,
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            image_minimum_gc_age: "2m".to_owned(),
            image_maximum_gc_age: "0s".to_owned(),
            image_gc_foreign_images: false,
            kube_reserved: ThresholdMap::new(),
            system_reserved: ThresholdMap::new(),
            enforce_node_allocatable: vec!["pods".to_owned()],
            max_parallel_image_pulls: None,
            image_pull_progress_deadline: "1m".to_owned(),
            image_pull_credentials_verification_policy: "NeverVerifyPreloadedImages".to_owned(),
            preloaded_images_verification_allowlist: Vec::new(),
            image_credential_provider_config: None,
            image_credential_provider_bin_dir: None,
            node_status_max_images: 50,
            pod_pids_limit: -1,
            memory_swap: MemorySwap::default(),
            fail_swap_on: false,
            shutdown_grace_period: "0s".to_owned(),
            shutdown_grace_period_critical_pods: "0s".to_owned(),
            shutdown_grace_period_by_pod_priority: Vec::new(),
        }
    }
}

impl KubeletSettings {
    /// The eviction thresholds.
    pub(crate) fn thresholds(&self) -> Result<Vec<Threshold>, Vec<String>> {
        thresholds::parse(
            &self.eviction_hard,
            &self.eviction_soft,
            &self.eviction_soft_grace_period,
            &self.eviction_minimum_reclaim,
        )
    }

    /// kubeReserved and systemReserved.
    pub(crate) fn reserved(&self) -> Result<Vec<Amounts>, Vec<String>> {
        let kube = parse_reserved("kubeReserved", &self.kube_reserved);
        match (kube, parse_reserved("systemReserved", &self.system_reserved)) {
            (Ok(kube), Ok(system)) => Ok(vec![kube, system]),
            (kube, system) => Err([kube, system].into_iter().filter_map(Result::err).flatten().collect()),
        }
    }

    /// The grace periods at shutdown, by priority; empty when graceful shutdown is off.
    pub(crate) fn shutdown_grace_periods(&self) -> Vec<GracePeriod> {
        if self.shutdown_grace_period_by_pod_priority.is_empty() {
            let (whole, critical) = (&self.shutdown_grace_period, &self.shutdown_grace_period_critical_pods);
            return from_two(duration(whole), duration(critical));
        }
        let share = |s: &ShutdownGracePeriodByPodPriority| GracePeriod {
            priority: s.priority,
            period: Duration::from_secs(s.shutdown_grace_period_seconds),
        };
        self.shutdown_grace_period_by_pod_priority.iter().map(share).collect()
    }

    /// The policy for which present images pods need credentials.
    pub(crate) fn pull_verification(&self) -> Result<PullVerificationPolicy, String> {
        let list = &self.preloaded_images_verification_allowlist;
        PullVerificationPolicy::read(&self.image_pull_credentials_verification_policy, list)
    }

    /// Whether the cgroup of all pods is limited to allocatable.
    pub(crate) fn enforces_node_allocatable(&self) -> bool {
        self.enforce_node_allocatable.iter().any(|what| what == "pods")
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut all: Vec<String> =
            [self.thresholds().err(), self.reserved().err()].into_iter().flatten().flatten().collect();
        for (name, text) in [
            ("evictionPressureTransitionPeriod", &self.eviction_pressure_transition_period),
            ("imageMinimumGCAge", &self.image_minimum_gc_age),
            ("imageMaximumGCAge", &self.image_maximum_gc_age),
            ("imagePullProgressDeadline", &self.image_pull_progress_deadline),
            ("shutdownGracePeriod", &self.shutdown_grace_period),
            ("shutdownGracePeriodCriticalPods", &self.shutdown_grace_period_critical_pods),
        ] {
            if duration::parse(text.trim()).is_none() {
                all.push(format!("{name} {text:?} is not a duration such as 90s or 1m30s"));
            }
        }
        let (high, low) = (self.image_gc_high_threshold_percent, self.image_gc_low_threshold_percent);
        if high > 100 {
            all.push(format!("imageGCHighThresholdPercent {high} is not between 0 and 100"));
        }
        if low > high {
            all.push(format!("imageGCLowThresholdPercent {low} is above imageGCHighThresholdPercent {high}"));
        }
        if self.eviction_max_pod_grace_period < 0 {
            all.push("evictionMaxPodGracePeriod is below zero".to_owned());
        }
        let (whole, critical) = (&self.shutdown_grace_period, &self.shutdown_grace_period_critical_pods);
        if let (Some(whole), Some(critical)) = (duration::parse(whole.trim()), duration::parse(critical.trim())) {
            if critical > whole {
                all.push(
                    "shutdownGracePeriodCriticalPods is longer than shutdownGracePeriod, which it is a part of"
                        .to_owned(),
                );
            }
            if !(whole.is_zero() || self.shutdown_grace_period_by_pod_priority.is_empty()) {
                all.push("shutdownGracePeriod and shutdownGracePeriodByPodPriority exclude each other".to_owned());
            }
        }
        all.extend(self.pull_verification().err());
        if self.image_credential_provider_config.is_some() != self.image_credential_provider_bin_dir.is_some() {
            all.push(
                "imageCredentialProviderConfig and imageCredentialProviderBinDir are of use together alone".to_owned(),
            );
        }
        if duration(&self.image_pull_progress_deadline).is_zero() {
            all.push("imagePullProgressDeadline is 0s: no image could be pulled".to_owned());
        }
        if self.max_parallel_image_pulls == Some(0) {
            all.push("maxParallelImagePulls is 0: no image could be pulled".to_owned());
        }
        for what in self.enforce_node_allocatable.iter().filter(|what| !matches!(what.as_str(), "pods" | "none")) {
            all.push(format!(
                "enforceNodeAllocatable {what:?} is not supported; it may be \"pods\", or \"none\" alone"
            ));
        }
        all
    }
}

/// A duration that [`KubeletSettings::problems`] has accepted.
pub(crate) fn duration(text: &str) -> Duration {
    duration::parse(text.trim()).unwrap_or_default()
}

/// The flags of these settings, in kubelet's syntax.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct KubeletFlags {
    /// Hard eviction thresholds [default: upstream's]
    #[arg(long, global = true, value_name = "SIGNAL<AMOUNT,…", value_parser = |t: &str| parse_key_values(t, '<'))]
    eviction_hard: Option<KeyValues>,
    /// Soft eviction thresholds
    #[arg(long, global = true, value_name = "SIGNAL<AMOUNT,…", value_parser = |t: &str| parse_key_values(t, '<'))]
    eviction_soft: Option<KeyValues>,
    /// Grace periods of soft eviction thresholds
    #[arg(long, global = true, value_name = "SIGNAL=DURATION,…", value_parser = |t: &str| parse_key_values(t, '='))]
    eviction_soft_grace_period: Option<KeyValues>,
    /// Amounts to reclaim beyond a threshold that was met
    #[arg(long, global = true, value_name = "SIGNAL=AMOUNT,…", value_parser = |t: &str| parse_key_values(t, '='))]
    eviction_minimum_reclaim: Option<KeyValues>,
    /// How long a pressure condition is held after its threshold was last met [default: 5m]
    #[arg(long, global = true, value_name = "DURATION")]
    eviction_pressure_transition_period: Option<String>,
    /// Maximum grace period of pods at a soft eviction, in seconds [default: 0]
    #[arg(long, global = true, value_name = "SECONDS")]
    eviction_max_pod_grace_period: Option<i64>,
    /// Percent of disk usage at which garbage collection of images starts [default: 85]
    #[arg(long, global = true, value_name = "PERCENT")]
    image_gc_high_threshold: Option<u8>,
    /// Percent of disk usage at which garbage collection of images stops [default: 80]
    #[arg(long, global = true, value_name = "PERCENT")]
    image_gc_low_threshold: Option<u8>,
    /// Minimum age of unused images for garbage collection [default: 2m]
    #[arg(long, global = true, value_name = "DURATION")]
    minimum_image_ttl_duration: Option<String>,
    /// Resources reserved for Kubernetes daemons
    #[arg(long, global = true, value_name = "RESOURCE=AMOUNT,…", value_parser = |t: &str| parse_key_values(t, '='))]
    kube_reserved: Option<KeyValues>,
    /// Resources reserved for system daemons
    #[arg(long, global = true, value_name = "RESOURCE=AMOUNT,…", value_parser = |t: &str| parse_key_values(t, '='))]
    system_reserved: Option<KeyValues>,
    /// Whether the cgroup of all pods is limited to what is not reserved: pods, or none [default: pods]
    #[arg(long, global = true, value_name = "WHAT", value_delimiter = ',')]
    enforce_node_allocatable: Option<Vec<String>>,
    /// Maximum age of unused images, at which they are removed in any case; 0s is no limit [default: 0s]
    #[arg(long, global = true, value_name = "DURATION")]
    image_maximum_gc_age: Option<String>,
    /// Whether garbage collection also removes images that this node did not pull [default: false]
    #[arg(long, global = true, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    image_gc_foreign_images: Option<bool>,
    /// Maximum number of parallel image pulls [default: 16]
    #[arg(long, global = true, value_name = "NUMBER")]
    max_parallel_image_pulls: Option<usize>,
    /// How long a pull may make no progress before it is given up; unpacking has ten minutes at least [default: 1m]
    #[arg(long, global = true, value_name = "DURATION")]
    image_pull_progress_deadline: Option<String>,
    /// Policy for which present images pods need credentials [default: NeverVerifyPreloadedImages]
    #[arg(long, global = true, value_name = "POLICY")]
    image_pull_credentials_verification_policy: Option<String>,
    /// Configuration of image credential provider plugins, a file or a directory of files, as kubelet's [default: none]
    #[arg(long, global = true, value_name = "PATH")]
    image_credential_provider_config: Option<PathBuf>,
    /// Directory of image credential provider plugins [default: none]
    #[arg(long, global = true, value_name = "DIR")]
    image_credential_provider_bin_dir: Option<PathBuf>,
    /// Maximum number of images in the node's status; below zero is all [default: 50]
    #[arg(long, global = true, value_name = "NUMBER", allow_negative_numbers = true)]
    node_status_max_images: Option<i32>,
    /// Maximum number of processes and threads of a pod; below one is no limit [default: -1]
    #[arg(long, global = true, value_name = "NUMBER", allow_negative_numbers = true)]
    pod_max_pids: Option<i64>,
}

/// The pairs of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyValues(BTreeMap<String, String>);

/// Parses `name<value,name<value`; an empty text is an empty setting.
fn parse_key_values(text: &str, sign: char) -> Result<KeyValues, String> {
    let one = |part: &str| {
        let (name, value) =
            part.split_once(sign).ok_or_else(|| format!("{part:?} is not of the form NAME{sign}VALUE"))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts.map(one).collect::<Result<_, String>>().map(KeyValues)
}

impl KubeletFlags {
    pub(super) fn apply(&self, to: &mut KubeletSettings) {
        for (given, to) in [
            (&self.eviction_hard, &mut to.eviction_hard),
            (&self.eviction_soft, &mut to.eviction_soft),
            (&self.eviction_soft_grace_period, &mut to.eviction_soft_grace_period),
            (&self.eviction_minimum_reclaim, &mut to.eviction_minimum_reclaim),
            (&self.kube_reserved, &mut to.kube_reserved),
            (&self.system_reserved, &mut to.system_reserved),
        ] {
            if let Some(KeyValues(given)) = given {
                to.clone_from(given);
            }
        }
        if let Some(period) = &self.eviction_pressure_transition_period {
            to.eviction_pressure_transition_period.clone_from(period);
        }
        if let Some(age) = &self.minimum_image_ttl_duration {
            to.image_minimum_gc_age.clone_from(age);
        }
        if let Some(age) = &self.image_maximum_gc_age {
            to.image_maximum_gc_age.clone_from(age);
        }
        if let Some(what) = &self.enforce_node_allocatable {
            to.enforce_node_allocatable.clone_from(what);
        }
        if let Some(deadline) = &self.image_pull_progress_deadline {
            to.image_pull_progress_deadline.clone_from(deadline);
        }
        to.max_parallel_image_pulls = self.max_parallel_image_pulls.or(to.max_parallel_image_pulls);
        if let Some(policy) = &self.image_pull_credentials_verification_policy {
            to.image_pull_credentials_verification_policy.clone_from(policy);
        }
        for (given, to) in [
            (&self.image_credential_provider_config, &mut to.image_credential_provider_config),
            (&self.image_credential_provider_bin_dir, &mut to.image_credential_provider_bin_dir),
        ] {
            *to = given.clone().or(to.take());
        }
        to.pod_pids_limit = self.pod_max_pids.unwrap_or(to.pod_pids_limit);
        to.node_status_max_images = self.node_status_max_images.unwrap_or(to.node_status_max_images);
        to.eviction_max_pod_grace_period =
            self.eviction_max_pod_grace_period.unwrap_or(to.eviction_max_pod_grace_period);
        to.image_gc_high_threshold_percent = self.image_gc_high_threshold.unwrap_or(to.image_gc_high_threshold_percent);
        to.image_gc_foreign_images = self.image_gc_foreign_images.unwrap_or(to.image_gc_foreign_images);
        to.image_gc_low_threshold_percent = self.image_gc_low_threshold.unwrap_or(to.image_gc_low_threshold_percent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_used() {
        assert_eq!(KubeletSettings::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn flags_are_written_as_kubelets() {
        let given = parse_key_values("memory.available<1Gi, nodefs.available<10%", '<').unwrap();
        let wanted = [("memory.available", "1Gi"), ("nodefs.available", "10%")];
        assert_eq!(given.0, wanted.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert!(parse_key_values("", '<').unwrap().0.is_empty());
        assert!(parse_key_values("memory.available=1Gi", '<').unwrap_err().contains("NAME<VALUE"));
    }
}
