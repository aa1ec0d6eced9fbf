//! From what metrics ask for to what is done.

use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerBehavior;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::horizontal_pod_autoscaler::{
    conditions::Condition,
    messages,
    normalize::{Behavior, Bounds, History, normalize},
    replica_calculator::Tolerances,
};

fn behavior(value: Value) -> Behavior {
    Behavior::of(&serde_json::from_value::<HorizontalPodAutoscalerBehavior>(value).unwrap())
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(1000 + seconds)
}

const fn reason(condition: &Condition) -> (&'static str, bool) {
    (condition.reason, condition.holds)
}

#[test]
fn without_a_behavior() {
    for (wanted, current, least, most, desired, limit) in [
        (5, 5, 1, 10, 5, ("DesiredWithinRange", false)),
        (31, 1, 1, 10, 4, ("ScaleUpLimit", true)),
        (31, 4, 1, 10, 8, ("ScaleUpLimit", true)),
        (31, 8, 1, 10, 10, ("TooManyReplicas", true)),
        (3, 1, 1, 10, 3, ("DesiredWithinRange", false)),
        (31, 1, 1, 3, 3, ("TooManyReplicas", true)),
        (0, 5, 2, 10, 2, ("TooFewReplicas", true)),
        (1, 5, 2, 10, 2, ("TooFewReplicas", true)),
        (2, 5, 2, 10, 2, ("DesiredWithinRange", false)),
        (i32::MAX, i32::MAX - 1, 1, i32::MAX, i32::MAX, ("DesiredWithinRange", false)),
    ] {
        // With nothing to stabilize.
        let mut history = History::default();
        let bounds = Bounds { current, least, most };
        let found = normalize(wanted, &bounds, None, &mut history, at(0));
        let [able, limited] = &found.conditions;
        assert_eq!(reason(able), ("ReadyForNewScale", true));
        assert_eq!((found.desired, reason(limited)), (desired, limit), "{wanted} of {current}");
    }
}

#[test]
fn a_lower_count_waits_for_the_window() {
    let mut history = History::default();
    history.start(10, at(0));
    let bounds = Bounds { current: 10, least: 1, most: 10 };
    for seconds in [0, 15, 285, 300] {
        let found = normalize(1, &bounds, None, &mut history, at(seconds));
        let stabilized = (found.desired, reason(&found.conditions[0]), reason(&found.conditions[1]));
        assert_eq!(stabilized, (10, ("ScaleDownStabilized", true), ("DesiredWithinRange", false)), "{seconds}");
    }
    let found = normalize(1, &bounds, None, &mut history, at(301));
    assert_eq!((found.desired, reason(&found.conditions[0])), (1, ("ReadyForNewScale", true)));
}

/// One visit: when, what there is, what metrics ask for; what is done, and the reasons of both conditions.
type Visit = (u64, i32, i32, i32, &'static str, &'static str);

fn follow(name: &str, rules: Value, (least, most): (i32, i32), visits: &[Visit]) {
    let (behavior, mut history) = (behavior(rules), History::default());
    for (seconds, current, wanted, desired, able, limited) in visits.iter().copied() {
        history.start(current, at(seconds));
        let bounds = Bounds { current, least, most };
        let found = normalize(wanted, &bounds, Some(&behavior), &mut history, at(seconds));
        let reasons = (found.conditions[0].reason, found.conditions[1].reason);
        assert_eq!((found.desired, reasons), (desired, (able, limited)), "{name} at {seconds}");
        assert_eq!(found.conditions[1].holds, limited != "DesiredWithinRange");
        if found.desired != current {
            history.scaled(current, found.desired, behavior.longest_period(), at(seconds));
        }
    }
}

const READY: &str = "ReadyForNewScale";
const WITHIN: &str = "DesiredWithinRange";

