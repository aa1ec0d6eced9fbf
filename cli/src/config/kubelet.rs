//! The settings of KubeletConfiguration on eviction, reserved resources, images and shutdown. Names are kubelet's.

use std::{path::PathBuf, time::Duration};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_used() {
        assert_eq!(KubeletSettings::default().problems(), Vec::<String>::new());
    }
}
