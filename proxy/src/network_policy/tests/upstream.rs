//! The cases of upstream's end-to-end tests: who reaches whom by the rules of every node together, in both families.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    pods: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(default)]
    put: BTreeMap<String, Value>,
    #[serde(default)]
    delete: Vec<String>,
    /// Of pods, and of namespaces.
    #[serde(default)]
    labels: BTreeMap<String, BTreeMap<String, String>>,
    at: BTreeMap<String, Reach>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reach {
    #[serde(default)]
    closed: Vec<String>,
    #[serde(default)]
    open: Vec<String>,
}

impl Reach {
    fn is_open(&self, from: &str, to: &str) -> bool {
        let is = |pattern: &str, pod: &str| match pattern.strip_suffix('*') {
            Some(start) => pod.starts_with(start),
            None => pattern == pod,
        };
        let any = |rules: &[String]| {
            rules.iter().any(|rule| {
                let (of, at) = rule.split_once(" > ").unwrap();
                is(of, from) && is(at, to)
            })
        };
        any(&self.open) || !any(&self.closed)
    }
}

/// A pod of the table, on a node of its own or with the others.
fn object(name: &str, number: usize, of_one_node: bool, labels: &BTreeMap<String, String>) -> Value {
    let (namespace, pod) = name.split_once('/').unwrap();
    let mut all = json!({"pod": pod});
    labels.iter().for_each(|(key, value)| all[key] = json!(value));
    let ports: Vec<Value> = [80, 81]
        .into_iter()
        .flat_map(|port| ["TCP", "UDP", "SCTP"].map(|protocol| (port, protocol)))
        .map(|(port, protocol)| {
            json!({"name": format!("serve-{port}-{}", protocol.to_lowercase()), "containerPort": port, "protocol": protocol})
        })
        .collect();
    let ips: Vec<Value> = addresses(number).iter().map(|ip| json!({"ip": ip})).collect();
    let node = if of_one_node { "n1".to_owned() } else { format!("n{number}") };
    json!({"metadata": {"name": pod, "namespace": namespace, "uid": format!("{namespace}-{pod}"), "labels": all},
        "spec": {"nodeName": node, "containers": [{"ports": ports}]}, "status": {"podIPs": ips}})
}

fn addresses(number: usize) -> [String; 2] {
    [format!("10.244.{number}.5"), format!("fd00:10:244:{number}::5")]
}

/// The policy with the addresses of pods of one family in place of their names.
fn with_addresses(spec: &Value, pods: &[&str], family: Family) -> Value {
    let mut text = spec.to_string();
    for (number, name) in pods.iter().enumerate() {
        let ip = &addresses(number)[family as usize];
        let (whole, wide) = match family {
            Family::V4 => (32, "0.0.0.0/4"),
            Family::V6 => (128, "f000::/4"),
        };
        text = text.replace(&format!("\"@{name}/4\""), &format!("\"{wide}\""));
        text = text.replace(&format!("\"@{name}\""), &format!("\"{ip}/{whole}\""));
    }
    serde_json::from_str(&text).unwrap()
}

fn name_of(id: &str) -> (&str, &str) {
    id.split_once('/').unwrap()
}

#[test]
fn everybody_reaches_whom_upstreams_cases_say() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("upstream.yaml")).unwrap();
    let mut packets = 0;
    for (case, of_one_node) in cases.iter().flat_map(|case| [(case, true), (case, false)]) {
        let names: Vec<&str> = case.pods.split(' ').collect();
        for family in Family::BOTH {
            let nodes =
                if of_one_node { vec!["n1".to_owned()] } else { (0..names.len()).map(|i| format!("n{i}")).collect() };
            let mut clusters: Vec<Cluster> = nodes.iter().map(|node| Cluster::new(node)).collect();
            for cluster in &mut clusters {
                for namespace in ["x", "y", "z"] {
                    let labels = json!({"kubernetes.io/metadata.name": namespace});
                    cluster.put_namespace(&read(&json!({"metadata": {"name": namespace, "labels": labels}})));
                }
                for (number, name) in names.iter().enumerate() {
                    cluster.put_pod(&read(&object(name, number, of_one_node, &BTreeMap::new())));
                }
            }
            for (number, step) in case.steps.iter().enumerate() {
                for cluster in &mut clusters {
                    for (id, spec) in &step.put {
                        let (namespace, name) = name_of(id);
                        cluster.put_policy(&read(&policy(name, namespace, &with_addresses(spec, &names, family))));
                    }
                    for id in &step.delete {
                        let (namespace, name) = name_of(id);
                        let gone: objects::NetworkPolicy = read(&policy(name, namespace, &json!({})));
                        cluster.delete_policy(&gone.metadata);
                    }
                    for (id, labels) in &step.labels {
                        if let Some(number) = names.iter().position(|name| name == id) {
                            cluster.put_pod(&read(&object(id, number, of_one_node, labels)));
                        } else {
                            let mut all = json!({"kubernetes.io/metadata.name": id});
                            labels.iter().for_each(|(key, value)| all[key] = json!(value));
                            cluster.put_namespace(&read(&json!({"metadata": {"name": id, "labels": all}})));
                        }
                    }
                }
                let texts: Vec<String> = clusters.iter_mut().map(|of| of.wanted(&[family])[0].text()).collect();
                for (at, reach) in &step.at {
                    let (port, protocol) = at.split_once('/').unwrap();
                    let protocol = *["tcp", "udp", "sctp"].iter().find(|known| **known == protocol).unwrap();
                    let pairs =
                        names.iter().enumerate().flat_map(|from| names.iter().enumerate().map(move |to| (from, to)));
                    for ((i, from), (j, to)) in pairs.filter(|((i, _), (j, _))| i != j) {
                        let ip = |number: usize| addresses(number)[family as usize].parse().unwrap();
                        let packet =
                            Connection { source: ip(i), destination: ip(j), protocol, port: port.parse().unwrap() };
                        let is = texts.iter().all(|text| passes(text, &packet));
                        let what = format!("{}, step {number}, {from} to {to} at {at}", case.case);
                        assert_eq!(is, reach.is_open(from, to), "{what}\n{}", texts.join("\n"));
                        packets += 1;
                    }
                }
            }
        }
    }
    assert!(cases.len() >= 43 && packets > 1000, "{} cases, {packets} packets", cases.len());
}
