pub(crate) mod pages;

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use windlass_kit::moment::Moment;

use super::*;

const GIB: u64 = 1 << 30;

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(1_770_000_000_000 + milliseconds).unwrap()
}

/// By the clocks of this process, which agree.
fn reading(milliseconds: i64, cpu_ns: u64) -> Reading {
    let mono_ns = 1_000_000 * (1_000_000 + milliseconds).unsigned_abs();
    Reading { at: SampledAt::Here(Moment { wall: at(milliseconds), mono_ns }), cpu_ns, memory_bytes: GIB }
}

/// By the clock of another machine.
fn there(milliseconds: i64, cpu_ns: u64) -> Reading {
    Reading { at: SampledAt::There(at(milliseconds)), ..reading(0, cpu_ns) }
}

fn container(id: &str, pod_uid: &str, name: &str, reading: Reading) -> ContainerReading {
    ContainerReading { pod_uid: pod_uid.into(), name: name.into(), run: Run::Id(id.into()), reading }
}

fn scraped(pod_uid: &str, started: i64, reading: Reading) -> ContainerReading {
    let run = Run::Started(Some(at(started)));
    ContainerReading { pod_uid: pod_uid.into(), name: "c".into(), run, reading }
}

fn readings(containers: &[ContainerReading]) -> Readings {
    Readings { node: "node".into(), machine: None, containers: Containers::All(containers.to_vec()) }
}

fn cores(usage: &Usage, pod: &str) -> Option<Vec<i64>> {
    let found = usage.of_node("node", |samples| samples.pod(pod))?;
    Some(found.containers.iter().map(|(_, rate)| rate.nano_cores).collect())
}

