//! What upstream's own tests expect of a pod, its containers and its probes.

use std::collections::BTreeSet;

use serde_json::Value;
use windlass_fixtures::facts::{json_of, rows, value_of};

use super::*;
use crate::pods::lifecycle::{
    probes::{self, ProbeType},
    spec,
};

static ACTIONS: &str = include_str!("../../../../../facts/pod_actions.tsv");

/// Cases that are decided otherwise here, and why; docs/decisions.md has those that are seen.
static OTHERWISE: &[(&str, &str)] = &[
    ("Kill pod and recreate all containers if the PodSandbox does not have an IP", "its network is attached again"),
    (
        "Pod sandbox not ready, init container failed, but RestartPolicy == Never; kill pod only",
        "no container has failed, and none of the pod's own has run: they are started",
    ),
    (
        "Pod sandbox not ready, restartable init container failed, but RestartPolicy == Never; kill pod only",
        "the same: sidecars are restarted whatever the policy",
    ),
];

fn texts(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn present() -> ImageState {
    ImageState::Present { id: "x".into(), shown: "x".into(), user: String::new() }
}

/// A pod and all that runs of it, as the row of a table has it.
fn world(row: &[&str]) -> (Pod, Observed) {
    let mut pod: Pod = value_of(row[2]);
    pod.metadata.uid = Some("u".into());
    let mut observed = ready_sandbox(&pod);
    observed.instances.clear();
    observed.network_ready.clear();
    for (container, _) in spec::all_containers(pod.spec.as_ref().unwrap()) {
        observed.images.insert(container.name.clone(), present());
    }
    for sandbox in json_of(row[3]).as_array().unwrap() {
        let attempt = u32::try_from(sandbox[1].as_u64().unwrap()).unwrap();
        let state = if sandbox[0] == "ready" { running(0) } else { exited(137, 0, 1) };
        observed.upsert(instance(SANDBOX_NAME, attempt, state));
        if sandbox[2] == true {
            observed.network_ready.insert(format!("{SANDBOX_NAME}-{attempt}"));
        }
    }
    let sandbox = observed.sandbox().map(|sandbox| sandbox.id.clone()).unwrap_or_default();
    for container in json_of(row[4]).as_array().unwrap() {
        let name = container[0].as_str().unwrap();
        let state = match container[1].as_str().unwrap() {
            "running" => running(0),
            "created" => State::Created,
            _ => exited(container[2].as_i64().unwrap(), 0, 1),
        };
        let mut found = instance(name, 0, state);
        let of_spec = spec::container(pod.spec.as_ref().unwrap(), name).unwrap_or_default();
        let changed = container[3] == true;
        found.hash = container_hash(name, if changed { "another" } else { spec::image_of(&of_spec) });
        found.sandbox.clone_from(&sandbox);
        observed.post_start_done.insert(found.id.clone());
        observed.upsert(found);
    }
    for probe in json_of(row[5]).as_array().unwrap() {
        probed(&mut pod, &mut observed, probe);
    }
    (pod, observed)
}

/// The threshold of a probe is reached.
fn probed(pod: &mut Pod, observed: &mut Observed, row: &Value) {
    let (kind, name) = (row[0].as_str().unwrap(), row[1].as_str().unwrap());
    let kind = if kind == "startup" { ProbeType::Startup } else { ProbeType::Liveness };
    let good = match row[2].as_str().unwrap() {
        "success" => true,
        "failure" => false,
        _ => return,
    };
    let spec = pod.spec.as_mut().unwrap();
    let all = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    let container = all.into_iter().find(|container| container.name == name).unwrap();
    // Upstream's managers of results know them of containers without a probe, too.
    let probe = match kind {
        ProbeType::Startup => &mut container.startup_probe,
        _ => &mut container.liveness_probe,
    };
    probe.get_or_insert_default();
    let container = container.clone();
    let found = observed.newest(name).unwrap().clone();
    for second in 0..3 {
        probes::record_result(pod, &container, kind, &found, good, at(second), &mut observed.probes);
    }
}

/// What is stopped, whether the sandbox is made again, and what is run next.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    stopped: BTreeSet<String>,
    sandbox: bool,
    run: BTreeSet<String>,
}

