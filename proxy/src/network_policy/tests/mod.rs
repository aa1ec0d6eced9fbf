mod properties;
mod upstream;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_kit::announced_pod::AnnouncedPod;

use super::{
    plan::{Kernel, Steps},
    reference::{Connection, World},
    *,
};
use crate::{
    explain::{Packet, trace},
    iptables_save::SavedRuleset,
    local_addresses::LocalAddresses,
    model::Family,
};

fn read<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

/// A cluster with these objects, as node n1 sees it.
fn cluster(world: &World) -> Cluster {
    let mut cluster = Cluster::new("n1");
    world.pods.iter().for_each(|object| cluster.put_pod(&read(object)));
    world.policies.iter().for_each(|object| cluster.put_policy(&read(object)));
    world.namespaces.iter().for_each(|object| cluster.put_namespace(&read(object)));
    cluster
}

/// Whether the rules let a packet pass.
fn passes(text: &str, packet: &Connection) -> bool {
    lets_pass(&SavedRuleset::parse(text).unwrap(), &IpSets::parse(text).unwrap(), packet)
}

fn lets_pass(rules: &SavedRuleset<'_>, sets: &IpSets, packet: &Connection) -> bool {
    let packet = Packet {
        source: packet.source,
        destination: packet.destination,
        port: packet.port,
        protocol: packet.protocol.to_owned(),
        interface: None,
    };
    let found = trace(rules, sets, &LocalAddresses::default(), &packet);
    assert!(!found.hops.iter().any(|hop| hop.verdict.starts_with("not followed")), "{found}");
    let [outcome] = &found.outcomes[..] else { panic!("{found}") };
    outcome.end != "dropped"
}

fn pod(name: &str, namespace: &str, node: &str, labels: &Value, ips: &[&str]) -> Value {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"), "labels": labels},
        "spec": {"nodeName": node, "containers": [{"ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}]}]},
        "status": {"podIPs": ips}})
}

fn policy(name: &str, namespace: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn small_world() -> World {
    let pods = vec![
        pod("web", "shop", "n1", &json!({"app": "web"}), &["10.244.0.5", "fd00:10:244::5"]),
        pod("db", "shop", "n1", &json!({"app": "db"}), &["10.244.0.6", "fd00:10:244::6"]),
        pod("job", "batch", "n2", &json!({"app": "job"}), &["10.244.1.7", "fd00:10:244:1::7"]),
    ];
    let namespaces = vec![
        json!({"metadata": {"name": "shop", "labels": {"kubernetes.io/metadata.name": "shop"}}}),
        json!({"metadata": {"name": "batch", "labels": {"team": "x"}}}),
    ];
    World { pods, namespaces, policies: Vec::new() }
}

fn texts(cluster: &mut Cluster) -> Vec<String> {
    cluster.wanted(&Family::BOTH).iter().map(Wanted::text).collect()
}

fn tcp(source: &str, destination: &str, port: u16) -> Connection {
    let [source, destination] = [source, destination].map(|ip| ip.parse().unwrap());
    Connection { source, destination, protocol: "tcp", port }
}

#[test]
fn without_a_policy_there_are_no_rules() {
    let mut cluster = cluster(&small_world());
    assert_eq!(cluster.wanted(&Family::BOTH), Family::BOTH.map(Wanted::nothing));
    // One that selects pods of other nodes alone is theirs.
    cluster.put_policy(&read(&policy("deny", "batch", &json!({"podSelector": {}, "policyTypes": ["Ingress"]}))));
    assert_eq!(cluster.wanted(&Family::BOTH), Family::BOTH.map(Wanted::nothing));
}

#[test]
fn a_dropped_packet_is_explained_by_the_names_of_policies() {
    let mut world = small_world();
    world.policies = vec![
        policy("deny", "shop", &json!({"podSelector": {}, "policyTypes": ["Ingress"]})),
        policy(
            "db",
            "shop",
            &json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 5432}]}]}),
        ),
    ];
    let text = &texts(&mut cluster(&world))[0];
    let sets = IpSets::parse(text).unwrap();
    let end = |packet: &str| {
        let (rules, packet) = (SavedRuleset::parse(text).unwrap(), packet.parse().unwrap());
        let found = trace(&rules, &sets, &LocalAddresses::default(), &packet);
        (found.outcomes[0].end.clone(), found.outcomes[0].decided_by.clone())
    };
    assert_eq!(end("10.244.0.5 10.244.0.6:5432").0, "to 10.244.0.6:5432");
    let (what, by) = end("10.244.1.7 10.244.0.6:5432");
    assert_eq!(what, "dropped");
    assert!(by.ends_with(": no rule allows it of NetworkPolicy shop/db, shop/deny"), "{by}");
    assert!(end("10.244.1.7 10.244.0.5:80").1.ends_with(" NetworkPolicy shop/deny"));
}

