//! What recordings of workloads leave out, and what they keep.

use std::time::{Duration, Instant};

use serde_json::json;
use windlass_tests::recording::{Names, Settling, lines_of_events, lines_of_table, without_times};

fn names() -> Names {
    let mut names = Names::new("here");
    names.learn(
        &json!({"kind": "ReplicaSet", "metadata": {"name": "web-5d9c", "labels": {"pod-template-hash": "5d9c"}}}),
    );
    names.learn(&json!({"kind": "Job", "metadata": {"name": "job"}}));
    names.learn(&json!({"kind": "CronJob", "metadata": {"name": "cron"}}));
    names
}

#[test]
fn what_is_made_up_becomes_a_word() {
    let names = names();
    for (text, shown) in [
        ("Created pod: web-5d9c-x7k2p", "Created pod: web-{hash1}-{pod}"),
        ("job-x7k2p and job-3-x7k2p", "job-{pod} and job-3-{pod}"),
        ("cron-29348701", "cron-{minute}"),
        ("at 2026-01-02T03:04:05.678Z from 10.244.0.7", "at {time} from {ip}"),
        ("0f3e4a52-9b1c-4d5e-8f60-718293a4b5c6", "{uid}"),
        ("pod here/web", "pod {namespace}/web"),
        // Not made up: a name that only looks alike, a version.
        ("web-frontend 1.7.9", "web-frontend 1.7.9"),
    ] {
        assert_eq!(names.normalize(text), shown);
    }
}

#[test]
fn tables_lose_their_widths_and_times() {
    let table = "NAME            READY   STATUS        LAST SCHEDULE   AGE\n\
                 web-5d9c-b2b2b  1/1     Running                       5s\n\
                 web-5d9c-c4c4c  1/1     Running                       7s\n\
                 alone                   Pending       3s              1s\n";
    let shown = "NAME READY STATUS LAST SCHEDULE AGE\nalone - Pending * *\nweb-{hash1}-{pod} 1/1 Running - * (x2)\n";
    assert_eq!(lines_of_table(table, &names()), shown);
}

#[test]
fn events_stand_in_the_order_in_which_they_happened() {
    let event = |object: (&str, &str), first: &str, source: &str, message: &str| {
        json!({"metadata": {"name": format!("{}.{first}", object.1)}, "type": "Normal", "reason": "Said", "message": message,
               "involvedObject": {"kind": object.0, "name": object.1}, "source": {"component": source}})
    };
    let set = ("ReplicaSet", "web-5d9c");
    let events = [
        event(set, "18b2", "replicaset-controller", "second"),
        event(set, "18b1", "replicaset-controller", "first"),
        event(set, "18b3", "replicaset-controller", "second"),
        event(("Pod", "web-5d9c-b2b2b"), "18b4", "kubelet", "of the node"),
        event(("Pod", "web-5d9c-b2b2b"), "18b4", "default-scheduler", "bound"),
        event(("Pod", "web-5d9c-c4c4c"), "18b5", "default-scheduler", "bound"),
        event(("Service", "web"), "18b6", "other", "not asked for"),
    ];
    let shown = "Pod/web-{hash1}-{pod}\n  Normal Said default-scheduler: bound\nReplicaSet/web-{hash1}\n  \
                 Normal Said replicaset-controller: first\n  Normal Said replicaset-controller: second (x2)\n";
    assert_eq!(lines_of_events(&events, &["ReplicaSet", "Pod"], &names()), shown);
}

#[test]
fn times_are_left_out_at_any_depth() {
    let status =
        json!({"startTime": "x", "conditions": [{"type": "Complete", "lastTransitionTime": "y"}], "active": 1});
    assert_eq!(without_times(&status), json!({"active": 1, "conditions": [{"type": "Complete"}]}));
}

/// What is seen each second, by its letters; which look is the last, and what it sees.
fn settled(wanted: Option<&str>, seen: &str) -> (usize, String) {
    let start = Instant::now();
    let mut settling = Settling::new(wanted.map(str::to_owned), start);
    let mut looks =
        seen.chars().chain(std::iter::repeat(seen.chars().next_back().expect("something is seen"))).enumerate();
    let over = |(at, letter): &(usize, char), settling: &mut Settling| {
        settling.is_over(letter.to_string(), start + Duration::from_secs(*at as u64))
    };
    let (at, _) = looks.find(|look| over(look, &mut settling)).expect("no wait is for ever");
    (at, settling.last().to_owned())
}

#[test]
fn what_is_as_wanted_for_a_moment_only_is_not() {
    // It comes, and stays.
    assert_eq!(settled(Some("a"), "xxa"), (6, "a".to_owned()));
    // It appears once, and what follows stays: the latter is compared.
    assert_eq!(settled(Some("a"), "xaab"), (31, "b".to_owned()));
    // It alternates until the timeout.
    assert_eq!(settled(Some("a"), &"aabb".repeat(8)).1, "b");
    // It comes late, and must stay even so.
    assert_eq!(settled(Some("a"), &format!("{}aaab", "x".repeat(28))), (31, "b".to_owned()));
    // A new recording takes what stays.
    assert_eq!(settled(None, "xxyy"), (6, "y".to_owned()));
    assert_eq!(settled(None, &"xy".repeat(20)).0, 31);
}
