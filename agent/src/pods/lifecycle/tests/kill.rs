//! Pods that the node kills: the plan, and what the status shows when.

use super::*;
use crate::pods::lifecycle::kill::KillReason;

fn evicted(grace: Option<i64>) -> Option<KillReason> {
    Some(KillReason { reason: "Evicted".into(), message: "The node was low.".into(), grace, disruption: true })
}

fn stops(plan: &Plan) -> Vec<(String, i64)> {
    let all = plan.actions.iter().filter_map(|a| match a {
        Action::Stop { id, grace, .. } | Action::ShortenGrace { id, grace } => Some((id.clone(), *grace)),
        _ => None,
    });
    all.collect()
}

#[test]
fn the_grace_is_the_shorter_one() {
    for (order, deletion, gives) in [
        (None, None, 7),
        (Some(1), None, 1),
        (Some(0), None, 1),
        (Some(60), None, 7),
        (Some(3), Some(5), 3),
        (Some(5), Some(3), 3),
        // 0 counts as unset.
        (Some(5), Some(0), 5),
        (None, Some(0), 7),
    ] {
        let mut pod = pod("Always", 1);
        if let Some(grace) = deletion {
            pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
        }
        let mut observed = ready_sandbox(&pod);
        observed.upsert(instance("c0", 0, running(1)));
        observed.kill = evicted(order);
        assert_eq!(stops(&next(&pod, &observed, 5)), [("c0-0".to_owned(), gives)], "{order:?} {deletion:?}");
    }
}

#[test]
fn a_kill_shortens_the_grace_of_a_container_that_is_being_stopped() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, running(1)));
    observed.kill = evicted(Some(1));
    observed.stopping.insert("c0-0".into(), at(60));
    observed.in_flight.insert(StepKey::Container("c0-0".into()));
    assert_eq!(next(&pod, &observed, 5).actions, [Action::ShortenGrace { id: "c0-0".into(), grace: 1 }]);
}

#[test]
fn sidecars_get_what_is_left_of_the_grace() {
    let pod = pod_with_sidecar("Always");
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("side", 0, running(1)));
    observed.upsert(instance("c0", 0, running(1)));
    (observed.kill, observed.kill_deadline) = (evicted(None), Some(at(12)));
    assert_eq!(stops(&next(&pod, &observed, 5)), [("c0-0".to_owned(), 7)]);
    observed.upsert(instance("c0", 0, exited(137, 1, 8)));
    assert_eq!(stops(&next(&pod, &observed, 8)), [("side-0".to_owned(), 4)]);
    assert_eq!(stops(&next(&pod, &observed, 12)), [("side-0".to_owned(), 2)], "two seconds are left whatever happens");
}

/// Exited containers stay until the pod is deleted; the sandbox is removed, unless a container may be started in it. One that
/// was created is removed first: Docker may start it yet, by a call that was given up.
#[test]
fn what_is_removed() {
    let mut pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.kill = evicted(Some(1));
    observed.upsert(instance("c0", 0, State::Created));
    let sandbox = Action::RemoveSandbox { id: "POD-0".into() };
    let remove = || vec![Action::Remove { id: "c0-0".into() }];
    for (in_flight, wanted) in [
        (Some(StepKey::Container("c0-0".into())), Vec::new()),
        // Whether it was started is being asked.
        (Some(StepKey::Inspect("c0-0".into())), Vec::new()),
        (Some(StepKey::Create("c0".into())), remove()),
        (None, remove()),
    ] {
        observed.in_flight = in_flight.clone().into_iter().collect();
        assert_eq!(next(&pod, &observed, 5).actions, wanted, "{in_flight:?}");
        assert_eq!(phase(&pod, &observed, 5), "Pending", "{in_flight:?}");
    }
    let mut removed = observed.clone();
    removed.remove("c0-0");
    assert_eq!(
        (next(&pod, &removed, 5).actions, phase(&pod, &removed, 5)),
        (vec![sandbox.clone()], "Failed".to_owned())
    );
    observed.upsert(instance("c0", 0, exited(137, 1, 4)));
    assert_eq!(next(&pod, &observed, 5).actions, [sandbox]);
    observed.remove("POD-0");
    assert_eq!(next(&pod, &observed, 5).actions, []);
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(6)));
    assert_eq!(next(&pod, &observed, 6).actions, [Action::CleanUp], "its terminal phase is to be written first");
    pod.status = Some(shown(&pod, &observed, 6));
    assert_eq!(next(&pod, &observed, 6).actions, [Action::Remove { id: "c0-0".into() }, Action::CleanUp]);
}

