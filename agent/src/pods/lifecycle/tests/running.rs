//! Tables of the plan for running containers: hooks, probes, and the order in which they are stopped.

use super::*;
use crate::pods::lifecycle::{
    probes::{self, ProbeType},
    reasons,
};

fn of(spec: &str, metadata: &str) -> Pod {
    serde_json::from_str(&format!(r#"{{"metadata":{{"name":"p","namespace":"n","uid":"u"{metadata}}},"spec":{spec}}}"#))
        .unwrap()
}

fn with(spec: &str) -> Pod {
    of(spec, "")
}

fn stopped(plan: &Plan) -> Vec<(&str, i64)> {
    plan.actions
        .iter()
        .filter_map(|a| match a {
            Action::Stop { container, grace, .. } => Some((container.as_str(), *grace)),
            _ => None,
        })
        .collect()
}

#[test]
fn a_hook_runs_first_and_later_containers_wait_for_it() {
    let pod = with(
        r#"{"containers":[
            {"name":"c0","image":"i:1","lifecycle":{"postStart":{"sleep":{"seconds":1}}},"livenessProbe":{"tcpSocket":{"port":1}}},
            {"name":"c1","image":"i:1"}]}"#,
    );
    let mut observed = ready_sandbox(&pod);
    assert_eq!(creates(&next(&pod, &observed, 1)), [("c0".to_owned(), 0)]);
    observed.upsert(instance("c0", 0, running(1)));
    let hook = Action::PostStart { container: "c0".into(), id: "c0-0".into() };
    assert_eq!(next(&pod, &observed, 1).actions, [hook]);
    let status = shown(&pod, &observed, 1).container_statuses.unwrap();
    assert_eq!((status[0].started, status[0].ready), (Some(false), false));
    observed.post_start_done.insert("c0-0".into());
    let plan = next(&pod, &observed, 2);
    assert_eq!(creates(&plan), [("c1".to_owned(), 0)]);
    let probe = Action::Probe { container: "c0".into(), id: "c0-0".into(), probe: ProbeType::Liveness };
    assert!(plan.actions.contains(&probe), "{plan:?}");
    // A failed hook stops its container, and an exit code of 0 is no success then.
    observed.unhealthy.insert("c0-0".into());
    assert_eq!(stopped(&next(&pod, &observed, 2)), [("c0", 30)]);
}

#[test]
fn a_container_whose_probe_failed_is_restarted_whatever_its_exit_code() {
    let spec = |policy: &str| {
        with(&format!(
            r#"{{"restartPolicy":"{policy}","containers":[{{"name":"c0","image":"i:1",
                "livenessProbe":{{"tcpSocket":{{"port":1}},"failureThreshold":1,"terminationGracePeriodSeconds":3}}}}]}}"#
        ))
    };
    for (policy, again) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let pod = spec(policy);
        let mut observed = ready_sandbox(&pod);
        observed.upsert(instance("c0", 0, running(1)));
        let (container, one) = (&pod.spec.as_ref().unwrap().containers[0], instance("c0", 0, running(1)));
        probes::record_result(&pod, container, ProbeType::Liveness, &one, false, at(2), &mut observed.probes);
        let plan = next(&pod, &observed, 3);
        assert_eq!(stopped(&plan), [("c0", 3)], "{policy}");
        let Action::Stop { message: why, .. } = &plan.actions[0] else { panic!("{plan:?}") };
        assert_eq!(why.ends_with("will be restarted"), again, "{why}");
        observed.unhealthy.insert("c0-0".into());
        observed.upsert(instance("c0", 0, exited(0, 1, 4)));
        assert_eq!(!creates(&next(&pod, &observed, 5)).is_empty(), again, "{policy}");
    }
}

const SIDECARS: &str = r#"{"terminationGracePeriodSeconds":20,"initContainers":[
    {"name":"s0","image":"i:1","restartPolicy":"Always"},{"name":"s1","image":"i:1","restartPolicy":"Always"}],
    "containers":[{"name":"c0","image":"i:1"}]}"#;