#[test]
fn many_or_long_names_fit_in_a_comment() {
    let mut world = small_world();
    for i in 0..40 {
        let name = format!("{i}-{}", "x".repeat(230));
        world.policies.push(policy(
            &name,
            "shop",
            &json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [
            {"ports": [{"port": i + 1}]}]}),
        ));
    }
    let text = &texts(&mut cluster(&world))[0];
    let comments: Vec<&str> = text.lines().filter_map(|line| line.split('"').nth(1)).collect();
    assert!(comments.iter().all(|comment| comment.len() <= 255));
    let drop = comments.iter().find(|comment| comment.starts_with(profile::DROP_COMMENT)).unwrap();
    assert!(drop.contains(" shop/0-xx") && drop.ends_with("x and 39 more"), "{drop}");
    world.policies.truncate(1);
    let text = &texts(&mut cluster(&world))[0];
    let drop = text.lines().find(|line| line.ends_with("-j DROP")).unwrap().split('"').nth(1).unwrap();
    assert!(drop.len() == 255 && drop.ends_with("xx"), "{drop}");
    let names = text.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    assert!(names.into_iter().all(|name| name.len() <= 28));
    assert!(IpSets::parse(text).unwrap().0.keys().all(|name| name.len() <= 31));
}

/// What the API does not accept, and an older one may have stored.
#[test]
fn what_cannot_be_read_allows_nobody() {
    let from_job = tcp("10.244.1.7", "10.244.0.6", 80);
    let cases = [
        (json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "X"}]}, "ingress": [{}]}), false),
        (json!({"podSelector": {"matchLabels": 3}, "ingress": [{}]}), false),
        (json!("nothing"), false),
        (json!({"podSelector": {}, "ingress": 5}), false),
        (json!({"podSelector": {}, "ingress": [5]}), false),
        (json!({"podSelector": {}, "ingress": [{"from": [{}]}]}), false),
        (json!({"podSelector": {}, "ingress": [{"from": 7}]}), false),
        (
            json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["x"]}}]}]}),
            false,
        ),
        (json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "x"}}]}]}), false),
        (
            json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]}]}),
            false,
        ),
        (json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80, "protocol": "X"}]}]}), false),
        (json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80, "endPort": 70}]}]}), false),
        (json!({"podSelector": {}, "ingress": [{"ports": [{"port": 0}]}]}), false),
        (json!({"podSelector": {}, "ingress": [{}], "policyTypes": ["X"]}), true),
        (json!({"podSelector": {}, "ingress": [{"ports": [{"port": 99999}, {"port": 80}]}]}), true),
        (json!({"podSelector": {}, "ingress": [{}]}), true),
        (json!({"podSelector": {}, "ingress": [null]}), true),
        (json!({"ingress": [{"from": [], "ports": []}]}), true),
    ];
    for (spec, is_allowed) in cases {
        let world = World { policies: vec![policy("p", "shop", &spec)], ..small_world() };
        let text = &texts(&mut cluster(&world))[0];
        assert_eq!(passes(text, &from_job), is_allowed, "{spec}");
    }
}

#[test]
fn types_default_as_the_api_server_does_it() {
    let (out, into) = (tcp("10.244.0.5", "10.244.1.7", 80), tcp("10.244.1.7", "10.244.0.5", 80));
    for (spec, egress, ingress) in [
        (json!({"podSelector": {}}), true, false),
        (json!({"podSelector": {}, "egress": []}), true, false),
        (json!({"podSelector": {}, "egress": [{"ports": [{"port": 1}]}]}), false, false),
        (json!({"podSelector": {}, "policyTypes": ["Egress"]}), false, true),
        (json!({"podSelector": {}, "policyTypes": ["Egress"], "ingress": [{"ports": [{"port": 1}]}]}), false, true),
    ] {
        let world = World { policies: vec![policy("p", "shop", &spec)], ..small_world() };
        let text = &texts(&mut cluster(&world))[0];
        assert_eq!((passes(text, &out), passes(text, &into)), (egress, ingress), "{spec}");
    }
}

