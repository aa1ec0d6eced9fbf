//! Counts of replicas.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{before, condition, now, pod, samples};
use crate::horizontal_pod_autoscaler::replica_calculator::{
    Replicas, Target, Tolerances, per_pod_replicas, plain_replicas, resource_replicas, value_replicas,
};

/// What differs of pods from ready ones, in order.
type Pods = Vec<Value>;

fn ready(count: usize) -> Pods {
    vec![json!({}); count]
}

/// Ready or not by the letters of a word; unready ones have never been ready.
fn readiness(word: &str) -> Pods {
    let change = |ready| if ready == 'T' { json!({}) } else { condition("False", 3600, 3600) };
    word.chars().map(change).collect()
}

enum Of<'a> {
    Cpu(i32),
    Memory(i32),
    CpuAverage(i64),
    Pods(i64),
    Value(i64),
    PerPod(i64),
    Container(&'a str, i32),
}

fn calculate(
    pods: &Pods,
    current: i32,
    values: &[i64],
    of: &Of<'_>,
    tolerances: Tolerances,
) -> Result<Replicas, String> {
    let pods: Vec<_> = pods.iter().enumerate().map(|(i, change)| pod(&format!("p{i}"), change)).collect();
    let target = Target { pods: &pods, current, present: current, tolerances, now: now() };
    let metrics = samples(values);
    match *of {
        Of::Cpu(percent) => resource_replicas(&target, metrics, percent, "cpu", None),
        Of::Memory(percent) => resource_replicas(&target, metrics, percent, "memory", None),
        Of::Container(name, percent) => resource_replicas(&target, metrics, percent, "cpu", Some(name)),
        Of::CpuAverage(average) => plain_replicas(&target, metrics, average, "cpu"),
        Of::Pods(average) => plain_replicas(&target, metrics, average, ""),
        Of::Value(value) => value_replicas(&target, values.iter().sum(), value),
        Of::PerPod(average) => Ok(per_pod_replicas(&target, values.iter().sum(), average)),
    }
}

