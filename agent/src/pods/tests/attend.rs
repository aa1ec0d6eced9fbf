//! Tables of what is done to containers that run: hooks, probes, and the order in which they end.

use super::*;
use crate::pods::probes::{self, Kind};

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
fn a_hook_comes_first_and_holds_up_who_comes_after() {
    let pod = with(
        r#"{"containers":[
            {"name":"c0","image":"i:1","lifecycle":{"postStart":{"sleep":{"seconds":1}}},"livenessProbe":{"tcpSocket":{"port":1}}},
            {"name":"c1","image":"i:1"}]}"#,
    );
    let mut observed = ready_sandbox(&pod);
    assert_eq!(creates(&next(&pod, &observed, 1)), [("c0".to_owned(), 0)]);
    observed.put(instance("c0", 0, running(1)));
    let hook = Action::PostStart { container: "c0".into(), id: "c0-0".into() };
    assert_eq!(next(&pod, &observed, 1).actions, [hook]);
    let status = shown(&pod, &observed, 1).container_statuses.unwrap();
    assert_eq!((status[0].started, status[0].ready), (Some(false), false));
    observed.hooked.insert("c0-0".into());
    let plan = next(&pod, &observed, 2);
    assert_eq!(creates(&plan), [("c1".to_owned(), 0)]);
    let probe = Action::Probe { container: "c0".into(), id: "c0-0".into(), kind: Kind::Liveness };
    assert!(plan.actions.contains(&probe), "{plan:?}");
    // One that failed ends its container, and an exit of 0 is no success then.
    observed.condemned.insert("c0-0".into());
    assert_eq!(stopped(&next(&pod, &observed, 2)), [("c0", 30)]);
}

#[test]
fn a_container_that_a_probe_ended_is_run_again_whatever_it_exits_with() {
    let spec = |policy: &str| {
        with(&format!(
            r#"{{"restartPolicy":"{policy}","containers":[{{"name":"c0","image":"i:1",
                "livenessProbe":{{"tcpSocket":{{"port":1}},"failureThreshold":1,"terminationGracePeriodSeconds":3}}}}]}}"#
        ))
    };
    for (policy, again) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let pod = spec(policy);
        let mut observed = ready_sandbox(&pod);
        observed.put(instance("c0", 0, running(1)));
        let (container, one) = (&pod.spec.as_ref().unwrap().containers[0], instance("c0", 0, running(1)));
        probes::note(&pod, container, Kind::Liveness, &one, false, at(2), &mut observed.probes);
        let plan = next(&pod, &observed, 3);
        assert_eq!(stopped(&plan), [("c0", 3)], "{policy}");
        let Action::Stop { why, .. } = &plan.actions[0] else { panic!("{plan:?}") };
        assert_eq!(why.ends_with("will be restarted"), again, "{why}");
        observed.condemned.insert("c0-0".into());
        observed.put(instance("c0", 0, exited(0, 1, 4)));
        assert_eq!(!creates(&next(&pod, &observed, 5)).is_empty(), again, "{policy}");
    }
}

const SIDECARS: &str = r#"{"terminationGracePeriodSeconds":20,"initContainers":[
    {"name":"s0","image":"i:1","restartPolicy":"Always"},{"name":"s1","image":"i:1","restartPolicy":"Always"}],
    "containers":[{"name":"c0","image":"i:1"}]}"#;

#[test]
fn sidecars_end_after_the_others_the_last_first() {
    let deleted = r#","deletionTimestamp":"2023-11-14T22:13:40Z","deletionGracePeriodSeconds":20"#;
    let pod = of(SIDECARS, deleted);
    let mut observed = ready_sandbox(&pod);
    for name in ["s0", "s1", "c0"] {
        observed.put(instance(name, 0, running(1)));
    }
    // The deletion was asked for at 0 and ends at 20.
    assert_eq!(stopped(&next(&pod, &observed, 0)), [("c0", 20)]);
    observed.put(instance("c0", 0, exited(0, 1, 5)));
    assert_eq!(stopped(&next(&pod, &observed, 5)), [("s1", 15)]);
    observed.put(instance("s1", 0, exited(0, 1, 30)));
    assert_eq!(stopped(&next(&pod, &observed, 30)), [("s0", 2)]);
}

#[test]
fn a_sidecar_without_an_end_lets_the_next_one_begin_when_it_has_started() {
    let pod = with(
        r#"{"initContainers":[{"name":"s0","image":"i:1","restartPolicy":"Always","startupProbe":{"tcpSocket":{"port":1}}}],
            "containers":[{"name":"c0","image":"i:1"}]}"#,
    );
    let mut observed = ready_sandbox(&pod);
    observed.put(instance("s0", 0, running(1)));
    assert_eq!(creates(&next(&pod, &observed, 2)), []);
    assert_eq!(condition(&shown(&pod, &observed, 2), "Initialized").0, "False");
    let (container, one) =
        (&pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0], instance("s0", 0, running(1)));
    probes::note(&pod, container, Kind::Startup, &one, true, at(2), &mut observed.probes);
    assert_eq!(creates(&next(&pod, &observed, 3)), [("c0".to_owned(), 0)]);
    assert_eq!(condition(&shown(&pod, &observed, 3), "Initialized").0, "True");
}

#[test]
fn less_time_than_was_told_hastens_the_end() {
    let deleted = |grace: i64| {
        of(
            r#"{"containers":[{"name":"c0","image":"i:1"}]}"#,
            &format!(r#","deletionTimestamp":"2023-11-14T22:13:25Z","deletionGracePeriodSeconds":{grace}"#),
        )
    };
    let mut observed = ready_sandbox(&deleted(300));
    observed.put(instance("c0", 0, running(1)));
    observed.stopping.insert("c0-0".into(), at(305));
    observed.in_flight.insert("container/c0-0".into());
    assert_eq!(next(&deleted(300), &observed, 6).actions, []);
    assert_eq!(next(&deleted(1), &observed, 6).actions, [Action::Hasten { id: "c0-0".into(), grace: 1 }]);
}

#[test]
fn what_changed_is_written_anew_once_volumes_are_there() {
    let pod = pod("Always", 1);
    let mut observed = ready_sandbox(&pod);
    observed.put(instance("c0", 0, running(1)));
    observed.stale = Some(at(5));
    assert_eq!(next(&pod, &observed, 4).wake_at, Some(at(5)));
    assert_eq!(next(&pod, &observed, 5).actions, [Action::RefreshVolumes]);
    observed.volumes = false;
    assert_eq!(next(&pod, &observed, 5).actions, [Action::PrepareVolumes]);
}