#[test]
fn sidecars_are_stopped_after_the_others_the_last_first() {
    let deleted = r#","deletionTimestamp":"2023-11-14T22:13:40Z","deletionGracePeriodSeconds":20"#;
    let pod = of(SIDECARS, deleted);
    let mut observed = ready_sandbox(&pod);
    for name in ["s0", "s1", "c0"] {
        observed.upsert(instance(name, 0, running(1)));
    }
    // Docker has not answered to the start: its processes may run.
    observed.upsert(instance("c0", 0, State::Created));
    observed.in_flight.insert(StepKey::Container("c0-0".into()));
    assert_eq!(stopped(&next(&pod, &observed, 0)), [], "the sidecars of one that may run");
    observed.in_flight.clear();
    observed.upsert(instance("c0", 0, running(1)));
    // The deletion was requested at 0 and its grace period ends at 20.
    assert_eq!(stopped(&next(&pod, &observed, 0)), [("c0", 20)]);
    observed.upsert(instance("c0", 0, exited(0, 1, 5)));
    assert_eq!(stopped(&next(&pod, &observed, 5)), [("s1", 15)]);
    observed.upsert(instance("s1", 0, exited(0, 1, 30)));
    assert_eq!(stopped(&next(&pod, &observed, 30)), [("s0", 2)]);
}

#[test]
fn the_next_container_starts_when_a_sidecar_has_started() {
    let pod = with(
        r#"{"initContainers":[{"name":"s0","image":"i:1","restartPolicy":"Always","startupProbe":{"tcpSocket":{"port":1}}}],
            "containers":[{"name":"c0","image":"i:1"}]}"#,
    );
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("s0", 0, running(1)));
    assert_eq!(creates(&next(&pod, &observed, 2)), []);
    assert_eq!(condition(&shown(&pod, &observed, 2), "Initialized").0, "False");
    let (container, one) =
        (&pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0], instance("s0", 0, running(1)));
    probes::record_result(&pod, container, ProbeType::Startup, &one, true, at(2), &mut observed.probes);
    assert_eq!(creates(&next(&pod, &observed, 3)), [("c0".to_owned(), 0)]);
    assert_eq!(condition(&shown(&pod, &observed, 3), "Initialized").0, "True");
}

#[test]
fn a_shorter_deletion_grace_shortens_the_stop() {
    let deleted = |grace: i64| {
        of(
            r#"{"containers":[{"name":"c0","image":"i:1"}]}"#,
            &format!(r#","deletionTimestamp":"2023-11-14T22:13:25Z","deletionGracePeriodSeconds":{grace}"#),
        )
    };
    let mut observed = ready_sandbox(&deleted(300));
    observed.upsert(instance("c0", 0, running(1)));
    observed.stopping.insert("c0-0".into(), at(305));
    observed.in_flight.insert(StepKey::Container("c0-0".into()));
    assert_eq!(next(&deleted(300), &observed, 6).actions, []);
    assert_eq!(next(&deleted(1), &observed, 6).actions, [Action::ShortenGrace { id: "c0-0".into(), grace: 1 }]);
}

/// As with Istio's and Linkerd's proxies: the sidecar's hook starts draining when the application is asked to stop.
#[test]
fn all_pre_stop_hooks_run_at_once() {
    let hook = r#""lifecycle":{"preStop":{"exec":{"command":["drain"]}}}"#;
    let pod = of(
        &format!(
            r#"{{"initContainers":[{{"name":"s0","image":"i:1","restartPolicy":"Always",{hook}}}],
                "containers":[{{"name":"c0","image":"i:1",{hook}}},{{"name":"c1","image":"i:1"}}]}}"#
        ),
        r#","deletionTimestamp":"2023-11-14T22:13:50Z","deletionGracePeriodSeconds":30"#,
    );
    let mut observed = ready_sandbox(&pod);
    for name in ["s0", "c0", "c1"] {
        observed.upsert(instance(name, 0, running(-100)));
    }
    let message = String::new;
    let pre_stop = |name: &str| {
        let (container, id) = (name.to_owned(), format!("{name}-0"));
        Action::PreStop { container, id, grace: 30, message: message() }
    };
    let stop = |name: &str, grace| {
        let (container, id) = (name.to_owned(), format!("{name}-0"));
        Action::Stop { container, id, grace, message: message() }
    };
    let begun = next(&pod, &observed, 0).actions;
    assert_eq!(begun, [pre_stop("c0"), stop("c1", 30), pre_stop("s0")]);
    for id in ["c0-0", "s0-0"] {
        observed.in_flight.insert(StepKey::PreStop(id.to_owned()));
        observed.stopping.insert(id.to_owned(), at(30));
    }
    observed.upsert(instance("c1", 0, exited(0, 0, 1)));
    assert_eq!((next(&pod, &observed, 5).actions, next(&pod, &observed, 5).wake_at), (vec![], Some(at(30))));
    // A container whose hook is over gets what is left; the sidecar waits for its turn, and for its own hook.
    observed.in_flight.remove(&StepKey::PreStop("c0-0".into()));
    observed.pre_stop_done.insert("c0-0".into());
    assert_eq!(next(&pod, &observed, 10).actions, [stop("c0", 20)]);
    assert_eq!(next(&pod, &observed, 29).actions, [stop("c0", 2)], "upstream's minimum");
    observed.upsert(instance("c0", 0, exited(0, 0, 12)));
    assert_eq!(next(&pod, &observed, 12).actions, []);
    assert_eq!(next(&pod, &observed, 30).actions, [Action::CutPreStop { id: "s0-0".into() }]);
    observed.in_flight.clear();
    observed.pre_stop_done.insert("s0-0".into());
    assert_eq!(next(&pod, &observed, 13).actions, [stop("s0", 17)]);
}

