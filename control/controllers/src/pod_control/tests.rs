use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PodTemplateSpec, ReplicationController},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference, Time},
};

use super::*;
use crate::runtime::cached_pod::CachedPodStatus;

fn labels(app: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), app.to_owned())])
}

fn controlled_by(uid: &str) -> Vec<OwnerReference> {
    vec![OwnerReference { uid: uid.into(), controller: Some(true), ..OwnerReference::default() }]
}

/// A pod of the owner `rc` with the label `app=web`.
fn pod(name: &str, change: impl FnOnce(&mut CachedPod)) -> Arc<CachedPod> {
    let mut pod = CachedPod {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some(labels("web")),
            owner_references: Some(controlled_by("rc")),
            ..ObjectMeta::default()
        },
        ..CachedPod::default()
    };
    change(&mut pod);
    Arc::new(pod)
}

fn names(pods: &[Arc<CachedPod>]) -> Vec<&str> {
    pods.iter().map(|p| p.metadata.name.as_deref().unwrap()).collect()
}

#[test]
fn slow_start_doubles() {
    assert_eq!(batches(0).count(), 0);
    assert_eq!(batches(1).collect::<Vec<_>>(), [1]);
    assert_eq!(batches(10).collect::<Vec<_>>(), [1, 2, 4, 3]);
    assert_eq!(batches(500).sum::<usize>(), 500);
}

#[test]
fn claims_adopts_and_releases() {
    let going = |p: &mut CachedPod| {
        p.metadata.owner_references = None;
        p.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    };
    let done = |p: &mut CachedPod| {
        p.metadata.owner_references = None;
        p.status = Some(CachedPodStatus { phase: Some("Failed".into()), ..CachedPodStatus::default() });
    };
    let stranger = |p: &mut CachedPod| (p.metadata.owner_references, p.metadata.labels) = (None, None);
    let pods = [
        pod("mine", |_| {}),
        pod("relabelled", |p| p.metadata.labels = Some(labels("debug"))),
        pod("orphan", |p| p.metadata.owner_references = None),
        pod("orphan-done", done),
        pod("orphan-going", going),
        pod("others", |p| p.metadata.owner_references = Some(controlled_by("else"))),
        pod("stranger", stranger),
    ];
    let map = labels("web");
    let claimant = Claimant { uid: "rc", deleting: false, selector: Selector::from(&map) };
    let got = claim(&claimant, &pods, pods::is_active);
    assert_eq!(names(&got.ours), ["mine"]);
    assert_eq!(names(&got.adopt), ["orphan"]);
    assert_eq!(names(&got.release), ["relabelled"]);

    let got = claim(&Claimant { deleting: true, ..claimant }, &pods, pods::is_active);
    assert!(got.adopt.is_empty() && got.release.is_empty());

    let expression =
        LabelSelectorRequirement { key: "app".into(), operator: "NotIn".into(), values: Some(vec!["web".into()]) };
    let selector = LabelSelector { match_expressions: Some(vec![expression]), match_labels: None };
    let got = claim(&Claimant { selector: Selector::from(&selector), ..claimant }, &pods, pods::is_active);
    assert_eq!((names(&got.ours), names(&got.adopt)), (vec!["relabelled"], vec!["stranger"]));
}

#[test]
fn pods_of_a_template_have_its_metadata_and_their_owner() {
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels("web")),
            name: Some("unused".into()),
            ..ObjectMeta::default()
        }),
        spec: None,
    };
    let mut owner = ReplicationController::default();
    owner.metadata.uid = Some("u".into());
    owner.metadata.namespace = Some("n".into());
    for (name, prefix) in [("web".to_owned(), "web-".to_owned()), ("x".repeat(253), "x".repeat(253))] {
        owner.metadata.name = Some(name.clone());
        let pod = pod_of(&template, &owner);
        assert_eq!((pod.metadata.generate_name, pod.metadata.name), (Some(prefix), None));
        assert_eq!((pod.metadata.namespace.as_deref(), pod.metadata.labels), (Some("n"), Some(labels("web"))));
        let reference = &pod.metadata.owner_references.unwrap()[0];
        assert_eq!((reference.kind.as_str(), &reference.name), ("ReplicationController", &name));
        assert_eq!((reference.controller, reference.block_owner_deletion), (Some(true), Some(true)));
    }
}