#[test]
fn with_a_behavior() {
    let policies =
        |kind: &str, value: i32, period: i32| json!([{"type": kind, "value": value, "periodSeconds": period}]);
    follow(
        "defaults",
        json!({}),
        (1, 1000),
        &[
            (0, 1, 100, 5, READY, "ScaleUpLimit"),
            (15, 5, 100, 10, READY, "ScaleUpLimit"),
            (30, 10, 100, 20, READY, "ScaleUpLimit"),
            (45, 20, 1, 20, "ScaleDownStabilized", WITHIN),
            (331, 20, 1, 1, READY, WITHIN),
        ],
    );
    follow("maximum", json!({}), (1, 3), &[(0, 1, 100, 3, READY, "TooManyReplicas")]);
    let four_a_minute = json!({"scaleUp": {"policies": policies("Pods", 4, 60)}});
    follow(
        "pods",
        four_a_minute,
        (1, 1000),
        &[
            (0, 10, 100, 14, READY, "ScaleUpLimit"),
            (15, 14, 100, 14, READY, "ScaleUpLimit"),
            (59, 14, 100, 14, READY, "ScaleUpLimit"),
            (60, 14, 100, 18, READY, "ScaleUpLimit"),
        ],
    );
    let tenth = json!({"scaleUp": {"policies": policies("Percent", 10, 60)}});
    follow("percent is rounded up", tenth, (1, 1000), &[(0, 1, 5, 2, READY, "ScaleUpLimit")]);
    let both = json!({"scaleUp": {"selectPolicy": "Min", "policies": [
        {"type": "Pods", "value": 3, "periodSeconds": 60}, {"type": "Percent", "value": 100, "periodSeconds": 60}]}});
    follow(
        "the smaller change",
        both,
        (1, 1000),
        &[(0, 2, 50, 4, READY, "ScaleUpLimit"), (60, 4, 50, 7, READY, "ScaleUpLimit")],
    );
    let never = json!({"scaleUp": {"selectPolicy": "Disabled"}, "scaleDown": {"selectPolicy": "Disabled", "stabilizationWindowSeconds": 0}});
    follow(
        "disabled",
        never,
        (1, 1000),
        &[(0, 5, 50, 5, READY, "ScaleUpLimit"), (15, 5, 1, 5, READY, "ScaleDownLimit")],
    );
    let slowly_down = json!({"scaleDown": {"stabilizationWindowSeconds": 0, "policies": policies("Pods", 2, 60)}});
    follow(
        "down",
        slowly_down,
        (1, 1000),
        &[
            (0, 10, 1, 8, READY, "ScaleDownLimit"),
            (15, 8, 1, 8, READY, "ScaleDownLimit"),
            (60, 8, 1, 6, READY, "ScaleDownLimit"),
            (120, 6, 5, 5, READY, WITHIN),
        ],
    );
    let tenth_down = json!({"scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Min", "policies": [
        {"type": "Percent", "value": 10, "periodSeconds": 60}, {"type": "Pods", "value": 4, "periodSeconds": 60}]}});
    follow(
        "the smaller change down",
        tenth_down,
        (90, 1000),
        &[
            (0, 100, 1, 96, READY, "ScaleDownLimit"),
            (60, 96, 1, 92, READY, "ScaleDownLimit"),
            (120, 92, 1, 90, READY, "TooFewReplicas"),
        ],
    );
    let waits = json!({"scaleUp": {"stabilizationWindowSeconds": 60}, "scaleDown": {"stabilizationWindowSeconds": 60}});
    follow(
        "windows up and down",
        waits,
        (1, 1000),
        &[
            (0, 10, 10, 10, READY, WITHIN),
            (15, 10, 12, 10, "ScaleUpStabilized", WITHIN),
            (30, 10, 8, 10, "ScaleDownStabilized", WITHIN),
            (61, 10, 11, 10, "ScaleUpStabilized", WITHIN),
            (91, 10, 12, 11, "ScaleUpStabilized", WITHIN),
        ],
    );
    // What was removed within the period may come back.
    let quick = json!({"scaleUp": {"policies": policies("Pods", 1, 60)},
        "scaleDown": {"stabilizationWindowSeconds": 0, "policies": policies("Pods", 10, 60)}});
    follow("back again", quick, (1, 1000), &[(0, 10, 6, 6, READY, WITHIN), (15, 6, 20, 11, READY, "ScaleUpLimit")]);
}

