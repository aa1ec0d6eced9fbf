//! Addresses and node ports: none is allocated twice, none leaks, whatever is requested concurrently and whoever
//! disconnects.

use std::collections::BTreeSet;

use proptest::{prelude::*, strategy::Strategy};

use super::*;

#[derive(Debug, Clone)]
struct Step {
    name: u8,
    what: What,
    /// Polls after which the client is gone.
    hang_up: Option<u8>,
}

#[derive(Debug, Clone)]
enum What {
    Create { kind: &'static str, address: Option<u8>, port: Option<u16> },
    Update { kind: &'static str, ports: u8 },
    Label,
    Delete,
}

fn kinds() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("ClusterIP"), Just("NodePort"), Just("LoadBalancer"), Just("ExternalName")]
}

fn groups() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let what = prop_oneof![
        4 => (kinds(), prop::option::of(1..4u8), prop::option::of(30000..30003u16))
            .prop_map(|(kind, address, port)| What::Create { kind, address, port }),
        4 => (kinds(), 1..3u8).prop_map(|(kind, ports)| What::Update { kind, ports }),
        1 => Just(What::Label),
        4 => Just(What::Delete),
    ];
    let step = (0..3u8, what, prop::option::weighted(0.3, 0..4u8)).prop_map(|(name, what, hang_up)| Step {
        name,
        what,
        hang_up,
    });
    prop::collection::vec(prop::collection::vec(step, 1..6), 1..8)
}

