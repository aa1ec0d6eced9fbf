//! Jobs in a world where the controller may end at any point.

use std::{collections::HashSet, sync::Arc};

use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::Time};
use proptest::prelude::*;
use serde_json::json;

use super::{at, ended, job, pod};
use crate::{
    finished_jobs,
    job::{
        backoff::Backoff,
        plan::{self, Observed},
        status, template,
    },
    pods,
    runtime::CachedPod,
};

#[derive(Debug, Clone)]
enum Step {
    /// A run that ends after this number of its writes.
    Run(usize),
    /// One of the running pods succeeds, fails, or is deleted by somebody.
    Succeed(usize),
    Fail(usize),
    Delete(usize),
    /// Pods that are being deleted and not held any more go.
    Sweep,
}

struct World {
    job: Job,
    pods: Vec<CachedPod>,
    backoff: Backoff,
    now: i64,
    created: usize,
    succeeded: usize,
    failed: usize,
}

const ALL: usize = 99;

impl World {
    fn new(spec: &serde_json::Value) -> Self {
        let mut job = job(spec);
        job.status = None;
        Self { job, pods: Vec::new(), backoff: Backoff::default(), now: 1000, created: 0, succeeded: 0, failed: 0 }
    }

    fn write(&mut self, new: &k8s_openapi::api::batch::v1::JobStatus) {
        let Some(patch) = status::patch(None, self.job.status.as_ref(), new) else { return };
        let mut stored = serde_json::to_value(&self.job.status).unwrap();
        json_patch::merge(&mut stored, &patch["status"]);
        self.job.status = serde_json::from_value(stored).unwrap();
    }

    fn run(&mut self, writes: usize) {
        // No wait lasts longer.
        self.now += 700;
        if finished_jobs::finished(&self.job).is_some() {
            return;
        }
        let pods: Vec<Arc<CachedPod>> = self.pods.iter().cloned().map(Arc::new).collect();
        let released = HashSet::new();
        let observed = Observed {
            pods: &pods,
            settled: true,
            released: &released,
            backoff: std::mem::take(&mut self.backoff),
            now: at(self.now),
        };
        let plan = plan::reconcile(&self.job, &observed);
        let mut left = writes;
        let mut write = || {
            left = left.saturating_sub(1);
            left > 0
        };
        for victim in &plan.delete {
            if !write() {
                return;
            }
            let pod = self.pods.iter_mut().find(|pod| pod.metadata.uid == victim.metadata.uid).unwrap();
            pod.metadata.deletion_timestamp = Some(Time(at(self.now)));
            if plan.forget {
                pod.metadata.finalizers = None;
                self.created -= 1;
            } else if plan.ending.as_ref().is_some_and(|end| end.succeeds) {
                self.created -= 1;
            } else {
                self.failed += 1;
            }
        }
        for new in &plan.create {
            if !write() {
                return;
            }
            self.created += 1;
            let made = template::pod_for(&self.job, new).unwrap();
            let mut created = pod(&format!("p{}-{}", self.now, self.pods.len()), "Running");
            created.metadata.annotations = made.metadata.annotations;
            self.pods.push(created);
        }
        if !write() {
            return;
        }
        self.write(&plan.status);
        let mut removed = HashSet::new();
        for pod in &plan.release {
            if !write() {
                return;
            }
            let uid = pod.metadata.uid.clone().unwrap();
            let mut real = self.pods.iter_mut().filter(|pod| pod.metadata.uid.as_ref() == Some(&uid));
            real.by_ref().for_each(|pod| pod.metadata.finalizers = None);
            removed.insert(uid);
        }
        if write() {
            let (status, _) = plan::settle(self.job.spec.as_ref(), &plan, &removed, at(self.now));
            self.write(&status);
            self.backoff = plan.backoff;
        }
    }

    fn active(&self) -> Vec<usize> {
        (0..self.pods.len()).filter(|at| pods::is_active(&self.pods[*at])).collect()
    }

