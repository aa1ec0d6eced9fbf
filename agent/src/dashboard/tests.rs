use std::collections::BTreeMap;

use serde_json::json;
use windlass_cadvisor::{
    Target,
    history::Point,
    model::{BlockDevice, Cpu, Interface, InterfaceName, Limits, Memory, Node},
};
use windlass_kit::moment::Moment;

use super::*;

const UID: &str = "u1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_770_000_000 + second).unwrap()
}

fn sample(memory: u64) -> Sample {
    let interface = Interface {
        name: InterfaceName::new(b"eth0").unwrap(),
        rx_bytes: 7,
        rx_packets: 0,
        rx_errors: 0,
        rx_dropped: 0,
        tx_bytes: 9,
        tx_packets: 0,
        tx_errors: 0,
        tx_dropped: 0,
    };
    Sample {
        cpu: Cpu { usage_ns: 5, ..Cpu::default() },
        memory: Some(Memory { usage_bytes: memory + 10, inactive_file_bytes: 10, ..Memory::default() }),
        block: vec![BlockDevice { major: 8, minor: 0, read_bytes: 3, write_bytes: 4, reads: 1, writes: 1 }],
        network: vec![interface],
        ..Sample::empty(Moment { wall: at(0), mono_ns: 0 })
    }
}

fn row(name: &str, started: i64, memory: u64, rate: Option<u64>) -> Arc<Row> {
    Arc::new(Row {
        target: Arc::new(Target {
            container_id: format!("{name}{started}"),
            pid: 1,
            pod_name: "web".into(),
            pod_namespace: "n".into(),
            pod_uid: UID.into(),
            container_name: name.into(),
            started_at: at(started),
            pod_started_at: at(0),
            ..Target::default()
        }),
        cgroup: Arc::from("/x"),
        sample: sample(memory),
        usage_nano_cores: rate,
        limits: Limits::default(),
        slow: Arc::default(),
        host_network: false,
        stale: false,
    })
}

fn snapshot(rows: Vec<Arc<Row>>, pods: BTreeMap<Arc<str>, Arc<Row>>) -> Snapshot {
    Snapshot {
        moment: Moment { wall: at(0), mono_ns: 0 },
        machine: Arc::default(),
        node: Arc::new(Node {
            sample: sample(1000),
            usage_nano_cores: Some(4),
            swap_free_bytes: Some(0),
            default_interface: None,
            threads: Some(1),
            disks: Vec::new(),
            load: [0.0; 3],
            stale: false,
        }),
        rows: rows.into_iter().collect(),
        pods: pods.into_iter().collect(),
        system: Arc::default(),
        all_pods: None,
        runtime_cgroups: Arc::default(),
        devices: Arc::default(),
    }
}

