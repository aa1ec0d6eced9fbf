//! Whole visits of an autoscaler: its size, its conditions and its events over time.

use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{now, pod, sample};
use crate::horizontal_pod_autoscaler::{
    messages::SelectorProblem,
    normalize::History,
    pass::{Action, Fault, Next, Pass, same_status},
    proposals::{Failure, Samples, propose, query},
    replica_calculator::{PodMetrics, Target},
};

fn autoscaler(change: &Value) -> HorizontalPodAutoscaler {
    let target = json!({"type": "Utilization", "averageUtilization": 10});
    let mut object = json!({
        "metadata": {"name": "hpa-demo", "namespace": "default"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "hpa-demo", "apiVersion": "apps/v1"},
            "minReplicas": 1, "maxReplicas": 10,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]},
        "status": {"currentReplicas": 0, "desiredReplicas": 0},
    });
    json_patch::merge(&mut object, change);
    serde_json::from_value(object).unwrap()
}

/// An autoscaler over time, with the size of its target.
struct Bed {
    autoscaler: HorizontalPodAutoscaler,
    history: History,
    size: i32,
    seconds: u64,
    events: Vec<String>,
    action: Action,
    fault: Fault,
}

impl Bed {
    fn new(change: &Value, size: i32) -> Self {
        let (autoscaler, events) = (autoscaler(change), Vec::new());
        let (action, fault) = (Action::None, Fault::None);
        Self { autoscaler, history: History::default(), size, seconds: 1000, events, action, fault }
    }

    /// Lets 15 seconds pass and visits, with the answers that `answer` gives to each metric.
    fn visit(&mut self, answer: impl Fn(usize) -> Result<Samples, String>, pods: i32) {
        self.seconds += 15;
        let steady = Duration::from_secs(self.seconds);
        let pods: Vec<_> = (0..pods).map(|i| pod(&format!("p{i}"), &json!({}))).collect();
        let autoscaler = self.autoscaler.clone();
        let mut pass = Pass::new(&autoscaler, now());
        let (mut next, mut statuses) = (pass.begin(self.size, &mut self.history, steady), Vec::new());
        if next == Next::Measure {
            let of = Target {
                pods: &pods,
                current: self.size,
                present: self.size,
                tolerances: pass.tolerances(),
                now: now(),
            };
            let all = pass.metrics().iter().enumerate();
            let proposals = all.map(|(at, spec)| propose(spec, &of, "default", query(spec).map(|_| answer(at))));
            (next, statuses) = pass.measured(proposals.collect(), &mut self.history, steady);
        }
        if let Next::Rescale { size, reason } = next {
            pass.rescaled(size, &reason, statuses, &mut self.history, steady);
            self.size = size;
        }
        self.end(pass);
    }

    fn end(&mut self, pass: Pass<'_>) {
        self.events.extend(pass.events.iter().map(|event| format!("{}: {}", event.reason, event.text)));
        (self.action, self.fault) = (pass.action, pass.fault);
        self.autoscaler.status = Some(pass.status);
    }

    /// Each pod uses this many percent of what it requests.
    fn visit_at(&mut self, percent: i64) {
        let pods = self.size;
        let used: PodMetrics = (0..pods).map(|i| (format!("p{i}"), sample(percent * 10))).collect();
        self.visit(|_| Ok(Samples::OfPods(used.clone())), pods);
    }

    fn status(&self) -> Value {
        serde_json::to_value(&self.autoscaler.status).unwrap()
    }

    /// Type, status and reason of each condition.
    fn conditions(&self) -> Vec<String> {
        let all = self.status()["conditions"].as_array().cloned().unwrap_or_default();
        let text = |condition: &Value| {
            ["type", "status", "reason"].map(|key| condition[key].as_str().unwrap().to_owned()).join(" ")
        };
        all.iter().map(text).collect()
    }
}

