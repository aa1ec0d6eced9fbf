use serde_json::{Value, json};

use super::{
    super::status::tests::{config, machine},
    *,
};

fn new(change: impl FnOnce(&mut NodeConfig)) -> Node {
    let mut config = config();
    change(&mut config);
    new_node(&config, &machine(), &StatusInputs::default(), "2026-01-01T00:00:00Z".parse().unwrap())
}

#[test]
fn a_new_node_has_the_configured_labels_and_taints() {
    let plain = json!(new(|_| {}));
    assert_eq!(plain["metadata"]["labels"][OS], "linux");
    assert_eq!(plain["metadata"]["labels"][HOST_NAME], "n");
    assert_eq!(plain["metadata"]["annotations"], json!({ATTACH: "true"}));
    assert_eq!(plain["spec"], json!({}));
    assert_eq!(plain["status"].get("conditions"), None);
    let taint = Taint { key: "a".into(), effect: "NoExecute".into(), ..Taint::default() };
    let rich = json!(new(|c| {
        c.labels = [("rack".to_owned(), "7".to_owned()), (OS.to_owned(), "other".to_owned())].into();
        c.taints = vec![taint];
        c.provider_id = "cloud://1".into();
        (c.external_cloud, c.node_ip_configured) = (true, true);
    }));
    assert_eq!((&rich["metadata"]["labels"]["rack"], &rich["metadata"]["labels"][OS]), (&json!("7"), &json!("linux")));
    assert_eq!(
        rich["spec"],
        json!({"providerID": "cloud://1", "taints": [{"key": "a", "effect": "NoExecute"},
            {"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]})
    );
    assert_eq!(rich["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"], "192.0.2.1");
}

#[test]
fn an_existing_node_is_reconciled_and_keeps_others_labels() {
    let found: Node = serde_json::from_value(json!({
        "metadata": {"name": "n", "uid": "u", "labels": {OS: "windows", "topology.kubernetes.io/zone": "a", "rack": "7",
            "node-role.kubernetes.io/worker": ""}, "annotations": {"x": "y"}},
        "spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "2", "example.com/dongle": "3", "hugepages-1Gi": "1Gi"},
            "allocatable": {"example.com/dongle": "3"}, "daemonEndpoints": null},
    }))
    .unwrap();
    let wanted = json!(reconciled(&found, &new(|_| {}), false));
    let labels = &wanted["metadata"]["labels"];
    for (key, value) in [
        (OS, "linux"),
        (HOST_NAME, "n"),
        ("topology.kubernetes.io/zone", "a"),
        ("rack", "7"),
        ("node-role.kubernetes.io/worker", ""),
    ] {
        assert_eq!(labels[key], value, "{key}");
    }
    assert_eq!(wanted["metadata"]["annotations"], json!({"x": "y", ATTACH: "true"}));
    assert_eq!(wanted["spec"], json!(found)["spec"]);
    assert_eq!(
        wanted["status"]["capacity"],
        json!({"cpu": "2", "example.com/dongle": "3"}),
        "no page of 1 GiB is left"
    );
    let fresh = json!(reconciled(&found, &new(|_| {}), true));
    assert_eq!(fresh["status"]["capacity"], json!({"cpu": "2", "example.com/dongle": "0"}));
    assert_eq!(fresh["status"]["allocatable"], json!({"example.com/dongle": "0"}));
    let zoned = new(|c| drop(c.labels.insert("topology.kubernetes.io/zone".into(), "b".into())));
    assert_eq!(json!(reconciled(&found, &zoned, false))["metadata"]["labels"]["topology.kubernetes.io/zone"], "b");
    assert_eq!(super::super::status::diff(&found, &found), None::<Value>);
}

#[test]
fn invalid_labels_and_taints() {
    let long = "x".repeat(64);
    for (key, value, words) in [
        ("disk", "ssd", None),
        ("example.com/disk", "", None),
        ("topology.kubernetes.io/zone", "eu-1.a", None),
        ("node-role.kubernetes.io/worker", "", Some("kubectl label node n1 node-role.kubernetes.io/worker=")),
        ("node-restriction.kubernetes.io/a", "b", Some("kubectl label node n1 node-restriction.kubernetes.io/a=b")),
        ("", "", Some("not the name of a label")),
        ("a/b/c", "", Some("not the name of a label")),
        ("Example.com/a", "", Some("not the name of a label")),
        (&long, "", Some("not the name of a label")),
        ("a", &long, Some("not the value of a label")),
        ("a", "b c", Some("not the value of a label")),
        ("a", "-", Some("not the value of a label")),
    ] {
        let problem = label_problem("n1", key, value);
        assert_eq!(problem.is_some(), words.is_some(), "{key}={value}: {problem:?}");
        assert!(problem.unwrap_or_default().contains(words.unwrap_or_default()), "{key}={value}");
    }
    let taint = |key: &str, value: Option<&str>, effect: &str| {
        let (key, effect) = (key.to_owned(), effect.to_owned());
        taint_problem(&Taint { key, value: value.map(str::to_owned), effect, time_added: None })
    };
    assert_eq!(taint("dedicated", Some("db"), "NoSchedule"), None);
    assert_eq!(taint("dedicated", None, "NoExecute"), None);
    for (key, value, effect) in [("", None, "NoExecute"), ("a", Some("b c"), "NoExecute"), ("a", None, "Never")] {
        assert!(taint(key, value, effect).unwrap().starts_with("registerWithTaints "), "{key} {value:?} {effect}");
    }
}