#[test]
fn a_hook_ends_with_its_grace() {
    let hook = r#""lifecycle":{"preStop":{"sleep":{"seconds":600}}}"#;
    let deleted = |grace: i64| {
        of(
            &format!(r#"{{"containers":[{{"name":"c0","image":"i:1",{hook}}}]}}"#),
            &format!(r#","deletionTimestamp":"2023-11-14T22:13:25Z","deletionGracePeriodSeconds":{grace}"#),
        )
    };
    let mut observed = ready_sandbox(&deleted(300));
    observed.upsert(instance("c0", 0, running(1)));
    observed.stopping.insert("c0-0".into(), at(305));
    observed.in_flight.insert(StepKey::PreStop("c0-0".into()));
    assert_eq!(next(&deleted(300), &observed, 6).actions, []);
    let shorter = next(&deleted(4), &observed, 6);
    assert_eq!(
        (shorter.actions, shorter.wake_at),
        (vec![Action::ShortenPreStop { id: "c0-0".into(), grace: 4 }], Some(at(10)))
    );
    observed.stopping.insert("c0-0".into(), at(10));
    assert_eq!(next(&deleted(4), &observed, 9).actions, []);
    assert_eq!(next(&deleted(4), &observed, 10).actions, [Action::CutPreStop { id: "c0-0".into() }]);
}

/// An image was built again, or is gone: names are looked up for each start.
#[test]
fn an_image_is_looked_up_for_each_start() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    let look_up = Action::EnsureImage { container: "c0".into(), ahead: false };
    assert_eq!(creates(&next(&pod, &observed, 0)), [("c0".to_owned(), 0)]);
    observed.doubt_images();
    assert_eq!(next(&pod, &observed, 0).actions, std::slice::from_ref(&look_up), "Docker told of another one");
    assert!(observed.doubtful_image("c0").is_some(), "what was there is not pulled again while its name leads to it");
    observed.in_flight.insert(StepKey::Create("c0".into()));
    assert_eq!(next(&pod, &observed, 0).actions, [], "the look-up would count as that of the next container");
    observed.in_flight.clear();
    // Not during the back-off of a failed start, since it would be outdated by the end.
    let failure = Failure {
        reason: reasons::CREATE_CONTAINER_ERROR,
        message: "No such image".into(),
        at: at(0),
        retry_at: at(10),
        count: 1,
    };
    observed.start_failures.insert("c0".into(), failure);
    assert_eq!(next(&pod, &observed, 1).actions, []);
    assert_eq!(next(&pod, &observed, 10).actions, [look_up]);
}

/// An init container may have to prepare the registry: earlier failures are not reported.
#[test]
fn a_pull_ahead_of_its_turn_fails_in_silence() {
    let (pod, mut observed) = with_inits();
    observed.upsert(instance("i0", 0, running(1)));
    let failure = |at_: i64| Failure {
        reason: reasons::ERR_IMAGE_PULL,
        message: "no".into(),
        at: at(at_),
        retry_at: at(at_ + 10),
        count: 1,
    };
    observed.images.insert("c0".into(), ImageState::FailedAhead(failure(0)));
    let waiting = |observed: &Observed, now| {
        let state = shown(&pod, observed, now).container_statuses.unwrap()[0].state.clone();
        state.unwrap().waiting.unwrap().reason.unwrap()
    };
    assert_eq!(waiting(&observed, 5), "PodInitializing");
    assert_eq!(next(&pod, &observed, 5).actions, []);
    assert!(next(&pod, &observed, 10).actions.contains(&Action::EnsureImage { container: "c0".into(), ahead: true }));
    for name in ["i0", "i1"] {
        observed.upsert(instance(name, 0, exited(0, 1, 5)));
    }
    observed.upsert(instance("s0", 0, running(2)));
    let in_turn = Action::EnsureImage { container: "c0".into(), ahead: false };
    assert_eq!(next(&pod, &observed, 5).actions, [in_turn], "its turn has come: it is tried at once");
    observed.images.insert("c0".into(), ImageState::Failed(failure(5)));
    assert_eq!(waiting(&observed, 6), "ErrImagePull");
}

/// A ConfigMap that is gone: its volume is retried, and the token of the volume after it is renewed in time.
#[test]
fn each_volume_is_set_up_and_refreshed_on_its_own() {
    let mut pod = pod("Always", 1);
    pod.spec.as_mut().unwrap().volumes =
        serde_json::from_str(r#"[{"name":"settings","configMap":{"name":"gone"}},{"name":"token","projected":{}}]"#)
            .unwrap();
    let prepare = |volume: &str| Action::PrepareVolume { volume: volume.to_owned() };
    let refresh = |volume: &str| Action::RefreshVolume { volume: volume.to_owned() };
    let why = || (reasons::FAILED_MOUNT, "configmap \"gone\" not found".to_owned());
    let mut observed = ready_sandbox(&pod);
    assert_eq!(next(&pod, &observed, 0).actions, [prepare("settings"), prepare("token")]);
    observed.in_flight.insert(StepKey::Volume("settings".into()));
    assert_eq!(next(&pod, &observed, 0).actions, [prepare("token")], "a mount that hangs delays no other");
    observed.in_flight.clear();
    // As after a restart of the agent, which keeps tokens in memory only.
    observed.upsert(instance("c0", 0, running(1)));
    observed.volume_failed("settings".into(), why(), false, at(1));
    observed.volume_prepared("token".into(), Some(at(5)));
    assert_eq!((next(&pod, &observed, 1).actions, next(&pod, &observed, 1).wake_at), (vec![], Some(at(2))));
    assert_eq!(next(&pod, &observed, 4).actions, [prepare("settings")]);
    assert_eq!(next(&pod, &observed, 5).actions, [prepare("settings"), refresh("token")]);
    // A refresh that fails, and one that is due.
    observed.volume_prepared("settings".into(), None);
    observed.volume_failed("settings".into(), why(), false, at(2));
    observed.volume_failed("settings".into(), why(), false, at(3));
    assert_eq!(next(&pod, &observed, 3).actions, [refresh("settings")]);
    observed.upsert(instance("c0", 0, exited(0, 1, 2)));
    assert_eq!(creates(&next(&pod, &observed, 4)), [("c0".to_owned(), 1)], "its files are there");
}

/// A pod with two init containers, a sidecar and a container, all in one sandbox.
fn with_inits() -> (Pod, Observed) {
    let pod = with(
        r#"{"initContainers":[
            {"name":"i0","image":"i:1"},{"name":"s0","image":"i:1","restartPolicy":"Always"},{"name":"i1","image":"i:1"}],
            "containers":[{"name":"c0","image":"i:1","readinessProbe":{"exec":{"command":["x"]}}}]}"#,
    );
    let mut observed = ready_sandbox(&pod);
    for name in ["i0", "s0", "i1"] {
        let present = ImageState::Present { id: "x".into(), shown: "x".into(), user: String::new() };
        observed.images.insert(name.into(), present);
    }
    (pod, observed)
}