fn pod(status: serde_json::Value) -> Arc<Pod> {
    let resources = json!({"requests": {"cpu": "250m", "memory": "1Mi"}, "limits": {"cpu": "500m"}});
    let env = json!([{"name": "PASSWORD", "value": "hunter2"}]);
    let value = json!({
        "metadata": {"name": "web", "namespace": "n", "uid": UID},
        "spec": {
            "initContainers": [{"name": "init"}],
            "containers": [{"name": "main", "resources": resources, "env": env}, {"name": "side", "resources": {"limits": {"cpu": "1"}}}],
        },
        "status": status,
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn of(rows: Vec<Arc<Row>>, pods: BTreeMap<Arc<str>, Arc<Row>>, pod: Arc<Pod>) -> PodUsage {
    node_usage("node", &snapshot(rows, pods), &Storage::default(), &[pod], at(1)).pods.remove(0)
}

#[test]
fn pod_usage_is_the_sum_of_containers_with_the_sandbox_traffic() {
    let status = json!({"phase": "Running", "startTime": "2026-02-02T00:00:00Z", "containerStatuses": [
        {"name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 3,
            "state": {"running": {"startedAt": "2026-02-02T00:10:00Z"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-02-02T00:09:00Z"}}},
        {"name": "side", "image": "", "imageID": "", "ready": true, "restartCount": 1, "state": {"running": {}}}]});
    let rows = vec![
        row("POD", 0, 1, Some(1)),
        row("main", 5, 100, Some(20)),
        row("main", 4, 5000, Some(9)),
        row("side", 5, 30, None),
    ];
    let shown = of(rows.clone(), BTreeMap::new(), pod(status.clone()));
    assert_eq!((shown.state.as_str(), shown.restarts), ("Running", 4));
    let used = shown.used.unwrap();
    assert_eq!((used.memory_bytes, used.cpu_nano, used.rx_bytes), (5131, Some(30), 28));
    assert_eq!(shown.requests, Resources { cpu_milli: Some(250), memory_bytes: Some(1 << 20) });
    assert_eq!(
        shown.limits,
        Resources { cpu_milli: Some(1500), memory_bytes: None },
        "one container has no limit of memory"
    );
    let main = &shown.containers[0];
    assert_eq!(main.used.unwrap().memory_bytes, 100, "of two instances the newer counts");
    assert_eq!(
        main.ended,
        Some(LastTermination { at: "2026-02-02T00:09:00Z".parse().unwrap(), reason: "OOMKilled".into(), code: 137 })
    );
    assert_eq!(
        (main.requests.cpu_milli, main.limits.cpu_milli, main.limits.memory_bytes),
        (Some(250), Some(500), None)
    );
    assert_eq!(shown.containers.len(), 2, "an init container that is over does not show");
    // The pod's own group counts what runs between containers too.
    let own = BTreeMap::from([(Arc::from(UID), row("", 0, 9000, Some(77)))]);
    let used = of(rows, own, pod(status)).used.unwrap();
    assert_eq!((used.memory_bytes, used.cpu_nano, used.read_bytes), (9000, Some(77), 12));
}

#[test]
fn pod_state_is_the_waiting_reason() {
    for (phase, state, wanted) in [
        ("Pending", json!({"waiting": {"reason": "ImagePullBackOff"}}), "ImagePullBackOff"),
        ("Running", json!({"waiting": {"reason": "CrashLoopBackOff"}}), "CrashLoopBackOff"),
        ("Succeeded", json!({"terminated": {"exitCode": 0, "reason": "Completed"}}), "Succeeded"),
        ("Running", json!({"running": {}}), "Running"),
    ] {
        let one = |name: &str| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let shown = of(
            Vec::new(),
            BTreeMap::new(),
            pod(json!({"phase": phase, "containerStatuses": [one("main"), one("side")]})),
        );
        assert_eq!((shown.state.as_str(), shown.used), (wanted, None));
    }
}

#[test]
fn environment_values_are_not_shown() {
    let all = node_usage("node", &snapshot(Vec::new(), BTreeMap::new()), &Storage::default(), &[pod(json!({}))], at(0));
    let text = serde_json::to_string(&all).unwrap();
    assert!(text.contains("\"web\"") && !text.contains("hunter2") && !text.contains("PASSWORD"), "{text}");
    assert_eq!(serde_json::from_str::<NodeUsage>(&text).unwrap(), all);
}

#[test]
fn rates_between_points_without_resets() {
    let point = |second: u64, cpu_ns, rx_bytes| Point {
        at_ms: i64::try_from(second).unwrap() * 1000,
        mono_ns: second * 1_000_000_000,
        cpu_ns,
        working_set_bytes: second,
        rx_bytes,
        ..Point::default()
    };
    let past = series(&[point(10, 0, 100), point(20, 5_000_000_000, 1100), point(80, 11_000_000_000, 50)]);
    assert_eq!(past.at, [20.0, 80.0]);
    assert_eq!(past.cpu, [Some(0.5), Some(0.1)]);
    assert_eq!(past.rx, [Some(100.0), None]);
    assert_eq!((past.memory, past.write), (vec![20, 80], vec![Some(0.0), Some(0.0)]));
    assert_eq!(series(&[point(10, 0, 0)]), Series::default());
}
