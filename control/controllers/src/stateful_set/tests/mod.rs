//! Pods of one set in a model of the API; what the controller does with them in the real one is in `controllers/tests`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, PodCondition},
    },
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use serde_json::json;

use super::{identity::*, plan::*};
use crate::runtime::cached_pod::{CachedPod, CachedPodStatus};

mod claims;
mod identity;
mod order;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), "web".to_owned())])
}

fn controlled_by(kind: &str, uid: &str) -> OwnerReference {
    OwnerReference { kind: kind.into(), uid: uid.into(), controller: Some(true), ..OwnerReference::default() }
}

fn pod(ordinal: i64, revision: &str, phase: &str, ready: Option<i64>) -> CachedPod {
    let mut pod = CachedPod::default();
    pod.metadata.name = Some(format!("web-{ordinal}"));
    pod.metadata.uid = Some(format!("uid-{ordinal}"));
    pod.metadata.labels = Some(labels());
    pod.metadata.labels.as_mut().unwrap().insert(REVISION.into(), revision.into());
    pod.metadata.owner_references = Some(vec![controlled_by("StatefulSet", "set")]);
    pod.status = Some(CachedPodStatus {
        phase: Some(phase.into()),
        conditions: Some(vec![PodCondition {
            type_: "Ready".into(),
            status: if ready.is_some() { "True" } else { "False" }.into(),
            last_transition_time: ready.map(|s| Time(at(s))),
            ..PodCondition::default()
        }]),
        ..CachedPodStatus::default()
    });
    pod
}

fn up(ordinal: i64, revision: &str) -> Arc<CachedPod> {
    Arc::new(pod(ordinal, revision, "Running", Some(1)))
}

fn unready(ordinal: i64, revision: &str) -> Arc<CachedPod> {
    Arc::new(pod(ordinal, revision, "Running", None))
}

fn going(ordinal: i64, revision: &str) -> Arc<CachedPod> {
    let mut pod = pod(ordinal, revision, "Running", Some(1));
    pod.metadata.deletion_timestamp = Some(Time(at(5)));
    Arc::new(pod)
}

fn desired(labels: &BTreeMap<String, String>, replicas: usize, ordered: bool) -> Desired<'_> {
    Desired {
        name: "web",
        uid: "set",
        selector: labels.into(),
        replicas,
        start: 0,
        ordered,
        update: Update::Rolling { partition: 0, max_unavailable: 1 },
        min_ready: Duration::ZERO,
        current_revision: "web-a",
        update_revision: "web-b",
    }
}

/// Steps in words, such as `+0a` and `-2`.
fn steps(plan: &Plan) -> Vec<String> {
    let words = plan.steps.iter().map(|step| match step {
        Step::Create { ordinal, current } => format!("+{ordinal}{}", if *current { "a" } else { "b" }),
        Step::Delete(pod, why) => {
            format!("-{} {why:?}", pod.metadata.name.as_deref().unwrap().trim_start_matches("web-"))
        }
    });
    words.collect()
}

fn plan(desired: &Desired<'_>, pods: &[Arc<CachedPod>]) -> Vec<String> {
    steps(&reconcile(desired, pods, true, at(100)))
}

/// Upstream waits for the higher one, for ever.
#[test]
fn condemned_pods_that_have_ended_are_not_waited_for() {
    let labels = labels();
    let set = Desired { start: 2, ..desired(&labels, 1, true) };
    let (low, high) = (pod(0, "web-b", "Failed", None), pod(1, "web-b", "Failed", None));
    assert_eq!(plan(&set, &[Arc::new(low.clone()), Arc::new(high), up(2, "web-b")]), ["-1 Condemned"]);
    assert_eq!(plan(&set, &[Arc::new(low), unready(1, "web-b"), up(2, "web-b")]), Vec::<String>::new());
}

