//! Upstream's own tests of pod statuses: conditions, and updates of a status.

use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, PodCondition, PodSpec},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Value, json};
use windlass_fixtures::facts::{json_of, rows, text_of, value_of};

use super::*;
use crate::pods::lifecycle::{
    kill::KillReason,
    spec::{self, Role},
    status::{
        conditions::{Truth, condition as made},
        ended::end_states,
        limit_messages,
    },
};

static CONDITIONS: &str = include_str!("../../../../../facts/pod_conditions.tsv");
static STATUSES: &str = include_str!("../../../../../facts/pod_status.tsv");

/// A pod of no containers but those of a spec.
fn of_spec(spec: &str, before: &[PodCondition]) -> Pod {
    let mut pod = Pod { spec: Some(value_of(spec)), ..Pod::default() };
    pod.metadata.uid = Some("u".into());
    pod.status.get_or_insert_default().conditions = Some(before.to_vec());
    pod
}

fn find<'a>(all: &'a [PodCondition], kind: &str) -> &'a PodCondition {
    all.iter().find(|condition| condition.type_ == kind).unwrap_or_else(|| panic!("no {kind}: {all:?}"))
}

/// The conditions of a pod of this phase, whose containers have these statuses: name, whether it is ready, whether it has started,
/// and state.
fn of_statuses(pod: &mut Pod, phase: &str, statuses: &Value) -> Vec<PodCondition> {
    let mut observed = ready_sandbox(pod);
    let (mut init, mut main) = (Vec::new(), Vec::new());
    for row in statuses.as_array().unwrap() {
        let (name, ready) = (row[0].as_str().unwrap(), row[1] == true);
        let inits = pod.spec.as_mut().unwrap().init_containers.iter_mut().flatten();
        let found: Option<&mut Container> = inits.into_iter().find(|container| container.name == name);
        let role = found.as_deref().map_or(Role::Main, spec::role_of_init);
        if role == Role::Sidecar && row[2] != true {
            found.unwrap().lifecycle = value_of(r#"{"postStart":{"exec":{"command":["x"]}}}"#);
        }
        let state = match (row[3].as_str(), role) {
            (Some("terminated"), _) => Some(exited(0, 0, 1)),
            (None, Role::Init) if ready => Some(exited(0, 0, 1)),
            (Some("running"), _) | (None, Role::Main | Role::Sidecar) => Some(running(0)),
            _ => None,
        };
        if let Some(state) = state {
            observed.upsert(instance(name, 0, state));
        }
        let status = ContainerStatus { name: name.to_owned(), ready, ..ContainerStatus::default() };
        if role == Role::Main { main.push(status) } else { init.push(status) }
    }
    let before = pod.status.clone().unwrap();
    PodView::new(pod, &observed, at(9)).unwrap().conditions(&before, &init, &main, phase)
}

/// The condition of a pod of which some containers run, and others have exited.
fn of_restart(pod: &Pod, phase: &str, states: &Value) -> Vec<PodCondition> {
    let mut observed = ready_sandbox(pod);
    for state in states.as_array().unwrap() {
        let of = state[1].as_i64().map_or_else(|| running(0), |code| exited(code, 0, 5));
        observed.upsert(instance(state[0].as_str().unwrap(), 0, of));
    }
    let before = pod.status.clone().unwrap();
    PodView::new(pod, &observed, at(9)).unwrap().conditions(&before, &[], &[], phase)
}

/// Status, reason and message of a condition; the message only where the table has one.
fn told(condition: &PodCondition, with_message: bool) -> [String; 3] {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let message = if with_message { text(&condition.message) } else { "null".to_owned() };
    [condition.status.clone(), text(&condition.reason), message]
}

fn conditions_hold(row: &[&str]) {
    match *row {
        ["TestGeneratePodReadyToStartContainersCondition", case, sandbox, address, status] => {
            let pod = pod("Always", 1);
            let mut observed = ready_sandbox(&pod);
            match sandbox {
                "none" => observed = Observed::default(),
                "not ready" => observed.upsert(instance(SANDBOX_NAME, 0, exited(137, 0, 1))),
                _ if address == "false" => observed.network_ready.clear(),
                _ => {}
            }
            assert_eq!(condition(&shown(&pod, &observed, 2), "PodReadyToStartContainers").0, status, "{case}");
        }
        [
            "TestGenerateAllContainersRestartingCondition",
            case,
            spec,
            phase,
            states,
            before,
            status,
            reason,
            message,
        ] => {
            const KIND: &str = "AllContainersRestarting";
            let earlier = PodCondition { type_: KIND.into(), status: "True".into(), ..PodCondition::default() };
            let pod = of_spec(spec, if before == "true" { std::slice::from_ref(&earlier) } else { &[] });
            let found = of_restart(&pod, phase, &json_of(states));
            assert_eq!(told(find(&found, KIND), true), [status, reason, message].map(text_of), "{case}");
            assert_eq!(found.iter().filter(|condition| condition.type_ == KIND).count(), 1, "{case}");
        }
        // Here each container has a status.
        [_, _, _, _, _, _, _, "UnknownContainerStatuses", _] => {}
        [_, _, _, _, _, _, _, _, message] if message.contains("unknown status") => {}
        [_, spec, phase, statuses, before, kind, status, reason, message] => {
            let mut pod = of_spec(spec, &value_of::<Vec<PodCondition>>(before));
            let found = of_statuses(&mut pod, phase, &json_of(statuses));
            let expected =
                [text_of(status), text_of(reason), if message == "null" { message.into() } else { text_of(message) }];
            assert_eq!(told(find(&found, kind), message != "null"), expected, "{row:?}");
        }
        _ => panic!("{row:?}"),
    }
}

#[test]
fn conditions_are_as_upstreams_tests_say() {
    let seen = rows(CONDITIONS).inspect(|row| conditions_hold(row)).count();
    assert!(seen > 40, "{seen}");
}

/// How each container is shown once its pod has ended.
fn ends(spec: &PodSpec, status: &PodStatus, expected: &Value, case: &str) {
    let lists = |status: &PodStatus| {
        [&status.init_container_statuses, &status.container_statuses].map(|all| all.clone().unwrap_or_default())
    };
    let ([init, main], [mut ended_init, mut ended_main]) = (lists(status), lists(status));
    end_states(spec, &mut ended_init, &mut ended_main);
    for one in expected.as_array().unwrap() {
        let of = |all: &[ContainerStatus], more: &[ContainerStatus]| {
            all.iter()
                .chain(more)
                .find(|status| status.name == one[0].as_str().unwrap())
                .unwrap()
                .state
                .clone()
                .unwrap_or_default()
        };
        let (before, state) = (of(&init, &main), of(&ended_init, &ended_main));
        let end = state.terminated.as_ref();
        match (&one[1], one[1].as_i64()) {
            (_, Some(code)) => assert_eq!(end.map(|end| i64::from(end.exit_code)), Some(code), "{case} {one}"),
            (word, _) if word == "waiting" => assert!(end.is_none() && state.waiting.is_some(), "{case} {one}"),
            (word, _) if word == "kept" => assert_eq!(state, before, "{case} {one}"),
            _ => {
                let found = end.map(|end| (end.exit_code, end.reason.as_deref()));
                assert_eq!(found, Some((137, Some("ContainerStatusUnknown"))), "{case} {one}");
            }
        }
    }
}

/// A status with a termination message of this size.
fn with_message(bytes: u64) -> ContainerStatus {
    let message = "x".repeat(usize::try_from(bytes).unwrap());
    value_of(&json!({"name": "c", "lastState": {"terminated": {"exitCode": 0, "message": message}}}).to_string())
}

/// What becomes of a pod's status when the node finds another one.
fn merges(case: &str, may_run: bool, before: PodStatus, own: &PodStatus, expected: &PodStatus) {
    let all = |status: &PodStatus| status.conditions.clone().unwrap_or_default();
    let disruption = |status: &PodStatus| all(status).into_iter().find(|c| c.type_ == "DisruptionTarget");
    let mut pod = Pod { status: Some(before), ..pod("Always", 1) };
    let ready = find(&all(own), "Ready").status == "True";
    pod.spec.as_mut().unwrap().containers[0].readiness_probe = (!ready).then(Default::default);
    let ends = own.phase.as_deref() == Some("Failed");
    let by_node = disruption(own).filter(|condition| condition.reason.as_deref() == Some("TerminationByKubelet"));
    let mut observed = ready_sandbox(&pod);
    observed.kill = (ends || by_node.is_some()).then(|| KillReason {
        reason: own.reason.clone().unwrap_or_default(),
        message: own.message.clone().unwrap_or_default(),
        grace: None,
        disruption: by_node.is_some(),
    });
    observed.upsert(instance("c0", 0, if may_run || !ends { running(1) } else { exited(137, 1, 5) }));
    let found = shown(&pod, &observed, 9);
    assert_eq!(found.phase, expected.phase, "{case}");
    assert_eq!((&found.reason, &found.message), (&expected.reason, &expected.message), "{case}");
    for wanted in all(expected) {
        let found = all(&found);
        let found = find(&found, &wanted.type_);
        // The reason of an unready pod is not covered by this upstream test.
        let reason = wanted.reason.is_none() || found.reason == wanted.reason;
        assert!(found.status == wanted.status && reason, "{case}: {found:?}, not {wanted:?}");
    }
    assert_eq!(disruption(&found).is_some(), disruption(expected).is_some(), "{case}");
}

fn statuses_hold(row: &[&str]) {
    match *row {
        ["TestTerminatePod_EnsurePodPhaseIsTerminal", case, phase, expected] => {
            let mut pod = pod("Always", 1);
            pod.status.get_or_insert_default().phase = Some(phase.to_owned());
            pod.metadata.deletion_timestamp = Some(Time(at(1)));
            assert_eq!(self::phase(&pod, &Observed::default(), 2), expected, "{case}");
        }
        ["TestStatusNormalizationEnforcesMaxBytes", init, main, ephemeral, least, most] => {
            let of = |cell: &str| value_of::<Vec<u64>>(cell).into_iter().map(with_message).collect::<Vec<_>>();
            let [mut init, mut main, mut ephemeral] = [init, main, ephemeral].map(of);
            limit_messages([&mut init, &mut main, &mut ephemeral]);
            let left = |status: &ContainerStatus| status.last_state.clone()?.terminated?.message.map(|text| text.len());
            for status in init.iter().chain(&main).chain(&ephemeral) {
                let left = left(status).unwrap();
                assert!((value_of(least)..=value_of(most)).contains(&left), "{left}");
            }
            // More is cut to as much as that many containers may have.
            let mut long = [
                [0; 16].map(|_| with_message(5000)),
                [0; 16].map(|_| with_message(5000)),
                [0; 16].map(|_| with_message(5000)),
            ];
            let [a, b, c] = &mut long;
            limit_messages([a, b, c]);
            assert!(long.iter().flatten().all(|status| left(status) == Some(value_of(most))));
        }
        ["TestUpdateLastTransitionTime", _, _, "null", _] => {}
        ["TestUpdateLastTransitionTime", case, before, now, differs] => {
            let earlier = PodCondition {
                type_: "test-type".into(),
                status: before.to_owned(),
                last_transition_time: Some(Time(at(1))),
                ..PodCondition::default()
            };
            let before = PodStatus { conditions: (before != "null").then(|| vec![earlier]), ..PodStatus::default() };
            let truth = if now == "True" { Truth::True } else { Truth::False("", String::new()) };
            let found = made("test-type", &truth, &before, None, at(9)).last_transition_time.unwrap().0;
            assert_eq!(found == at(9), differs == "true", "{case}");
        }
        ["TestMergePodStatus", case, may_run, before, own, expected] => {
            merges(case, may_run == "true", value_of(before), &value_of(own), &value_of(expected));
        }
        [_, case, spec, status, expected] => ends(&value_of(spec), &value_of(status), &json_of(expected), case),
        _ => panic!("{row:?}"),
    }
}

#[test]
fn statuses_become_what_upstreams_tests_say() {
    let seen = rows(STATUSES).inspect(|row| statuses_hold(row)).count();
    assert!(seen > 35, "{seen}");
}

/// A pod that ends before the turn of its container says that nothing is known of it; one whose container runs on says that it runs.
#[test]
fn a_pod_that_has_ended_shows_the_end_of_its_containers() {
    let mut pod = pod("Never", 1);
    let mut observed = ready_sandbox(&pod);
    observed.kill = Some(KillReason { reason: "Evicted".into(), message: "m".into(), grace: None, disruption: true });
    pod.status = Some(shown(&pod, &ready_sandbox(&pod), 1));
    let state = |status: &PodStatus| status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap();
    let first = shown(&pod, &observed, 2);
    assert_eq!(state(&first).terminated.map(|end| end.exit_code), Some(137));
    pod.status = Some(first.clone());
    assert_eq!(shown(&pod, &observed, 60), first, "it stays");
    // Somebody else has given the pod up.
    observed.upsert(instance("c0", 0, running(1)));
    assert!(state(&shown(&pod, &observed, 60)).running.is_some());
}

#[test]
fn a_pod_that_was_initialized_stays_so() {
    let mut pod = pod_with_sidecar("Always");
    let mut observed = ready_sandbox(&pod);
    observed.upsert(instance("side", 0, running(1)));
    pod.status = Some(shown(&pod, &observed, 2));
    assert_eq!(condition(pod.status.as_ref().unwrap(), "Initialized").0, "True");
    // Another sandbox, in which everything is run again.
    observed.remove("side-0");
    observed.upsert(instance(SANDBOX_NAME, 1, running(3)));
    assert_eq!(condition(&shown(&pod, &observed, 4), "Initialized").0, "True");
}

#[test]
fn containers_that_are_not_ready_are_told_in_the_order_of_the_spec() {
    let mut pod = pod_with_sidecar("Always");
    pod.spec.as_mut().unwrap().containers = value_of(r#"[{"name":"z","image":"i:1"},{"name":"a","image":"i:1"}]"#);
    let found = shown(&pod, &ready_sandbox(&pod), 1);
    let ready = find(found.conditions.as_ref().unwrap(), "ContainersReady").message.clone();
    assert_eq!(ready.as_deref(), Some("containers with unready status: [side z a]"));
}
