//! Variables of upstream's own tests.

use k8s_openapi::ByteString;
use serde_json::Value;
use windlass_fixtures::facts::{json_of, rows, text_of, value_of};

use super::*;

static TABLE: &str = include_str!("../../../../../facts/environment.tsv");

/// Cases that are decided otherwise here, and why.
static OTHERWISE: &[(&str, &str)] = &[("nil_enableServiceLinks", "what the API would have set by default is taken")];

fn services(row: &str) -> Vec<ServiceEnv> {
    let all = json_of(row);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |service: &Value| ServiceEnv {
        namespace: text(&service["metadata"]["namespace"]),
        name: text(&service["metadata"]["name"]),
        address: text(&service["spec"]["clusterIP"]),
        ports: service["spec"]["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|port| {
                let number = port["port"].as_i64().and_then(|number| i32::try_from(number).ok()).unwrap();
                (text(&port["name"]), text(&port["protocol"]), number)
            })
            .collect(),
    };
    all.as_array().unwrap().iter().map(of).collect()
}

/// The objects of a row by every name that the container has for them: upstream's test gives it whatever it asks for.
fn sources(container: &Container, map: &str, secret: &str) -> EnvSources {
    let (maps, secrets) = references(container);
    let map: Option<ConfigMap> = value_of(map);
    let data = json_of(secret);
    let secret = (!data.is_null()).then(|| {
        let data = data["data"].as_object().into_iter().flatten();
        let bytes = |value: &Value| ByteString(value.as_str().unwrap().as_bytes().to_vec());
        Secret { data: Some(data.map(|(key, value)| (key.clone(), bytes(value))).collect()), ..Secret::default() }
    });
    let (map, secret) = (map.map(Arc::new), secret.map(Arc::new));
    EnvSources {
        config_maps: maps.into_iter().filter_map(|name| Some((name.to_owned(), map.clone()?))).collect(),
        secrets: secrets.into_iter().filter_map(|name| Some((name.to_owned(), secret.clone()?))).collect(),
        ..EnvSources::default()
    }
}

#[test]
fn as_upstreams_tests_say() {
    let mut known = Vec::new();
    let mut seen = 0;
    for row in rows(TABLE) {
        let (name, namespace, links, container, map, secret, addresses, expected) = match *row {
            ["services", all] => {
                known = services(all);
                continue;
            }
            [_, name, namespace, links, container, map, secret, addresses, expected] => {
                (name, namespace, links, container, map, secret, addresses, expected)
            }
            _ => panic!("{row:?}"),
        };
        if OTHERWISE.iter().any(|(case, _)| *case == name) {
            continue;
        }
        let mut container: Container = value_of(container);
        // What the API would not take without.
        container.name = "c".to_owned();
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "dapi-test-pod-name", "namespace": namespace},
            "spec": {"serviceAccountName": "special", "nodeName": "node-name", "enableServiceLinks": links == "true",
                "containers": []}}))
        .unwrap();
        let pod_ips: Vec<IpAddr> = value_of(addresses);
        let context = EnvContext {
            node_name: "node-name",
            node_ips: "127.0.0.1".parse().unwrap(),
            pod_ips: &pod_ips,
            allocatable: &BTreeMap::new(),
            services: &known,
        };
        let found = environment(&pod, &container, &sources(&container, map, secret), &context);
        match expected {
            "refused" => assert!(found.is_err(), "{name}: {found:?}"),
            expected => {
                let found: BTreeMap<String, String> = found.unwrap().into_iter().collect();
                assert_eq!(serde_json::to_value(found).unwrap(), json_of(expected), "{name}");
            }
        }
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

static EXPANSION: &str = include_str!("../../../../../facts/expansion.tsv");

#[test]
fn texts_are_expanded_as_upstreams_tests_say() {
    let mut variables = BTreeMap::<String, String>::new();
    let mut seen = 0;
    for row in rows(EXPANSION) {
        match *row {
            ["variables", all] => variables = value_of(all),
            [_, text, expected] => {
                let found = expand(&text_of(text), |name| variables.get(name).cloned());
                assert_eq!(found, text_of(expected), "{text}");
                seen += 1;
            }
            _ => panic!("{row:?}"),
        }
    }
    assert!(seen > 35, "{seen}");
}
