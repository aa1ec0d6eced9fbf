//! What the status shows of runs that failed, and of those that the engine no longer has.

use super::*;

fn failed(reason: &'static str, when: i64) -> Failure {
    Failure { reason, message: "why".into(), at: at(when), retry_at: at(when), count: 1 }
}

fn waiting(status: &PodStatus) -> String {
    let state = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap();
    state.waiting.and_then(|w| w.reason).unwrap_or_default()
}

#[test]
fn a_failed_start_is_shown_before_its_back_off() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 1, exited(128, 100, 100)));
    observed.crash_counts.insert("c0".into(), 1);
    observed.start_failures.insert("c0".into(), failed("RunContainerError", 100));
    assert_eq!(waiting(&shown(&pod, &observed, 101)), "RunContainerError");
    // The plan wakes up for the next state.
    assert_eq!(next(&pod, &observed, 101).wake_at, Some(at(102)));
    assert_eq!(waiting(&shown(&pod, &observed, 102)), "CrashLoopBackOff");
    assert_eq!(next(&pod, &observed, 102).wake_at, Some(at(110)));
    // A hook's failure counts from the exit of its container.
    observed.start_failures.insert("c0".into(), failed("PostStartHookError", 70));
    assert_eq!(waiting(&shown(&pod, &observed, 101)), "PostStartHookError");
}

#[test]
fn a_run_that_vanished_is_shown_as_unknown() {
    let mut pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, running(10)));
    pod.status = Some(shown(&pod, &observed, 20));
    observed.remove("c0-0");
    let last = |status: &PodStatus| {
        let last = status.container_statuses.as_ref().unwrap()[0].last_state.clone();
        last.and_then(|s| s.terminated).map(|t| (t.exit_code, t.reason.unwrap_or_default()))
    };
    let unknown = Some((137, "ContainerStatusUnknown".to_owned()));
    let between = shown(&pod, &observed, 21);
    assert_eq!((last(&between), waiting(&between)), (unknown.clone(), "ContainerCreating".to_owned()));
    pod.status = Some(between);
    observed.upsert(instance("c0", 1, running(22)));
    assert_eq!(last(&shown(&pod, &observed, 23)), unknown);
}

#[test]
fn how_a_sidecar_ends_says_nothing_of_the_pod() {
    let pod = pod_with_sidecar("Never");
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("side", 0, exited(9, 1, 5)));
    observed.upsert(instance("c0", 0, exited(0, 2, 4)));
    assert_eq!(phase(&pod, &observed, 6), "Succeeded");
}

#[test]
fn readiness_gates_are_told_all_with_what_they_have() {
    let mut pod = pod("Always", 1);
    let gates =
        r#"[{"conditionType":"a.example/open"},{"conditionType":"a.example/shut"},{"conditionType":"a.example/no"}]"#;
    pod.spec.as_mut().unwrap().readiness_gates = serde_json::from_str(gates).unwrap();
    let conditions = r#"[{"type":"a.example/open","status":"True"},{"type":"a.example/shut","status":"False"}]"#;
    pod.status.get_or_insert_default().conditions = serde_json::from_str(conditions).unwrap();
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, running(1)));
    let ready = shown(&pod, &observed, 5).conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("ReadinessGatesNotReady")));
    let wanted = "the status of pod readiness gate \"a.example/shut\" is not \"True\", but False, \
                  corresponding condition of pod readiness gate \"a.example/no\" does not exist.";
    assert_eq!(ready.message.as_deref(), Some(wanted));
}

/// An update of a pod in place is over when the status has the new image: not while the old one runs, ends, or the new one is
/// only created.
#[test]
fn the_image_is_that_of_the_attempt_that_ran_last() {
    let mut pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    let images = |pod: &mut Pod, observed: &Observed| {
        pod.status = Some(shown(pod, observed, 100));
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
        (status.image, status.image_id)
    };
    let is = |image: &str, id: &str| (image.to_owned(), id.to_owned());
    assert_eq!(images(&mut pod, &observed), is("i:1", ""));
    observed.upsert(instance("c0", 0, State::Created));
    assert_eq!(images(&mut pod, &observed), is("i:1", "sha256:i"));
    observed.upsert(instance("c0", 0, running(10)));
    assert_eq!(images(&mut pod, &observed), is("i:1", "sha256:i"));
    pod.spec.as_mut().unwrap().containers[0].image = Some("r.example/i:2".into());
    assert_eq!(images(&mut pod, &observed), is("i:1", "sha256:i"), "the old one runs");
    observed.upsert(instance("c0", 0, exited(143, 10, 90)));
    assert_eq!(images(&mut pod, &observed), is("i:1", "sha256:i"));
    let hash = container_hash("c0", "r.example/i:2");
    let newer = |state| Instance { hash: hash.clone(), image_id: "sha256:j".into(), ..instance("c0", 1, state) };
    observed.upsert(newer(State::Created));
    assert_eq!(images(&mut pod, &observed), is("i:1", "sha256:i"), "the new one does not run yet");
    observed.upsert(newer(running(95)));
    assert_eq!(images(&mut pod, &observed), is("r.example/i:2", "sha256:j"));
    // The same, if the engine has lost the old one meanwhile.
    observed.remove("c0-0");
    pod.spec.as_mut().unwrap().containers[0].image = Some("i:3".into());
    observed.remove("c0-1");
    assert_eq!(images(&mut pod, &observed), is("r.example/i:2", "sha256:j"));
}
