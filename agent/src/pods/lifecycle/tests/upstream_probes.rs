//! When upstream's own tests have containers probed, and what follows from the results.

use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::apis::meta::v1::Time};
use serde_json::{Value, json};
use windlass_fixtures::facts::{json_of, rows, value_of};

use super::*;
use crate::pods::lifecycle::{
    probes::{self, ProbeRecords, ProbeType},
    spec::{self, Role},
};

static TABLE: &str = include_str!("../../../../../facts/probe_workers.tsv");

fn kind(name: &str) -> ProbeType {
    ProbeType::ALL.into_iter().find(|kind| kind.name().to_lowercase() == name).unwrap()
}

/// A container with a probe.
fn container(name: &str, kind: ProbeType, probe: &Value) -> Container {
    let field = format!("{}Probe", kind.name().to_lowercase());
    value_of(&json!({"name": name, "image": "i:1", (field): probe}).to_string())
}

const NAME: &str = "cOnTaInEr_NaMe";

/// One container in one state: whether it is probed, and what follows from that.
fn state_holds(row: &[&str]) {
    let [_, probe, delay, phase, name, state, started, deleted, goes_on, result] = *row else { panic!("{row:?}") };
    let (kind, deleted, goes_on) = (kind(probe), deleted == "true", goes_on == "true");
    let mut pod = pod("Never", 1);
    let spec =
        json!({"exec": {}, "initialDelaySeconds": value_of::<i32>(delay), "failureThreshold": 1, "periodSeconds": 1});
    pod.spec.as_mut().unwrap().containers = vec![container(NAME, kind, &spec)];
    pod.status.get_or_insert_default().phase = (phase != "null").then(|| phase.to_owned());
    pod.metadata.deletion_timestamp = deleted.then(|| Time(at(100)));
    let mut observed = ready_sandbox(&pod);
    match state {
        "running" => observed.upsert(instance(name, 0, running(1))),
        "terminated" => observed.upsert(instance(name, 0, exited(0, 1, 2))),
        _ => {}
    }
    let asked = next(&pod, &observed, 5)
        .actions
        .iter()
        .any(|action| matches!(action, Action::Probe { container, probe, .. } if container == NAME && *probe == kind));
    // Of a terminating container only readiness matters: upstream counts its other probes as successful.
    assert_eq!(asked, result == "success" && goes_on, "{row:?}");
    let container = pod.spec.as_ref().unwrap().containers[0].clone();
    if asked {
        let found = observed.newest(NAME).unwrap().clone();
        probes::record_result(&pod, &container, kind, &found, true, at(5), &mut observed.probes);
        assert_eq!(probes::failed_probe(&container, &found, &observed.probes), None, "{row:?}");
    }
    if let Some((found, exit)) = observed.newest(NAME).and_then(|found| Some((found, found.exit()?))) {
        let view = PodView::new(&pod, &observed, at(5)).unwrap();
        assert_eq!(view.restarts(&container, Role::Main, found, exit), goes_on, "{row:?}");
    }
    // Only of running containers a status says that they have started.
    let statuses = shown(&pod, &observed, 6).container_statuses.unwrap_or_default();
    let status = statuses.first().filter(|_| !deleted || kind == ProbeType::Readiness);
    let good = status.is_some_and(|status| match kind {
        ProbeType::Readiness => status.ready,
        _ => status.started == Some(true),
    });
    let expected = (result == "success" && (!deleted || kind == ProbeType::Readiness))
        // Without a pending startup probe a running container counts as started, whatever its liveness.
        || (kind == ProbeType::Liveness && state == "running" && name == NAME && started == "true" && !deleted && status.is_some());
    assert_eq!(good, expected, "{row:?}");
}

/// A container is probed on if it is run again.
fn restart_holds(row: &[&str]) {
    let [_, probe, case, spec, states, goes_on] = *row else { panic!("{row:?}") };
    let mut pod = Pod { spec: Some(value_of(spec)), ..pod("Never", 1) };
    let mut first = container(NAME, kind(probe), &json!({"exec": {}}));
    let containers = &mut pod.spec.as_mut().unwrap().containers;
    first.restart_policy.clone_from(&containers[0].restart_policy);
    first.restart_policy_rules.clone_from(&containers[0].restart_policy_rules);
    containers[0] = first;
    let mut observed = ready_sandbox(&pod);
    for (container, _) in spec::all_containers(pod.spec.as_ref().unwrap()) {
        let present = ImageState::Present { id: "x".into(), shown: "x".into(), user: String::new() };
        observed.images.insert(container.name.clone(), present);
    }
    for state in json_of(states).as_array().unwrap() {
        if let Some(code) = state[2].as_i64() {
            let name = state[0].as_str().unwrap();
            let mut found = instance(name, 0, exited(code, 1, 5));
            found.hash =
                container_hash(name, spec::image_of(&spec::container(pod.spec.as_ref().unwrap(), name).unwrap()));
            observed.upsert(found);
        }
    }
    let again = creates(&next(&pod, &observed, 10_000)).iter().any(|(name, _)| name == NAME);
    assert_eq!(again, goes_on == "true", "{probe} {case}");
}

/// Results one after the other.
fn sequence_holds(row: &[&str]) {
    let [name, probe, spec, steps] = *row else { panic!("{row:?}") };
    let kind = kind(probe);
    let container = container("c0", kind, &json_of(spec));
    let (pod, mut records) = (Pod::default(), ProbeRecords::new());
    for (number, step) in json_of(steps).as_array().unwrap().iter().enumerate() {
        if step[0] == "before" {
            assert_eq!((kind, &step[1]), (ProbeType::Readiness, &json!("failure")), "as it is here");
            continue;
        }
        let second = 1000 + 10 * i64::try_from(number).unwrap();
        let mut found = instance("c0", 0, running(second - step[1].as_i64().unwrap()));
        found.id = step[0].as_str().unwrap().to_owned();
        let started =
            step[2] == true || (kind == ProbeType::Startup && probes::result(&pod, &container, kind, &found, &records));
        let due = probes::schedule(&container, &found, &records, started, false, None);
        if due.iter().any(|(due, when)| *due == kind && *when <= at(second)) {
            let good = step[3] == "success";
            probes::record_result(&pod, &container, kind, &found, good, at(second), &mut records);
        }
        let good = probes::result(&pod, &container, kind, &found, &records);
        let failed = probes::failed_probe(&container, &found, &records).is_some();
        let shown = match (good, failed || kind == ProbeType::Readiness) {
            (true, false) => "success",
            (true, true) if kind == ProbeType::Readiness => "success",
            (_, true) => "failure",
            (false, false) => "unknown",
        };
        assert_eq!(step[4], shown, "{name} {probe}, step {number}");
    }
}

#[test]
fn containers_are_probed_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(TABLE) {
        match row.len() {
            10 => state_holds(&row),
            6 => restart_holds(&row),
            _ => sequence_holds(&row),
        }
        seen += 1;
    }
    assert!(seen >= 70, "{seen}");
}