/// The volumes of a terminal pod are released at once; its exited containers stay until the disk is under pressure.
#[test]
fn what_a_terminal_pod_keeps() {
    let mut pod = pod("Never", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, exited(1, 1, 2)));
    let sandbox = Action::RemoveSandbox { id: "POD-0".into() };
    observed.gc_exited = true;
    assert_eq!(next(&pod, &observed, 3).actions, [sandbox], "the API does not know yet");
    pod.status = Some(shown(&pod, &observed, 3));
    observed.remove("POD-0");
    observed.gc_exited = false;
    assert_eq!(next(&pod, &observed, 4).actions, [Action::ReleaseVolumes]);
    observed.volumes_released = true;
    assert_eq!(next(&pod, &observed, 4).actions, []);
    observed.gc_exited = true;
    assert_eq!(next(&pod, &observed, 4).actions, [Action::Remove { id: "c0-0".into() }]);
    observed.remove("c0-0");
    assert_eq!(next(&pod, &observed, 4).actions, []);
    let told = shown(&pod, &observed, 5).container_statuses.unwrap();
    assert_eq!(told[0].state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1, "its exit code stays known");
}

#[test]
fn the_reason_comes_with_the_end_and_stays() {
    for (policy, code) in [("Always", 137), ("OnFailure", 0), ("Never", 0)] {
        let mut pod = pod(policy, 1);
        let mut observed = ready_sandbox(&pod);
        observed.upsert(instance("c0", 0, running(1)));
        observed.kill = evicted(Some(1));
        let early = shown(&pod, &observed, 5);
        assert_eq!((early.phase.as_deref(), early.reason), (Some("Running"), None), "{policy}");
        assert!(!early.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget"));

        observed.upsert(instance("c0", 0, exited(code, 1, 6)));
        let over = shown(&pod, &observed, 6);
        assert_eq!((over.phase.as_deref(), over.reason.as_deref()), (Some("Failed"), Some("Evicted")), "{policy}");
        assert_eq!(over.message.as_deref(), Some("The node was low."));
        assert_eq!(condition(&over, "DisruptionTarget"), ("True".into(), "TerminationByKubelet".into()));
        assert_eq!(condition(&over, "Ready"), ("False".into(), "PodFailed".into()));
        let ended = over.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap().terminated.is_some();
        assert!(ended, "{policy}: it does not come back");

        // The API has it: the kill itself may be forgotten.
        pod.status = Some(over.clone());
        observed.kill = None;
        let later = shown(&pod, &observed, 60);
        assert_eq!(condition(&later, "DisruptionTarget").0, "True");
        assert_eq!((later.reason, later.message), (over.reason, over.message), "{policy}");
    }
}

#[test]
fn a_terminal_status_does_not_change() {
    let mut pod = pod("Never", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, exited(0, 1, 2)));
    pod.status = Some(shown(&pod, &observed, 3));
    observed.kill = evicted(Some(1));
    let status = shown(&pod, &observed, 4);
    assert_eq!((status.phase.as_deref(), status.reason), (Some("Succeeded"), None));
    assert!(!status.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget"));
}

#[test]
fn without_disruption_there_is_no_condition() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("c0", 0, exited(137, 1, 6)));
    observed.kill = evicted(None).map(|e| KillReason { disruption: false, ..e });
    let status = shown(&pod, &observed, 7);
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert!(!status.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget"));
}

#[test]
fn a_rejected_pod_shows_the_reason_and_no_containers() {
    let admitted = pod("Always", 1);
    let mut pod = admitted.clone();
    let scheduled = r#"{"conditions":[{"type":"PodScheduled","status":"True"},{"type":"x.io/y","status":"True"}]}"#;
    pod.status = Some(serde_json::from_str(scheduled).unwrap());
    let rejected = || Observed {
        kill: evicted(None).map(|e| KillReason { reason: "OutOfcpu".into(), disruption: false, ..e }),
        ..Observed::default()
    };
    let status = shown(&pod, &rejected(), 3);
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));
    assert_eq!((&status.container_statuses, &status.host_ip, &status.pod_ip), (&None, &None, &None));
    let types: Vec<&str> = status.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, ["x.io/y"], "conditions of other controllers stay");
    assert!(status.start_time.is_some());
    // As the API shows it after a restart of the agent.
    pod.status = Some(status.clone());
    assert_eq!(shown(&pod, &Observed::default(), 9), status);

    // An admitted pod shows its containers, however it ends.
    pod.status = Some(shown(&admitted, &ready_sandbox(&admitted), 3));
    assert!(shown(&pod, &rejected(), 4).container_statuses.is_some());
}
