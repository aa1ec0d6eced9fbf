use windlass_kit::events::Severity;

use super::{
    super::claim::{ClaimStep, Surroundings, decide, status_changes},
    *,
};

fn class(name: &str, provisioner: &str, mode: &str) -> Option<Arc<k8s_openapi::api::storage::v1::StorageClass>> {
    let class = json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
    Some(Arc::new(serde_json::from_value(class).unwrap()))
}

/// The step in one line: what is done, or severity, reason and message of its event.
fn told(step: &ClaimStep) -> String {
    let note = |note: &super::super::messages::Note| {
        let severity = if note.severity == Severity::Warning { "Warning" } else { "Normal" };
        format!("{severity} {}: {}", note.reason, note.message)
    };
    match step {
        ClaimStep::Bind(volume) => format!("bind {volume}"),
        ClaimStep::AssignClass(class) => format!("class {class}"),
        ClaimStep::Wait(None) => "wait".to_owned(),
        ClaimStep::Wait(Some(why)) => note(why),
        ClaimStep::Provision(provisioner) => format!("provision {provisioner}"),
        ClaimStep::Lose(why) => format!("lost, {}", note(why)),
    }
}

#[test]
fn a_claim_without_a_volume_waits_for_what_it_needs() {
    const WAIT: &str = "WaitForFirstConsumer";
    let selected = json!({"volume.kubernetes.io/selected-node": "node"});
    let fast = || asking(json!({"storageClassName": "fast"}));
    for (claim, around, wanted) in [
        (
            claim(asking(json!({}))),
            Surroundings::default(),
            "Normal FailedBinding: no persistent volumes available for this claim and no storage class is set",
        ),
        (
            claim(asking(json!({}))),
            Surroundings { default_class: Some("std".to_owned()), ..Surroundings::default() },
            "class std",
        ),
        (
            claim(asking(json!({}))),
            Surroundings {
                default_class: Some("std".to_owned()),
                candidates: all([volume("v", "1Gi", json!({}))]),
                ..Surroundings::default()
            },
            "bind v",
        ),
        (
            claim(asking(json!({"storageClassName": ""}))),
            Surroundings { default_class: Some("std".to_owned()), ..Surroundings::default() },
            "Normal FailedBinding: no persistent volumes available for this claim and no storage class is set",
        ),
        (
            claim(fast()),
            Surroundings::default(),
            "Warning ProvisioningFailed: storageclass.storage.k8s.io \"fast\" not found",
        ),
        (
            claim(fast()),
            Surroundings { class: class("fast", "a.b/c", WAIT), ..Surroundings::default() },
            "Normal WaitForFirstConsumer: waiting for first consumer to be created before binding",
        ),
        (
            claim(fast()),
            Surroundings {
                class: class("fast", "a.b/c", WAIT),
                waiting_pods: vec!["p".to_owned()],
                ..Surroundings::default()
            },
            "Normal WaitForPodScheduled: waiting for pod p to be scheduled",
        ),
        (
            claim(fast()),
            Surroundings {
                class: class("fast", "a.b/c", WAIT),
                waiting_pods: vec!["p".to_owned(), "q".to_owned()],
                ..Surroundings::default()
            },
            "Normal WaitForPodScheduled: waiting for pods p,q to be scheduled",
        ),
        (
            claim(fast()),
            Surroundings {
                class: class("fast", "a.b/c", WAIT),
                candidates: all([volume("v", "1Gi", json!({"storageClassName": "fast"}))]),
                ..Surroundings::default()
            },
            "Normal WaitForFirstConsumer: waiting for first consumer to be created before binding",
        ),
        (
            annotated_claim(selected, fast()),
            Surroundings { class: class("fast", "a.b/c", WAIT), ..Surroundings::default() },
            "provision a.b/c",
        ),
        (
            claim(fast()),
            Surroundings { class: class("fast", "a.b/c", "Immediate"), ..Surroundings::default() },
            "provision a.b/c",
        ),
        (
            claim(fast()),
            Surroundings {
                class: class("fast", "kubernetes.io/no-provisioner", "Immediate"),
                ..Surroundings::default()
            },
            "Warning ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner",
        ),
    ] {
        assert_eq!(told(&decide(&claim, &around)), wanted, "{:?}", claim.spec);
    }
}

#[test]
fn a_claim_that_names_a_volume_gets_that_or_none() {
    let asks = |name: &str| claim(asking(json!({"volumeName": name, "storageClassName": ""})));
    let other = || json!({"claimRef": {"namespace": "n", "name": "other", "uid": "9"}});
    for (volume, wanted) in [
        (None, "wait"),
        (Some(volume("v", "1Gi", json!({}))), "bind v"),
        (Some(volume("v", "1Gi", reserved())), "bind v"),
        (Some(volume("v", "1Gi", holder("1"))), "bind v"),
        (
            Some(volume("v", "1Gi", holder("2"))),
            "Warning FailedBinding: volume \"v\" already bound to a different claim.",
        ),
        (Some(volume("v", "1Gi", other())), "Warning FailedBinding: volume \"v\" already bound to a different claim."),
        (
            Some(volume("v", "1Mi", json!({}))),
            "Warning VolumeMismatch: Cannot bind to requested volume \"v\": requested PV is too small",
        ),
    ] {
        let around =
            Surroundings { candidates: all(volume), default_class: Some("std".to_owned()), ..Surroundings::default() };
        assert_eq!(told(&decide(&asks("v"), &around)), wanted, "{around:?}");
    }
}

#[test]
fn a_bound_claim_keeps_its_volume_or_loses_it() {
    let bound = |name: Option<&str>| {
        annotated_claim(json!({"pv.kubernetes.io/bind-completed": "yes"}), asking(json!({"volumeName": name})))
    };
    const MISBOUND: &str =
        "lost, Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly";
    for (name, volume, wanted) in [
        (
            None,
            None,
            "lost, Warning ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        ),
        (
            Some("v"),
            None,
            "lost, Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!",
        ),
        (Some("v"), Some(volume("v", "1Mi", holder("1"))), "bind v"),
        (Some("v"), Some(volume("v", "1Mi", json!({}))), "bind v"),
        (Some("v"), Some(volume("v", "1Mi", holder("2"))), MISBOUND),
        (Some("v"), Some(volume("v", "1Mi", reserved())), MISBOUND),
    ] {
        let around = Surroundings { candidates: all(volume), ..Surroundings::default() };
        assert_eq!(told(&decide(&bound(name), &around)), wanted, "{around:?}");
    }
}

#[test]
fn the_status_shows_the_volume_from_when_it_is_bound() {
    let mut claim = claim(asking(json!({})));
    let volume = volume("v", "2Gi", holder("1"));
    let shown = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}});
    assert_eq!(status_changes(&claim, "Bound", Some(&volume)), Some(shown.clone()));
    assert_eq!(status_changes(&claim, "Pending", None), None);
    claim.status = serde_json::from_value(shown).unwrap();
    assert_eq!(status_changes(&claim, "Bound", Some(&volume)), None);
    let mut grown = volume.clone();
    grown.spec =
        serde_json::from_value(json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "3Gi"}})).unwrap();
    assert_eq!(status_changes(&claim, "Bound", Some(&grown)), None, "whoever expands it says so");
    let gone = json!({"phase": "Lost", "accessModes": null, "capacity": null});
    assert_eq!(status_changes(&claim, "Lost", None), Some(gone));
}
