//! Pods that the node ends: what is done, and what is told when.

use super::*;
use crate::pods::orders::Ended;

fn evicted(grace: Option<i64>) -> Option<Ended> {
    Some(Ended { reason: "Evicted".into(), message: "The node was low.".into(), grace, disruption: true })
}

fn stops(plan: &Plan) -> Vec<(String, i64)> {
    let all = plan.actions.iter().filter_map(|a| match a {
        Action::Stop { id, grace, .. } | Action::Hasten { id, grace } => Some((id.clone(), *grace)),
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
        // Nothing is no wish.
        (Some(5), Some(0), 5),
        (None, Some(0), 7),
    ] {
        let mut pod = pod("Always", 1);
        if let Some(grace) = deletion {
            pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
        }
        let mut observed = ready_sandbox(&pod);
        observed.put(instance("c0", 0, running(1)));
        observed.ended = evicted(order);
        assert_eq!(stops(&next(&pod, &observed, 5)), [("c0-0".to_owned(), gives)], "{order:?} {deletion:?}");
    }
}

#[test]
fn an_order_hastens_what_ends_slowly() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.put(instance("c0", 0, running(1)));
    observed.ended = evicted(Some(1));
    observed.stopping.insert("c0-0".into(), at(60));
    observed.in_flight.insert(Key::Container("c0-0".into()));
    assert_eq!(next(&pod, &observed, 5).actions, [Action::Hasten { id: "c0-0".into(), grace: 1 }]);
}

#[test]
fn sidecars_have_what_the_others_left() {
    let mut pod = pod("Always", 1);
    pod.spec.as_mut().unwrap().init_containers =
        serde_json::from_str(r#"[{"name":"side","image":"i:1","restartPolicy":"Always"}]"#).unwrap();
    let mut observed = ready_sandbox(&pod);
    observed.put(instance("side", 0, running(1)));
    observed.put(instance("c0", 0, running(1)));
    (observed.ended, observed.end_by) = (evicted(None), Some(at(12)));
    assert_eq!(stops(&next(&pod, &observed, 5)), [("c0-0".to_owned(), 7)]);
    observed.put(instance("c0", 0, exited(137, 1, 8)));
    assert_eq!(stops(&next(&pod, &observed, 8)), [("side-0".to_owned(), 4)]);
    assert_eq!(stops(&next(&pod, &observed, 12)), [("side-0".to_owned(), 2)], "two seconds are left whatever happens");
}

/// The dead stay until the pod is deleted; the sandbox goes, unless something is only just being started in it.
#[test]
fn what_is_taken_away() {
    let mut pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.ended = evicted(Some(1));
    observed.put(instance("c0", 0, State::Created));
    let sandbox = Action::RemoveSandbox { id: "POD-0".into() };
    for key in [Key::Container("c0-0".into()), Key::Create("c0".into())] {
        observed.in_flight = [key.clone()].into();
        assert_eq!(next(&pod, &observed, 5).actions, [], "{key:?}");
        assert_eq!(phase(&pod, &observed, 5), "Pending", "{key:?}");
    }
    observed.in_flight.clear();
    observed.put(instance("c0", 0, exited(137, 1, 4)));
    assert_eq!(next(&pod, &observed, 5).actions, [sandbox]);
    observed.forget("POD-0");
    assert_eq!(next(&pod, &observed, 5).actions, []);
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(6)));
    assert_eq!(next(&pod, &observed, 6).actions, [Action::TearDown], "its end is to be told first");
    pod.status = Some(shown(&pod, &observed, 6));
    assert_eq!(next(&pod, &observed, 6).actions, [Action::Remove { id: "c0-0".into() }, Action::TearDown]);
}