/// One more pod of a Deployment is an entry of sets; so is a pod that comes elsewhere.
#[test]
fn a_pod_of_a_known_profile_changes_no_rule() {
    let mut world = small_world();
    world.policies = vec![policy(
        "web",
        "shop",
        &json!({"podSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{"from": [{"namespaceSelector": {}}]}]}),
    )];
    let mut cluster = cluster(&world);
    let before = Kernel::of(&cluster.wanted(&[Family::V4])[0]);
    // It is bound to this node, and has no address yet.
    let mut new = pod("web-2", "shop", "n1", &json!({"app": "web"}), &[]);
    cluster.put_pod(&read(&new));
    assert!(before.steps_to(&cluster.wanted(&[Family::V4])[0]).is_empty());
    let announced = AnnouncedPod {
        namespace: "shop".to_owned(),
        name: "web-2".to_owned(),
        uid: "shop-web-2".to_owned(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        ports: vec![("http".to_owned(), "TCP".to_owned(), 80)],
        addresses: vec!["10.244.0.9".parse().unwrap()],
    };
    cluster.announce(&announced);
    let steps = before.steps_to(&cluster.wanted(&[Family::V4])[0]);
    let sets: Vec<&str> = steps.add.iter().map(|(set, _)| &set[..12]).collect();
    assert_eq!(sets, ["WINDLASS-NI-", "WINDLASS-NP-", "WINDLASS-SEL"]);
    assert_eq!(Steps { add: steps.add.clone(), ..Steps::default() }, steps);
    // The API's view of it lacks the address for a while.
    cluster.take_changed();
    new["metadata"]["resourceVersion"] = json!("2");
    cluster.put_pod(&read(&new));
    assert!(!cluster.take_changed());
    cluster.withdraw("another");
    assert!(!cluster.take_changed());
    cluster.withdraw("shop-web-2");
    // What the API still shows of it is no longer its own.
    new["status"] = json!({"podIPs": [{"ip": "10.244.0.9"}]});
    cluster.put_pod(&read(&new));
    assert!(before.steps_to(&cluster.wanted(&[Family::V4])[0]).is_empty());
    // And it is forgotten with its pod.
    cluster.announce(&announced);
    cluster.retain_pods(&world.pods.iter().map(|pod| Cluster::key(&read::<objects::Pod>(pod).metadata)).collect());
    assert_eq!(before.steps_to(&cluster.wanted(&[Family::V4])[0]).add.len(), 3, "announced, and not listed yet");
    cluster.delete_pod(&read::<objects::Pod>(&new).metadata);
    assert!(before.steps_to(&cluster.wanted(&[Family::V4])[0]).is_empty());
}

/// A policy that changes leads to other sets: no set in force gets another meaning.
#[test]
fn a_changed_policy_names_other_sets() {
    let spec =
        |app: &str| json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]});
    let mut cluster = cluster(&World { policies: vec![policy("p", "shop", &spec("web"))], ..small_world() });
    let before = Kernel::of(&cluster.wanted(&[Family::V4])[0]);
    cluster.put_policy(&read(&policy("p", "shop", &spec("db"))));
    let steps = before.steps_to(&cluster.wanted(&[Family::V4])[0]);
    assert_eq!((steps.create.len(), steps.destroy.len(), steps.texts.len()), (1, 1, 1));
    assert_ne!(steps.create[0].0, steps.destroy[0]);
    assert!(steps.delete.is_empty());
}

/// The price of a packet does not depend on policies that select none of this node's pods, nor on how many pods a peer has.
#[test]
fn what_concerns_others_costs_no_packet_a_rule() {
    let web = policy(
        "web",
        "shop",
        &json!({"podSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{"from": [{"namespaceSelector": {}}]}]}),
    );
    let mut few = small_world();
    few.policies.push(web);
    let mut many = few.clone();
    for i in 0..1000 {
        many.policies.push(policy(
            &format!("p{i}"),
            "batch",
            &json!({"podSelector": {}, "ingress": [{"ports": [{"port": i + 1}]}]}),
        ));
        many.pods.push(pod(
            &format!("j{i}"),
            "batch",
            "n2",
            &json!({}),
            &[&format!("10.244.{}.{}", 2 + i / 250, i % 250)],
        ));
    }
    let rules = |world: &World| {
        let text = texts(&mut cluster(world)).remove(0);
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(rules(&few), rules(&many));
}