#[test]
fn a_sidecar_in_back_off_does_not_delay_the_others() {
    let (pod, mut observed) = with_inits();
    for name in ["i0", "i1"] {
        observed.upsert(instance(name, 0, exited(0, 1, 2)));
    }
    observed.upsert(instance("s0", 3, exited(1, 99, 100)));
    observed.crash_counts.insert("s0".into(), 3);
    observed.upsert(instance("c0", 0, exited(0, 80, 99)));
    assert_eq!(creates(&next(&pod, &observed, 101)), [("c0".to_owned(), 1)]);
    observed.upsert(instance("c0", 1, running(101)));
    let probe = Action::Probe { container: "c0".into(), id: "c0-1".into(), probe: ProbeType::Readiness };
    assert!(next(&pod, &observed, 102).actions.contains(&probe));
    let status = shown(&pod, &observed, 102);
    assert_eq!(condition(&status, "Initialized").0, "True");
    assert_eq!(condition(&status, "Ready").0, "False", "a sidecar that does not run makes the pod unready");
    // It is restarted after its own back-off.
    assert_eq!(creates(&next(&pod, &observed, 141)), [("s0".to_owned(), 4)]);
    // A new sandbox starts over.
    observed.upsert(instance("c0", 1, exited(0, 101, 150)));
    let mut sandbox = instance(SANDBOX_NAME, 1, running(151));
    sandbox.id = "POD-1".into();
    observed.network_ready.insert("POD-1".into());
    observed.upsert(sandbox);
    assert_eq!(creates(&next(&pod, &observed, 152)), [("i0".to_owned(), 1)]);
}