#[test]
fn pods_come_one_after_the_other() {
    let labels = labels();
    let set = desired(&labels, 3, true);
    assert_eq!(plan(&set, &[]), ["+0b"]);
    assert_eq!(plan(&set, &[unready(0, "web-b")]), Vec::<String>::new());
    assert_eq!(plan(&set, &[up(0, "web-b")]), ["+1b"]);
    assert_eq!(plan(&set, &[up(0, "web-b"), going(1, "web-b")]), Vec::<String>::new());
    assert_eq!(plan(&set, &[up(1, "web-b"), up(2, "web-b")]), ["+0b"]);
    let failed = Arc::new(pod(1, "web-b", "Failed", None));
    assert_eq!(plan(&set, &[up(0, "web-b"), Arc::clone(&failed), up(2, "web-b")]), ["-1 Failed"]);
    let ended = Arc::new(pod(1, "web-b", "Succeeded", None));
    assert_eq!(plan(&set, &[up(0, "web-b"), ended]), ["-1 Succeeded"]);
    assert_eq!(reconcile(&set, &[], false, at(1)).steps.len(), 0, "own writes are still on their way");

    let parallel = Desired { ordered: false, ..desired(&labels, 3, false) };
    assert_eq!(plan(&parallel, &[]), ["+0b", "+1b", "+2b"]);
    assert_eq!(plan(&parallel, &[unready(0, "web-b"), failed]), ["-1 Failed", "+2b"]);
    assert_eq!(plan(&Desired { replicas: usize::MAX, ..parallel }, &[]).len(), BURST);
}

#[test]
fn ordinals_start_where_the_set_says() {
    let labels = labels();
    let set = Desired { start: 5, ..desired(&labels, 2, true) };
    assert_eq!(plan(&set, &[]), ["+5b"]);
    assert_eq!(plan(&set, &[up(5, "web-b"), up(6, "web-b"), up(0, "web-b")]), ["-0 Condemned"]);
    let kept = Desired { update: Update::Rolling { partition: 1, max_unavailable: 1 }, ..set };
    assert_eq!(plan(&kept, &[]), ["+5a"], "the partition counts from the first pod");
    assert_eq!(plan(&kept, &[up(5, "web-a")]), ["+6b"]);
}

#[test]
fn scales_down_from_the_highest() {
    let labels = labels();
    let set = desired(&labels, 1, true);
    assert_eq!(plan(&set, &[up(0, "web-b"), up(1, "web-b"), up(2, "web-b")]), ["-2 Condemned"]);
    assert_eq!(plan(&set, &[up(0, "web-b"), up(1, "web-b"), going(2, "web-b")]), Vec::<String>::new());
    assert_eq!(plan(&set, &[unready(0, "web-b"), up(1, "web-b")]), Vec::<String>::new());
    assert_eq!(plan(&set, &[up(0, "web-b"), up(1, "web-b"), unready(2, "web-b")]), ["-2 Condemned"]);
    assert_eq!(plan(&set, &[up(0, "web-b"), unready(1, "web-b"), unready(2, "web-b")]), Vec::<String>::new());
    let parallel = Desired { ordered: false, ..set };
    let pods = [unready(0, "web-b"), unready(1, "web-b"), up(2, "web-b"), going(3, "web-b")];
    assert_eq!(plan(&parallel, &pods), ["-2 Condemned", "-1 Condemned"]);
    assert_eq!(plan(&desired(&labels, 0, true), &[up(0, "web-b")]), ["-0 Condemned"]);
}

