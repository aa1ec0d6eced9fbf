use super::*;

fn config() -> NodeConfig {
    NodeConfig {
        name: "n".into(),
        address: "192.0.2.1".parse().unwrap(),
        api_port: 10250,
        data_dir: "/".into(),
        version: "v1".into(),
        max_pods: 110,
        reserved: Vec::new(),
        thresholds: Vec::new(),
        max_images: 50,
        hold_pods: true,
        cni: None,
    }
}

fn machine() -> Machine {
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
    let first = node_status(&config(), &machine(), &up, &Known::default(), &NodeStatus::default(), early);
    assert_eq!(
        (of(&first, "Ready").status.as_str(), of(&first, "Ready").reason.as_deref()),
        ("True", Some("KubeletReady"))
    );
    assert_eq!(first.node_info.as_ref().unwrap().container_runtime_version, "docker://20.10");
    let same = node_status(&config(), &machine(), &up, &Known::default(), &first, late);
    assert!(!differs(&first, &same), "a later heartbeat alone is no news");
    assert_eq!(of(&same, "Ready").last_transition_time, of(&first, "Ready").last_transition_time);
    let down = Health::Down { reason: "no socket".into() };
    let down = node_status(&config(), &machine(), &down, &Known::default(), &same, late);
    assert!(differs(&same, &down));
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
    node_status(&config(), &machine(), &up, &Known::default(), before, at("2026-01-01T00:00:00Z"))
}

fn read(json: Value) -> NodeStatus {
    serde_json::from_value(json).unwrap()
}

#[test]
fn pods_may_have_extended_resources() {
    let mut known = status_over(&NodeStatus::default());
    known.capacity.as_mut().unwrap().insert("example.com/dongle".into(), ApiQuantity("3".into()));
    known
        .conditions
        .as_mut()
        .unwrap()
        .push(NodeCondition { type_: "NetworkUnavailable".into(), ..NodeCondition::default() });
    let wanted = status_over(&known);
    for list in [&wanted.capacity, &wanted.allocatable] {
        assert_eq!(list.as_ref().unwrap()["example.com/dongle"].0, "3");
    }
    assert!(is_news(&known, &wanted, None), "the scheduler looks at what may be had");
    let mut taken = wanted.clone();
    taken.conditions = known.conditions.clone();
    assert!(!is_news(&taken, &status_over(&taken), None), "and once it is told there is no news");
    // Whoever counted them takes them away.
    taken.capacity.as_mut().unwrap().remove("example.com/dongle");
    let wanted = status_over(&taken);
    assert!(is_news(&taken, &wanted, None));
    assert_eq!(patch(&taken, &wanted)["allocatable"]["example.com/dongle"], Value::Null);
    assert!(patch(&taken, &wanted)["allocatable"].as_object().unwrap().contains_key("example.com/dongle"));
}

#[test]
fn pages_that_the_kernel_has_no_more_are_taken_away() {
    let mut known = status_over(&NodeStatus::default());
    known.capacity.as_mut().unwrap().insert("hugepages-1Gi".into(), ApiQuantity("1Gi".into()));
    let wanted = status_over(&known);
    assert!(!wanted.capacity.as_ref().unwrap().contains_key("hugepages-1Gi"));
    assert!(patch(&known, &wanted)["capacity"].as_object().unwrap()["hugepages-1Gi"].is_null());
}