#[tokio::test]
async fn a_rate_is_what_was_used_between_two_readings() {
    let usage = Usage::default();
    let machine = |node: &str, milliseconds, cpu_ns| Readings {
        node: node.into(),
        machine: Some(reading(milliseconds, cpu_ns)),
        containers: Containers::default(),
    };
    let rate = |node: &str| usage.of_node(node, NodeSamples::machine);
    usage.record(&machine("node", 0, 5_000_000_000));
    assert_eq!(rate("node"), None, "one reading is no rate");
    usage.record(&machine("node", 15_000, 8_000_000_000));
    let found = rate("node").unwrap();
    assert_eq!((found.nano_cores, found.memory_bytes), (200_000_000, 1 << 30));
    assert_eq!((found.at, found.window), (at(15_000), Duration::from_secs(15)));
    assert_eq!(rate("other"), None);
    usage.record(&machine("other", 30_000, 9_000_000_000));
    assert_eq!((rate("node"), rate("other")), (Some(found), None), "a sample of one node takes nothing from another");
    usage.retain(|node| node == "other");
    assert_eq!(rate("node"), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_tells_nothing_any_more_is_left_out_by_age() {
    let usage = Usage::default();
    for (milliseconds, cpu_ns) in [(0, 1_000), (10_000, 2_000)] {
        usage.record(&readings(&[container("a", "p", "c", reading(milliseconds, cpu_ns))]));
    }
    tokio::time::advance(Duration::from_secs(44)).await;
    assert!(cores(&usage, "p").is_some(), "two scrapes that failed");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(cores(&usage, "p"), None);
}

#[tokio::test]
async fn early_samples_are_dropped_once_there_is_a_rate() {
    let usage = Usage::default();
    let take = |milliseconds, cpu_ns| {
        usage.record(&readings(&[container("a", "p", "c", reading(milliseconds, cpu_ns))]));
        cores(&usage, "p")
    };
    assert_eq!(take(0, 1), None);
    assert_eq!(take(0, 1), None, "the same reading told twice");
    assert_eq!(take(1_000, 500_000_001), Some(vec![500_000_000]), "a new container shows soon");
    assert_eq!(take(2_000, 1_500_000_001), Some(vec![500_000_000]));
    assert_eq!(take(11_000, 1_500_000_001), Some(vec![100_000_000]));
    assert_eq!(take(10_000, 1_600_000_001), Some(vec![100_000_000]), "time that goes back is no time");
}

#[tokio::test]
async fn a_wall_clock_that_is_set_changes_no_rate_of_this_process() {
    let usage = Usage::default();
    // It is set back by an hour and a half between the second and the third sample, then forward by a day.
    let walls = [0, 10_000, -5_380_000, -5_370_000, 86_400_000];
    let mut found = Vec::new();
    for (tick, wall) in (0_u64..).zip(walls) {
        let moment = Moment { wall: at(wall), mono_ns: 1 + tick * 10_000_000_000 };
        let now = Reading { at: SampledAt::Here(moment), ..reading(0, 1 + tick * tick * 1_000_000_000) };
        usage.record(&readings(&[container("a", "p", "c", now)]));
        let rates = usage.of_node("node", |samples| samples.pod("p"));
        found.push(rates.map(|rates| (rates.at, rates.window.as_secs(), rates.containers[0].1.nano_cores)));
    }
    let expected = [1, 2, 3, 4].map(|tick| Some((at(walls[tick]), 10, 100_000_000 * (2 * tick as i64 - 1))));
    assert_eq!(found[1..], expected);
}

#[tokio::test]
async fn a_clock_set_back_is_right_after_two_scrapes() {
    let usage = Usage::default();
    let take = |milliseconds, cpu_ns| {
        usage.record(&readings(&[scraped("p", -90_000_000, there(milliseconds, cpu_ns))]));
        cores(&usage, "p")
    };
    assert_eq!(take(100_000, 1_000_000_000), None);
    assert_eq!(take(115_000, 4_000_000_000), Some(vec![200_000_000]));
    assert_eq!(take(115_000, 4_000_000_000), Some(vec![200_000_000]), "told twice");
    assert_eq!(take(10_000, 5_500_000_000), None, "the previous point is not earlier");
    assert_eq!(take(25_000, 8_500_000_000), Some(vec![200_000_000]));
    assert_eq!(take(26_000, 9_500_000_000), Some(vec![1_000_000_000]), "whatever the node says is newer counts");
}

#[tokio::test]
async fn scraped_containers_are_told_apart_by_their_start() {
    let usage = Usage::default();
    let take = |started, milliseconds, cpu_ns| {
        usage.record(&readings(&[scraped("p", started, there(milliseconds, cpu_ns))]));
        cores(&usage, "p")
    };
    assert_eq!(take(-60_000, 0, 1_000_000_000), None);
    assert_eq!(take(-60_003, 15_000, 2_500_000_000), Some(vec![100_000_000]), "starts are computed again each time");
    // It was restarted, and has used more than before by now.
    assert_eq!(take(27_000, 30_000, 9_000_000_000), None);
    assert_eq!(take(27_000, 45_000, 12_000_000_000), Some(vec![200_000_000]));
    assert_eq!(take(49_000, 60_000, 1_100_000_000), Some(vec![100_000_000]), "a young one is measured from its start");
    assert_eq!(take(74_000, 75_000, 100_000_000), None, "not one that has run for a second");
}

#[tokio::test]
async fn a_pod_shows_when_all_its_containers_do() {
    let usage = Usage::default();
    let first = container("a", "p", "web", reading(0, 1_000));
    usage.record(&readings(std::slice::from_ref(&first)));
    let web = container("a", "p", "web", reading(10_000, 1_000_001_000));
    usage.record(&readings(&[web.clone(), container("b", "p", "side", reading(9_000, 1_000))]));
    assert_eq!(cores(&usage, "p"), None, "the second container has one reading");
    let web = container("a", "p", "web", reading(20_000, 2_000_001_000));
    let side = |milliseconds, cpu_ns| container("b", "p", "side", reading(milliseconds, cpu_ns));
    usage.record(&readings(&[web.clone(), side(19_000, 3_000_001_000)]));
    assert_eq!(cores(&usage, "p"), Some(vec![300_000_000, 100_000_000]), "in order of names");
    let pod = usage.of_node("node", |samples| samples.pod("p")).unwrap();
    assert_eq!((pod.at, pod.window), (at(19_000), Duration::from_secs(10)), "of the container that was read first");
    // One without memory in use is not running yet, or not any more.
    let mut empty = side(29_000, 3_500_000_000);
    empty.reading.memory_bytes = 0;
    usage.record(&readings(&[web, empty]));
    assert_eq!(cores(&usage, "p"), None);
}

#[tokio::test]
async fn restarted_containers_need_two_samples_deleted_are_dropped() {
    let usage = Usage::default();
    let one = |id, milliseconds, cpu_ns| readings(&[container(id, "p", "c", reading(milliseconds, cpu_ns))]);
    usage.record(&one("a", 0, 1_000));
    usage.record(&one("a", 10_000, 2_000));
    assert!(cores(&usage, "p").is_some());
    usage.record(&one("a", 20_000, 1_500));
    assert_eq!(cores(&usage, "p"), None, "its counter went back");
    usage.record(&one("a", 30_000, 2_500));
    assert_eq!(cores(&usage, "p"), Some(vec![100]));
    usage.record(&one("b", 40_000, 9_000));
    assert_eq!(cores(&usage, "p"), None, "another container took its place");
    usage.record(&one("b", 50_000, 9_000));
    assert_eq!(cores(&usage, "p"), Some(vec![0]));
    usage.record(&readings(&[]));
    assert_eq!(cores(&usage, "p"), None);
}

/// As after `kubectl delete --force` of a StatefulSet's pod: the old containers run on alongside the new ones.
#[tokio::test]
async fn pods_of_one_name_are_told_apart() {
    let usage = Usage::default();
    for tick in [0, 1] {
        let of = |id, uid, rate| container(id, uid, "c", reading(tick * 10_000, 1 + tick.unsigned_abs() * rate));
        usage.record(&readings(&[of("a", "old", 9_000_000_000), of("b", "new", 1_000_000_000)]));
    }
    assert_eq!((cores(&usage, "old"), cores(&usage, "new")), (Some(vec![900_000_000]), Some(vec![100_000_000])));
}

/// Samples of this process contain only what has changed.
#[tokio::test]
async fn what_has_not_changed_stays_as_it_was() {
    let usage = Usage::default();
    let changed = |read: &[ContainerReading], gone: &[(&str, &str)]| {
        let gone = gone.iter().map(|(id, uid)| ((*uid).to_owned(), "c".to_owned(), Run::Id((*id).to_owned())));
        let containers = Containers::Changed { read: read.to_vec(), gone: gone.collect() };
        usage.record(&Readings { containers, ..readings(&[]) });
    };
    let of =
        |id, uid, seconds: i64| container(id, uid, "c", reading(seconds * 1000, 1 + seconds.unsigned_abs() * 1000));
    usage.record(&readings(&[of("a", "p", 0), of("b", "q", 0)]));
    changed(&[of("a", "p", 10), of("b", "q", 10)], &[]);
    let both = (Some(vec![1000]), Some(vec![1000]));
    assert_eq!((cores(&usage, "p"), cores(&usage, "q")), both);
    // A third one starts and ends.
    changed(&[of("c", "r", 11)], &[]);
    changed(&[of("c", "r", 12)], &[]);
    assert_eq!(cores(&usage, "r"), Some(vec![1000]));
    changed(&[], &[("c", "r")]);
    assert_eq!((cores(&usage, "p"), cores(&usage, "q"), cores(&usage, "r")), (both.0.clone(), both.1, None));
    // One is restarted, and its successor is reported before its own end is.
    changed(&[of("a", "p", 20), of("d", "p", 20)], &[]);
    changed(&[of("a", "p", 30), of("d", "p", 30)], &[("a", "p")]);
    assert_eq!(cores(&usage, "p"), both.0);
    changed(&[], &[("a", "p")]);
    assert_eq!(cores(&usage, "p"), both.0, "another one has its name by now");
}

#[test]
fn objects_are_as_clients_know_them() {
    let stored = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "web"}}});
    let rate = Rate { at: at(0), window: Duration::from_millis(15_021), nano_cores: 12_345_678, memory_bytes: 3 << 20 };
    let rates = PodRates { at: rate.at, window: rate.window, containers: vec![("c".into(), rate)] };
    let metadata =
        json!({"name": "p", "namespace": "n", "labels": {"app": "web"}, "creationTimestamp": "2026-02-02T02:40:07Z"});
    let usage = json!({"cpu": "12345678n", "memory": "3Mi"});
    assert_eq!(
        serde_json::to_value(pod_metrics(&stored, &rates, at(7_999))).unwrap(),
        json!({"kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": metadata, "timestamp": "2026-02-02T02:40:00Z",
            "window": "15.021s", "containers": [{"name": "c", "usage": usage}]})
    );
    let node = serde_json::to_value(node_metrics(&json!({"metadata": {"name": "x"}}), &rate, at(7_999))).unwrap();
    assert_eq!((&node["kind"], &node["usage"]), (&json!("NodeMetrics"), &usage));
    assert_eq!(node["metadata"], json!({"name": "x", "creationTimestamp": "2026-02-02T02:40:07Z"}));
}
