//! How the node keeps itself alive: eviction, what is kept back from pods, images. Names are kubelet's.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use windlass_agent::{
    images::Verification,
    node::{
        Amounts,
        eviction::thresholds::{self, Setting, Threshold},
        parse_reserved,
        shutdown::{Share, of_two},
    },
};
use windlass_kit::duration;

/// Settings with no gaps left; texts are read by the functions below.
#[derive(Debug, Clone)]
pub(crate) struct Keeping {
    pub(crate) eviction_hard: Setting,
    pub(crate) eviction_soft: Setting,
    pub(crate) eviction_soft_grace_period: Setting,
    pub(crate) eviction_minimum_reclaim: Setting,
    pub(crate) eviction_pressure_transition_period: String,
    pub(crate) eviction_max_pod_grace_period: i64,
    pub(crate) image_gc_high_threshold_percent: u8,
    pub(crate) image_gc_low_threshold_percent: u8,
    pub(crate) image_minimum_gc_age: String,
    pub(crate) image_maximum_gc_age: String,
    pub(crate) kube_reserved: Setting,
    pub(crate) system_reserved: Setting,
    pub(crate) enforce_node_allocatable: Vec<String>,
    /// `None` for as many as are wanted, within reason.
    pub(crate) max_parallel_image_pulls: Option<usize>,
    pub(crate) image_pull_credentials_verification_policy: String,
    pub(crate) preloaded_images_verification_allowlist: Vec<String>,
    /// With the folder of their programs; both or none.
    pub(crate) image_credential_provider_config: Option<PathBuf>,
    pub(crate) image_credential_provider_bin_dir: Option<PathBuf>,
    pub(crate) node_status_max_images: i32,
    /// Below one for no limit, as upstream has it.
    pub(crate) pod_pids_limit: i64,
    pub(crate) shutdown_grace_period: String,
    pub(crate) shutdown_grace_period_critical_pods: String,
    pub(crate) shutdown_grace_period_by_pod_priority: Vec<PriorityShare>,
}

/// How long pods of a priority have to end before the machine does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PriorityShare {
    pub(crate) priority: i32,
    pub(crate) shutdown_grace_period_seconds: u64,
}

impl Default for Keeping {
    /// Upstream's.
    fn default() -> Self {
        Self {
            eviction_hard: thresholds::default_hard(),
            eviction_soft: Setting::new(),
            eviction_soft_grace_period: Setting::new(),
            eviction_minimum_reclaim: Setting::new(),
            eviction_pressure_transition_period: "5m".to_owned(),
            eviction_max_pod_grace_period: 0,
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            image_minimum_gc_age: "2m".to_owned(),
            image_maximum_gc_age: "0s".to_owned(),
            kube_reserved: Setting::new(),
            system_reserved: Setting::new(),
            enforce_node_allocatable: vec!["pods".to_owned()],
            max_parallel_image_pulls: None,
            image_pull_credentials_verification_policy: "NeverVerifyPreloadedImages".to_owned(),
            preloaded_images_verification_allowlist: Vec::new(),
            image_credential_provider_config: None,
            image_credential_provider_bin_dir: None,
            node_status_max_images: 50,
            pod_pids_limit: -1,
            shutdown_grace_period: "0s".to_owned(),
            shutdown_grace_period_critical_pods: "0s".to_owned(),
            shutdown_grace_period_by_pod_priority: Vec::new(),
        }
    }
}

impl Keeping {
    /// How little may be left.
    ///
    /// # Errors
    /// Every setting that cannot be used.
    pub(crate) fn thresholds(&self) -> Result<Vec<Threshold>, Vec<String>> {
        thresholds::parse(
            &self.eviction_hard,
            &self.eviction_soft,
            &self.eviction_soft_grace_period,
            &self.eviction_minimum_reclaim,
        )
    }