/// A load of 310 % with a target of 10 %: 1, 4, 8, 10 pods, and 300 seconds after its end one again.
#[test]
fn a_load_comes_and_goes() {
    let mut bed = Bed::new(&json!({}), 1);
    bed.visit_at(0);
    assert_eq!(bed.size, 1);
    assert_eq!(
        bed.conditions(),
        [
            "AbleToScale True ScaleDownStabilized",
            "ScalingActive True ValidMetricFound",
            "ScalingLimited False DesiredWithinRange"
        ]
    );
    for (size, limit) in [(4, "ScaleUpLimit"), (8, "ScaleUpLimit"), (10, "TooManyReplicas")] {
        bed.visit_at(310);
        assert_eq!((bed.size, bed.action), (size, Action::ScaleUp));
        let limited = format!("ScalingLimited True {limit}");
        assert_eq!(bed.conditions()[..1], ["AbleToScale True SucceededRescale"]);
        assert_eq!(bed.conditions()[2], limited);
    }
    bed.visit_at(110);
    let current = json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 110, "averageValue": "1100m"}}}]);
    assert_eq!((&bed.status()["currentMetrics"], &bed.status()["currentReplicas"]), (&current, &json!(10)));
    let loaded = bed.seconds;
    while bed.size == 10 {
        bed.visit_at(0);
        assert!(bed.seconds < loaded + 1000);
    }
    assert_eq!((bed.size, bed.seconds - loaded), (1, 315), "the first visit after the window");
    let above = "reason: cpu resource utilization (percentage of request) above target";
    assert_eq!(
        bed.events,
        [
            format!("SuccessfulRescale: New size: 4; {above}"),
            format!("SuccessfulRescale: New size: 8; {above}"),
            format!("SuccessfulRescale: New size: 10; {above}"),
            "SuccessfulRescale: New size: 1; reason: All metrics below target".to_owned(),
        ]
    );
    assert_eq!((&bed.status()["desiredReplicas"], &bed.status()["lastScaleTime"]), (&json!(1), &json!(now())));
}

#[test]
fn a_missing_request_is_told() {
    let mut bed = Bed::new(&json!({}), 1);
    let failed = "failed to get cpu utilization: missing request for cpu in container nginx of Pod hpa-demo-1";
    bed.visit_at(10);
    let before = bed.status();
    let bare = [pod(
        "p0",
        &json!({"metadata": {"name": "hpa-demo-1"}, "spec": {"containers": [{"name": "nginx", "resources": {}}]}}),
    )];
    let autoscaler = bed.autoscaler.clone();
    let mut pass = Pass::new(&autoscaler, now());
    let steady = Duration::from_secs(bed.seconds);
    assert_eq!(pass.begin(1, &mut bed.history, steady), Next::Measure);
    let of = Target { pods: &bare, current: 1, present: 1, tolerances: pass.tolerances(), now: now() };
    let metrics = PodMetrics::from([("hpa-demo-1".to_owned(), sample(5))]);
    let proposal = propose(&pass.metrics()[0], &of, "default", Some(Ok(Samples::OfPods(metrics))));
    let (next, _) = pass.measured(vec![proposal], &mut bed.history, steady);
    assert_eq!((next, pass.fault, pass.decided), (Next::Rest, Fault::Internal, None));
    bed.end(pass);
    assert_eq!(
        bed.events,
        [
            format!("FailedGetResourceMetric: {failed}"),
            format!(
                "FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: {failed}"
            ),
        ]
    );
    let status = bed.status();
    let message = format!("the HPA was unable to compute the replica count: {failed}");
    assert_eq!(status["conditions"][1]["message"], message);
    assert_eq!(
        bed.conditions()[..2],
        ["AbleToScale True SucceededGetScale", "ScalingActive False FailedGetResourceMetric"]
    );
    assert_eq!(status["desiredReplicas"], before["desiredReplicas"]);
    assert_eq!(status["currentMetrics"], json!([{"type": ""}]));
}

#[test]
fn sizes_out_of_bounds_need_no_metrics() {
    let never = |_| -> Result<Samples, String> { panic!("asked for metrics") };
    for (size, least, expected, event) in [
        (12, 1, 10, Some("New size: 10; reason: Current number of replicas above Spec.MaxReplicas")),
        (1, 2, 2, Some("New size: 2; reason: Current number of replicas below Spec.MinReplicas")),
        (0, 2, 0, None),
    ] {
        let mut bed = Bed::new(&json!({"spec": {"minReplicas": least}}), size);
        bed.visit(never, 0);
        assert_eq!(bed.size, expected);
        let event = event.map(|event| format!("SuccessfulRescale: {event}"));
        assert_eq!(bed.events, event.into_iter().collect::<Vec<_>>());
        assert_eq!(bed.status()["currentMetrics"], json!([]));
    }
    let mut bed = Bed::new(&json!({}), 0);
    bed.visit(never, 0);
    assert_eq!(bed.conditions(), ["AbleToScale True SucceededGetScale", "ScalingActive False ScalingDisabled"]);
}

