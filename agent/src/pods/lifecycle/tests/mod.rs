//! Tables of the pod lifecycle: the plan and the status for each way in which containers exit.

mod kill;
mod model;
mod oom;
mod running;
mod status;
mod termination_order;
mod time;
mod upstream;
mod upstream_probes;
mod upstream_status;

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::{
    action::{Action, Plan},
    observed::{Failure, ImageState, Observed},
    plan::{Desired, plan},
    restarts::restart_delay,
    step_key::StepKey,
    view::PodView,
};
use crate::engine::{
    inspect::{Exit, Instance, Limits, State},
    names::{Identity, SANDBOX_NAME, container_hash},
};

const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn pod(policy: &str, containers: usize) -> Pod {
    let containers: Vec<String> = (0..containers).map(|i| format!(r#"{{"name":"c{i}","image":"i:1"}}"#)).collect();
    serde_json::from_str(&format!(
        r#"{{"metadata":{{"name":"p","namespace":"n","uid":"u","generation":1}},
            "spec":{{"restartPolicy":"{policy}","terminationGracePeriodSeconds":7,"containers":[{}]}}}}"#,
        containers.join(",")
    ))
    .unwrap()
}

/// One container `c0` besides the sidecar `side`.
fn pod_with_sidecar(policy: &str) -> Pod {
    let mut pod = pod(policy, 1);
    pod.spec.as_mut().unwrap().init_containers =
        serde_json::from_str(r#"[{"name":"side","image":"i:1","restartPolicy":"Always"}]"#).unwrap();
    pod
}

fn instance(name: &str, attempt: u32, state: State) -> Instance {
    Instance {
        id: format!("{name}-{attempt}"),
        identity: Identity { namespace: "n".into(), pod: "p".into(), uid: "u".into(), container: name.into(), attempt },
        state,
        created_at: at(0),
        image: "i:1".into(),
        image_id: "sha256:i".into(),
        hash: container_hash(name, "i:1"),
        sandbox: if name == SANDBOX_NAME { String::new() } else { format!("{SANDBOX_NAME}-0") },
        log_path: String::new(),
        addresses: vec!["10.244.0.2".parse().unwrap()],
        grace: Some(7),
        limits: Limits { cpu_shares: 2, ..Limits::default() },
        runtime: String::new(),
        message_from_log: false,
        user: None,
    }
}

fn running(since: i64) -> State {
    State::Running { pid: 7, started_at: at(since) }
}

fn exited(code: i64, from: i64, to: i64) -> State {
    State::Exited(Exit {
        code,
        oom_killed: false,
        error: String::new(),
        started_at: Some(at(from)),
        finished_at: at(to),
        message: String::new(),
    })
}

/// A pod whose sandbox runs and whose images and volumes are ready.
fn ready_sandbox(pod: &Pod) -> Observed {
    let mut observed = Observed { addresses: vec!["10.244.0.2".parse().unwrap()], ..Observed::default() };
    observed.upsert(instance(SANDBOX_NAME, 0, running(0)));
    observed.network_ready.insert(format!("{SANDBOX_NAME}-0"));
    for container in &pod.spec.as_ref().unwrap().containers {
        let present = ImageState::Present { id: "sha256:i".into(), shown: "sha256:i".into(), user: String::new() };
        observed.images.insert(container.name.clone(), present);
    }
    observed
}

fn next(pod: &Pod, observed: &Observed, now: i64) -> Plan {
    plan(Desired::Run(pod), observed, at(now))
}

fn shown(pod: &Pod, observed: &Observed, now: i64) -> PodStatus {
    PodView::new(pod, observed, at(now)).unwrap().status(NODE.into())
}

fn phase(pod: &Pod, observed: &Observed, now: i64) -> String {
    shown(pod, observed, now).phase.unwrap()
}

fn creates(plan: &Plan) -> Vec<(String, u32)> {
    plan.actions
        .iter()
        .filter_map(|a| match a {
            Action::Create { container, attempt, .. } => Some((container.clone(), *attempt)),
            _ => None,
        })
        .collect()
}

fn condition(status: &PodStatus, kind: &str) -> (String, String) {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap();
    (found.status.clone(), found.reason.clone().unwrap_or_default())
}

#[test]
fn a_pod_starts_with_everything_at_once_that_can_be() {
    let pod = pod("Always", 1);
    let first = next(&pod, &Observed::default(), 0).actions;
    assert_eq!(
        first,
        [Action::EnsureImage { container: "c0".into(), ahead: false }, Action::CreateSandbox { attempt: 0 }]
    );
    let mut observed = ready_sandbox(&pod);
    observed.network_ready.clear();
    observed.instances.clear();
    observed.upsert(instance(SANDBOX_NAME, 0, State::Created));
    // The container is created while the sandbox starts, and started when its network is ready.
    let both = next(&pod, &observed, 0).actions;
    assert!(both.contains(&Action::StartSandbox { id: "POD-0".into() }) && both.len() == 2, "{both:?}");
    observed.upsert(instance("c0", 0, State::Created));
    assert_eq!(next(&pod, &observed, 0).actions, [Action::StartSandbox { id: "POD-0".into() }]);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, State::Created));
    assert_eq!(next(&pod, &observed, 0).actions, [Action::Start { container: "c0".into(), id: "c0-0".into() }]);
    let status = shown(&pod, &observed, 0);
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    let waiting = status.container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("ContainerCreating"));
}