#[test]
fn percentages_round_as_floats_do() {
    // 100 · 1.1 is a little more than 110.
    let tenth = json!({"scaleUp": {"policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}]}});
    follow("float", tenth, (1, 1000), &[(0, 100, 500, 111, READY, "ScaleUpLimit")]);
}

#[test]
fn tolerances_of_a_behavior() {
    let found = behavior(json!({"scaleUp": {"tolerance": "500u"}})).tolerances();
    assert_eq!(found, Tolerances { down: 0.1, up: 0.0005 });
    let found = behavior(json!({"scaleDown": {"tolerance": "0"}})).tolerances();
    assert_eq!(found, Tolerances { down: 0.0, up: 0.1 });
}

#[test]
fn limits_have_upstreams_words() {
    for (limit, message) in [
        (messages::Limit::Within, "the desired count is within the acceptable range"),
        (messages::Limit::ScaleUp, "the desired replica count is increasing faster than the maximum scale rate"),
        (messages::Limit::ScaleDown, "the desired replica count is decreasing faster than the maximum scale rate"),
    ] {
        assert_eq!(messages::limited(limit, true).message, message);
    }
}

fn rules() -> impl Strategy<Value = Value> {
    let policy = (prop::sample::select(vec!["Pods", "Percent"]), 1..200i32, 1..120i32)
        .prop_map(|(kind, value, period)| json!({"type": kind, "value": value, "periodSeconds": period}));
    let select = prop::sample::select(vec!["Max", "Min", "Disabled"]);
    (0..400i32, select, prop::collection::vec(policy, 1..3)).prop_map(|(window, select, policies)| {
        json!({"stabilizationWindowSeconds": window, "selectPolicy": select, "policies": policies})
    })
}

fn behaviors() -> impl Strategy<Value = Option<Value>> {
    prop::option::of((rules(), rules()).prop_map(|(up, down)| json!({"scaleUp": up, "scaleDown": down})))
}

/// Visits every 15 seconds, each with what metrics ask for.
fn visits() -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(0..60i32, 1..60)
}

proptest! {
    /// Whatever metrics ask for, the size stays within its bounds, moves only towards what some recent visit asked for,
    /// and without a behavior doubles at most.
    #[test]
    fn sizes_stay_within_their_limits(
        rules in behaviors(),
        least in 1..5i32,
        more in 0..40i32,
        start in 0..40i32,
        asked in visits(),
    ) {
        let behavior = rules.map(behavior);
        let most = least + more;
        let (mut current, mut history) = (start.clamp(least, most), History::default());
        for (visit, wanted) in asked.into_iter().enumerate() {
            let now = at(15 * u64::try_from(visit).unwrap());
            history.start(current, now);
            let bounds = Bounds { current, least, most };
            let found = normalize(wanted, &bounds, behavior.as_ref(), &mut history, now);
            let size = found.desired;
            prop_assert!((least..=most).contains(&size));
            if behavior.is_none() {
                prop_assert!(size <= (2 * current).max(4));
                prop_assert!(size >= wanted.clamp(least, (2 * current).max(4).min(most)), "never below what is asked for");
            }
            let limited = found.conditions[1].holds;
            prop_assert_eq!(limited, found.conditions[1].reason != WITHIN);
            if size != current {
                let longest = behavior.as_ref().map_or(Duration::ZERO, Behavior::longest_period);
                history.scaled(current, size, longest, now);
            }
            current = size;
        }
    }

    /// Policies of pods hold over their whole period, not only from one visit to the next.
    #[test]
    fn policies_hold_over_their_period(value in 1..6i32, period in 1..120u64, asked in visits()) {
        let one = json!([{"type": "Pods", "value": value, "periodSeconds": period}]);
        let behavior = behavior(json!({"scaleUp": {"policies": one},
            "scaleDown": {"policies": one, "stabilizationWindowSeconds": 0}}));
        let (mut history, mut sizes) = (History::default(), vec![(at(0), 20)]);
        for (visit, wanted) in asked.into_iter().enumerate() {
            let now = at(15 * u64::try_from(visit).unwrap());
            let current = sizes[sizes.len() - 1].1;
            history.start(current, now);
            let bounds = Bounds { current, least: 1, most: 1000 };
            let size = normalize(wanted, &bounds, Some(&behavior), &mut history, now).desired;
            // What there was when the period began, against what there is now.
            let begin = now.saturating_sub(Duration::from_secs(period));
            let before = sizes.iter().rev().find(|(at, _)| *at <= begin).map_or(20, |(_, size)| *size);
            prop_assert!(size <= current || size <= before + value, "{before} by {current} to {size}");
            prop_assert!(size >= current || size >= before - value, "{before} by {current} to {size}");
            if size != current {
                history.scaled(current, size, behavior.longest_period(), now);
                sizes.push((now, size));
            }
        }
    }

    /// A size that metrics go on asking for is kept.
    #[test]
    fn what_is_asked_for_again_changes_nothing(rules in behaviors(), wanted in 1..40i32, visits in 1..60u64) {
        let behavior = rules.map(behavior);
        let bounds = Bounds { current: wanted, least: 1, most: 40 };
        let mut history = History::default();
        for visit in 0..visits {
            history.start(wanted, at(15 * visit));
            let found = normalize(wanted, &bounds, behavior.as_ref(), &mut history, at(15 * visit));
            prop_assert_eq!((found.desired, reason(&found.conditions[1])), (wanted, (WITHIN, false)));
        }
    }
}