#[test]
fn addresses_of_a_cloud_stay() {
    let with = |list: Value| read(json!({"addresses": list, "daemonEndpoints": null}));
    let own = json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n"}]);
    assert_eq!(json!(status_over(&NodeStatus::default()).addresses), own);
    let cloud = json!([{"type": "ExternalIP", "address": "198.51.100.7"}, {"type": "Hostname", "address": "n"},
        {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"}]);
    assert_eq!(json!(status_over(&with(cloud.clone())).addresses), cloud);
    // The node has moved: its old address goes.
    let old = json!([{"type": "InternalIP", "address": "192.0.2.9"}, {"type": "Hostname", "address": "n"},
        {"type": "ExternalIP", "address": "198.51.100.7"}]);
    let wanted = status_over(&with(old.clone()));
    assert_eq!(
        json!(wanted.addresses).as_array().unwrap().iter().map(|a| a["address"].as_str().unwrap()).collect::<Vec<_>>(),
        ["192.0.2.1", "n", "198.51.100.7"]
    );
    assert_eq!(patch(&with(old), &wanted)["addresses"][3], json!({"$patch": "replace"}));
}

#[test]
fn what_the_api_does_not_take_is_not_sent_again() {
    let wanted = status_over(&NodeStatus::default());
    // An API that is older than the field.
    let answer = NodeStatus { features: None, ..wanted.clone() };
    assert!(is_news(&answer, &wanted, None));
    let sent = Sent { wanted: wanted.clone(), answer: answer.clone() };
    assert!(!is_news(&answer, &wanted, Some(&sent)));
    let stamped = NodeStatus { runtime_handlers: None, ..answer.clone() };
    assert!(is_news(&stamped, &wanted, Some(&sent)), "another has written to it");
    let other = NodeStatus { images: None, ..wanted.clone() };
    assert!(is_news(&answer, &other, Some(&sent)), "there is something else to say");
}

#[test]
fn the_later_object_counts() {
    let node =
        |version: &str| -> Node { serde_json::from_value(json!({"metadata": {"resourceVersion": version}})).unwrap() };
    assert!(is_newer(&node("10"), Some("9")) && !is_newer(&node("9"), Some("10")) && !is_newer(&node("9"), Some("9")));
    assert!(is_newer(&node("9"), None) && is_newer(&node("b"), Some("a")) && !is_newer(&node("a"), Some("a")));
}

#[test]
fn the_node_is_not_ready_without_a_network() {
    let up = Health::Up { version: "20.10".into() };
    let mut known = Known { network: Some("there is no file".into()), ..Known::default() };
    let ready = |known: &Known, docker: &Health| {
        let status =
            node_status(&config(), &machine(), docker, known, &NodeStatus::default(), at("2026-01-01T00:00:00Z"));
        of(&status, "Ready")
    };
    let one = ready(&known, &up);
    assert_eq!((one.status.as_str(), one.reason.as_deref()), ("False", Some("KubeletNotReady")));
    let told = one.message.unwrap();
    assert!(told.contains("reason:NetworkPluginNotReady") && told.ends_with("there is no file"), "{told}");
    known.going_down = true;
    let all = ready(&known, &Health::Down { reason: "gone".into() }).message.unwrap();
    assert!(
        all.starts_with("[container runtime is down: gone, ") && all.ends_with(", node is shutting down]"),
        "{all}"
    );
}

#[test]
fn pressure_is_told() {
    let known = Known { pressure: Pressure { memory: true, disk: true, pid: false }, ..Known::default() };
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
fn docker_may_be_away_for_half_a_minute() {
    let seconds = |n: i64| Timestamp::from_second(1_700_000_000 + n).unwrap();
    let (up, down) = (Health::Up { version: "20.10".into() }, Health::Down { reason: "gone".into() });
    let mut belief = Belief::default();
    assert_eq!(belief.of(down.clone(), seconds(0)), (down.clone(), None), "it never answered");
    assert_eq!(belief.of(up.clone(), seconds(1)), (up.clone(), None));
    assert_eq!(belief.of(down.clone(), seconds(10)), (up.clone(), Some(Duration::from_secs(30))));
    assert_eq!(belief.of(down.clone(), seconds(39)), (up.clone(), Some(Duration::from_secs(1))));
    assert_eq!(belief.of(down.clone(), seconds(40)), (down.clone(), None));
    assert_eq!(belief.of(up.clone(), seconds(41)), (up.clone(), None));
    assert_eq!(belief.of(down, seconds(50)).0, up, "it begins anew");
}

#[test]
fn swap_is_told_where_there_is_some() {
    let told = |swap_bytes| {
        let machine = Machine { swap_bytes, ..machine() };
        let (known, before) = (Known::default(), NodeStatus::default());
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
