use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use windlass_kit::objects::schedule::Schedule;

use super::{
    plan::{self, Observed, Plan},
    schedule_times::Times,
};

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// An hourly CronJob of ten o'clock.
fn cron_job(spec: &Value, status: &Value) -> CronJob {
    let mut cron_job = json!({
        "metadata": {"name": "cj", "namespace": "n", "uid": "cj-uid", "creationTimestamp": "2026-05-19T09:30:00Z"},
        "spec": {"schedule": "0 * * * *", "concurrencyPolicy": "Allow", "jobTemplate": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}, "spec": {"template": {}}}},
        "status": status,
    });
    json_patch::merge(&mut cron_job["spec"], spec);
    serde_json::from_value(cron_job).unwrap()
}

fn job(name: &str, condition: Option<&str>, start: &str) -> Arc<Job> {
    let conditions = condition.map(|kind| json!([{"type": kind, "status": "True"}]));
    let done = condition.filter(|kind| *kind == "Complete").map(|_| start);
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"template": {}},
            "status": {"startTime": start, "completionTime": done, "conditions": conditions},
        }))
        .unwrap(),
    )
}

fn active(names: &[&str]) -> Value {
    json!(names.iter().map(|name| json!({"kind": "Job", "name": name, "uid": name})).collect::<Vec<_>>())
}

fn run_with(cron_job: &CronJob, jobs: &[Arc<Job>], gone: &[&str], told: Option<Timestamp>, now: &str) -> Plan {
    let gone: HashSet<String> = gone.iter().map(|uid| (*uid).to_owned()).collect();
    let observed = Observed { jobs, gone: &gone, local: &TimeZone::UTC, told, rescheduled: None, now: time(now) };
    plan::reconcile(cron_job, &observed)
}

fn run(cron_job: &CronJob, jobs: &[Arc<Job>], now: &str) -> Plan {
    run_with(cron_job, jobs, &[], None, now)
}

fn started(plan: &Plan) -> Option<String> {
    plan.start.as_ref().map(|start| start.at.to_string())
}

fn events(plan: &Plan) -> Vec<String> {
    plan.events.iter().map(|event| format!("{} {}", event.reason, event.text)).collect()
}

#[test]
fn what_is_due_starts_once() {
    let minute = |text: &str| time(text).as_second() / 60;
    let none = json!({});
    for (spec, status, now, wanted) in [
        (json!({}), none.clone(), "2026-05-19T09:59:59Z", None),
        (json!({}), none.clone(), "2026-05-19T10:00:00Z", Some("2026-05-19T10:00:00Z")),
        (json!({}), none.clone(), "2026-05-19T12:30:00Z", Some("2026-05-19T12:00:00Z")),
        (json!({}), json!({"lastScheduleTime": "2026-05-19T12:00:00Z"}), "2026-05-19T12:30:00Z", None),
        (json!({"suspend": true}), none.clone(), "2026-05-19T12:30:00Z", None),
        (json!({"startingDeadlineSeconds": 60}), none.clone(), "2026-05-19T12:01:00Z", Some("2026-05-19T12:00:00Z")),
        (json!({"startingDeadlineSeconds": 60}), none.clone(), "2026-05-19T12:01:01Z", None),
        (
            json!({"schedule": "0 10 * * *", "timeZone": "Asia/Tokyo"}),
            none.clone(),
            "2026-05-20T02:00:00Z",
            Some("2026-05-20T01:00:00Z"),
        ),
        (json!({"schedule": "@every 10m"}), none.clone(), "2026-05-19T09:55:00Z", Some("2026-05-19T09:50:00Z")),
        (json!({"schedule": "@every 10m"}), none, "2026-05-19T09:39:59Z", None),
    ] {
        let plan = run(&cron_job(&spec, &status), &[], now);
        assert_eq!(started(&plan).as_deref(), wanted, "{spec} at {now}");
        if let Some(start) = &plan.start {
            assert_eq!(start.job.name_any(), format!("cj-{}", minute(wanted.unwrap())));
        }
    }
}

#[test]
fn a_job_is_like_its_template() {
    let plan = run(&cron_job(&json!({}), &json!({})), &[], "2026-05-19T10:00:00Z");
    let job = serde_json::to_value(plan.start.unwrap().job).unwrap();
    assert_eq!(job["metadata"]["labels"], json!({"a": "b"}));
    let scheduled = "batch.kubernetes.io/cronjob-scheduled-timestamp";
    assert_eq!(job["metadata"]["annotations"], json!({"x": "y", scheduled: "2026-05-19T10:00:00Z"}));
    assert_eq!(
        job["metadata"]["ownerReferences"],
        json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "cj", "uid": "cj-uid", "controller": true,
            "blockOwnerDeletion": true}])
    );
    let there = cron_job(&json!({"timeZone": "America/New_York"}), &json!({}));
    let plan = run(&there, &[], "2026-05-19T10:00:00Z");
    assert_eq!(plan.start.unwrap().job.annotations()[scheduled], "2026-05-19T06:00:00-04:00");
}