#[test]
fn a_running_pod_is_ready_and_left_alone() {
    let pod = pod("Always", 2);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, running(1)));
    observed.upsert(instance("c1", 0, running(1)));
    assert_eq!(next(&pod, &observed, 5), Plan::default());
    let status = shown(&pod, &observed, 5);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert_eq!(condition(&status, kind).0, "True", "{kind}");
    }
    assert_eq!(status.pod_ip.as_deref(), Some("10.244.0.2"));
    assert_eq!(status.observed_generation, Some(1));
}

/// One row per restart policy and exit code: whether the container is restarted, and the phase.
#[test]
fn the_table_of_one_container() {
    for (policy, code, restarted, wanted) in [
        ("Always", 0, true, "Running"),
        ("Always", 1, true, "Running"),
        ("OnFailure", 0, false, "Succeeded"),
        ("OnFailure", 1, true, "Running"),
        ("Never", 0, false, "Succeeded"),
        ("Never", 1, false, "Failed"),
    ] {
        let pod = pod(policy, 1);
        let mut observed = ready_sandbox(&pod);
        observed.upsert(instance("c0", 0, exited(code, 1, 2)));
        let plan = next(&pod, &observed, 3);
        let wanted_creates = if restarted { vec![("c0".to_owned(), 1)] } else { vec![] };
        assert_eq!(creates(&plan), wanted_creates, "{policy} {code}");
        assert_eq!(phase(&pod, &observed, 3), wanted, "{policy} {code}");
    }
}

