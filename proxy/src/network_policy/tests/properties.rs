//! Whatever the objects are and however they change: packets end as the API's documentation has it, and what the kernel has
//! is what a fresh start would write.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::select};

use super::*;

/// Labels that generated objects have.
fn labels() -> impl Strategy<Value = Value> {
    (select(vec!["web", "db"]), any::<bool>()).prop_map(|(app, tier)| match tier {
        true => json!({"app": app, "tier": "x"}),
        false => json!({"app": app}),
    })
}

fn selector() -> impl Strategy<Value = Value> {
    select(vec![
        json!({}),
        json!({"matchLabels": {"app": "web"}}),
        json!({"matchLabels": {"app": "db", "tier": "x"}}),
        json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
        json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "other"]}]}),
    ])
}

const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const OUTSIDE: [&str; 4] = ["10.9.0.1", "10.9.1.1", "192.0.2.1", "2001:db8::1"];
const PORTS: [u16; 4] = [80, 81, 443, 8080];
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

fn any_pod() -> impl Strategy<Value = Value> {
    let port = (select(vec!["http", "dns"]), select(PORTS.to_vec()), select(vec!["TCP", "UDP", "SCTP"]));
    let state = select(vec!["Running", "Running", "Running", "Running", "Succeeded"]);
    (0u8..6, select(NAMESPACES.to_vec()), 1u8..3, labels(), prop::collection::vec(port, 0..3), state, 0u8..8).prop_map(
        |(number, namespace, node, labels, ports, phase, network)| {
            let ports: Vec<Value> =
                ports.iter().map(|(name, port, p)| json!({"name": name, "containerPort": port, "protocol": p})).collect();
            // Whatever moves to another namespace is another pod, with other addresses.
            let at = NAMESPACES.iter().position(|of| *of == namespace).unwrap();
            let ips = [format!("10.244.{at}.{number}"), format!("fd00:10:244:{at}::{number}")].map(|ip| json!({"ip": ip}));
            json!({"metadata": {"name": format!("p{number}"), "namespace": namespace, "uid": format!("{namespace}{number}"),
                    "labels": labels},
                "spec": {"nodeName": format!("n{node}"), "hostNetwork": network == 0, "containers": [{"ports": ports}]},
                "status": {"phase": phase, "podIPs": if network == 1 { json!([]) } else { json!(ips) }}})
        },
    )
}

fn peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        selector().prop_map(|pods| json!({"podSelector": pods})),
        namespace_selector().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        (selector(), namespace_selector()).prop_map(|(p, n)| json!({"podSelector": p, "namespaceSelector": n})),
        select(vec![
            json!({"ipBlock": {"cidr": "10.9.0.0/16"}}),
            json!({"ipBlock": {"cidr": "10.9.0.0/16", "except": ["10.9.1.0/24"]}}),
            json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/9", "10.128.0.0/9"]}}),
            json!({"ipBlock": {"cidr": "0.0.0.0/0"}}),
            json!({"ipBlock": {"cidr": "10.244.1.3/32"}}),
            json!({"ipBlock": {"cidr": "::/0", "except": ["fd00:10:244:1::/64"]}}),
            json!({"ipBlock": {"cidr": "fd00::/8"}}),
        ]),
    ]
}

fn namespace_selector() -> impl Strategy<Value = Value> {
    select(vec![
        json!({}),
        json!({"matchLabels": {"kubernetes.io/metadata.name": "b"}}),
        json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]}),
    ])
}

fn port() -> impl Strategy<Value = Value> {
    let protocol = select(vec!["TCP", "UDP", "SCTP"]);
    let ports = select(vec![json!(80), json!(443), json!("http"), json!("dns"), json!(null), json!([80, 81])]);
    (protocol, ports).prop_map(|(protocol, port)| match &port {
        Value::Null => json!({"protocol": protocol}),
        Value::Array(range) => json!({"protocol": protocol, "port": range[0], "endPort": range[1]}),
        port => json!({"protocol": protocol, "port": port}),
    })
}