#[test]
fn as_upstream_counts() {
    let starting = || condition("True", 5, 5);
    let failed = || json!({"status": {"phase": "Failed", "conditions": []}});
    let deleted = || json!({"metadata": {"deletionTimestamp": before(1).to_string()}});
    let pending = || json!({"status": {"phase": "Pending", "conditions": []}});
    let two_and = |last: &dyn Fn() -> Value| vec![json!({}), json!({}), last(), last()];
    let hot_first = || vec![starting(), json!({}), json!({})];
    let hot_last = || vec![json!({}), starting(), starting()];
    let requests =
        |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    for (name, pods, current, values, of, (count, utilization, usage)) in [
        ("ScaleUp", ready(3), 3, vec![300, 500, 700], Of::Cpu(30), (5, Some(50), 500)),
        ("ContainerScaleUp", ready(3), 3, vec![300, 500, 700], Of::Container("c", 30), (5, Some(50), 500)),
        ("ScaleUpUnreadyLessScale", readiness("FTT"), 3, vec![300, 500, 700], Of::Cpu(30), (4, Some(60), 600)),
        ("ScaleUpHotCpuLessScale", hot_first(), 3, vec![300, 500, 700], Of::Cpu(30), (4, Some(60), 600)),
        ("ScaleUpUnreadyNoScale", readiness("TFF"), 3, vec![400, 500, 700], Of::Cpu(30), (3, Some(40), 400)),
        ("ScaleUpHotCpuNoScale", hot_last(), 3, vec![400, 500, 700], Of::Cpu(30), (3, Some(40), 400)),
        ("ScaleUpIgnoresFailedPods", two_and(&failed), 2, vec![500, 700], Of::Cpu(30), (4, Some(60), 600)),
        ("ScaleUpIgnoresDeletionPods", two_and(&deleted), 2, vec![500, 700], Of::Cpu(30), (4, Some(60), 600)),
        ("ScaleUpPendingLessScale", two_and(&pending), 4, vec![800, 1000], Of::Cpu(30), (6, Some(90), 900)),
        ("ScaleUpCM", ready(3), 3, vec![20000, 10000, 30000], Of::Pods(15000), (4, None, 20000)),
        ("ScaleUpCMUnready", readiness("TFT"), 3, vec![50000, 10000, 30000], Of::Pods(15000), (6, None, 30000)),
        ("ScaleUpCMHotCpu", hot_last(), 3, vec![50000, 15000, 30000], Of::Pods(15000), (7, None, 31666)),
        ("ScaleDown", ready(5), 5, vec![100, 300, 500, 250, 250], Of::Cpu(50), (3, Some(28), 280)),
        ("ScaleDownCM", ready(5), 5, vec![12000; 5], Of::Pods(20000), (3, None, 12000)),
        (
            "ScaleDownIncludesUnready",
            readiness("TTTFF"),
            5,
            vec![100, 300, 500, 250, 250],
            Of::Cpu(50),
            (2, Some(30), 300),
        ),
        ("Tolerance", ready(3), 3, vec![1010, 1030, 1020], Of::Cpu(100), (3, Some(102), 1020)),
        ("ToleranceCM", ready(3), 3, vec![20000, 21000, 21000], Of::Pods(20000), (3, None, 20666)),
        (
            "SuperfluousMetrics",
            ready(4),
            4,
            vec![4000, 9500, 3000, 7000, 3200, 2000],
            Of::Cpu(100),
            (24, Some(587), 5875),
        ),
        ("MissingMetrics", ready(4), 4, vec![400, 95], Of::Cpu(100), (3, Some(24), 247)),
        ("MissingMetricsNoChangeEq", ready(2), 2, vec![1000], Of::Cpu(100), (2, Some(100), 1000)),
        ("MissingMetricsNoChangeGt", ready(2), 2, vec![1900], Of::Cpu(100), (2, Some(190), 1900)),
        ("MissingMetricsNoChangeLt", ready(2), 2, vec![600], Of::Cpu(100), (2, Some(60), 600)),
        ("MissingMetricsUnreadyNoChange", readiness("FTT"), 3, vec![100, 450], Of::Cpu(50), (3, Some(45), 450)),
        ("MissingMetricsUnreadyScaleUp", readiness("FTT"), 3, vec![100, 2000], Of::Cpu(50), (4, Some(200), 2000)),
        ("MissingMetricsUnreadyScaleDown", readiness("FTTT"), 4, vec![100, 100, 100], Of::Cpu(50), (3, Some(10), 100)),
        // A missing pod counts as the target, where that is above its request: (200 + 2 · 3000) / 3000 = 206 %.
        ("MissingMetricsTargetOver100", ready(3), 3, vec![200], Of::Cpu(300), (3, Some(20), 200)),
        ("ScaleUpMemory", readiness("FTT"), 3, vec![3000, 5000, 7000], Of::Memory(300), (5, Some(500), 5000)),
        ("ScaleUpAverage", ready(3), 3, vec![300, 500, 700], Of::CpuAverage(300), (5, None, 500)),
        ("ScaleDownAverageMissing", ready(4), 4, vec![100, 100], Of::CpuAverage(500), (3, None, 100)),
        ("RequestsDiffer", vec![requests("2"), requests("500m")], 2, vec![500, 500], Of::Cpu(20), (4, Some(40), 500)),
        ("ScaleUpCMObject", ready(3), 3, vec![20000], Of::Value(15000), (4, None, 20000)),
        ("ScaleUpPerPodCMObject", ready(3), 3, vec![20000], Of::PerPod(5000), (4, None, 6667)),
        ("ScaleUpCMObjectIgnoresUnready", readiness("FTF"), 3, vec![50000], Of::Value(10000), (5, None, 50000)),
        ("ScaleUpFromZero", ready(0), 0, vec![25000], Of::Value(10000), (3, None, 25000)),
        ("ScaleUpFromZeroPerPod", ready(0), 0, vec![25000], Of::PerPod(10000), (3, None, 25000)),
        ("ScaleUpCMExternal", ready(1), 1, vec![8600], Of::Value(4400), (2, None, 8600)),
        ("ScaleUpPerPodCMExternal", ready(3), 3, vec![8600], Of::PerPod(2150), (4, None, 2867)),
        ("ScaleDownCMObject", ready(5), 5, vec![12000], Of::Value(20000), (3, None, 12000)),
        ("ScaleDownPerPodCMObject", ready(5), 5, vec![60000], Of::PerPod(20000), (3, None, 12000)),
        ("ScaleDownCMExternal", ready(5), 5, vec![8600], Of::Value(14334), (3, None, 8600)),
        ("ScaleDownPerPodCMExternal", ready(5), 5, vec![8600], Of::PerPod(2867), (3, None, 1720)),
        ("ScaleToZeroByValue", ready(5), 5, vec![0], Of::Value(100), (0, None, 0)),
        ("ToleranceCMExternal", ready(3), 3, vec![8600], Of::Value(8888), (3, None, 8600)),
        ("TolerancePerPodCMExternal", ready(3), 3, vec![8600], Of::PerPod(2900), (3, None, 2867)),
        ("BeyondAnyCount", ready(3), 3, vec![i64::MAX / 2], Of::Value(1), (i32::MAX, None, i64::MAX / 2)),
    ] {
        let found = calculate(&pods, current, &values, &of, Tolerances::default());
        assert_eq!(found, Ok(Replicas { count, utilization, usage }), "{name}");
    }
}