#[test]
fn the_table_of_two_containers() {
    for (policy, first, second, restarted, wanted) in [
        // The first fails while the second runs.
        ("Always", 1, None, vec!["c0"], "Running"),
        ("OnFailure", 1, None, vec!["c0"], "Running"),
        ("Never", 1, None, vec![], "Running"),
        // Then the second ends too.
        ("Always", 1, Some(0), vec!["c0", "c1"], "Running"),
        ("Always", 1, Some(1), vec!["c0", "c1"], "Running"),
        ("OnFailure", 1, Some(1), vec!["c0", "c1"], "Running"),
        ("OnFailure", 1, Some(0), vec!["c0"], "Running"),
        ("OnFailure", 0, Some(0), vec![], "Succeeded"),
        ("Never", 1, Some(0), vec![], "Failed"),
        ("Never", 1, Some(1), vec![], "Failed"),
        ("Never", 0, Some(0), vec![], "Succeeded"),
    ] {
        let pod = pod(policy, 2);
        let mut observed = ready_sandbox(&pod);
        observed.upsert(instance("c0", 0, exited(first, 1, 2)));
        observed.upsert(instance("c1", 0, second.map_or_else(|| running(1), |code| exited(code, 1, 2))));
        let made: Vec<String> = creates(&next(&pod, &observed, 3)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(made, restarted, "{policy} {first} {second:?}");
        assert_eq!(phase(&pod, &observed, 3), wanted, "{policy} {first} {second:?}");
    }
}

/// A step that read the container before its removal restores it, and no further event will remove it.
#[test]
fn what_is_removed_while_a_step_reads_it_is_read_again() {
    let mut observed = Observed::default();
    observed.upsert(instance("c0", 0, running(1)));
    observed.in_flight.insert(StepKey::Inspect("c0-0".to_owned()));
    observed.remove("c0-0");
    observed.upsert(instance("c0", 0, running(1)));
    assert!(observed.take_unread().is_empty(), "not while it is being read");
    observed.in_flight.clear();
    assert_eq!(observed.take_unread(), ["c0-0"]);
    assert!(observed.take_unread().is_empty(), "once");
    // No step reads it: it is gone for good.
    observed.remove("c0-0");
    assert!(observed.take_unread().is_empty());
}

#[test]
fn a_container_that_could_not_start_says_why() {
    let pod = pod("Never", 1);
    let mut observed = ready_sandbox(&pod);
    let State::Exited(mut exit) = exited(127, 1, 2) else { panic!("made an exit") };
    exit.started_at = None;
    exit.error = "exec: \"echo123\": not found".into();
    observed.upsert(instance("c0", 0, State::Exited(exit)));
    let ended = shown(&pod, &observed, 3).container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!((ended.reason.as_deref(), ended.exit_code), (Some("StartError"), 128));
    assert!(ended.message.unwrap().contains("echo123"));
}

#[test]
fn the_delay_doubles_from_ten_seconds_to_five_minutes() {
    let delays: Vec<u64> = (0..9).map(|n| restart_delay(n).as_secs()).collect();
    assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn a_container_that_crashes_again_is_backed_off() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 1, exited(1, 10, 11)));
    observed.crash_counts.insert("c0".into(), 1);
    let held = next(&pod, &observed, 12);
    assert!(creates(&held).is_empty());
    assert_eq!(held.wake_at, Some(at(21)));
    let status = shown(&pod, &observed, 12).container_statuses.unwrap().remove(0);
    let waiting = status.state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!(waiting.message.as_deref(), Some("back-off 10s restarting failed container=c0 pod=p_n(u)"));
    assert_eq!(status.last_state.unwrap().terminated.unwrap().exit_code, 1);
    assert_eq!(status.restart_count, 1);
    assert_eq!(creates(&next(&pod, &observed, 21)), [("c0".to_owned(), 2)]);
    // After a restart of the agent the back-off begins again: attempts may be those of a year.
    observed.crash_counts.clear();
    observed.upsert(instance("c0", 4, exited(1, 10, 11)));
    assert_eq!(creates(&next(&pod, &observed, 12)), [("c0".to_owned(), 5)]);
    // A long run clears it, and so does another image.
    observed.upsert(instance("c0", 5, exited(1, 10, 10 + 601)));
    assert_eq!(creates(&next(&pod, &observed, 612)), [("c0".to_owned(), 6)]);
    let mut other = instance("c0", 6, exited(1, 612, 613));
    other.hash = container_hash("c0", "i:0");
    observed.upsert(other);
    assert_eq!(creates(&next(&pod, &observed, 614)), [("c0".to_owned(), 7)]);
}