#[test]
fn updates_go_from_the_highest_down_to_the_partition() {
    let labels = labels();
    let set = desired(&labels, 3, true);
    let old = [up(0, "web-a"), up(1, "web-a"), up(2, "web-a")];
    assert_eq!(plan(&set, &old), ["-2 Outdated"]);
    assert_eq!(plan(&set, &[up(0, "web-a"), up(1, "web-a")]), ["+2b"]);
    assert_eq!(plan(&set, &[up(0, "web-a"), up(1, "web-a"), unready(2, "web-b")]), Vec::<String>::new());
    assert_eq!(plan(&set, &[up(0, "web-a"), up(1, "web-a"), up(2, "web-b")]), ["-1 Outdated"]);
    let rolling = |partition, max_unavailable| Update::Rolling { partition, max_unavailable };
    let kept = Desired { update: rolling(2, 1), ..set.clone() };
    assert_eq!(plan(&kept, &[up(0, "web-a"), up(1, "web-a"), up(2, "web-b")]), Vec::<String>::new());
    assert_eq!(plan(&Desired { update: rolling(9, 1), ..set.clone() }, &old), Vec::<String>::new());
    assert_eq!(plan(&Desired { update: Update::OnDelete, ..set.clone() }, &old), Vec::<String>::new());
    assert_eq!(plan(&Desired { update: rolling(0, 2), ..set.clone() }, &old), ["-2 Outdated", "-1 Outdated"]);

    let parallel = Desired { ordered: false, ..set };
    let stuck = [unready(0, "web-a"), unready(1, "web-a"), unready(2, "web-a")];
    assert_eq!(plan(&parallel, &stuck), ["-2 Outdated"]);
    let mixed = [up(0, "web-a"), up(1, "web-a"), unready(2, "web-b")];
    assert_eq!(plan(&parallel, &mixed), Vec::<String>::new());
    let two = Desired { update: rolling(0, 2), ..parallel };
    assert_eq!(plan(&two, &mixed), ["-1 Outdated"]);
    assert_eq!(plan(&two, &[unready(0, "web-a"), up(1, "web-a"), up(2, "web-a")]), ["-2 Outdated"]);
}

#[test]
fn pods_are_available_when_their_time_has_come() {
    let labels = labels();
    let set = Desired { min_ready: Duration::from_secs(10), ..desired(&labels, 2, true) };
    let young = Arc::new(pod(0, "web-b", "Running", Some(95)));
    let got = reconcile(&set, &[young], true, at(100));
    assert!(got.steps.is_empty());
    assert_eq!(got.recheck, Some(Duration::from_secs(5)));
    assert_eq!((got.counts.ready, got.counts.available), (1, 0));
    assert_eq!(plan(&set, &[Arc::new(pod(0, "web-b", "Running", Some(90)))]), ["+1b"]);
}

#[test]
fn only_pods_of_its_names_are_adopted() {
    let labels = labels();
    let orphan = |name: &str| {
        let mut pod = pod(0, "web-b", "Running", Some(1));
        pod.metadata.name = Some(name.into());
        pod.metadata.owner_references = None;
        Arc::new(pod)
    };
    let mut other = pod(2, "web-b", "Running", Some(1));
    other.metadata.owner_references = Some(vec![controlled_by("StatefulSet", "else")]);
    let pods = [orphan("web-0"), orphan("web-x"), orphan("webs-1"), orphan("web-01"), Arc::new(other)];
    let got = reconcile(&desired(&labels, 1, true), &pods, true, at(9));
    let names: Vec<_> = got.adopt.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    assert_eq!(names, ["web-0"]);
    assert_eq!(got.counts.replicas, 1);
    assert!(got.steps.is_empty() && got.release.is_empty());
}

#[test]
fn its_pods_of_other_names_are_released() {
    let labels = labels();
    let owned = |name: &str| {
        let mut pod = pod(0, "web-b", "Running", Some(1));
        pod.metadata.name = Some(name.into());
        Arc::new(pod)
    };
    let got = reconcile(&desired(&labels, 1, true), &["web-0", "web-x", "other-0", "web-01"].map(owned), true, at(9));
    let names: Vec<_> = got.release.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    assert_eq!(names, ["web-x", "other-0"], "of its own, another spelling stays");
}

fn set() -> StatefulSet {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "n", "uid": "set", "generation": 4},
        "spec": {
            "serviceName": "nginx", "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                "containers": [{"name": "c"}],
                "volumes": [{"name": "www", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
            }},
            "volumeClaimTemplates": [{"metadata": {"name": "www", "labels": {"own": "1"}}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
        },
    }))
    .unwrap()
}

fn claim(owners: Vec<OwnerReference>) -> PersistentVolumeClaim {
    let mut claim = PersistentVolumeClaim::default();
    claim.metadata.name = Some("www-web-0".into());
    claim.metadata.owner_references = (!owners.is_empty()).then_some(owners);
    claim
}
