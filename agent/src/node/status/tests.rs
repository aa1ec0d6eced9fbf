use serde_json::{Value, json};

use super::*;

/// Whether one status must be replaced by the other.
fn reports(seen: &NodeStatus, desired_node: &NodeStatus) -> bool {
    let node = |status: &NodeStatus| Node { status: Some(status.clone()), ..Node::default() };
    needs_report(&node(seen), &node(desired_node), None)
}

pub(in crate::node) fn config() -> NodeConfig {
    NodeConfig {
        name: "n".into(),
        addresses: "192.0.2.1".parse().unwrap(),
        api_port: 10250,
        data_dir: "/".into(),
        version: "v1".into(),
        max_pods: 110,
        reserved: Vec::new(),
        thresholds: Vec::new(),
        max_images: 50,
        enforce_node_allocatable: true,
        node_ip_configured: false,
        labels: BTreeMap::new(),
        taints: Vec::new(),
        provider_id: String::new(),
        external_cloud: false,
        lease_seconds: 40,
        status_update_interval: Duration::from_secs(10),
        status_report_interval: Duration::from_secs(300),
    }
}

pub(in crate::node) fn machine() -> Machine {
    Machine { cpus: 2, memory_bytes: 4 << 30, disk_bytes: 1000, ..Machine::default() }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn of(status: &NodeStatus, kind: &str) -> NodeCondition {
    status.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap().clone()
}

#[test]
fn the_node_is_ready_when_docker_answers() {
    let (early, late) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:01:00Z"));
    let up = Health::Up { version: "20.10".into() };
    let first = node_status(&config(), &machine(), &up, &StatusInputs::default(), &NodeStatus::default(), early);
    assert_eq!(
        (of(&first, "Ready").status.as_str(), of(&first, "Ready").reason.as_deref()),
        ("True", Some("KubeletReady"))
    );
    assert_eq!(first.node_info.as_ref().unwrap().container_runtime_version, "docker://20.10");
    let same = node_status(&config(), &machine(), &up, &StatusInputs::default(), &first, late);
    assert!(!reports(&first, &same), "a later heartbeat alone is no news");
    assert_eq!(of(&same, "Ready").last_transition_time, of(&first, "Ready").last_transition_time);
    let down = Health::Down { reason: "no socket".into() };
    let down = node_status(&config(), &machine(), &down, &StatusInputs::default(), &same, late);
    assert!(reports(&same, &down));
    let ready = of(&down, "Ready");
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_deref(), ready.message.as_deref()),
        ("False", Some("KubeletNotReady"), Some("container runtime is down: no socket"))
    );
    assert_eq!(ready.last_transition_time, Some(seconds(late)));
    assert_eq!(down.node_info.unwrap().container_runtime_version, "docker://20.10", "the version stays known");
}

fn status_over(before: &NodeStatus) -> NodeStatus {
    let up = Health::Up { version: "20.10".into() };
    node_status(&config(), &machine(), &up, &StatusInputs::default(), before, at("2026-01-01T00:00:00Z"))
}

fn read(json: Value) -> NodeStatus {
    serde_json::from_value(json).unwrap()
}

#[test]
fn pods_may_have_extended_resources() {
    let mut known = status_over(&NodeStatus::default());
    known.capacity.as_mut().unwrap().insert("example.com/dongle".into(), ApiQuantity("3".into()));
    let desired_node = status_over(&known);
    for list in [&desired_node.capacity, &desired_node.allocatable] {
        assert_eq!(list.as_ref().unwrap()["example.com/dongle"].0, "3");
    }
    assert!(reports(&known, &desired_node), "the scheduler looks at what may be had");
    let taken = desired_node;
    assert!(!reports(&taken, &status_over(&taken)), "and once it is told there is no news");
    // Extended resources are removed by whoever advertises them.
    let mut fewer = taken.clone();
    fewer.capacity.as_mut().unwrap().remove("example.com/dongle");
    assert!(reports(&fewer, &status_over(&fewer)));
}