#[test]
fn init_containers_run_one_after_the_other() {
    let mut pod = pod("Always", 1);
    let spec = pod.spec.as_mut().unwrap();
    spec.init_containers = serde_json::from_str(
        r#"[{"name":"i0","image":"i:1"},{"name":"side","image":"i:1","restartPolicy":"Always"},{"name":"i1","image":"i:1"}]"#,
    )
    .unwrap();
    let mut observed = ready_sandbox(&pod);
    for name in ["i0", "side", "i1"] {
        observed
            .images
            .insert(name.into(), ImageState::Present { id: "x".into(), shown: "x".into(), user: String::new() });
    }
    assert_eq!(creates(&next(&pod, &observed, 0)), [("i0".to_owned(), 0)]);
    let status = shown(&pod, &observed, 0);
    assert_eq!(condition(&status, "Initialized"), ("False".to_owned(), "ContainersNotInitialized".to_owned()));
    observed.upsert(instance("i0", 0, exited(0, 1, 2)));
    assert_eq!(creates(&next(&pod, &observed, 3)), [("side".to_owned(), 0)]);
    observed.upsert(instance("side", 0, running(3)));
    assert_eq!(creates(&next(&pod, &observed, 4)), [("i1".to_owned(), 0)]);
    observed.upsert(instance("i1", 0, exited(1, 4, 5)));
    assert_eq!(creates(&next(&pod, &observed, 6)), [("i1".to_owned(), 1)], "it is run again until it works");
    observed.upsert(instance("i1", 1, exited(0, 6, 7)));
    assert_eq!(creates(&next(&pod, &observed, 8)), [("c0".to_owned(), 0)]);
    // A failed one ends the pod when nothing may be run again.
    pod.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("i0", 0, exited(1, 1, 2)));
    assert!(creates(&next(&pod, &observed, 3)).is_empty());
    assert_eq!(phase(&pod, &observed, 3), "Failed");
}

#[test]
fn a_lost_sandbox_is_recreated_after_its_containers_have_exited() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.network_ready.clear();
    observed.upsert(instance(SANDBOX_NAME, 0, exited(137, 0, 5)));
    observed.upsert(instance("c0", 0, running(1)));
    let stops: Vec<Action> = next(&pod, &observed, 6).actions;
    assert!(matches!(stops.as_slice(), [Action::Stop { .. }]), "{stops:?}");
    observed.upsert(instance("c0", 0, exited(137, 1, 6)));
    assert!(next(&pod, &observed, 7).actions.contains(&Action::CreateSandbox { attempt: 1 }));
}

#[test]
fn deletion_stops_then_removes_then_deletes_from_the_api() {
    let mut pod = pod("Always", 1);
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(10)));
    pod.metadata.deletion_grace_period_seconds = Some(3);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, running(1)));
    let stop = Action::Stop { container: "c0".into(), id: "c0-0".into(), grace: 3, message: String::new() };
    assert_eq!(next(&pod, &observed, 10).actions, [stop]);
    assert_eq!(phase(&pod, &observed, 10), "Running", "a terminal phase is shown when nothing runs");
    // As soon as none of its processes is left, before Docker reports it.
    let mut silent = observed.clone();
    silent.processes_exited.insert("c0-0".to_owned());
    silent.in_flight.insert(StepKey::Container("c0-0".to_owned()));
    assert_eq!(next(&pod, &silent, 11).actions, [Action::RemoveSandbox { id: "POD-0".into() }]);
    silent.in_flight.clear();
    silent.upsert(instance("POD", 0, exited(137, 1, 11)));
    assert_eq!(
        next(&pod, &silent, 11).actions,
        [Action::RemoveSandbox { id: "POD-0".into() }],
        "how it exited is unknown"
    );
    observed.upsert(instance("c0", 0, exited(3, 1, 11)));
    assert_eq!(
        next(&pod, &observed, 11).actions,
        [Action::RemoveSandbox { id: "POD-0".into() }],
        "the exited container stays until the API has its status"
    );
    assert_eq!(phase(&pod, &observed, 11), "Failed");
    let mut told = observed.clone();
    told.upsert(instance("POD", 0, exited(137, 1, 12)));
    assert_eq!(next(&pod, &told, 12).actions, [Action::RemoveSandbox { id: "POD-0".into() }, Action::CleanUp]);
    told.cleaned_up = true;
    assert_eq!(
        next(&pod, &told, 12).actions,
        [Action::RemoveSandbox { id: "POD-0".into() }],
        "the API keeps the pod until it knows that it has failed"
    );
    pod.status = Some(shown(&pod, &observed, 11));
    let actions = next(&pod, &observed, 11).actions;
    assert!(actions.contains(&Action::Remove { id: "c0-0".into() }));
    assert!(actions.contains(&Action::RemoveSandbox { id: "POD-0".into() }));
    // Once all have exited only the worker itself waits for their removal.
    observed.in_flight.extend(["c0-0", "POD-0"].map(|id| StepKey::Container(id.to_owned())));
    assert!(next(&pod, &observed, 12).actions.is_empty(), "the sandbox runs yet");
    observed.upsert(instance("POD", 0, exited(137, 1, 12)));
    assert_eq!(next(&pod, &observed, 12).actions, [Action::CleanUp]);
    observed.cleaned_up = true;
    observed.in_flight.insert(StepKey::Status);
    assert!(next(&pod, &observed, 12).actions.is_empty(), "its last status is written before it is deleted");
    observed.in_flight.clear();
    let actions = next(&pod, &observed, 12).actions;
    assert!(
        actions.contains(&Action::DeleteFromApi) && actions.contains(&Action::RemoveSandbox { id: "POD-0".into() })
    );
    observed.deleted_from_api = true;
    observed.remove("c0-0");
    observed.remove("POD-0");
    assert!(next(&pod, &observed, 12).actions.is_empty());
    // The status stays when a finalizer keeps the object and nothing is left on the node.
    let last = shown(&pod, &Observed::default(), 13).container_statuses.unwrap().remove(0);
    assert_eq!((last.state.unwrap().terminated.unwrap().exit_code, last.last_state), (3, None));
    // A pod that the API no longer has needs no last status.
    assert!(plan(Desired::Deleted { grace: 0, pod: None }, &observed, at(12)).actions.is_empty());
}

