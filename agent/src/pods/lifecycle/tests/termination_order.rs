//! In which order upstream's own tests have the containers of a pod stopped.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use windlass_fixtures::facts::{rows, value_of};

use super::*;

static ORDER: &str = include_str!("../../../../../facts/termination_order.tsv");

/// How many milliseconds after its deletion each container of a pod is stopped, if it ends so long after that.
fn stops(pod: &Pod, lasts: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let mut observed = ready_sandbox(pod);
    for name in lasts.keys() {
        observed.upsert(instance(name, 0, running(0)));
    }
    let (mut now, mut stopped) = (0, BTreeMap::<String, i64>::new());
    loop {
        for (name, at) in &stopped {
            if at + lasts[name] <= now {
                observed.upsert(instance(name, 0, exited(0, 0, 1)));
            }
        }
        if !observed.has_running() {
            return stopped;
        }
        let moment = at(0) + SignedDuration::from_millis(now);
        let plan = plan(Desired::Run(pod), &observed, moment);
        for action in &plan.actions {
            if let Action::Stop { container, .. } = action {
                stopped.entry(container.clone()).or_insert(now);
            }
        }
        let ends = stopped.iter().map(|(name, at)| (at + lasts[name]).max(now + 1));
        let runs = |name: &String| observed.running_containers().any(|i| i.identity.container == *name);
        let ends = stopped.keys().zip(ends).filter(|(name, _)| runs(name)).map(|(_, at)| at);
        let wakes = plan.wake_at.map(|at| i64::try_from(at.duration_since(self::at(0)).as_millis()).unwrap());
        now = ends.chain(wakes).min().expect("something comes next");
    }
}

#[test]
fn containers_take_turns_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(ORDER) {
        let [name, spec, runs, waits] = *row else { panic!("{row:?}") };
        let runs: BTreeMap<String, (i64, f64)> = value_of(runs);
        let waits: BTreeMap<String, i64> = value_of(waits);
        // The longest is the pod's; those that have none need not wait.
        let grace = runs.values().map(|(grace, _)| *grace).max().unwrap();
        let mut pod = Pod { spec: Some(value_of(spec)), ..pod("Always", 1) };
        pod.metadata.deletion_timestamp = Some(Time(at(grace)));
        pod.metadata.deletion_grace_period_seconds = Some(grace);
        let lasts = runs.iter().map(|(name, (_, seconds))| (name.clone(), (seconds * 1000.0) as i64)).collect();
        let found: BTreeMap<String, i64> =
            stops(&pod, &lasts).into_iter().map(|(name, at)| (name, at / 1000)).collect();
        assert_eq!(found, waits, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 3);
}

/// At the end of the pod's grace period, containers that have not exited are no longer waited for.
#[test]
fn the_end_of_the_grace_period_is_that_of_all() {
    let mut pod = pod_with_sidecar("Always");
    pod.metadata.deletion_timestamp = Some(Time(at(7)));
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("side", 0, running(1)));
    observed.upsert(instance("c0", 0, running(1)));
    observed.stopping.insert("c0-0".into(), at(7));
    observed.in_flight.insert(StepKey::Container("c0-0".into()));
    let before = next(&pod, &observed, 6);
    assert_eq!((before.actions, before.wake_at), (vec![], Some(at(7))));
    let stop = Action::Stop { container: "side".into(), id: "side-0".into(), grace: 2, message: String::new() };
    assert_eq!(next(&pod, &observed, 7).actions, [stop]);
}
