use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::apps::v1::StatefulSet, apimachinery::pkg::apis::meta::v1::Time};
use proptest::prelude::*;

use super::{at, controlled_by, desired, labels};
use crate::{
    pods,
    runtime::CachedPod,
    stateful_set::{
        identity::{ordinal_of, revision_of},
        plan::{Desired, Step, Why, reconcile},
        status,
    },
};

/// What happens around the controller.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Scale(usize),
    Template,
    Start(i64),
    Ready(usize),
    Unready(usize),
    Fail(usize),
    Delete(usize),
    /// A terminating pod is gone.
    Gone(usize),
    Reconcile,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        1 => (0usize..6).prop_map(Happening::Scale),
        1 => Just(Happening::Template),
        1 => (0i64..3).prop_map(Happening::Start),
        4 => (0usize..8).prop_map(Happening::Ready),
        1 => (0usize..8).prop_map(Happening::Unready),
        1 => (0usize..8).prop_map(Happening::Fail),
        1 => (0usize..8).prop_map(Happening::Delete),
        4 => (0usize..8).prop_map(Happening::Gone),
        8 => Just(Happening::Reconcile),
    ]
}

/// A set and its pods in a model of the API.
#[derive(Debug)]
struct World {
    pods: BTreeMap<i64, CachedPod>,
    replicas: usize,
    start: i64,
    ordered: bool,
    current: String,
    template: usize,
    serial: usize,
}

impl World {
    fn set_ready(&mut self, at_index: usize, ready: bool) {
        let Some((ordinal, pod)) = self.pods.iter_mut().nth(at_index) else { return };
        let (ordinal, labels, uid) = (*ordinal, pod.metadata.labels.clone(), pod.metadata.uid.clone());
        let going = pod.metadata.deletion_timestamp.clone();
        if pod.status.as_ref().unwrap().phase.as_deref() != Some("Failed") {
            *pod = super::pod(ordinal, "", "Running", ready.then_some(1));
            (pod.metadata.labels, pod.metadata.uid, pod.metadata.deletion_timestamp) = (labels, uid, going);
        }
    }

    /// Reconciles once and checks every step; returns how many there were.
    fn reconcile(&mut self) -> Result<usize, TestCaseError> {
        let (labels, update) = (labels(), format!("web-{}", self.template));
        let set = Desired {
            start: self.start,
            current_revision: &self.current,
            update_revision: &update,
            ..desired(&labels, self.replicas, self.ordered)
        };
        let mut pods: Vec<Arc<CachedPod>> = self.pods.values().cloned().map(Arc::new).collect();
        let mut foreign = super::pod(77, "web-b", "Running", Some(1));
        foreign.metadata.owner_references = Some(vec![controlled_by("StatefulSet", "else")]);
        pods.push(Arc::new(foreign));
        let plan = reconcile(&set, &pods, true, at(100));
        let end = self.start + i64::try_from(self.replicas).unwrap();
        let is_up = |pod: &CachedPod| pod.metadata.deletion_timestamp.is_none() && pods::is_ready(pod);
        for step in &plan.steps {
            match step {
                Step::Create { ordinal, .. } => {
                    prop_assert!((self.start..end).contains(ordinal) && !self.pods.contains_key(ordinal));
                    if self.ordered {
                        prop_assert!((self.start..*ordinal).all(|lower| self.pods.get(&lower).is_some_and(is_up)));
                        prop_assert_eq!(plan.steps.len(), 1);
                    }
                }
                Step::Delete(pod, why) => {
                    prop_assert_eq!(&pod.metadata.owner_references.as_ref().unwrap()[0].uid, "set");
                    let ordinal = ordinal_of("web", pod.metadata.name.as_deref().unwrap()).unwrap();
                    let inside = (self.start..end).contains(&ordinal);
                    prop_assert_eq!(*why == Why::Condemned, !inside);
                    if self.ordered {
                        prop_assert_eq!(plan.steps.len(), 1);
                        // None above it is left that is going or to go.
                        let higher = self.pods.range(ordinal + 1..);
                        let mut alike = higher.filter(|(other, _)| (self.start..end).contains(*other) == inside);
                        let blocked = match why {
                            Why::Condemned => alike.next().is_some(),
                            Why::Outdated => alike.any(|(_, pod)| !is_up(pod) || revision_of(pod) != Some(&update)),
                            _ => false,
                        };
                        prop_assert!(!blocked, "{:?} of {:?}", step, self);
                    }
                }
            }
        }
        let status = status::status(&StatefulSet::default(), &set, plan.counts, None);
        let current = status.current_revision.unwrap();
        for step in &plan.steps {
            match step {
                Step::Create { ordinal, current } => {
                    self.serial += 1;
                    let revision = if *current { &self.current } else { &update };
                    let mut new = super::pod(*ordinal, revision, "Pending", None);
                    new.metadata.uid = Some(format!("new-{}", self.serial));
                    self.pods.insert(*ordinal, new);
                }
                Step::Delete(pod, _) => {
                    let ordinal = ordinal_of("web", pod.metadata.name.as_deref().unwrap()).unwrap();
                    self.pods.get_mut(&ordinal).unwrap().metadata.deletion_timestamp = Some(Time(at(1)));
                }
            }
        }
        self.current = current;
        Ok(plan.steps.len())
    }