    fn step(&mut self, step: &Step) {
        let active = self.active();
        let pick = |which: usize| (!active.is_empty()).then(|| active[which % active.len()]);
        match step {
            Step::Run(writes) => self.run(*writes),
            Step::Succeed(which) | Step::Fail(which) => {
                let Some(at) = pick(*which) else { return };
                let code = i32::from(matches!(step, Step::Fail(_)));
                *(if code == 0 { &mut self.succeeded } else { &mut self.failed }) += 1;
                let like = ended("x", code, self.now);
                self.pods[at].status = like.status;
            }
            Step::Delete(which) => {
                let Some(which) = pick(*which) else { return };
                self.failed += 1;
                self.pods[which].metadata.deletion_timestamp = Some(Time(at(self.now)));
            }
            Step::Sweep => self.sweep(),
        }
    }

    fn sweep(&mut self) {
        self.pods.retain(|pod| pod.metadata.deletion_timestamp.is_none() || pod.metadata.finalizers.is_some());
    }

    fn counted(&self) -> (usize, usize) {
        let status = self.job.status.clone().unwrap_or_default();
        let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
        let count = |counter: Option<i32>, uids: Option<Vec<String>>| {
            usize::try_from(counter.unwrap_or(0)).unwrap() + uids.map_or(0, |uids| uids.len())
        };
        (count(status.succeeded, uncounted.succeeded), count(status.failed, uncounted.failed))
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1usize..8).prop_map(Step::Run),
        3 => Just(Step::Run(ALL)),
        3 => (0usize..8).prop_map(Step::Succeed),
        2 => (0usize..8).prop_map(Step::Fail),
        1 => (0usize..8).prop_map(Step::Delete),
        1 => Just(Step::Sweep),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// Never more pods than wanted, each counted once, and the end is exact.
    #[test]
    fn jobs_complete_exactly(
        steps in steps(), parallelism in 1usize..5, completions in 1usize..7, indexed in any::<bool>(),
        per_index in any::<bool>(),
    ) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let mut world = World::new(&json!({"parallelism": parallelism, "completions": completions, "backoffLimit": 1000,
            "completionMode": mode, "backoffLimitPerIndex": (indexed && per_index).then_some(1000)}));
        for step in &steps {
            world.step(step);
            prop_assert!(world.active().len() <= parallelism);
            let (succeeded, failed) = world.counted();
            prop_assert!(succeeded <= world.succeeded && failed <= world.failed, "{succeeded} {failed}");
        }
        for _ in 0..40 {
            world.run(ALL);
            prop_assert!(world.active().len() <= parallelism);
            for _ in 0..world.active().len() {
                world.step(&Step::Succeed(0));
            }
            world.sweep();
        }
        prop_assert!(finished_jobs::true_condition(&world.job, "Complete").is_some(), "{:?}", world.job.status);
        let status = world.job.status.clone().unwrap();
        prop_assert_eq!(world.counted(), (completions, world.failed));
        prop_assert_eq!(world.succeeded, completions);
        prop_assert!(world.pods.iter().all(|pod| pod.metadata.finalizers.is_none()), "nothing is held");
        prop_assert_eq!(world.created, world.succeeded + world.failed);
        if indexed {
            let all: crate::job::indexes::Indexes = (0..i32::try_from(completions).unwrap()).collect();
            prop_assert_eq!(status.completed_indexes, Some(all.to_string()));
        }
    }

    /// Too many failures end a Job, and what it says then stays.
    #[test]
    fn jobs_fail_exactly(steps in steps(), parallelism in 1usize..5, limit in 0usize..4) {
        let mut world =
            World::new(&json!({"parallelism": parallelism, "completions": 50, "backoffLimit": limit}));
        for step in &steps {
            world.step(step);
        }
        for _ in 0..40 {
            world.run(ALL);
            for _ in 0..world.active().len() {
                world.step(&Step::Fail(0));
            }
            world.sweep();
        }
        prop_assert!(finished_jobs::true_condition(&world.job, "Failed").is_some(), "{:?}", world.job.status);
        let (succeeded, failed) = world.counted();
        prop_assert!(failed > limit && failed <= limit + parallelism, "{failed} of {limit}");
        prop_assert_eq!((succeeded, failed), (world.succeeded, world.failed));
        prop_assert!(world.pods.iter().all(|pod| pod.metadata.finalizers.is_none()), "nothing is held");
    }
}