#[test]
fn active_jobs_are_followed() {
    let status = json!({"lastScheduleTime": "2026-05-19T10:00:00Z", "active": active(&["a", "b", "c"])});
    let jobs = [
        job("a", None, "2026-05-19T10:00:00Z"),
        job("b", Some("Complete"), "2026-05-19T10:01:00Z"),
        job("d", None, "2026-05-19T10:00:00Z"),
        job("e", Some("Failed"), "2026-05-19T10:00:00Z"),
    ];
    let plan = run_with(&cron_job(&json!({}), &status), &jobs, &["c"], None, "2026-05-19T10:30:00Z");
    assert_eq!(
        events(&plan),
        [
            "SawCompletedJob Saw completed job: b, condition: Complete",
            "UnexpectedJob Saw a job that the controller did not create or forgot: d",
            "MissingJob Active job went missing: c",
        ]
    );
    let left = plan.status.active.unwrap();
    assert_eq!(left.iter().filter_map(|reference| reference.name.as_deref()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(plan.status.last_successful_time.unwrap().0, time("2026-05-19T10:01:00Z"));
    assert_eq!(plan.wait, Some(Duration::from_millis(1_800_100)));
}

#[test]
fn jobs_of_a_cron_job_meet_as_it_says() {
    let jobs = [job("a", None, "2026-05-19T10:00:00Z")];
    let status = json!({"lastScheduleTime": "2026-05-19T10:00:00Z", "active": active(&["a"])});
    let now = "2026-05-19T11:00:00Z";
    let plan = run(&cron_job(&json!({"concurrencyPolicy": "Allow"}), &status), &jobs, now);
    assert!(plan.start.is_some() && plan.replace.is_empty());
    let plan = run(&cron_job(&json!({"concurrencyPolicy": "Replace"}), &status), &jobs, now);
    assert!(plan.start.is_some() && plan.replace.len() == 1);
    let plan = run(&cron_job(&json!({"concurrencyPolicy": "Forbid"}), &status), &jobs, now);
    assert!(plan.start.is_none());
    assert_eq!(
        events(&plan),
        ["JobAlreadyActive Not starting job because prior execution is running and concurrency policy is Forbid"]
    );
    // It starts as soon as the other has ended.
    let jobs = [job("a", Some("Complete"), "2026-05-19T10:00:00Z")];
    let plan = run(&cron_job(&json!({"concurrencyPolicy": "Forbid"}), &status), &jobs, "2026-05-19T11:20:00Z");
    assert_eq!(started(&plan).as_deref(), Some("2026-05-19T11:00:00Z"));
}

#[test]
fn missed_times_are_told() {
    let late = cron_job(&json!({"startingDeadlineSeconds": 60}), &json!({}));
    let plan = run(&late, &[], "2026-05-19T12:30:00Z");
    assert_eq!(events(&plan), ["MissSchedule Missed scheduled time to start a job: Tue, 19 May 2026 12:00:00 +0000"]);
    assert!(run_with(&late, &[], &[], plan.missed, "2026-05-19T12:31:00Z").events.is_empty(), "once");
    let text = "TooManyMissedTimes too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
    let plan = run(&cron_job(&json!({"schedule": "* * * * *"}), &json!({})), &[], "2026-05-19T11:10:00Z");
    assert!(plan.events.is_empty() && plan.start.is_some(), "a hundred are not too many");
    let plan = run(&cron_job(&json!({"schedule": "* * * * *"}), &json!({})), &[], "2026-05-19T11:11:00Z");
    assert_eq!(events(&plan), [text]);
    assert_eq!(started(&plan).as_deref(), Some("2026-05-19T11:11:00Z"), "the last one starts");
    let limited = cron_job(&json!({"schedule": "* * * * *", "startingDeadlineSeconds": 600}), &json!({}));
    assert!(run(&limited, &[], "2026-05-19T11:11:00Z").events.is_empty());
}

#[test]
fn what_is_wrong_is_told() {
    for (spec, wanted) in [
        (
            json!({"timeZone": "Mars/Olympus"}),
            "UnknownTimeZone invalid timeZone: \"Mars/Olympus\": unknown time zone Mars/Olympus",
        ),
        (
            json!({"schedule": "x * * * *"}),
            "UnparseableSchedule unparseable schedule: \"x * * * *\" : failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            json!({"schedule": "0 0 31 2 *"}),
            "InvalidSchedule invalid schedule: 0 0 31 2 * : time difference between two schedules is less than 1 second",
        ),
    ] {
        let plan = run(&cron_job(&spec, &json!({})), &[], "2026-05-19T12:30:00Z");
        assert_eq!(events(&plan), [wanted]);
        assert!(plan.start.is_none() && plan.wait.is_none());
    }
    let zone = cron_job(&json!({"schedule": "TZ=Asia/Tokyo 0 9 * * *"}), &json!({}));
    let plan = run(&zone, &[], "2026-05-20T00:00:00Z");
    assert_eq!(plan.events[0].reason, "UnsupportedSchedule");
    assert_eq!(started(&plan).as_deref(), Some("2026-05-20T00:00:00Z"));
}

#[test]
fn history_has_its_limits() {
    let jobs = [
        job("c", Some("Complete"), "2026-05-19T10:03:00Z"),
        job("a", Some("Complete"), "2026-05-19T10:01:00Z"),
        job("b", Some("Complete"), "2026-05-19T10:02:00Z"),
        job("f2", Some("Failed"), "2026-05-19T10:02:00Z"),
        job("f1", Some("Failed"), "2026-05-19T10:01:00Z"),
        job("r", None, "2026-05-19T09:00:00Z"),
    ];
    let expired = |spec: Value| {
        let plan = run(&cron_job(&spec, &json!({})), &jobs, "2026-05-19T10:30:00Z");
        plan.expired.iter().map(|job| job.name_any()).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(expired(json!({})), none);
    assert_eq!(expired(json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1})), ["a", "b", "f1"]);
    assert_eq!(expired(json!({"successfulJobsHistoryLimit": 0, "suspend": true})), ["a", "b", "c"]);
    let mut deleted = cron_job(&json!({"successfulJobsHistoryLimit": 0}), &json!({}));
    deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
    let plan = run(&deleted, &jobs, "2026-05-19T10:30:00Z");
    assert!(plan.expired.is_empty() && plan.start.is_none());
}

/// A Job that was started by a run that could not write the status is no surprise.
#[test]
fn a_start_that_was_not_written_is_repeated() {
    let minute = time("2026-05-19T10:00:00Z").as_second() / 60;
    let jobs = [job(&format!("cj-{minute}"), None, "2026-05-19T10:00:00Z")];
    let plan = run(&cron_job(&json!({}), &json!({})), &jobs, "2026-05-19T10:00:01Z");
    assert!(plan.start.is_some() && plan.events.is_empty());
}

proptest! {
    /// The latest time that has come is what walking from one to the next finds.
    #[test]
    fn due_is_the_last_time_that_has_come(
        since in 1_770_000_000i64..1_790_000_000, passed in 0i64..400_000,
        schedule in prop::sample::select(vec![
            "* * * * *", "*/7 3,4 * * *", "30 6-16/4 * * 1-5", "0 0 1 * *", "@every 37m", "30 1 * * *", "30 2 * * *",
        ]),
    ) {
        let (schedule, zone) = (Schedule::parse(schedule).unwrap(), TimeZone::get("America/New_York").unwrap());
        let (since, now) =
            (Timestamp::from_second(since).unwrap(), Timestamp::from_second(since + passed).unwrap());
        let times = Times { schedule: &schedule, zone: &zone, since };
        let next = |time: &Timestamp| schedule.next(*time, &zone);
        let all: Vec<Timestamp> =
            std::iter::successors(next(&since), next).take_while(|time| *time <= now).collect();
        prop_assert_eq!(times.due(now), all.last().copied());
        prop_assert_eq!(times.are_many(since, now), all.len() > 100);
        let wait = times.wait(now).unwrap() - Duration::from_millis(100);
        let following = next(all.last().unwrap_or(&since)).unwrap();
        prop_assert_eq!(now + wait, following);
    }
}

#[test]
fn a_new_schedule_begins_when_it_is_given() {
    // It ran at two; at noon it is to run at ten from now on.
    let cron_job = cron_job(&json!({"schedule": "0 10 * * *"}), &json!({"lastScheduleTime": "2026-05-19T02:00:00Z"}));
    let run = |rescheduled: Option<&str>, now: &str| {
        let (local, gone) = (TimeZone::UTC, HashSet::new());
        let rescheduled = rescheduled.map(time);
        let observed = Observed { jobs: &[], gone: &gone, local: &local, told: None, rescheduled, now: time(now) };
        plan::reconcile(&cron_job, &observed)
    };
    let plan = run(Some("2026-05-19T12:00:00Z"), "2026-05-19T12:00:01Z");
    assert_eq!(started(&plan), None);
    assert!(plan.wait.is_some_and(|wait| wait > Duration::from_secs(21 * 3600)), "the next ten o'clock");
    let next = started(&run(Some("2026-05-19T12:00:00Z"), "2026-05-20T10:00:00Z"));
    assert_eq!(next.as_deref(), Some("2026-05-20T10:00:00Z"));
    // A time that was missed by the schedule that it had all along is due.
    assert_eq!(started(&run(None, "2026-05-19T12:00:01Z")).as_deref(), Some("2026-05-19T10:00:00Z"));
}

/// On machines without a database of time zones there is ours.
#[test]
fn time_zones_come_with_the_program() {
    let ours = jiff::tz::TimeZoneDatabase::bundled();
    for name in ["Europe/Berlin", "Asia/Kathmandu", "America/Argentina/Buenos_Aires", "Etc/UTC"] {
        assert!(ours.get(name).is_ok(), "{name}");
    }
}
