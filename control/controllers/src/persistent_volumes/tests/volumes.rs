use super::{
    super::{
        messages::Note,
        volume::{VolumeStep, decide, is_used, needs_proof},
    },
    *,
};

fn told(step: &VolumeStep) -> String {
    let note = |note: &Note| format!("{}: {}", note.reason, note.message);
    match step {
        VolumeStep::Keep => "keep".to_owned(),
        VolumeStep::Phase(phase) => (*phase).to_owned(),
        VolumeStep::Fail(why) => format!("Failed, {}", note(why)),
        VolumeStep::Unbind => "unbind".to_owned(),
        VolumeStep::LeaveToClaim => "claim".to_owned(),
        VolumeStep::Mismatch { on_volume, .. } => note(on_volume),
    }
}

fn with(spec: &Value, more: Value) -> Value {
    let mut spec = spec.clone();
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    spec
}

fn provisioned(mut volume: PersistentVolume, by: &str) -> PersistentVolume {
    let annotation = ("pv.kubernetes.io/provisioned-by".to_owned(), by.to_owned());
    volume.metadata.annotations.get_or_insert_default().extend([annotation]);
    volume
}

#[test]
fn a_volume_is_free_held_or_released() {
    let bound_to = |name: &str| Some(claim(asking(json!({"volumeName": name}))));
    let unbound = Some(claim(asking(json!({}))));
    for (volume, claim, wanted) in [
        (in_phase(volume("v", "1Gi", json!({})), "Pending"), None, "Available"),
        (volume("v", "1Gi", json!({})), None, "keep"),
        (in_phase(volume("v", "1Gi", reserved()), "Pending"), unbound.clone(), "Available"),
        (volume("v", "1Gi", holder("1")), bound_to("v"), "Bound"),
        (in_phase(volume("v", "1Gi", holder("1")), "Bound"), bound_to("v"), "keep"),
        (volume("v", "1Gi", holder("1")), unbound.clone(), "claim"),
        (
            volume("v", "1Gi", with(&holder("1"), json!({"volumeMode": "Block"}))),
            unbound,
            "VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to incompatible volumeMode.",
        ),
        (volume("v", "1Gi", holder("1")), bound_to("other"), "unbind"),
        (
            provisioned(
                volume("v", "1Gi", with(&holder("1"), json!({"persistentVolumeReclaimPolicy": "Delete"}))),
                "p",
            ),
            bound_to("other"),
            "Released",
        ),
        (in_phase(volume("v", "1Gi", holder("1")), "Bound"), None, "Released"),
        (in_phase(volume("v", "1Gi", holder("2")), "Bound"), bound_to("v"), "Released"),
    ] {
        assert_eq!(told(&decide(&volume, claim.as_ref())), wanted, "{volume:?} {claim:?}");
    }
}

#[test]
fn a_released_volume_is_reclaimed_by_its_policy() {
    let released = |policy: &str| {
        in_phase(volume("v", "1Gi", with(&holder("1"), json!({"persistentVolumeReclaimPolicy": policy}))), "Released")
    };
    for (volume, wanted) in [
        (released("Retain"), "keep"),
        (provisioned(released("Delete"), "windlass.io/local-path"), "keep"),
        (
            released("Delete"),
            "Failed, VolumeFailedDelete: error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched",
        ),
        (
            provisioned(released("Delete"), "kubernetes.io/host-path"),
            "Failed, VolumeFailedDelete: no volume plugin matched name: kubernetes.io/host-path",
        ),
        (released("Recycle"), "Failed, VolumeFailedRecycle: No recycler plugin found for the volume!"),
        (released("Burn"), "Failed, VolumeUnknownReclaimPolicy: Volume has unrecognized PersistentVolumeReclaimPolicy"),
        (in_phase(released("Recycle"), "Failed"), "keep"),
        // Somebody decides otherwise.
        (in_phase(released("Retain"), "Failed"), "keep"),
    ] {
        assert_eq!(told(&decide(&volume, None)), wanted, "{volume:?}");
    }
}

#[test]
fn a_claim_that_the_cache_does_not_show_is_asked_for() {
    let claim = claim(asking(json!({"volumeName": "v"})));
    let bound = in_phase(volume("v", "1Gi", holder("1")), "Bound");
    assert!(!needs_proof(&bound, Some(&claim)) && is_used(&bound, Some(&claim)));
    assert!(needs_proof(&bound, None) && !is_used(&bound, None));
    assert!(needs_proof(&volume("v", "1Gi", holder("2")), Some(&claim)));
    assert!(!needs_proof(&in_phase(bound, "Released"), None), "it is told already");
    assert!(!needs_proof(&volume("v", "1Gi", reserved()), None));
    let unbound = super::claim(asking(json!({})));
    assert!(!is_used(&volume("v", "1Gi", holder("1")), Some(&unbound)), "one that is being deleted gets no claim");
}