#[test]
fn init_containers_that_were_removed_are_done() {
    let (mut pod, mut observed) = with_inits();
    for name in ["i0", "i1"] {
        observed.upsert(instance(name, 0, exited(0, 1, 2)));
    }
    observed.upsert(instance("s0", 0, running(2)));
    observed.upsert(instance("c0", 0, running(3)));
    let before = shown(&pod, &observed, 4);
    pod.status = Some(before.clone());
    for id in ["i0-0", "i1-0"] {
        observed.remove(id);
    }
    assert_eq!(creates(&next(&pod, &observed, 5)), []);
    assert_eq!(shown(&pod, &observed, 5).init_container_statuses, before.init_container_statuses);
    // Also where their exit codes are unknown.
    pod.status = None;
    let status = shown(&pod, &observed, 5);
    let ended = status.init_container_statuses.as_ref().unwrap()[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!((ended.reason.as_deref(), ended.exit_code), (Some("Completed"), 0));
    assert_eq!((status.phase.as_deref(), condition(&status, "Initialized").0.as_str()), (Some("Running"), "True"));
    // A sidecar is restarted as long as the pod runs.
    observed.remove("s0-0");
    assert_eq!(creates(&next(&pod, &observed, 5)), [("s0".to_owned(), 0)]);
    // Before the others were created, the last one that exists shows how far the pod had come.
    observed.remove("c0-0");
    observed.upsert(instance("i1", 0, exited(1, 1, 2)));
    assert_eq!(creates(&next(&pod, &observed, 5)), [("s0".to_owned(), 0), ("i1".to_owned(), 1)]);
}

#[test]
fn a_succeeded_pod_is_initialized() {
    let mut pod = pod("Never", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, exited(0, 1, 2)));
    let status = shown(&pod, &observed, 3);
    assert_eq!(condition(&status, "Initialized"), ("True".to_owned(), "PodCompleted".to_owned()));
    pod.spec.as_mut().unwrap().restart_policy = Some("Always".into());
    assert_eq!(condition(&shown(&pod, &observed, 3), "Initialized"), ("True".to_owned(), String::new()));
}

#[test]
fn the_user_of_a_container_is_shown_and_stays() {
    let mut pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    let mut first = instance("c0", 0, running(1));
    first.user = Some(crate::engine::inspect::User { uid: 1000, gid: 7, groups: vec![7, 50] });
    observed.upsert(first.clone());
    pod.status = Some(shown(&pod, &observed, 2));
    first.user = None;
    observed.upsert(first);
    let user = shown(&pod, &observed, 3).container_statuses.unwrap().remove(0).user.unwrap().linux.unwrap();
    assert_eq!((user.uid, user.gid, user.supplemental_groups), (1000, 7, Some(vec![7, 50])));
    observed.upsert(instance("c0", 1, running(4)));
    assert_eq!(
        shown(&pod, &observed, 5).container_statuses.unwrap()[0].user,
        None,
        "another run may have another user"
    );
}

/// An outdated observation of a container is discarded, however late it arrives.
#[test]
fn a_container_does_not_go_back_in_its_life() {
    let again = State::Running { pid: 8, started_at: at(9) };
    for (known, read, outdated) in [
        (State::Created, running(1), false),
        (running(1), State::Created, true),
        (running(1), exited(0, 1, 5), false),
        (exited(0, 1, 5), State::Created, true),
        (exited(0, 1, 5), running(1), true),
        (State::Exited(Exit::killed(at(5))), running(1), true),
        // Somebody has started it again by hand.
        (exited(0, 1, 5), again.clone(), false),
        (again, exited(0, 1, 5), false),
    ] {
        let mut observed = Observed::default();
        assert!(!observed.is_outdated(&instance("c0", 0, read.clone())), "it is not known");
        observed.upsert(instance("c0", 0, known.clone()));
        assert_eq!(observed.is_outdated(&instance("c0", 0, read.clone())), outdated, "{read:?} after {known:?}");
    }
}