#[test]
fn one_metric_of_several_may_fail() {
    let target = json!({"type": "Utilization", "averageUtilization": 50});
    let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": target}});
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
    for (percent, size) in [(100, 6), (50, 3), (10, 3)] {
        let mut bed = Bed::new(&json!({"spec": {"metrics": [memory, cpu]}}), 3);
        let used: PodMetrics = (0..3).map(|i| (format!("p{i}"), sample(percent * 10))).collect();
        bed.visit(|at| if at == 0 { Err("no memory".to_owned()) } else { Ok(Samples::OfPods(used.clone())) }, 3);
        assert_eq!(bed.size, size, "{percent}");
        assert_eq!(bed.fault, Fault::Internal);
        let down = percent == 10;
        let failed = "failed to get memory utilization: unable to get metrics for resource memory: no memory";
        assert_eq!(bed.events[0], format!("FailedGetResourceMetric: {failed}"));
        assert_eq!(
            bed.events
                .iter()
                .any(|event| event.starts_with("FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 2)")),
            down
        );
        assert_eq!(bed.conditions()[1] == "ScalingActive False FailedGetResourceMetric", down);
        assert_eq!(bed.status()["currentMetrics"][0], json!({"type": ""}));
    }
    // The larger of two.
    let mut bed = Bed::new(&json!({"spec": {"metrics": [memory, cpu]}}), 2);
    let used = |value| (0..2).map(|i| (format!("p{i}"), sample(value))).collect::<PodMetrics>();
    bed.visit(|at| Ok(Samples::OfPods(used(if at == 0 { 1 } else { 1000 }))), 2);
    assert_eq!(bed.size, 4);
    let above = "New size: 4; reason: cpu resource utilization (percentage of request) above target";
    assert_eq!(bed.events, [format!("SuccessfulRescale: {above}")]);
}

#[test]
fn what_cannot_be_read_or_written_is_told() {
    let fresh = autoscaler(&json!({}));
    let mut bed = Bed::new(&json!({}), 1);
    let mut pass = Pass::new(&fresh, now());
    pass.no_scale("deployments/scale.apps \"hpa-demo\" not found", Fault::Internal);
    bed.end(pass);
    assert_eq!(bed.conditions(), ["AbleToScale False FailedGetScale"]);
    let message = "the HPA controller was unable to get the target's current scale: deployments/scale.apps \"hpa-demo\" not found";
    assert_eq!(bed.status()["conditions"][0]["message"], message);

    let mut pass = Pass::new(&fresh, now());
    pass.begin(12, &mut bed.history, Duration::ZERO);
    pass.not_rescaled(10, "why", "conflict", Vec::new());
    bed.end(pass);
    assert_eq!(bed.events[1], "FailedRescale: New size: 10; reason: why; error: conflict");
    assert_eq!(bed.conditions(), ["AbleToScale False FailedUpdateScale"]);
    assert_eq!(bed.status()["currentReplicas"], 12);

    let mut bed = Bed::new(&json!({}), 1);
    let mut pass = Pass::new(&fresh, now());
    pass.begin(1, &mut bed.history, Duration::ZERO);
    pass.unselectable(&SelectorProblem::Missing);
    bed.end(pass);
    let text = "selector is required";
    assert_eq!(bed.events, [format!("SelectorRequired: {text}"), format!("FailedComputeMetricsReplicas: {text}")]);
    assert_eq!(bed.conditions()[1], "ScalingActive False InvalidSelector");
}

proptest! {
    /// After one visit with some load, another one with the same load per pod within the tolerance writes nothing new.
    #[test]
    fn at_rest_the_status_is_the_same(size in 1..10i32, percent in prop::sample::select(vec![9i64, 10, 11])) {
        let mut bed = Bed::new(&json!({}), size);
        bed.visit_at(percent);
        let first = bed.autoscaler.status.clone().unwrap();
        bed.visit_at(percent);
        prop_assert_eq!(bed.size, size);
        prop_assert!(same_status(&first, &bed.autoscaler.status.clone().unwrap()));
        prop_assert!(bed.events.is_empty());
    }

    /// Whatever metrics say or fail to say, the size stays within its bounds, and a failure never takes pods away.
    #[test]
    fn failures_take_no_pods_away(answers in prop::collection::vec(prop::option::of(0..500i64), 1..60), start in 1..10i32) {
        let mut bed = Bed::new(&json!({}), start);
        for answer in answers {
            let before = bed.size;
            match answer {
                Some(percent) => bed.visit_at(percent),
                None => {
                    bed.visit(|_| Err("down".to_owned()), before);
                    prop_assert_eq!(bed.size, before);
                }
            }
            prop_assert!((1..=10).contains(&bed.size));
            prop_assert!(bed.size <= (2 * before).max(4));
        }
    }
}

#[test]
fn no_metrics_change_nothing() {
    let mut bed = Bed::new(&json!({"spec": {"metrics": null}}), 3);
    bed.visit(|_| -> Result<Samples, String> { unreachable!() }, 3);
    assert_eq!((bed.size, bed.events.len()), (3, 0));
    let nothing: Vec<Result<_, Failure>> = Vec::new();
    let autoscaler = bed.autoscaler.clone();
    let mut pass = Pass::new(&autoscaler, now());
    pass.begin(3, &mut bed.history, Duration::from_secs(9999));
    assert_eq!(pass.measured(nothing, &mut bed.history, Duration::from_secs(9999)).0, Next::Rest);
}