/// Carries out what a plan says until it runs a container, or has nothing to do.
fn steps(pod: &Pod, observed: &mut Observed) -> Steps {
    let mut steps = Steps::default();
    for round in 0..10 {
        // Long enough for any back-off.
        let now = 10_000 * (round + 1);
        let plan = next(pod, observed, now);
        for action in &plan.actions {
            match action {
                Action::EnsureImage { container, .. } => {
                    observed.images.insert(container.clone(), present());
                }
                Action::PrepareVolume { volume } => observed.volume_prepared(volume.clone(), None),
                Action::Stop { container, id, .. } | Action::PreStop { container, id, .. } => {
                    if container != SANDBOX_NAME {
                        steps.stopped.insert(container.clone());
                    }
                    let mut found = observed.instance(id).unwrap().clone();
                    found.state = exited(137, 0, now);
                    observed.upsert(found);
                }
                Action::CreateSandbox { attempt } => {
                    steps.sandbox = true;
                    observed.upsert(instance(SANDBOX_NAME, *attempt, State::Created));
                }
                Action::StartSandbox { id } => {
                    let mut found = observed.instance(id).unwrap().clone();
                    found.state = running(now);
                    observed.upsert(found);
                    observed.network_ready.insert(id.clone());
                }
                Action::Remove { id } | Action::RemoveSandbox { id } => drop(observed.remove(id)),
                Action::Create { container, .. } | Action::Start { container, .. } => {
                    steps.run.insert(container.clone());
                }
                _ => {}
            }
        }
        if !steps.run.is_empty() {
            break;
        }
    }
    // What was stopped to be run again: upstream says both at once.
    let again = creates(&next(pod, observed, 1_000_000)).into_iter().map(|(name, _)| name);
    let again: Vec<String> = again.filter(|name| steps.stopped.contains(name)).collect();
    steps.run.extend(again);
    steps
}

#[test]
fn pods_are_run_as_upstreams_tests_say() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for row in rows(ACTIONS) {
        // Docker has no such state.
        if row[4].contains("\"unknown\"") || OTHERWISE.iter().any(|(case, _)| *case == row[1]) {
            continue;
        }
        let (pod, mut observed) = world(&row);
        let expected = Steps {
            stopped: texts(&json_of(row[8])),
            sandbox: row[7] == "true",
            run: [9, 10, 11].into_iter().flat_map(|at| texts(&json_of(row[at]))).collect(),
        };
        let killed = row[6] == "true";
        let alive: BTreeSet<String> = observed.running_containers().map(|i| i.identity.container.clone()).collect();
        let expected = if killed { Steps { stopped: alive, ..expected } } else { expected };
        let found = steps(&pod, &mut observed);
        if found != expected {
            wrong.push(format!("{} {}\n  found    {found:?}\n  expected {expected:?}", row[0], row[1]));
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 60, "{seen}");
}

static PHASES: &str = include_str!("../../../../../facts/pod_phases.tsv");

/// A pod and what runs of it, from the states of its containers.
fn in_states(row: &[&str]) -> (Pod, Observed) {
    let mut pod = Pod { spec: Some(value_of(row[2])), ..Pod::default() };
    pod.metadata.uid = Some("u".into());
    let mut observed = ready_sandbox(&pod);
    let states = json_of(row[3]);
    let inits: Vec<String> = spec::init_containers(pod.spec.as_ref().unwrap()).iter().map(|c| c.name.clone()).collect();
    let done = |state: &Value| state[1] == "started" || (state[1] == "exited" && state[2] == 0);
    let all = states.as_array().unwrap();
    let initialized = row[5] == "true" || inits.iter().all(|name| all.iter().any(|s| s[0] == **name && done(s)));
    for state in all {
        let name = state[0].as_str().unwrap();
        let (mut found, word) = (instance(name, 0, running(0)), state[1].as_str().unwrap());
        found.hash = container_hash(name, "");
        found.state = match (word, state[2].as_i64()) {
            ("running" | "started", _) => running(0),
            // One that waits to be run again has exited before.
            (_, Some(code)) => exited(code, 0, 1),
            _ => continue,
        };
        // Containers of another sandbox say nothing of the init containers of this one.
        if !initialized && !inits.iter().any(|init| init == name) {
            found.sandbox = "earlier".into();
        }
        let sidecar = pod.spec.as_mut().unwrap().init_containers.iter_mut().flatten().find(|c| c.name == name);
        if let Some(sidecar) = sidecar.filter(|c| word == "running" && c.restart_policy.as_deref() == Some("Always")) {
            sidecar.lifecycle = serde_json::from_str(r#"{"postStart":{"exec":{"command":["x"]}}}"#).unwrap();
        }
        observed.upsert(found);
    }
    if row[4] == "true" {
        pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    }
    (pod, observed)
}

#[test]
fn pods_have_phases_as_upstreams_tests_say() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for row in rows(PHASES) {
        if OTHERWISE.iter().any(|(case, _)| *case == row[1]) {
            continue;
        }
        let (pod, observed) = in_states(&row);
        let found = phase(&pod, &observed, 2);
        if found != row[6] {
            wrong.push(format!("{} {}: {found}, not {}: {}", row[0], row[1], row[6], row[3]));
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 60, "{seen}");
}