fn any_policy() -> impl Strategy<Value = Value> {
    let rule = |peers: &'static str| {
        (prop::collection::vec(peer(), 0..3), prop::collection::vec(port(), 0..3))
            .prop_map(move |(of, ports)| json!({peers: of, "ports": ports}))
    };
    let rules = |peers| prop::collection::vec(rule(peers), 0..3);
    let types = select(vec![json!(["Ingress"]), json!(["Egress"]), json!(["Ingress", "Egress"])]);
    (0u8..4, select(NAMESPACES.to_vec()), selector(), rules("from"), rules("to"), types).prop_map(
        |(number, namespace, pods, ingress, egress, types)| {
            policy(
                &format!("np{number}"),
                namespace,
                &json!({"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress}),
            )
        },
    )
}

fn any_namespace() -> impl Strategy<Value = Value> {
    (select(NAMESPACES.to_vec()), any::<bool>()).prop_map(|(name, team)| {
        let mut labels = json!({"kubernetes.io/metadata.name": name});
        if team {
            labels["team"] = json!("x");
        }
        json!({"metadata": {"name": name, "labels": labels}})
    })
}

/// One change of the cluster.
#[derive(Debug, Clone)]
enum Change {
    Pod(Value),
    Policy(Value),
    Namespace(Value),
    /// Of the kind and at the place of these numbers, if there is one.
    Delete(u8, usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => any_pod().prop_map(Change::Pod),
        4 => any_policy().prop_map(Change::Policy),
        2 => any_namespace().prop_map(Change::Namespace),
        2 => (0u8..3, 0usize..20).prop_map(|(kind, at)| Change::Delete(kind, at)),
    ]
}

/// Replaces an object by its name.
fn put(all: &mut Vec<Value>, object: &Value) {
    let same = |of: &Value| {
        of["metadata"]["name"] == object["metadata"]["name"]
            && of["metadata"]["namespace"] == object["metadata"]["namespace"]
    };
    all.retain(|of| !same(of));
    all.push(object.clone());
}

impl World {
    fn apply(&mut self, cluster: &mut Cluster, change: &Change) {
        match change {
            Change::Pod(object) => {
                put(&mut self.pods, object);
                cluster.put_pod(&read(object));
            }
            Change::Policy(object) => {
                put(&mut self.policies, object);
                cluster.put_policy(&read(object));
            }
            Change::Namespace(object) => {
                put(&mut self.namespaces, object);
                cluster.put_namespace(&read(object));
            }
            Change::Delete(kind, at) => {
                let all = [&mut self.pods, &mut self.policies, &mut self.namespaces]
                    .into_iter()
                    .nth(usize::from(*kind))
                    .unwrap();
                if *at >= all.len() {
                    return;
                }
                let meta = read::<objects::Namespace>(&all.remove(*at)).metadata;
                match kind {
                    0 => cluster.delete_pod(&meta),
                    1 => cluster.delete_policy(&meta),
                    _ => cluster.delete_namespace(&meta),
                }
            }
        }
    }

    /// All addresses of both families.
    fn addresses(&self) -> Vec<String> {
        let of_pods = self.pods.iter().flat_map(|pod| pod["status"]["podIPs"].as_array().unwrap());
        let of_pods = of_pods.map(|ip| ip["ip"].as_str().unwrap().to_owned());
        of_pods.chain(OUTSIDE.map(str::to_owned)).collect()
    }
}

/// Sets and chains as a kernel has them: it refuses what names something that is not there, and the deletion of what is
/// named.
#[derive(Debug, Default, Clone, PartialEq)]
struct Machine {
    chains: BTreeMap<String, String>,
    jumps: usize,
    sets: IpSets,
}

impl Machine {
    fn names(&self, what: &str) -> bool {
        self.chains.values().any(|body| body.split_whitespace().any(|word| word == what))
    }

    fn run(&mut self, steps: &Steps, until: usize) {
        let mut done = 0;
        let mut next = || {
            done += 1;
            done <= until
        };
        for name in steps.destroy_first.iter().filter(|_| next()) {
            assert!(!self.names(name));
            self.sets.0.remove(name);
        }
        for (name, kind) in steps.create.iter().filter(|_| next()) {
            self.sets.0.entry(name.clone()).or_insert_with(|| IpSet::new(*kind, []));
        }
        let change = |sets: &mut IpSets, name: &String, entries: &[Entry], more: bool| {
            let set = sets.0.get_mut(name).expect("the set exists");
            let mut all: Vec<Entry> = set.entries.keys().filter(|entry| !entries.contains(entry)).cloned().collect();
            all.extend(entries.iter().filter(|_| more).cloned());
            *set = IpSet::new(set.kind, all);
        };
        for (name, entries) in steps.add.iter().filter(|_| next()) {
            change(&mut self.sets, name, entries, true);
        }
        for text in steps.texts.iter().filter(|_| next()) {
            self.restore(text);
        }
        for (name, entries) in steps.delete.iter().filter(|_| next()) {
            change(&mut self.sets, name, entries, false);
        }
        for name in steps.destroy.iter().filter(|_| next()) {
            assert!(!self.names(name), "{name} is in use");
            self.sets.0.remove(name);
        }
    }

    fn restore(&mut self, text: &str) {
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let Some(name) = words[0].strip_prefix(':') {
                self.chains.insert(name.to_owned(), String::new());
            }
            match words[0] {
                "-A" => {
                    let target = *words.last().unwrap();
                    assert!(!target.starts_with("WINDLASS") || self.chains.contains_key(target), "{line}");
                    let sets =
                        words.iter().enumerate().filter(|(_, word)| **word == "--match-set").map(|(i, _)| words[i + 1]);
                    sets.for_each(|set| assert!(self.sets.0.contains_key(set), "{line}"));
                    self.chains.get_mut(words[1]).unwrap().extend([line, "\n"]);
                }
                "-I" => self.jumps += 1,
                "-D" => self.jumps -= 1,
                "-X" => {
                    assert_eq!(self.chains.remove(words[1]).as_deref(), Some(""));
                    assert!(!self.names(words[1]));
                }
                _ => {}
            }
        }
    }

    /// As `iptables-save` prints it.
    fn saved(&self) -> String {
        let mut out = "*mangle\n:FORWARD ACCEPT [0:0]\n".to_owned();
        self.chains.keys().for_each(|name| out.push_str(&format!(":{name} - [0:0]\n")));
        (0..self.jumps).for_each(|_| out.push_str(&format!("-A FORWARD {JUMP}\n")));
        self.chains.values().for_each(|body| out.push_str(body));
        out + "COMMIT\n"
    }

    fn kernel(&self, wanted: &Wanted) -> Kernel {
        let sets = self.sets.0.iter().map(|(name, set)| (name.clone(), Some(set.clone()))).collect();
        Kernel::read(&SavedRuleset::parse(&self.saved()).unwrap(), sets, wanted)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the objects, the rules do to each packet what the API's documentation says.
    #[test]
    fn packets_end_as_the_policies_say(changes in prop::collection::vec(change(), 1..24)) {
        let (mut world, mut incremental) = (World::default(), Cluster::new("n1"));
        NAMESPACES[..2].iter().for_each(|name| {
            let object = json!({"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}});
            world.apply(&mut incremental, &Change::Namespace(object));
        });
        changes.iter().for_each(|change| world.apply(&mut incremental, change));
        let texts = texts(&mut incremental);
        let rules = texts.iter().map(|text| (SavedRuleset::parse(text).unwrap(), IpSets::parse(text).unwrap()));
        let rules: Vec<_> = rules.collect();
        let addresses = world.addresses();
        for (source, destination) in addresses.iter().flat_map(|a| addresses.iter().map(move |b| (a, b))) {
            let [source, destination]: [std::net::IpAddr; 2] = [source, destination].map(|ip| ip.parse().unwrap());
            if Family::of(&source) != Family::of(&destination) {
                continue;
            }
            for (protocol, port) in PROTOCOLS.iter().flat_map(|p| PORTS.iter().map(move |port| (*p, *port))) {
                let packet = Connection { source, destination, protocol, port };
                let of = Family::of(&source) as usize;
                let is = lets_pass(&rules[of].0, &rules[of].1, &packet);
                prop_assert_eq!(is, world.allows("n1", &packet), "{:?}\n{}", packet, texts[of]);
            }
        }
    }

    /// However changes come, what is wanted is what a fresh start wants, the steps lead there, whichever of them was the
    /// last that was done before they were planned from what is read, and nothing is left to do behind them.
    #[test]
    fn steps_lead_from_anywhere_to_what_a_fresh_start_wants(
        changes in prop::collection::vec((change(), any::<bool>(), 0usize..12), 1..24),
    ) {
        let (mut world, mut incremental) = (World::default(), Cluster::new("n1"));
        let (mut machine, mut kernel) = (Machine::default(), Kernel::default());
        for (change, write, fault) in &changes {
            world.apply(&mut incremental, change);
            if !write {
                continue;
            }
            let wanted = incremental.wanted(&[Family::V4]).remove(0);
            prop_assert_eq!(&wanted, &cluster(&world).wanted(&[Family::V4])[0]);
            let steps = kernel.steps_to(&wanted);
            machine.run(&steps, *fault);
            // Read back: the failure left something in between.
            kernel = machine.kernel(&wanted);
            machine.run(&kernel.steps_to(&wanted), usize::MAX);
            kernel = Kernel::of(&wanted);
            prop_assert_eq!(&machine.kernel(&wanted), &kernel);
            prop_assert!(kernel.steps_to(&wanted).is_empty());
        }
    }
}