#[test]
fn addresses_of_a_cloud_stay() {
    let with = |list: Value| read(json!({"addresses": list, "daemonEndpoints": null}));
    let own = json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n"}]);
    assert_eq!(json!(status_over(&NodeStatus::default()).addresses), own);
    let cloud = json!([{"type": "ExternalIP", "address": "198.51.100.7"}, {"type": "Hostname", "address": "n"},
        {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"}]);
    assert_eq!(json!(status_over(&with(cloud.clone())).addresses), cloud);
    // The node has moved: its old address is removed.
    let old = json!([{"type": "InternalIP", "address": "192.0.2.9"}, {"type": "Hostname", "address": "n"},
        {"type": "ExternalIP", "address": "198.51.100.7"}]);
    let desired_node = status_over(&with(old.clone()));
    assert_eq!(
        json!(desired_node.addresses)
            .as_array()
            .unwrap()
            .iter()
            .map(|a| a["address"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["192.0.2.1", "n", "198.51.100.7"]
    );
}

#[test]
fn the_node_is_not_ready_without_a_network() {
    let up = Health::Up { version: "20.10".into() };
    let mut known = StatusInputs { network: Some("network: there is no file".into()), ..StatusInputs::default() };
    let ready = |known: &StatusInputs, docker: &Health| {
        let status =
            node_status(&config(), &machine(), docker, known, &NodeStatus::default(), at("2026-01-01T00:00:00Z"));
        of(&status, "Ready")
    };
    let one = ready(&known, &up);
    assert_eq!((one.status.as_str(), one.reason.as_deref()), ("False", Some("KubeletNotReady")));
    assert_eq!(one.message.as_deref(), Some("network: there is no file"));
    known.shutting_down = true;
    let all = ready(&known, &Health::Down { reason: "gone".into() }).message.unwrap();
    assert!(
        all.starts_with("[container runtime is down: gone, ") && all.ends_with(", node is shutting down]"),
        "{all}"
    );
}

#[test]
fn pressure_conditions() {
    let known = StatusInputs { pressure: Pressure { memory: true, disk: true, pid: false }, ..StatusInputs::default() };
    let before = NodeStatus::default();
    let status = node_status(&config(), &machine(), &Health::Unknown, &known, &before, at("2026-01-01T00:00:00Z"));
    assert_eq!(of(&status, "MemoryPressure").reason.as_deref(), Some("KubeletHasInsufficientMemory"));
    assert_eq!(of(&status, "DiskPressure").status, "True");
    assert_eq!(of(&status, "PIDPressure").status, "False");
}

#[test]
fn the_largest_images_and_a_few_names_of_each() {
    let image = |count: usize, size| StoredImage { names: (0..count).map(|n| format!("i:{n}")).collect(), size };
    let stored = [image(9, 300), image(0, 200), image(1, 100), image(2, 50)];
    let told: Vec<(usize, Option<i64>)> =
        images(&stored, 2).into_iter().map(|i| (i.names.unwrap().len(), i.size_bytes)).collect();
    assert_eq!(told, [(5, Some(300)), (1, Some(100))]);
    assert_eq!(images(&stored, -1).len(), 3);
    assert!(images(&stored, 0).is_empty());
}

#[test]
fn docker_may_be_down_for_half_a_minute() {
    let seconds = |n: i64| Timestamp::from_second(1_700_000_000 + n).unwrap();
    let (up, down) = (Health::Up { version: "20.10".into() }, Health::Down { reason: "gone".into() });
    let mut health = RuntimeHealth::default();
    assert_eq!(health.observe(down.clone(), seconds(0)), (down.clone(), None), "it never answered");
    assert_eq!(health.observe(up.clone(), seconds(1)), (up.clone(), None));
    assert_eq!(health.observe(down.clone(), seconds(10)), (up.clone(), Some(Duration::from_secs(30))));
    assert_eq!(health.observe(down.clone(), seconds(39)), (up.clone(), Some(Duration::from_secs(1))));
    assert_eq!(health.observe(down.clone(), seconds(40)), (down.clone(), None));
    assert_eq!(health.observe(up.clone(), seconds(41)), (up.clone(), None));
    assert_eq!(health.observe(down, seconds(50)).0, up, "it begins again");
}

#[test]
fn swap_is_reported_if_there_is_some() {
    let told = |swap_bytes| {
        let machine = Machine { swap_bytes, ..machine() };
        let (known, before) = (StatusInputs::default(), NodeStatus::default());
        let now = at("2026-01-01T00:00:00Z");
        let status = node_status(&config(), &machine, &Health::Unknown, &known, &before, now);
        json!(status.node_info)["swap"].clone()
    };
    assert_eq!(told(0), Value::Null, "the API refuses a capacity of zero");
    assert_eq!(told(4096), json!({"capacity": 4096}));
}

#[test]
fn declared_features_are_in_the_order_that_the_api_demands() {
    assert!(DECLARED_FEATURES.is_sorted());
}

#[test]
fn addresses_of_each_family() {
    let up = Health::Up { version: "20.10".into() };
    let now = at("2026-01-01T00:00:00Z");
    let config = NodeConfig { addresses: "2001:db8::1,192.0.2.1".parse().unwrap(), ..config() };
    let told = |seen: &Node| {
        let node = desired_node(&config, &machine(), &up, &StatusInputs::default(), seen, now);
        let all = node.status.unwrap().addresses.unwrap().into_iter();
        all.map(|a| format!("{} {}", a.type_, a.address)).collect::<Vec<_>>()
    };
    let both = ["InternalIP 2001:db8::1", "InternalIP 192.0.2.1", "Hostname n"];
    assert_eq!(told(&Node::default()), both);
    // The node had another second address: it is removed.
    let before: Node = serde_json::from_value(json!({"status": {"daemonEndpoints": null, "addresses": [
        {"type": "InternalIP", "address": "2001:db8::1"}, {"type": "InternalIP", "address": "192.0.2.9"},
        {"type": "Hostname", "address": "n"}]}}))
    .unwrap();
    assert_eq!(told(&before), both);
}

#[test]
fn the_controller_of_an_external_cloud_gives_the_addresses() {
    let up = Health::Up { version: "20.10".into() };
    let now = at("2026-01-01T00:00:00Z");
    let told = |node_ip_configured: bool, external_cloud: bool, seen: &Node| {
        let config = NodeConfig { node_ip_configured, external_cloud, ..config() };
        let node = desired_node(&config, &machine(), &up, &StatusInputs::default(), seen, now);
        let addresses: Vec<String> = node.status.unwrap().addresses.unwrap().into_iter().map(|a| a.address).collect();
        (addresses, node.metadata.annotations.unwrap_or_default().remove(PROVIDED_IP))
    };
    let new = Node::default();
    assert_eq!(told(false, false, &new), (vec!["192.0.2.1".into(), "n".into()], None));
    assert_eq!(told(false, true, &new), (vec!["n".into()], None));
    assert_eq!(told(true, true, &new), (vec!["192.0.2.1".into(), "n".into()], Some("192.0.2.1".into())));
    let annotated: Node = serde_json::from_value(json!({
        "metadata": {"annotations": {PROVIDED_IP: "192.0.2.9"}},
        "status": {"addresses": [{"type": "ExternalIP", "address": "198.51.100.7"}], "daemonEndpoints": null},
    }))
    .unwrap();
    assert_eq!(told(true, true, &annotated), (vec!["198.51.100.7".into()], Some("192.0.2.1".into())));
    assert_eq!(told(true, false, &annotated).1, None, "there is no such controller any more");
}

#[test]
fn os_and_architecture_labels_are_reconciled() {
    let seen: Node = serde_json::from_value(json!({"metadata": {"labels": {OS: "windows", "rack": "7"}}})).unwrap();
    let node = desired_node(
        &config(),
        &machine(),
        &Health::Unknown,
        &StatusInputs::default(),
        &seen,
        at("2026-01-01T00:00:00Z"),
    );
    let labels = node.metadata.labels.unwrap();
    assert_eq!([OS, ARCH, "rack"].map(|key| labels[key].as_str()), ["linux", architecture(), "7"]);
}
