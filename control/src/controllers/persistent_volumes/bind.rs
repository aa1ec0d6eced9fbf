//! Matches volumes to claims. Pure.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec};
use windlass_kit::{objects::resources::amount, quantity::Quantity};

use crate::controllers::label_selector::selects;

/// The decision for an unbound claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Bind it to this volume.
    Bind(String),
    /// No volume fits; upstream's reason and message.
    Pending(&'static str, String),
}

/// The volume of an unbound claim: the one that it names, else one reserved for it, else the smallest available one
/// that satisfies it.
pub(crate) fn choose<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl Iterator<Item = &'a PersistentVolume> + Clone,
) -> Choice {
    let empty = PersistentVolumeClaimSpec::default();
    let spec = claim.spec.as_ref().unwrap_or(&empty);
    if let Some(wanted) = spec.volume_name.as_deref().filter(|n| !n.is_empty()) {
        let Some(volume) = volumes.clone().find(|v| v.metadata.name.as_deref() == Some(wanted)) else {
            return Choice::Pending("FailedBinding", format!("volume {wanted:?} not found"));
        };
        return if is_free_for(volume, claim) {
            Choice::Bind(wanted.to_owned())
        } else {
            Choice::Pending("FailedBinding", format!("volume {wanted:?} already bound to a different claim."))
        };
    }
    let reserved =
        volumes.clone().find(|v| v.spec.as_ref().is_some_and(|s| s.claim_ref.is_some()) && is_free_for(v, claim));
    let fitting = volumes.filter(|v| v.spec.as_ref().is_some_and(|s| s.claim_ref.is_none()) && fits(spec, v));
    match reserved.or_else(|| fitting.min_by_key(|v| (capacity(v), v.metadata.name.clone()))) {
        Some(volume) => Choice::Bind(volume.metadata.name.clone().unwrap_or_default()),
        None => Choice::Pending(
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set".to_owned(),
        ),
    }
}

/// Whether a claim may be bound to a volume: that is unclaimed or reserved for this claim, and not being deleted.
pub(crate) fn is_free_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.metadata.deletion_timestamp.is_none() && !is_of_another(volume, claim)
}

/// Whether a volume belongs to, or is reserved for, another claim.
pub(crate) fn is_of_another(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(holder) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return false };
    holder.name != claim.metadata.name
        || holder.namespace != claim.metadata.namespace
        || holder.uid.as_ref().is_some_and(|uid| !uid.is_empty() && Some(uid) != claim.metadata.uid.as_ref())
}

/// Whether an available volume satisfies a claim.
fn fits(wanted: &PersistentVolumeClaimSpec, volume: &PersistentVolume) -> bool {
    let Some(spec) = &volume.spec else { return false };
    let class = |name: &Option<String>| name.clone().unwrap_or_default();
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let offered = spec.access_modes.as_deref().unwrap_or_default();
    let requested = wanted.access_modes.as_deref().unwrap_or_default();
    let bytes = amount(wanted.resources.as_ref().and_then(|r| r.requests.as_ref()), "storage");
    let bytes = bytes.map_or(0, Quantity::units);
    let labels = volume.metadata.labels.clone().unwrap_or_default();
    volume.metadata.deletion_timestamp.is_none()
        && class(&wanted.storage_class_name) == class(&spec.storage_class_name)
        && mode(&wanted.volume_mode) == mode(&spec.volume_mode)
        && requested.iter().all(|mode| offered.contains(mode))
        && capacity(volume) >= bytes
        && wanted.selector.as_ref().is_none_or(|selector| selects(selector, &labels))
}

fn capacity(volume: &PersistentVolume) -> i64 {
    amount(volume.spec.as_ref().and_then(|s| s.capacity.as_ref()), "storage").map_or(0, Quantity::units)
}

/// The phase of a volume with its claim, if that exists.
pub(crate) fn phase(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> &'static str {
    let Some(holder) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return "Available" };
    match (holder.uid.as_deref().filter(|uid| !uid.is_empty()), claim) {
        // Reserved for a claim that does not exist yet.
        (None, _) => "Available",
        (Some(uid), Some(claim)) if claim.metadata.uid.as_deref() == Some(uid) => "Bound",
        _ => "Released",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: &str) -> PersistentVolumeClaim {
        serde_json::from_str(&format!(r#"{{"metadata":{{"name":"c","namespace":"n","uid":"1"}},"spec":{spec}}}"#))
            .unwrap()
    }

    fn volume(name: &str, storage: &str, rest: &str) -> PersistentVolume {
        serde_json::from_str(&format!(
            r#"{{"metadata":{{"name":"{name}","labels":{{"tier":"{name}"}}}},
                "spec":{{"capacity":{{"storage":"{storage}"}},"accessModes":["ReadWriteOnce"]{rest}}}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn the_smallest_that_has_all_is_taken() {
        let volumes = [
            volume("big", "10Gi", ""),
            volume("small", "1Gi", ""),
            volume("fast", "2Gi", r#","storageClassName":"fast""#),
            volume("kept", "5Gi", r#","claimRef":{"name":"other","namespace":"n"}"#),
            volume("raw", "2Gi", r#","volumeMode":"Block""#),
        ];
        let ask = |spec: &str| choose(&claim(spec), volumes.iter());
        let take = |name: &str| Choice::Bind(name.to_owned());
        let one = |more: &str| {
            format!(r#"{{"accessModes":["ReadWriteOnce"],"resources":{{"requests":{{"storage":"1Gi"}}}}{more}}}"#)
        };
        assert_eq!(ask(&one("")), take("small"));
        assert_eq!(ask(r#"{"resources":{"requests":{"storage":"2Gi"}}}"#), take("big"));
        assert_eq!(ask(&one(r#","storageClassName":"fast""#)), take("fast"));
        assert_eq!(ask(&one(r#","volumeMode":"Block""#)), take("raw"));
        assert_eq!(ask(&one(r#","selector":{"matchLabels":{"tier":"big"}}"#)), take("big"));
        assert_eq!(ask(&one(r#","volumeName":"big""#)), take("big"));
        for spec in [
            one(r#","volumeName":"kept""#),
            one(r#","volumeName":"none""#),
            r#"{"accessModes":["ReadWriteMany"]}"#.to_owned(),
            r#"{"resources":{"requests":{"storage":"1Ti"}}}"#.to_owned(),
        ] {
            assert!(matches!(ask(&spec), Choice::Pending("FailedBinding", _)), "{spec}");
        }
    }

    #[test]
    fn a_volume_is_reserved_for_the_claim_it_names() {
        let reserved = volume("v", "1Mi", r#","claimRef":{"name":"c","namespace":"n"}"#);
        assert_eq!(choose(&claim("{}"), [reserved.clone()].iter()), Choice::Bind("v".to_owned()));
        let of_another = volume("v", "1Mi", r#","claimRef":{"name":"c","namespace":"n","uid":"2"}"#);
        assert!(!is_free_for(&of_another, &claim("{}")));
        assert_eq!(phase(&reserved, Some(&claim("{}"))), "Available");
        assert_eq!(phase(&of_another, Some(&claim("{}"))), "Released");
        let bound = volume("v", "1Mi", r#","claimRef":{"name":"c","namespace":"n","uid":"1"}"#);
        assert_eq!(phase(&bound, Some(&claim("{}"))), "Bound");
        assert_eq!(phase(&bound, None), "Released");
    }
}
