use super::*;
use crate::engine::names::Identity;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn instance(id: &str) -> Instance {
    Instance {
        id: id.to_owned(),
        identity: Identity {
            namespace: "n".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "c".into(),
            attempt: 0,
        },
        state: State::Running { pid: 1, started_at: at(0) },
        created_at: at(0),
        image: String::new(),
        image_id: String::new(),
        hash: String::new(),
        sandbox: String::new(),
        log_path: String::new(),
        addresses: Vec::new(),
        grace: None,
        limits: crate::engine::inspect::Limits::default(),
        runtime: String::new(),
        message_from_log: false,
        user: None,
    }
}

fn container(probes: &str) -> Container {
    serde_json::from_str(&format!(r#"{{"name":"c"{probes}}}"#)).unwrap()
}

const ALL: &str = r#","startupProbe":{"periodSeconds":2,"failureThreshold":2},
    "livenessProbe":{"initialDelaySeconds":5,"failureThreshold":2,"terminationGracePeriodSeconds":3},
    "readinessProbe":{"periodSeconds":3,"successThreshold":2,"failureThreshold":1}"#;

#[test]
fn the_others_wait_for_the_startup_probe() {
    let (container, one) = (container(ALL), instance("a"));
    let mut records = ProbeRecords::new();
    let due = |records: &ProbeRecords, started| schedule(&container, &one, records, started, false, None);
    assert_eq!(due(&records, false), [(ProbeType::Startup, at(0))]);
    record_result(&Pod::default(), &container, ProbeType::Startup, &one, false, at(0), &mut records);
    assert_eq!(due(&records, false), [(ProbeType::Startup, at(2))]);
    assert!(!result(&Pod::default(), &container, ProbeType::Startup, &one, &records));
    record_result(&Pod::default(), &container, ProbeType::Startup, &one, true, at(2), &mut records);
    assert!(result(&Pod::default(), &container, ProbeType::Startup, &one, &records));
    // The first readiness probe runs at once.
    assert_eq!(due(&records, true), [(ProbeType::Liveness, at(5)), (ProbeType::Readiness, at(0))]);
    // While the pod terminates only readiness is probed.
    let ending = schedule(&container, &one, &records, true, true, None);
    assert_eq!(ending.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [ProbeType::Readiness]);
}

#[test]
fn thresholds_are_counted_in_a_row() {
    let (pod, container, one) = (Pod::default(), container(ALL), instance("a"));
    let mut records = ProbeRecords::new();
    let mut ready = |success, second| {
        record_result(&pod, &container, ProbeType::Readiness, &one, success, at(second), &mut records);
        result(&pod, &container, ProbeType::Readiness, &one, &records)
    };
    assert_eq!(
        [(true, 0), (true, 3), (false, 6), (true, 9), (false, 12), (true, 15), (true, 18)].map(|(s, t)| ready(s, t)),
        [false, true, false, false, false, false, true]
    );
    let mut records = ProbeRecords::new();
    for (success, second, dead) in [(false, 5, false), (true, 15, false), (false, 25, false), (false, 35, true)] {
        record_result(&pod, &container, ProbeType::Liveness, &one, success, at(second), &mut records);
        assert_eq!(failed_probe(&container, &one, &records).is_some(), dead, "{second}");
    }
    assert_eq!(termination_grace(&container, ProbeType::Liveness), Some(3));
    assert_eq!(schedule(&container, &one, &records, true, false, None), []);
    // The next instance starts over.
    assert_eq!(failed_probe(&container, &instance("b"), &records), None);
    assert!(result(&pod, &container, ProbeType::Liveness, &instance("b"), &records));
}

#[test]
fn results_outlive_our_own_restart() {
    let pod: Pod = serde_json::from_str(
        r#"{"status":{"containerStatuses":[{"name":"c","image":"i","imageID":"","ready":true,"started":true,
            "restartCount":0,"containerID":"docker://a"}]}}"#,
    )
    .unwrap();
    let container = container(ALL);
    let mut records = ProbeRecords::new();
    assert!(result(&pod, &container, ProbeType::Readiness, &instance("a"), &records));
    assert!(result(&pod, &container, ProbeType::Startup, &instance("a"), &records));
    assert!(!result(&pod, &container, ProbeType::Readiness, &instance("b"), &records));
    // One success is below the threshold, and changes nothing.
    record_result(&pod, &container, ProbeType::Readiness, &instance("a"), true, at(0), &mut records);
    assert!(result(&pod, &container, ProbeType::Readiness, &instance("a"), &records));
}

#[test]
fn without_a_probe_all_is_well() {
    let (pod, container, one, records) = (Pod::default(), container(""), instance("a"), ProbeRecords::new());
    assert!(ProbeType::ALL.into_iter().all(|kind| result(&pod, &container, kind, &one, &records)));
    assert_eq!(schedule(&container, &one, &records, true, false, None), []);
}

/// Adopted instances are probed at different times within the period, later ones at once.
#[test]
fn after_a_restart_probes_are_spread_over_their_period() {
    let container = container(r#","readinessProbe":{"periodSeconds":10},"livenessProbe":{"periodSeconds":10}"#);
    let found = at(1000);
    let mut tenths = std::collections::BTreeSet::new();
    for number in 0..200 {
        let mut one = instance(&format!("{number:064x}"));
        for (kind, first) in schedule(&container, &one, &ProbeRecords::new(), true, false, Some(found)) {
            assert!((found..=at(1010)).contains(&first), "{kind:?} {first}");
            tenths.insert((kind, first.duration_since(found).as_secs()));
        }
        one.state = State::Running { pid: 1, started_at: at(1001) };
        let since = schedule(&container, &one, &ProbeRecords::new(), true, false, Some(found));
        assert!(since.iter().all(|(_, first)| *first == at(1001)), "{since:?}");
    }
    assert!(tenths.len() >= 20, "{tenths:?}");
}

#[test]
fn what_could_not_be_asked_changes_nothing() {
    let (container, one) = (container(r#","livenessProbe":{"failureThreshold":1}"#), instance("a"));
    let (pod, mut records) = (Pod::default(), ProbeRecords::new());
    record_unknown(&pod, &container, ProbeType::Liveness, &one, at(1), &mut records);
    assert!(result(&pod, &container, ProbeType::Liveness, &one, &records));
    assert_eq!(failed_probe(&container, &one, &records), None);
    // It is run again a period later, not at once.
    assert_eq!(schedule(&container, &one, &records, true, false, None), [(ProbeType::Liveness, at(11))]);
    record_result(&pod, &container, ProbeType::Liveness, &one, false, at(11), &mut records);
    assert_eq!(failed_probe(&container, &one, &records), Some(ProbeType::Liveness));
    // A probe that could not be run is no failure of three in a row.
    let container = super::tests::container(r#","readinessProbe":{"failureThreshold":2}"#);
    let mut records = ProbeRecords::new();
    record_result(&pod, &container, ProbeType::Readiness, &one, true, at(0), &mut records);
    record_result(&pod, &container, ProbeType::Readiness, &one, false, at(10), &mut records);
    record_unknown(&pod, &container, ProbeType::Readiness, &one, at(20), &mut records);
    assert!(result(&pod, &container, ProbeType::Readiness, &one, &records));
    record_result(&pod, &container, ProbeType::Readiness, &one, false, at(30), &mut records);
    assert!(!result(&pod, &container, ProbeType::Readiness, &one, &records));
}
