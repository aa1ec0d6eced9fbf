//! How many pods a budget expects, and how many of them it wants to be healthy. Upstream's `getExpectedPodCount` and
//! `getExpectedScale`. Pure.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::{
    api::policy::v1::PodDisruptionBudgetSpec,
    apimachinery::pkg::{apis::meta::v1::OwnerReference, util::intstr::IntOrString},
};
use windlass_kit::objects::int_or_percent::{Rounding, scaled};

use crate::{pods, runtime::CachedPod};

/// How many pods an owner is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scale {
    /// Of the owner that says so: of a Deployment's ReplicaSets it is the Deployment.
    pub(super) uid: String,
    pub(super) replicas: i32,
}

/// The numbers of pods that a budget counts by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) pods: i32,
    pub(super) healthy: i32,
}

/// Why the number of expected pods is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Uncountable {
    #[error("found no controllers for pod {0:?}")]
    NoController(String),
    #[error("no matches for kind {kind:?} in version {api_version:?}")]
    UnknownKind { kind: String, api_version: String },
    #[error("{0} does not implement the scale subresource")]
    NoScale(String),
    #[error("invalid value for IntOrString: {0}")]
    NeitherNumberNorPercentage(String),
    #[error("{}", crate::runtime::error::message(.0))]
    Api(#[from] kube::Error),
}

impl Uncountable {
    /// Whether it may pass without a change of the budget or its pods: an owner that no cache shows yet, or an API that does
    /// not answer.
    pub(super) const fn may_pass(&self) -> bool {
        matches!(self, Self::NoController(_) | Self::Api(_))
    }
}

/// The owners of pods.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Owners<'a> {
    /// Each once, with the name of its first pod.
    pub(super) controllers: Vec<(&'a OwnerReference, &'a str)>,
    /// Whether there are pods without a controller.
    pub(super) unmanaged: bool,
}

/// Whether the pods that a budget expects are those that their owners are to have: all but a number of available pods is a
/// part of them.
pub(super) fn is_part_of_scale(spec: &PodDisruptionBudgetSpec) -> bool {
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

pub(super) fn owners(pods: &[Arc<CachedPod>]) -> Owners<'_> {
    let mut owners = Owners::default();
    let mut seen = std::collections::HashSet::new();
    for pod in pods {
        match pods::controller_of(&pod.metadata) {
            None => owners.unmanaged = true,
            Some(owner) if seen.insert(&owner.uid) => {
                owners.controllers.push((owner, pod.metadata.name.as_deref().unwrap_or_default()));
            }
            Some(_) => {}
        }
    }
    owners
}

/// The pods of all owners, each of which counts once.
pub(super) fn total(scales: &[Scale]) -> i32 {
    let by_uid: HashMap<&str, i32> = scales.iter().map(|scale| (scale.uid.as_str(), scale.replicas)).collect();
    by_uid.into_values().fold(0, i32::saturating_add)
}

/// What a budget expects of its pods, of which there are `pods`, and whose owners are to have `scale`.
pub(super) fn expected(spec: &PodDisruptionBudgetSpec, pods: usize, scale: i32) -> Result<Expected, Uncountable> {
    let part = |value: &IntOrString| {
        let shown = || match value {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(text) => text.clone(),
        };
        scaled(value, scale, Rounding::Up).ok_or_else(|| Uncountable::NeitherNumberNorPercentage(shown()))
    };
    Ok(match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => Expected { pods: scale, healthy: scale.saturating_sub(part(most)?).max(0) },
        (None, Some(IntOrString::Int(least))) => {
            Expected { pods: i32::try_from(pods).unwrap_or(i32::MAX), healthy: *least }
        }
        (None, Some(least)) => Expected { pods: scale, healthy: part(least)? },
        (None, None) => Expected::default(),
    })
}
