use serde_json::json;

use super::*;

const GIB: u64 = 1 << 30;

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(1_770_000_000_000 + milliseconds).unwrap()
}

fn reading(milliseconds: i64, cpu_ns: u64) -> Reading {
    Reading { at: at(milliseconds), cpu_ns, memory_bytes: GIB }
}

fn container(id: &str, pod: &str, name: &str, reading: Reading) -> ContainerReading {
    ContainerReading { id: id.into(), namespace: "n".into(), pod: pod.into(), name: name.into(), reading }
}

fn round(containers: &[ContainerReading]) -> Readings {
    Readings { node: "node".into(), machine: None, containers: containers.to_vec() }
}

fn cores(ledger: &Ledger, pod: &str) -> Option<Vec<i64>> {
    Some(ledger.pods().get(&("n", pod))?.containers.iter().map(|(_, rate)| rate.nano_cores).collect())
}

#[test]
fn a_rate_is_what_was_used_between_two_readings() {
    let mut ledger = Ledger::default();
    let machine = |milliseconds, cpu_ns| Readings {
        node: "node".into(),
        machine: Some(reading(milliseconds, cpu_ns)),
        containers: Vec::new(),
    };
    ledger.take(&machine(0, 5_000_000_000));
    assert_eq!(ledger.node("node"), None, "one reading is no rate");
    ledger.take(&machine(15_000, 8_000_000_000));
    let rate = ledger.node("node").unwrap();
    assert_eq!((rate.nano_cores, rate.memory_bytes), (200_000_000, 1 << 30));
    assert_eq!((rate.at, rate.window), (at(15_000), Duration::from_secs(15)));
    assert_eq!(ledger.node("other"), None);
    // The same machine under another name is another node.
    ledger.take(&Readings { node: "other".into(), ..machine(30_000, 9_000_000_000) });
    assert_eq!((ledger.node("node"), ledger.node("other")), (None, None));
}

#[test]
fn rounds_that_come_early_change_nothing_once_there_is_a_rate() {
    let mut ledger = Ledger::default();
    let mut take = |milliseconds, cpu_ns| {
        ledger.take(&round(&[container("a", "p", "c", reading(milliseconds, cpu_ns))]));
        cores(&ledger, "p")
    };
    assert_eq!(take(0, 1), None);
    assert_eq!(take(0, 1), None, "the same reading told twice");
    assert_eq!(take(1_000, 500_000_001), Some(vec![500_000_000]), "a new container shows soon");
    assert_eq!(take(2_000, 1_500_000_001), Some(vec![500_000_000]));
    assert_eq!(take(11_000, 1_500_000_001), Some(vec![100_000_000]));
    assert_eq!(take(10_000, 1_600_000_001), Some(vec![100_000_000]), "time that goes back is no time");
}

#[test]
fn a_pod_shows_when_all_its_containers_do() {
    let mut ledger = Ledger::default();
    let first = container("a", "p", "web", reading(0, 1_000));
    ledger.take(&round(std::slice::from_ref(&first)));
    let web = container("a", "p", "web", reading(10_000, 1_000_001_000));
    ledger.take(&round(&[web.clone(), container("b", "p", "side", reading(9_000, 1_000))]));
    assert_eq!(cores(&ledger, "p"), None, "the second container has one reading");
    let web = container("a", "p", "web", reading(20_000, 2_000_001_000));
    let side = |milliseconds, cpu_ns| container("b", "p", "side", reading(milliseconds, cpu_ns));
    ledger.take(&round(&[web.clone(), side(19_000, 3_000_001_000)]));
    assert_eq!(cores(&ledger, "p"), Some(vec![300_000_000, 100_000_000]), "in order of names");
    let pods = ledger.pods();
    let pod = &pods[&("n", "p")];
    assert_eq!((pod.at, pod.window), (at(19_000), Duration::from_secs(10)), "of the container that was read first");
    // One without memory in use is not running yet, or not any more.
    let mut empty = side(29_000, 3_500_000_000);
    empty.reading.memory_bytes = 0;
    ledger.take(&round(&[web, empty]));
    assert_eq!(cores(&ledger, "p"), None);
}

#[test]
fn what_begins_anew_waits_for_its_second_reading_and_what_is_gone_is_forgotten() {
    let mut ledger = Ledger::default();
    let one = |id, milliseconds, cpu_ns| round(&[container(id, "p", "c", reading(milliseconds, cpu_ns))]);
    ledger.take(&one("a", 0, 1_000));
    ledger.take(&one("a", 10_000, 2_000));
    assert!(cores(&ledger, "p").is_some());
    ledger.take(&one("a", 20_000, 1_500));
    assert_eq!(cores(&ledger, "p"), None, "its counter went back");
    ledger.take(&one("a", 30_000, 2_500));
    assert_eq!(cores(&ledger, "p"), Some(vec![100]));
    ledger.take(&one("b", 40_000, 9_000));
    assert_eq!(cores(&ledger, "p"), None, "another container took its place");
    ledger.take(&one("b", 50_000, 9_000));
    assert_eq!(cores(&ledger, "p"), Some(vec![0]));
    ledger.take(&round(&[]));
    assert!(ledger.pods().is_empty() && ledger.containers.is_empty());
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