/// Docker runs a container again that has exited: whether one was started is known before it is started again.
#[test]
fn what_may_have_been_started_is_read_first() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, State::Created));
    let start = [Action::Start { container: "c0".into(), id: "c0-0".into() }];
    observed.unread.insert("c0-0".into());
    assert_eq!(next(&pod, &observed, 1).actions, []);
    assert_eq!(observed.take_unread(), ["c0-0"]);
    observed.in_flight.insert(StepKey::Inspect("c0-0".into()));
    assert_eq!(next(&pod, &observed, 1).actions, []);
    observed.in_flight.clear();
    assert_eq!(next(&pod, &observed, 1).actions, start, "it was not");
    // A list shows what an earlier call has created, and the next one replaces.
    observed.in_flight.insert(StepKey::Create("c0".into()));
    assert_eq!(next(&pod, &observed, 1).actions, []);
    // So it is with a sandbox.
    let mut observed = Observed::default();
    observed.upsert(instance(SANDBOX_NAME, 0, State::Created));
    observed.in_flight.extend([StepKey::Inspect("POD-0".into()), StepKey::Image("c0".into())]);
    assert_eq!(next(&pod, &observed, 1).actions, []);
    observed.in_flight.remove(&StepKey::Inspect("POD-0".into()));
    assert_eq!(next(&pod, &observed, 1).actions, [Action::StartSandbox { id: "POD-0".into() }]);
    observed.in_flight.insert(StepKey::Sandbox);
    assert_eq!(next(&pod, &observed, 1).actions, []);
}

/// Links to a log come with the first news of a start, and go with the container, but none comes after the clean-up.
#[test]
fn a_log_is_linked_while_there_is_one() {
    let mut observed = Observed::default();
    assert!(!observed.begins(&instance("c0", 0, State::Created)));
    for state in [running(1), exited(0, 1, 2)] {
        assert!(observed.begins(&instance("c0", 0, state.clone())));
        assert!(!observed.begins(&instance(SANDBOX_NAME, 0, state)));
    }
    observed.upsert(instance("c0", 0, State::Created));
    assert!(observed.begins(&instance("c0", 0, running(1))));
    observed.upsert(instance("c0", 0, running(1)));
    assert!(!observed.begins(&instance("c0", 0, exited(0, 1, 2))));
    assert_eq!(observed.remove("c0-0").map(|gone| gone.id).as_deref(), Some("c0-0"));
    assert_eq!(observed.remove("c0-0"), None);
    // A step that read it earlier reports it late.
    observed.cleaned_up = true;
    assert!(!observed.begins(&instance("c0", 0, exited(0, 1, 2))));
}

/// A hook runs at least once: also where the agent was killed before it ran it.
#[test]
fn a_hook_that_was_not_run_is_run_after_a_restart() {
    let pod = |status: &str, annotation: &str| -> Pod {
        serde_json::from_str(&format!(
            r#"{{"metadata":{{"name":"p","namespace":"n","uid":"u","annotations":{{"kubernetes.io/config.source":"{annotation}"}}}},
                "spec":{{"containers":[{{"name":"c0","image":"i:1","lifecycle":{{"postStart":{{"sleep":{{"seconds":1}}}}}}}}]}},
                "status":{status}}}"#
        ))
        .unwrap()
    };
    let shown = |id: &str, started: bool| {
        format!(
            r#"{{"containerStatuses":[{{"name":"c0","image":"","imageID":"","ready":false,"restartCount":0,"containerID":"{id}","started":{started}}}]}}"#
        )
    };
    for (status, source, pending) in [
        (shown("docker://c0-0", true), "api", false),
        (shown("docker://c0-0", false), "api", true),
        (shown("docker://another", true), "api", true),
        ("{}".to_owned(), "api", true),
        ("null".to_owned(), "api", true),
        // Its status may come later.
        ("null".to_owned(), "file", false),
        (shown("docker://c0-0", false), "file", true),
    ] {
        let pod = pod(&status, source);
        let mut observed = ready_sandbox(&pod);
        observed.upsert(instance("c0", 0, running(1)));
        observed.adopt(Some(&pod));
        let runs = next(&pod, &observed, 2).actions.iter().any(|a| matches!(a, Action::PostStart { .. }));
        assert_eq!(runs, pending, "{status} {source}");
    }
}
