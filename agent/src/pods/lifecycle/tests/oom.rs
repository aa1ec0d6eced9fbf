//! Ends that the kernel causes for want of memory.

use serde_json::json;

use super::*;

/// Under load Docker sends the OOM event after the exit, and its answers never mention it.
#[test]
fn an_oom_kill_that_an_event_tells_of_counts_before_and_after_the_exit() {
    let ended = |oom_at: usize| {
        let mut observed = Observed::default();
        for step in 0..3 {
            if step == oom_at {
                observed.out_of_memory.insert("c0-0".to_owned());
            }
            observed.upsert(instance("c0", 0, if step == 0 { running(1) } else { exited(137, 1, 2) }));
        }
        observed.newest("c0").unwrap().exit().unwrap().oom_killed
    };
    assert_eq!([0, 1, 2, 3].map(ended), [true, true, true, false]);
    let mut observed = Observed::default();
    observed.upsert(instance("c0", 0, exited(137, 1, 2)));
    observed.out_of_memory.insert("c0-0".to_owned());
    observed.remove("c0-0");
    assert!(observed.out_of_memory.is_empty());
}

/// The engine's answers never say it, so that the next agent has it of the API, of exactly that container.
#[test]
fn an_oom_kill_event_is_known_after_an_agent_restart() {
    let mut before = pod("Always", 1);
    let ended = |id: &str, reason: &str| json!({"terminated": {"exitCode": 137, "reason": reason, "containerID": id}});
    for (state, last, wanted) in [
        (ended("docker://c0-1", "OOMKilled"), json!({}), [false, true]),
        (json!({"running": {}}), ended("docker://c0-0", "OOMKilled"), [true, false]),
        (ended("docker://c0-1", "Error"), ended("docker://other", "OOMKilled"), [false, false]),
    ] {
        for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
            let status = json!({"name": "c0", "image": "", "imageID": "", "ready": false, "restartCount": 1,
                "state": state, "lastState": last});
            before.status = serde_json::from_value(json!({list: [status]})).unwrap();
            let mut observed = Observed::default();
            observed.upsert(instance("c0", 0, exited(137, 1, 2)));
            observed.upsert(instance("c0", 1, exited(137, 3, 4)));
            observed.adopt(Some(&before));
            let killed: Vec<bool> = observed.attempts("c0").map(|i| i.exit().unwrap().oom_killed).collect();
            assert_eq!(killed, wanted, "{list} {state} {last}");
        }
    }
}

#[test]
fn an_oom_kill_is_an_exit_with_its_own_reason() {
    for (policy, restarted, wanted) in
        [("Always", true, "Running"), ("OnFailure", true, "Running"), ("Never", false, "Failed")]
    {
        let pod = pod(policy, 1);
        let mut observed = ready_sandbox(&pod);
        let State::Exited(mut exit) = exited(137, 1, 2) else { panic!("made an exit") };
        exit.oom_killed = true;
        observed.upsert(instance("c0", 0, State::Exited(exit)));
        assert_eq!(!creates(&next(&pod, &observed, 3)).is_empty(), restarted, "{policy}");
        let status = shown(&pod, &observed, 3);
        assert_eq!(status.phase.as_deref(), Some(wanted));
        let ended = status.container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
        assert_eq!((ended.reason.as_deref(), ended.exit_code), (Some("OOMKilled"), 137));
    }
}