/// What a pod that is over has written goes at once; what it said stays until the disk is short.
#[test]
fn what_a_pod_that_is_over_leaves() {
    let mut pod = pod("Never", 1);
    let mut observed = ready_sandbox(&pod);
    observed.put(instance("c0", 0, exited(1, 1, 2)));
    let sandbox = Action::RemoveSandbox { id: "POD-0".into() };
    observed.drop_dead = true;
    assert_eq!(next(&pod, &observed, 3).actions, [sandbox], "the API does not know yet");
    pod.status = Some(shown(&pod, &observed, 3));
    observed.forget("POD-0");
    observed.drop_dead = false;
    assert_eq!(next(&pod, &observed, 4).actions, [Action::ClearVolumes]);
    observed.cleared = true;
    assert_eq!(next(&pod, &observed, 4).actions, []);
    observed.drop_dead = true;
    assert_eq!(next(&pod, &observed, 4).actions, [Action::Remove { id: "c0-0".into() }]);
    observed.forget("c0-0");
    assert_eq!(next(&pod, &observed, 4).actions, []);
    let told = shown(&pod, &observed, 5).container_statuses.unwrap();
    assert_eq!(told[0].state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1, "how it ended stays known");
}

#[test]
fn the_reason_comes_with_the_end_and_stays() {
    for (policy, code) in [("Always", 137), ("OnFailure", 0), ("Never", 0)] {
        let mut pod = pod(policy, 1);
        let mut observed = ready_sandbox(&pod);
        observed.put(instance("c0", 0, running(1)));
        observed.ended = evicted(Some(1));
        let early = shown(&pod, &observed, 5);
        assert_eq!((early.phase.as_deref(), early.reason), (Some("Running"), None), "{policy}");
        assert!(!early.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget"));

        observed.put(instance("c0", 0, exited(code, 1, 6)));
        let over = shown(&pod, &observed, 6);
        assert_eq!((over.phase.as_deref(), over.reason.as_deref()), (Some("Failed"), Some("Evicted")), "{policy}");
        assert_eq!(over.message.as_deref(), Some("The node was low."));
        assert_eq!(condition(&over, "DisruptionTarget"), ("True".into(), "TerminationByKubelet".into()));
        assert_eq!(condition(&over, "Ready"), ("False".into(), "PodFailed".into()));
        let ended = over.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap().terminated.is_some();
        assert!(ended, "{policy}: it does not come back");

        // The API has it: the order itself may be forgotten.
        pod.status = Some(over.clone());
        observed.ended = None;
        let later = shown(&pod, &observed, 60);
        assert_eq!(condition(&later, "DisruptionTarget").0, "True");
        assert_eq!((later.reason, later.message), (over.reason, over.message), "{policy}");
    }
}

#[test]
fn what_was_over_is_told_as_it_was() {
    let mut pod = pod("Never", 1);
    let mut observed = ready_sandbox(&pod);
    observed.put(instance("c0", 0, exited(0, 1, 2)));
    pod.status = Some(shown(&pod, &observed, 3));
    observed.ended = evicted(Some(1));
    let status = shown(&pod, &observed, 4);
    assert_eq!((status.phase.as_deref(), status.reason), (Some("Succeeded"), None));
    assert!(!status.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget"));
}

#[test]
fn without_disruption_there_is_no_condition() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.put(instance("c0", 0, exited(137, 1, 6)));
    observed.ended = evicted(None).map(|e| Ended { disruption: false, ..e });
    let status = shown(&pod, &observed, 7);
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert!(!status.conditions.iter().flatten().any(|c| c.type_ == "DisruptionTarget"));
}

#[test]
fn a_refused_pod_tells_why_and_nothing_of_containers() {
    let taken_in = pod("Always", 1);
    let mut pod = taken_in.clone();
    let scheduled = r#"{"conditions":[{"type":"PodScheduled","status":"True"},{"type":"x.io/y","status":"True"}]}"#;
    pod.status = Some(serde_json::from_str(scheduled).unwrap());
    let refused = || Observed {
        ended: evicted(None).map(|e| Ended { reason: "OutOfcpu".into(), disruption: false, ..e }),
        ..Observed::default()
    };
    let status = shown(&pod, &refused(), 3);
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));
    assert_eq!((&status.container_statuses, &status.host_ip, &status.pod_ip), (&None, &None, &None));
    let told: Vec<&str> = status.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
    assert_eq!(told, ["x.io/y"], "what others have said stays");
    assert!(status.start_time.is_some());
    // As the API tells it after a restart of the agent.
    pod.status = Some(status.clone());
    assert_eq!(shown(&pod, &Observed::default(), 9), status);

    // One that was taken in tells of its containers, however it ends.
    pod.status = Some(shown(&taken_in, &ready_sandbox(&taken_in), 3));
    assert!(shown(&pod, &refused(), 4).container_statuses.is_some());
}