    /// What is kept back from pods: for Kubernetes' own, and for the system.
    ///
    /// # Errors
    /// Every amount that cannot be used.
    pub(crate) fn reserved(&self) -> Result<Vec<Amounts>, Vec<String>> {
        let kube = parse_reserved("kubeReserved", &self.kube_reserved);
        match (kube, parse_reserved("systemReserved", &self.system_reserved)) {
            (Ok(kube), Ok(system)) => Ok(vec![kube, system]),
            (kube, system) => Err([kube, system].into_iter().filter_map(Result::err).flatten().collect()),
        }
    }

    /// How long pods have to end before the machine does; empty when nobody is given any time.
    pub(crate) fn shutdown_shares(&self) -> Vec<Share> {
        if self.shutdown_grace_period_by_pod_priority.is_empty() {
            let (whole, critical) = (&self.shutdown_grace_period, &self.shutdown_grace_period_critical_pods);
            return of_two(duration(whole), duration(critical));
        }
        let share = |s: &PriorityShare| Share {
            priority: s.priority,
            period: Duration::from_secs(s.shutdown_grace_period_seconds),
        };
        self.shutdown_grace_period_by_pod_priority.iter().map(share).collect()
    }

    /// For which images that are there a pod must show credentials all the same.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub(crate) fn verification(&self) -> Result<Verification, String> {
        let list = &self.preloaded_images_verification_allowlist;
        Verification::read(&self.image_pull_credentials_verification_policy, list)
    }

    /// Whether all pods together are held to what is not reserved.
    pub(crate) fn holds_pods(&self) -> bool {
        self.enforce_node_allocatable.iter().any(|what| what == "pods")
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let mut all: Vec<String> =
            [self.thresholds().err(), self.reserved().err()].into_iter().flatten().flatten().collect();
        for (name, text) in [
            ("evictionPressureTransitionPeriod", &self.eviction_pressure_transition_period),
            ("imageMinimumGCAge", &self.image_minimum_gc_age),
            ("imageMaximumGCAge", &self.image_maximum_gc_age),
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
        all.extend(self.verification().err());
        if self.image_credential_provider_config.is_some() != self.image_credential_provider_bin_dir.is_some() {
            all.push(
                "imageCredentialProviderConfig and imageCredentialProviderBinDir are of use together alone".to_owned(),
            );
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

/// A duration that [`Keeping::problems`] has found to be one.
pub(crate) fn duration(text: &str) -> Duration {
    duration::parse(text.trim()).unwrap_or_default()
}

/// The same as flags, in kubelet's way of writing them.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct KeepingFlags {
    /// Pods are evicted when less is left [default: upstream's]
    #[arg(long, global = true, value_name = "SIGNAL<AMOUNT,…", value_parser = |t: &str| pairs(t, '<'))]
    eviction_hard: Option<Pairs>,
    /// Pods are evicted when less is left for a while
    #[arg(long, global = true, value_name = "SIGNAL<AMOUNT,…", value_parser = |t: &str| pairs(t, '<'))]
    eviction_soft: Option<Pairs>,
    /// For how long each
    #[arg(long, global = true, value_name = "SIGNAL=DURATION,…", value_parser = |t: &str| pairs(t, '='))]
    eviction_soft_grace_period: Option<Pairs>,
    /// What must be free beyond a threshold once it was met
    #[arg(long, global = true, value_name = "SIGNAL=AMOUNT,…", value_parser = |t: &str| pairs(t, '='))]
    eviction_minimum_reclaim: Option<Pairs>,
    /// How long a pressure condition stays [default: 5m]
    #[arg(long, global = true, value_name = "DURATION")]
    eviction_pressure_transition_period: Option<String>,
    /// Most seconds that a pod has when a soft threshold is passed [default: 0]
    #[arg(long, global = true, value_name = "SECONDS")]
    eviction_max_pod_grace_period: Option<i64>,
    /// Percent of the disk in use from which unused images are removed [default: 85]
    #[arg(long, global = true, value_name = "PERCENT")]
    image_gc_high_threshold: Option<u8>,
    /// Percent down to which they are [default: 80]
    #[arg(long, global = true, value_name = "PERCENT")]
    image_gc_low_threshold: Option<u8>,
    /// Younger images stay [default: 2m]
    #[arg(long, global = true, value_name = "DURATION")]
    minimum_image_ttl_duration: Option<String>,
    /// Kept back from pods for Kubernetes' own
    #[arg(long, global = true, value_name = "RESOURCE=AMOUNT,…", value_parser = |t: &str| pairs(t, '='))]
    kube_reserved: Option<Pairs>,
    /// Kept back from pods for the system
    #[arg(long, global = true, value_name = "RESOURCE=AMOUNT,…", value_parser = |t: &str| pairs(t, '='))]
    system_reserved: Option<Pairs>,
    /// What is held to what is not reserved: pods, or none [default: pods]
    #[arg(long, global = true, value_name = "WHAT", value_delimiter = ',')]
    enforce_node_allocatable: Option<Vec<String>>,
    /// Images that were unused for this long go whatever room there is; 0s is never [default: 0s]
    #[arg(long, global = true, value_name = "DURATION")]
    image_maximum_gc_age: Option<String>,
    /// How many images are pulled at once [default: 16]
    #[arg(long, global = true, value_name = "NUMBER")]
    max_parallel_image_pulls: Option<usize>,
    /// For which images that are there already a pod must show credentials [default: NeverVerifyPreloadedImages]
    #[arg(long, global = true, value_name = "POLICY")]
    image_pull_credentials_verification_policy: Option<String>,
    /// File, or folder of files, that names programs which know the credentials of registries, as kubelet's [default: none]
    #[arg(long, global = true, value_name = "PATH")]
    image_credential_provider_config: Option<PathBuf>,
    /// The folder of those programs [default: none]
    #[arg(long, global = true, value_name = "DIR")]
    image_credential_provider_bin_dir: Option<PathBuf>,
    /// How many images the node's status names; below zero is all [default: 50]
    #[arg(long, global = true, value_name = "NUMBER", allow_negative_numbers = true)]
    node_status_max_images: Option<i32>,
    /// How many processes and threads one pod may have; below one is no limit [default: -1]
    #[arg(long, global = true, value_name = "NUMBER", allow_negative_numbers = true)]
    pod_max_pids: Option<i64>,
}

/// One flag's pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pairs(BTreeMap<String, String>);

/// Reads `name<value,name<value`; nothing at all is an empty setting.
fn pairs(text: &str, sign: char) -> Result<Pairs, String> {
    let one = |part: &str| {
        let (name, value) =
            part.split_once(sign).ok_or_else(|| format!("{part:?} is not of the form NAME{sign}VALUE"))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts.map(one).collect::<Result<_, String>>().map(Pairs)
}

impl KeepingFlags {
    pub(super) fn apply(&self, to: &mut Keeping) {
        for (given, to) in [
            (&self.eviction_hard, &mut to.eviction_hard),
            (&self.eviction_soft, &mut to.eviction_soft),
            (&self.eviction_soft_grace_period, &mut to.eviction_soft_grace_period),
            (&self.eviction_minimum_reclaim, &mut to.eviction_minimum_reclaim),
            (&self.kube_reserved, &mut to.kube_reserved),
            (&self.system_reserved, &mut to.system_reserved),
        ] {
            if let Some(Pairs(given)) = given {
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
        to.image_gc_low_threshold_percent = self.image_gc_low_threshold.unwrap_or(to.image_gc_low_threshold_percent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_used() {
        assert_eq!(Keeping::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn flags_are_written_as_kubelets() {
        let given = pairs("memory.available<1Gi, nodefs.available<10%", '<').unwrap();
        let wanted = [("memory.available", "1Gi"), ("nodefs.available", "10%")];
        assert_eq!(given.0, wanted.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert!(pairs("", '<').unwrap().0.is_empty());
        assert!(pairs("memory.available=1Gi", '<').unwrap_err().contains("NAME<VALUE"));
    }
}