fn service(name: &str, kind: &str, ports: u8) -> Value {
    let ports: Vec<Value> = (0..ports).map(|i| json!({"name": format!("p{i}"), "port": 80 + i})).collect();
    let spec = match kind {
        "ExternalName" => json!({"type": kind, "externalName": "example.org"}),
        _ => json!({"type": kind, "ports": ports}),
    };
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn act(api: Api, step: Step) -> u16 {
    let name = format!("s{}", step.name);
    let path = format!("{SERVICES}/{name}");
    match step.what {
        What::Create { kind, address, port } => {
            let mut service = service(&name, kind, 1);
            if let Some(address) = address.filter(|_| kind != "ExternalName") {
                service["spec"]["clusterIP"] = json!(format!("10.96.0.{address}"));
            }
            if let Some(port) = port.filter(|_| matches!(kind, "NodePort" | "LoadBalancer")) {
                service["spec"]["ports"][0]["nodePort"] = json!(port);
            }
            call(&api, "POST", SERVICES, service).await.code
        }
        What::Update { kind, ports } => {
            let stored = call(&api, "GET", &path, Value::Null).await;
            let mut changed = service(&name, kind, ports);
            changed["metadata"]["resourceVersion"] = stored.body["metadata"]["resourceVersion"].clone();
            call(&api, "PUT", &path, changed).await.code
        }
        What::Label => call(&api, "PATCH", &path, json!({"metadata": {"labels": {"a": "b"}}})).await.code,
        What::Delete => call(&api, "DELETE", &path, Value::Null).await.code,
    }
}

/// Checks that no two Services share an address or a node port.
async fn check(api: &Api) {
    let list = call(api, "GET", SERVICES, Value::Null).await.body;
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for service in list["items"].as_array().unwrap() {
        let spec = &service["spec"];
        if spec["type"] == "ExternalName" {
            continue;
        }
        let address = spec["clusterIP"].as_str().unwrap();
        assert!(addresses.insert(address.parse().unwrap()), "{address} twice");
        for port in spec["ports"].as_array().unwrap() {
            if let Some(number) = port["nodePort"].as_u64().filter(|_| spec["type"] != "ClusterIP") {
                assert!(ports.insert(u16::try_from(number).unwrap()), "{number} twice");
            }
        }
    }
    assert_eq!(api.allocator.allocated(api.store()), (true, addresses, ports));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn what_services_have_is_what_is_taken_whatever_happens_at_once(groups in groups()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = with_namespace().await;
            for group in groups {
                let tasks: Vec<_> = group
                    .into_iter()
                    .map(|step| {
                        let (api, polls) = (api.clone(), step.hang_up);
                        let acting = act(api, step);
                        tokio::spawn(async move {
                            let mut acting = std::pin::pin!(acting);
                            let mut left = polls;
                            let done = std::future::poll_fn(|context| {
                                if left == Some(0) {
                                    return std::task::Poll::Ready(None);
                                }
                                left = left.map(|n| n - 1);
                                acting.as_mut().poll(context).map(Some)
                            });
                            if let Some(code) = done.await {
                                assert!(matches!(code, 200 | 201 | 404 | 409 | 422), "{code}");
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                // What was handed over comes before this.
                call(&api, "POST", MAPS, json!({"metadata": {"generateName": "after-"}})).await;
                check(&api).await;
            }
            for name in 0..3 {
                call(&api, "DELETE", &format!("{SERVICES}/s{name}"), Value::Null).await;
            }
            assert_eq!(api.allocator.allocated(api.store()), (true, BTreeSet::new(), BTreeSet::new()));
        });
    }
}

#[tokio::test]
async fn a_recreated_service_keeps_its_cluster_ip() {
    let api = with_namespace().await;
    for _ in 0..50 {
        call(&api, "POST", SERVICES, service("a", "NodePort", 1)).await;
        let path = format!("{SERVICES}/a");
        let (deleted, made) = tokio::join!(call(&api, "DELETE", &path, Value::Null), async {
            loop {
                let made = call(&api, "POST", SERVICES, service("a", "NodePort", 1)).await;
                if made.code == 201 {
                    return made;
                }
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(deleted.code, 200);
        let address: Ipv4Addr = made.body["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
        let (exact, addresses, ports) = api.allocator.allocated(api.store());
        assert!(exact && addresses.contains(&address) && ports.len() == 1, "{addresses:?} {ports:?}");
        call(&api, "DELETE", &path, Value::Null).await;
    }
}

#[tokio::test]
async fn a_write_that_is_only_tried_takes_nothing() {
    let api = with_namespace().await;
    let tried = call(&api, "POST", &format!("{SERVICES}?dryRun=All"), service("a", "NodePort", 2)).await;
    assert_eq!(tried.code, 201, "{}", tried.body);
    assert!(tried.body["spec"]["clusterIP"].is_string());
    let ports: Vec<&Value> =
        tried.body["spec"]["ports"].as_array().unwrap().iter().map(|port| &port["nodePort"]).collect();
    assert_eq!(ports, [32769, 32770]);
    let mut outside = service("a", "ClusterIP", 1);
    outside["spec"]["clusterIP"] = json!("192.0.2.1");
    for (query, why) in [
        ("", "the provided network does not match the current range"),
        ("?dryRun=All", "the provided IP (192.0.2.1) is not in the valid range. The range of valid IPs is "),
    ] {
        let refused = call(&api, "POST", &format!("{SERVICES}{query}"), outside.clone()).await;
        let message = refused.body["message"].as_str().unwrap();
        assert!(refused.code == 422 && message.contains(why), "{message}");
    }
    assert_eq!(api.allocator.allocated(api.store()), (true, BTreeSet::new(), BTreeSet::new()));
    let made = call(&api, "POST", SERVICES, service("a", "NodePort", 1)).await.body;
    let mut other = service("b", "NodePort", 1);
    other["spec"]["clusterIP"] = made["spec"]["clusterIP"].clone();
    for path in [SERVICES.to_owned(), format!("{SERVICES}?dryRun=All")] {
        let refused = call(&api, "POST", &path, other.clone()).await;
        let message = refused.body["message"].as_str().unwrap();
        assert!(refused.code == 422 && message.contains("provided IP is already allocated"), "{message}");
    }
}

/// A port that takes any number never takes the one that the next port asks for.
#[tokio::test]
async fn requested_node_ports_are_allocated_first() {
    let api = with_namespace().await;
    for _ in 0..20 {
        let mut both = service("a", "NodePort", 2);
        both["spec"]["ports"][1]["nodePort"] = json!(30004);
        let made = call(&api, "POST", SERVICES, both.clone()).await;
        assert_eq!(made.code, 201, "{}", made.body);
        both["spec"]["ports"][0]["nodePort"] = json!(30004);
        let refused = call(&api, "PUT", &format!("{SERVICES}/a"), both).await;
        assert_eq!(refused.code, 422, "{}", refused.body);
        call(&api, "DELETE", &format!("{SERVICES}/a"), Value::Null).await;
    }
}

const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

#[tokio::test]
async fn a_cluster_ip_has_an_object_as_long_as_its_service() {
    let api = with_namespace().await;
    let made = call(&api, "POST", SERVICES, service("a", "ClusterIP", 1)).await.body;
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    let path = format!("{ADDRESSES}/{ip}");
    let object = call(&api, "GET", &path, Value::Null).await.body;
    assert_eq!(object["spec"], json!({"parentRef": {"resource": "services", "namespace": "n", "name": "a"}}));
    assert_eq!(object["metadata"]["labels"]["ipaddress.kubernetes.io/managed-by"], "ipallocator.k8s.io");
    assert!(object["metadata"]["uid"].is_string() && object["kind"] == "IPAddress", "{object}");
    // The type of the service decides whether it has an address.
    let external = json!({"spec": {"type": "ExternalName", "externalName": "example.org", "ports": null}});
    let changed = call(&api, "PATCH", &format!("{SERVICES}/a"), external).await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    assert_eq!(call(&api, "GET", &path, Value::Null).await.code, 404);
    call(&api, "DELETE", &format!("{SERVICES}/a"), Value::Null).await;

    // Addresses that users have reserved are not allocated, and those that they hold are freed with their objects.
    let reserved = json!({"metadata": {"name": "10.96.0.9"}, "spec": {"parentRef": {"resource": "x", "name": "y"}}});
    assert_eq!(call(&api, "POST", ADDRESSES, reserved).await.code, 201);
    let mut fixed = service("b", "ClusterIP", 1);
    fixed["spec"]["clusterIP"] = json!("10.96.0.9");
    let refused = call(&api, "POST", SERVICES, fixed.clone()).await;
    assert!(refused.body["message"].as_str().unwrap().contains("provided IP is already allocated"), "{}", refused.body);
    call(&api, "DELETE", &format!("{ADDRESSES}/10.96.0.9"), Value::Null).await;
    assert_eq!(call(&api, "POST", SERVICES, fixed.clone()).await.code, 201);
    let held = json!({"metadata": {"finalizers": ["x/y"]}});
    assert_eq!(call(&api, "PATCH", &format!("{ADDRESSES}/10.96.0.9"), held).await.code, 200);
    call(&api, "DELETE", &format!("{SERVICES}/b"), Value::Null).await;
    let object = call(&api, "GET", &format!("{ADDRESSES}/10.96.0.9"), Value::Null).await.body;
    assert!(!object["metadata"]["deletionTimestamp"].is_null(), "{object}");
    assert_eq!(call(&api, "POST", SERVICES, fixed.clone()).await.code, 422);
    let free = json!({"metadata": {"finalizers": null}});
    call(&api, "PATCH", &format!("{ADDRESSES}/10.96.0.9"), free).await;
    assert_eq!(call(&api, "POST", SERVICES, fixed).await.code, 201);
    check(&api).await;
}

#[tokio::test]
async fn ranges_are_added_while_the_server_runs() {
    let api = with_namespace().await;
    let mut fixed = service("a", "ClusterIP", 1);
    fixed["spec"]["clusterIP"] = json!("10.97.0.9");
    let refused = call(&api, "POST", SERVICES, fixed.clone()).await;
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.ends_with("the provided network does not match the current range"), "{message}");
    let cidr = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}});
    assert_eq!(call(&api, "POST", CIDRS, cidr).await.code, 201);
    assert_eq!(call(&api, "POST", SERVICES, fixed.clone()).await.code, 422, "nobody has said that it is ready");
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let patched = call(&api, "PATCH", &format!("{CIDRS}/more/status"), ready).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    assert_eq!(call(&api, "POST", SERVICES, fixed).await.code, 201);
    check(&api).await;
}

/// A restart finds what was allocated.
#[tokio::test]
async fn allocations_survive_a_restart() {
    let memory = Memory::default();
    let api = api_over(&memory);
    call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    for name in ["a", "b"] {
        assert_eq!(call(&api, "POST", SERVICES, service(name, "NodePort", 2)).await.code, 201);
    }
    check(&api).await;
    api.store().close().await.unwrap();
    let again = api_over(&memory);
    check(&again).await;
    assert_eq!(call(&again, "GET", ADDRESSES, Value::Null).await.body["items"].as_array().unwrap().len(), 2);
}