#[test]
fn what_is_missing_is_told() {
    let bare = || json!({"spec": {"containers": [{"name": "c", "resources": {}}]}});
    let whole = || json!({"spec": {"resources": {"requests": {"memory": "1Gi"}}, "containers": [{"name": "c", "resources": {}}]}});
    let sidecar =
        || json!({"spec": {"initContainers": [{"name": "once"}, {"name": "side", "restartPolicy": "Always"}]}});
    for (pods, values, of, error) in [
        (ready(0), vec![], Of::Cpu(50), "no pods returned by selector while calculating replica count"),
        (ready(0), vec![], Of::Pods(50), "no pods returned by selector while calculating replica count"),
        (
            ready(0),
            vec![1],
            Of::Value(50),
            "unable to calculate ready pods: no pods returned by selector while calculating replica count",
        ),
        (readiness("F"), vec![100], Of::Cpu(50), "did not receive metrics for targeted pods (pods might be unready)"),
        (ready(1), vec![], Of::Pods(50), "did not receive metrics for targeted pods (pods might be unready)"),
        (vec![bare()], vec![100], Of::Cpu(50), "missing request for cpu in container c of Pod p0"),
        (vec![whole()], vec![100], Of::Cpu(50), "missing pod-level request for cpu in Pod p0"),
        (vec![whole()], vec![100], Of::Container("c", 50), "missing request for cpu in container c of Pod p0"),
        (vec![sidecar()], vec![100], Of::Cpu(50), "missing request for cpu in container side of Pod p0"),
        (ready(1), vec![100], Of::Container("d", 50), "container d not found in Pod p0"),
    ] {
        let found = calculate(&pods, 1, &values, &of, Tolerances::default());
        assert_eq!(found.unwrap_err(), error);
    }
    // The samples are of another pod.
    let pods = [pod("other", &json!({}))];
    let target = Target { pods: &pods, current: 1, present: 1, tolerances: Tolerances::default(), now: now() };
    let found = resource_replicas(&target, samples(&[100]), 50, "cpu", None);
    assert_eq!(found.unwrap_err(), "no metrics returned matched known pods");
}

#[test]
fn each_direction_has_its_tolerance() {
    let tolerances = Tolerances { down: 0.5, up: 0.01 };
    for (value, count) in [(1020, 4), (1000, 3), (600, 3), (490, 2)] {
        let found = calculate(&ready(3), 3, &[value; 3], &Of::Cpu(100), tolerances).unwrap();
        assert_eq!(found.count, count, "{value}");
    }
}

fn arbitrary_pods() -> impl Strategy<Value = Pods> {
    let one = prop_oneof![
        Just(json!({})),
        Just(condition("False", 3600, 3600)),
        Just(condition("True", 5, 5)),
        Just(json!({"status": {"phase": "Failed"}})),
        Just(json!({"status": {"phase": "Pending"}})),
    ];
    prop::collection::vec(one, 1..8)
}

proptest! {
    /// What is within tolerance changes nothing, whatever else is unknown; so the size that was chosen stays.
    #[test]
    fn a_usage_within_tolerance_changes_nothing(pods in arbitrary_pods(), current in 1..20i32, percent in 91..110i64) {
        let values = vec![percent * 10; pods.len()];
        if let Ok(found) = calculate(&pods, current, &values, &Of::Cpu(100), Tolerances::default()) {
            prop_assert_eq!(found.count, current);
        }
    }

    /// More load never asks for fewer replicas.
    #[test]
    fn more_usage_asks_for_more(
        pods in 1..8usize,
        values in prop::collection::vec(0..3000i64, 8),
        more in 0..3000i64,
        percent in 1..200i32,
    ) {
        let current = i32::try_from(pods).unwrap();
        let count = |values: &[i64]| {
            calculate(&ready(pods), current, values, &Of::Cpu(percent), Tolerances::default()).unwrap().count
        };
        let mut higher = values.clone();
        higher[0] += more;
        prop_assert!(count(&values[..pods]) <= count(&higher[..pods]));
    }

    /// Unknown pods never turn a change round, nor make it larger.
    #[test]
    fn the_unknown_counts_against_the_change(pods in arbitrary_pods(), values in prop::collection::vec(0..3000i64, 0..8)) {
        let current = i32::try_from(pods.len()).unwrap();
        let Ok(found) = calculate(&pods, current, &values, &Of::Cpu(50), Tolerances::default()) else { return Ok(()) };
        let utilization = found.utilization.unwrap();
        prop_assert!(utilization > 50 || found.count <= current, "{found:?}");
        if pods.iter().all(|pod| *pod == json!({})) {
            prop_assert!(utilization < 50 || found.count >= current, "{found:?}");
        }
    }
}
