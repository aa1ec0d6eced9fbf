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

fn readings(containers: &[ContainerReading]) -> Readings {
    Readings { node: "node".into(), machine: None, containers: containers.to_vec() }
}

fn cores(window: &SampleWindow, pod: &str) -> Option<Vec<i64>> {
    Some(window.pods().get(&("n", pod))?.containers.iter().map(|(_, rate)| rate.nano_cores).collect())
}

#[test]
fn a_rate_is_what_was_used_between_two_readings() {
    let mut window = SampleWindow::default();
    let machine = |milliseconds, cpu_ns| Readings {
        node: "node".into(),
        machine: Some(reading(milliseconds, cpu_ns)),
        containers: Vec::new(),
    };
    window.record(&machine(0, 5_000_000_000));
    assert_eq!(window.node("node"), None, "one reading is no rate");
    window.record(&machine(15_000, 8_000_000_000));
    let rate = window.node("node").unwrap();
    assert_eq!((rate.nano_cores, rate.memory_bytes), (200_000_000, 1 << 30));
    assert_eq!((rate.at, rate.window), (at(15_000), Duration::from_secs(15)));
    assert_eq!(window.node("other"), None);
    // The same machine under another name is another node.
    window.record(&Readings { node: "other".into(), ..machine(30_000, 9_000_000_000) });
    assert_eq!((window.node("node"), window.node("other")), (None, None));
}

#[test]
fn early_samples_are_dropped_once_there_is_a_rate() {
    let mut window = SampleWindow::default();
    let mut take = |milliseconds, cpu_ns| {
        window.record(&readings(&[container("a", "p", "c", reading(milliseconds, cpu_ns))]));
        cores(&window, "p")
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
    let mut window = SampleWindow::default();
    let first = container("a", "p", "web", reading(0, 1_000));
    window.record(&readings(std::slice::from_ref(&first)));
    let web = container("a", "p", "web", reading(10_000, 1_000_001_000));
    window.record(&readings(&[web.clone(), container("b", "p", "side", reading(9_000, 1_000))]));
    assert_eq!(cores(&window, "p"), None, "the second container has one reading");
    let web = container("a", "p", "web", reading(20_000, 2_000_001_000));
    let side = |milliseconds, cpu_ns| container("b", "p", "side", reading(milliseconds, cpu_ns));
    window.record(&readings(&[web.clone(), side(19_000, 3_000_001_000)]));
    assert_eq!(cores(&window, "p"), Some(vec![300_000_000, 100_000_000]), "in order of names");
    let pods = window.pods();
    let pod = &pods[&("n", "p")];
    assert_eq!((pod.at, pod.window), (at(19_000), Duration::from_secs(10)), "of the container that was read first");
    // One without memory in use is not running yet, or not any more.
    let mut empty = side(29_000, 3_500_000_000);
    empty.reading.memory_bytes = 0;
    window.record(&readings(&[web, empty]));
    assert_eq!(cores(&window, "p"), None);
}

#[test]
fn restarted_containers_need_a_second_sample_and_deleted_ones_are_dropped() {
    let mut window = SampleWindow::default();
    let one = |id, milliseconds, cpu_ns| readings(&[container(id, "p", "c", reading(milliseconds, cpu_ns))]);
    window.record(&one("a", 0, 1_000));
    window.record(&one("a", 10_000, 2_000));
    assert!(cores(&window, "p").is_some());
    window.record(&one("a", 20_000, 1_500));
    assert_eq!(cores(&window, "p"), None, "its counter went back");
    window.record(&one("a", 30_000, 2_500));
    assert_eq!(cores(&window, "p"), Some(vec![100]));
    window.record(&one("b", 40_000, 9_000));
    assert_eq!(cores(&window, "p"), None, "another container took its place");
    window.record(&one("b", 50_000, 9_000));
    assert_eq!(cores(&window, "p"), Some(vec![0]));
    window.record(&readings(&[]));
    assert!(window.pods().is_empty() && window.containers.is_empty());
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
