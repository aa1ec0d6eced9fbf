use super::{
    super::matching::{any_may_fit, best_match, mismatch},
    *,
};

fn name(volume: Option<&PersistentVolume>) -> &str {
    volume.and_then(|v| v.metadata.name.as_deref()).unwrap_or("none")
}

#[test]
fn the_smallest_that_has_all_is_taken() {
    let other = json!({"claimRef": {"name": "other", "namespace": "n"}});
    let mut going = volume("going", "1Mi", json!({}));
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let many = json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]});
    let volumes = all([
        volume("big", "10Gi", json!({})),
        volume("small", "1Gi", json!({})),
        volume("fast", "2Gi", json!({"storageClassName": "fast"})),
        volume("kept", "5Gi", other),
        volume("raw", "2Gi", json!({"volumeMode": "Block"})),
        volume("shared", "1Gi", many),
        in_phase(volume("old", "1Gi", json!({})), "Released"),
        in_phase(volume("new", "1Gi", json!({})), "Pending"),
        going,
    ]);
    for (spec, wanted) in [
        (asking(json!({})), "small"),
        (json!({"resources": {"requests": {"storage": "2Gi"}}}), "big"),
        (asking(json!({"storageClassName": ""})), "small"),
        (asking(json!({"storageClassName": "fast"})), "fast"),
        (asking(json!({"storageClassName": "other"})), "none"),
        (asking(json!({"volumeMode": "Block"})), "raw"),
        (asking(json!({"selector": {"matchLabels": {"tier": "big"}}})), "big"),
        (asking(json!({"accessModes": ["ReadWriteMany"]})), "shared"),
        (asking(json!({"accessModes": ["ReadOnlyMany"]})), "none"),
        (json!({"resources": {"requests": {"storage": "1Ti"}}}), "none"),
        (asking(json!({"volumeAttributesClassName": "gold"})), "none"),
    ] {
        assert_eq!(name(best_match(&claim(spec.clone()), &volumes, false)), wanted, "{spec}");
        assert_eq!(name(best_match(&claim(spec.clone()), &volumes, true)), "none", "the scheduler chooses: {spec}");
    }
}

#[test]
fn a_volume_that_is_reserved_for_the_claim_goes_first_if_it_satisfies_it() {
    let small = || volume("small", "1Gi", json!({}));
    for (is_reserved, spec, wanted) in [
        (volume("v", "5Gi", reserved()), asking(json!({})), "v"),
        // The class does not matter, nor does the phase.
        (
            volume("v", "5Gi", json!({"claimRef": reserved()["claimRef"], "storageClassName": "x"})),
            asking(json!({})),
            "v",
        ),
        (in_phase(volume("v", "5Gi", holder("1")), "Released"), asking(json!({})), "v"),
        (volume("v", "1Mi", reserved()), asking(json!({})), "small"),
        (volume("v", "5Gi", holder("2")), asking(json!({})), "small"),
        (volume("v", "5Gi", reserved()), asking(json!({"accessModes": ["ReadWriteMany"]})), "none"),
    ] {
        let volumes = all([small(), is_reserved]);
        assert_eq!(name(best_match(&claim(spec), &volumes, false)), wanted, "{volumes:?}");
    }
    let volumes = all([small(), volume("v", "5Gi", reserved())]);
    assert_eq!(name(best_match(&claim(asking(json!({}))), &volumes, true)), "v", "also before there is a pod");
}

#[test]
fn a_volume_that_has_just_been_made_is_waited_for() {
    let claim = claim(asking(json!({})));
    for (volume, wanted) in [
        (in_phase(volume("v", "1Gi", json!({})), "Pending"), true),
        (volume("v", "1Gi", json!({})), true),
        (volume("v", "5Gi", reserved()), true),
        (in_phase(volume("v", "1Gi", json!({})), "Released"), false),
        (volume("v", "1Gi", holder("2")), false),
        (volume("v", "1Gi", json!({"storageClassName": "x"})), false),
        (volume("v", "1Mi", json!({})), false),
    ] {
        assert_eq!(any_may_fit(&claim, std::slice::from_ref(&volume)), wanted, "{volume:?}");
    }
}

#[test]
fn a_claim_that_names_a_volume_is_told_why_it_cannot_have_it() {
    let mut going = volume("v", "1Mi", json!({"storageClassName": "x"}));
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    for (volume, why) in [
        (volume("v", "1Gi", json!({})), None),
        (going, Some("the volume is marked for deletion \"v\"")),
        (volume("v", "1Mi", json!({"storageClassName": "x"})), Some("requested PV is too small")),
        (
            volume("v", "1Gi", json!({"storageClassName": "x", "volumeMode": "Block"})),
            Some("storageClassName does not match"),
        ),
        (volume("v", "1Gi", json!({"volumeMode": "Block"})), Some("incompatible volumeMode")),
        (volume("v", "1Gi", json!({"accessModes": ["ReadOnlyMany"]})), Some("incompatible accessMode")),
    ] {
        assert_eq!(mismatch(&claim(asking(json!({}))), &volume).as_deref(), why);
    }
}