#[test]
fn a_failed_pull_is_shown_and_retried() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    let failure =
        Failure { reason: "ErrImagePull", message: "not found".into(), at: at(0), retry_at: at(10), count: 1 };
    observed.images.insert("c0".into(), ImageState::Failed(failure));
    let reason = |now| {
        let status = shown(&pod, &observed, now);
        status.container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap().reason.unwrap()
    };
    assert_eq!((reason(1), reason(3)), ("ErrImagePull".to_owned(), "ImagePullBackOff".to_owned()));
    assert_eq!(next(&pod, &observed, 3).wake_at, Some(at(10)));
    assert_eq!(next(&pod, &observed, 10).actions, [Action::EnsureImage { container: "c0".into(), ahead: false }]);
}

#[test]
fn steps_in_flight_are_not_started_again() {
    let pod = pod("Always", 1);
    let mut observed = Observed::default();
    for action in next(&pod, &observed, 0).actions {
        observed.in_flight.insert(action.key());
    }
    assert!(next(&pod, &observed, 0).actions.is_empty());
}

/// A terminating pod waits only for steps that use something of the node.
#[test]
fn termination_does_not_wait_for_slow_steps() {
    let mut pod = pod("Always", 1);
    assert!(!next(&pod, &Observed::default(), 0).terminates);
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(10)));
    for (key, waits, given_up) in [
        (StepKey::Image("c0".into()), false, true),
        (StepKey::PostStart("c0-0".into()), false, true),
        (StepKey::Probe("c0".into(), super::probes::ProbeType::Readiness), false, false),
        (StepKey::Inspect("c0-0".into()), false, false),
        (StepKey::Volume("v".into()), true, true),
        (StepKey::ReleaseVolumes, true, false),
        (StepKey::Create("c0".into()), true, false),
        (StepKey::Sandbox, true, false),
        (StepKey::Resize, true, false),
    ] {
        let observed = Observed { in_flight: [key.clone()].into(), ..Observed::default() };
        let plan = next(&pod, &observed, 10);
        assert!(plan.terminates);
        assert_eq!(!plan.actions.contains(&Action::CleanUp), waits, "{key:?}");
        assert_eq!(key.is_cancelled_on_termination(), given_up, "{key:?}");
    }
}
