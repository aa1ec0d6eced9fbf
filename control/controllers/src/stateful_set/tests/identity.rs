use std::sync::Arc;

use serde_json::json;

use super::{at, desired, labels, set, up};
use crate::{
    runtime::CachedPod,
    stateful_set::{
        identity::*,
        plan::{Desired, Update, reconcile},
        status,
    },
};

#[test]
fn a_pod_has_name_host_labels_and_claims_of_its_ordinal() {
    let set = set();
    let made = new_pod(&set, &set.spec.as_ref().unwrap().template, "web-b", 3);
    assert_eq!((made.metadata.name.as_deref(), made.metadata.generate_name.as_deref()), (Some("web-3"), None));
    let labels = made.metadata.labels.unwrap();
    for (key, value) in [("app", "web"), (POD_NAME, "web-3"), (POD_INDEX, "3"), (REVISION, "web-b")] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let spec = made.spec.unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("web-3"), Some("nginx")));
    let volumes = serde_json::to_value(&spec.volumes).unwrap();
    assert_eq!(volumes[0]["name"], "www");
    assert_eq!(volumes[0]["persistentVolumeClaim"]["claimName"], "www-web-3");
    assert_eq!((volumes[1]["name"].as_str(), volumes.as_array().unwrap().len()), (Some("tmp"), 2));

    let claims = claims(&set, 3);
    assert_eq!(claims[0].metadata.name.as_deref(), Some("www-web-3"));
    assert_eq!(serde_json::to_value(&claims[0].metadata.labels).unwrap(), json!({"app": "web", "own": "1"}));
    assert!(claims[0].status.is_none() && claims[0].metadata.owner_references.is_none());
}

#[test]
fn names_tell_ordinals_and_sets() {
    for (name, ordinal) in [
        ("web-0", Some(0)),
        ("web-12", Some(12)),
        ("web-01", None),
        ("web--1", None),
        ("web-", None),
        ("web-0-1", None),
        ("web", None),
        ("web-+1", None),
        ("web-99999999999", None),
    ] {
        assert_eq!(ordinal_of("web", name), ordinal, "{name}");
    }
    assert_eq!(sets_of_claim("www-my-web-3").collect::<Vec<_>>(), ["my-web", "web"]);
    assert_eq!(sets_of_claim("www").count() + sets_of_claim("a-b-c").count() + sets_of_claim("").count(), 0);
}

#[test]
fn an_update_is_complete_when_all_pods_are_of_it_and_ready() {
    let (labels, mut set) = (labels(), set());
    let two = desired(&labels, 2, true);
    let counts = |pods: &[Arc<CachedPod>]| reconcile(&two, pods, true, at(9)).counts;
    let got = status::status(&set, &two, counts(&[up(0, "web-a"), up(1, "web-b")]), Some(0));
    assert_eq!((got.current_replicas, got.updated_replicas), (Some(1), Some(1)));
    assert_eq!((got.current_revision.as_deref(), got.update_revision.as_deref()), (Some("web-a"), Some("web-b")));
    let all = counts(&[up(0, "web-b"), up(1, "web-b")]);
    let got = status::status(&set, &two, all, Some(0));
    assert_eq!((got.current_replicas, got.current_revision.as_deref()), (Some(2), Some("web-b")));
    let on_delete = Desired { update: Update::OnDelete, ..two.clone() };
    let kept = status::status(&set, &on_delete, all, Some(0));
    assert_eq!(kept.current_revision.as_deref(), Some("web-a"));

    let patch = status::patch(&set, &got).unwrap();
    assert_eq!(patch["status"]["observedGeneration"], 4);
    set.status = Some(serde_json::from_value(patch["status"].clone()).unwrap());
    assert_eq!(status::patch(&set, &got), None, "it is written only when it changes");
}