    fn take(&mut self, happening: Happening) -> Result<(), TestCaseError> {
        match happening {
            Happening::Scale(replicas) => self.replicas = replicas,
            Happening::Template => self.template += 1,
            Happening::Start(start) => self.start = start,
            Happening::Ready(i) => self.set_ready(i, true),
            Happening::Unready(i) => self.set_ready(i, false),
            Happening::Fail(i) => {
                if let Some(pod) = self.pods.values_mut().nth(i) {
                    let status = pod.status.as_mut().unwrap();
                    (status.phase, status.conditions) = (Some("Failed".into()), None);
                }
            }
            Happening::Delete(i) => {
                if let Some(pod) = self.pods.values_mut().nth(i) {
                    pod.metadata.deletion_timestamp = Some(Time(at(1)));
                }
            }
            Happening::Gone(i) => {
                let found = self.pods.iter().nth(i).filter(|(_, pod)| pod.metadata.deletion_timestamp.is_some());
                if let Some(ordinal) = found.map(|(ordinal, _)| *ordinal) {
                    self.pods.remove(&ordinal);
                }
            }
            Happening::Reconcile => drop(self.reconcile()?),
        }
        Ok(())
    }
}

proptest! {
    /// Whatever happens, pods come and go in order, and nothing of others is deleted; left alone, the set gets where it
    /// should be, with pods of the newest template alone.
    #[test]
    fn order_holds(ordered: bool, happenings in prop::collection::vec(happening(), 0..60)) {
        let current = "web-0".to_owned();
        let mut world =
            World { pods: BTreeMap::new(), replicas: 3, start: 0, ordered, current, template: 0, serial: 0 };
        for happening in happenings {
            world.take(happening)?;
        }
        let mut quiet = 0;
        for _ in 0..200 {
            world.pods.retain(|_, pod| pod.metadata.deletion_timestamp.is_none());
            (0..world.pods.len()).for_each(|i| world.set_ready(i, true));
            quiet = if world.reconcile()? == 0 { quiet + 1 } else { 0 };
            if quiet == 2 {
                break;
            }
        }
        prop_assert_eq!(quiet, 2);
        let update = format!("web-{}", world.template);
        let end = world.start + i64::try_from(world.replicas).unwrap();
        prop_assert_eq!(world.pods.keys().copied().collect::<Vec<_>>(), (world.start..end).collect::<Vec<_>>());
        prop_assert!(world.pods.values().all(|pod| revision_of(pod) == Some(update.as_str())));
        prop_assert_eq!(world.current, update);
    }
}
