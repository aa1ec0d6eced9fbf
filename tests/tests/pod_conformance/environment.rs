//! Environment variables of containers, and their expansion in commands and arguments.

use serde_json::{Value, json};
use windlass_tests::shared_dir::{is_ready, shell};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    env_order,
    env_from_prefix,
    env_from_passes_every_key,
    env_from_optional,
    env_from_missing,
    var_of_earlier_variables,
    var_of_service_variables,
    var_escaped,
    var_unknown_stays,
    field_ref_metadata_name,
    field_ref_metadata_namespace,
    field_ref_metadata_uid,
    field_ref_metadata_labels,
    field_ref_metadata_annotations,
    field_ref_spec_node_name,
    field_ref_spec_service_account_name,
    field_ref_status_host_ip,
    field_ref_status_host_ips,
    field_ref_status_pod_ip,
    field_ref_status_pod_ips,
    resource_field_ref_limits,
    resource_field_ref_requests,
    resource_field_ref_divisor_rounds_up,
    resource_field_ref_container_name,
    resource_field_ref_limit_unset_is_node_allocatable,
    config_map_key_ref,
    config_map_key_ref_missing,
    config_map_key_ref_missing_key,
    config_map_keys_order_containers,
    secret_key_ref,
    secret_key_ref_missing,
    key_ref_optional,
    service_variables,
    service_variables_of_kubernetes,
    enable_service_links_false,
    hostname_of_host_network,
    command_expands_variables,
    args_expand_variables,
];

/// The environment of a pod with every kind of variable, and its object at the end.
fn environment(case: &Case<'_>) -> Vec<String> {
    case.once("environment", |case| {
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let amount = |name: &str, resource: &str, divisor: &str| {
            json!({"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}})
        };
        case.apply(&[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {
                "one": "1", "two": "2", "odd.key-1": "odd", "BOTH": "map", "CLASH": "map", "MY_DB_SERVICE_PORT": "mine"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": {
                "word": "psst", "BOTH": "secret"}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "my-db"}, "spec": {"clusterIP": "10.96.7.7",
                "ports": [{"name": "sql", "port": 5432}, {"name": "dns-udp", "port": 53, "protocol": "UDP"}]}}),
        ]);
        // The agent has a watch for services.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let env = json!([
            {"name": "PLAIN", "value": "p"}, {"name": "CLASH", "value": "env"}, {"name": "TWICE", "value": "1"},
            {"name": "TWICE", "value": "2"}, {"name": "EARLIER", "value": "$(PLAIN)-$(LATER)"},
            {"name": "LATER", "value": "l"}, {"name": "ESCAPED", "value": "$$(PLAIN)"},
            {"name": "UNKNOWN", "value": "$(NOBODY) $PLAIN $"}, {"name": "DB", "value": "$(MY_DB_SERVICE_HOST)"},
            field("NAME", "metadata.name"), field("SPACE", "metadata.namespace"), field("UID_OF", "metadata.uid"),
            field("LABEL", "metadata.labels['a.b/c']"), field("NOTE", "metadata.annotations['note']"),
            field("NODE", "spec.nodeName"), field("ACCOUNT", "spec.serviceAccountName"),
            field("HOST_IP", "status.hostIP"), field("HOST_IPS", "status.hostIPs"),
            field("POD_IP", "status.podIP"), field("POD_IPS", "status.podIPs"),
            amount("LIMIT_CPU", "limits.cpu", "1m"), amount("LIMIT_MEMORY", "limits.memory", "1"),
            amount("LIMIT_DISK", "limits.ephemeral-storage", "1Mi"),
            amount("REQUEST_CPU", "requests.cpu", "1m"), amount("REQUEST_MEMORY", "requests.memory", "1Mi"),
            amount("REQUEST_DISK", "requests.ephemeral-storage", "1Mi"),
            amount("CORES", "limits.cpu", "1"), amount("MEMORY_MB", "limits.memory", "1M"),
            {"name": "OTHER", "valueFrom": {"resourceFieldRef":
                {"containerName": "other", "resource": "requests.cpu", "divisor": "1m"}}},
            {"name": "ALL_CPU", "valueFrom": {"resourceFieldRef": {"containerName": "other", "resource": "limits.cpu"}}},
            {"name": "ALL_MEMORY", "valueFrom": {"resourceFieldRef":
                {"containerName": "other", "resource": "limits.memory", "divisor": "1Ki"}}},
            {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "two"}}},
            {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}},
            {"name": "NO_MAP", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x", "optional": true}}},
            {"name": "NO_KEY", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "none", "optional": true}}},
        ]);
        let from = json!([{"configMapRef": {"name": "map"}}, {"secretRef": {"name": "hidden"}},
            {"prefix": "M_", "configMapRef": {"name": "map"}}, {"configMapRef": {"name": "none", "optional": true}},
            {"secretRef": {"name": "none", "optional": true}}]);
        let main = json!({"name": "main", "env": env, "envFrom": from,
            "command": ["sh", "-c", "tr '\\0' '\\n' < /proc/1/environ > /shared/.all; echo command=$0 >> /shared/.all; echo args=$1 >> /shared/.all; \
                         mv /shared/.all /shared/all; exec sleep 100000", "$(PLAIN)$(KEY)"],
            "args": ["$(LATER)$$(LATER)$(NOBODY)"],
            "resources": {"limits": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "32Mi"},
                          "requests": {"cpu": "50m", "memory": "16Mi", "ephemeral-storage": "8Mi"}}});
        let other = json!({"name": "other", "command": ["sleep", "100000"], "resources": {"requests": {"cpu": "5m"}}});
        let metadata = json!({"labels": {"a.b/c": "label"}, "annotations": {"note": "a note"}});
        case.pod_with("all", metadata, json!({"containers": [main, other]}));
        let pod = case.wait("all", "is ready", is_ready);
        let node = case.kubectl.json(&["node", "node"]).expect("there is a node");
        let mut lines = case.output("all");
        lines.push(json!({"pod": pod, "node": node}).to_string());
        lines
    })
}

#[track_caller]
fn has(case: &Case<'_>, wanted: &[&str]) {
    let environment = environment(case);
    for line in wanted {
        assert!(environment.iter().any(|l| l == line), "{line} is not in {environment:#?}");
    }
}

fn objects(case: &Case<'_>) -> Value {
    serde_json::from_str(environment(case).last().map_or("", String::as_str)).expect("the objects come last")
}

/// A container that cannot be created has a reason; it starts as soon as the object exists.
#[track_caller]
fn waits_for(case: &Case<'_>, container: Value, message: &str, object: Value) {
    case.shell("p", SLEEP_FOREVER, container, json!({}));
    assert_eq!(case.wait_waiting("p", "CreateContainerConfigError")["message"], message);
    case.apply(&[object]);
    case.wait_ready("p");
}

fn env_order(case: &Case<'_>) {
    // The last definition wins, env over envFrom, and both over service variables.
    has(case, &["CLASH=env", "TWICE=2", "BOTH=secret", "MY_DB_SERVICE_PORT=mine"]);
}

fn env_from_prefix(case: &Case<'_>) {
    has(case, &["one=1", "M_one=1", "M_two=2", "word=psst"]);
}

fn env_from_passes_every_key(case: &Case<'_>) {
    has(case, &["odd.key-1=odd", "M_odd.key-1=odd"]);
}

fn env_from_optional(case: &Case<'_>) {
    // Two of its optional sources do not exist, and it runs.
    has(case, &["one=1"]);
}

fn env_from_missing(case: &Case<'_>) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"x": "y"}});
    let from = json!({"envFrom": [{"configMapRef": {"name": "late"}}]});
    waits_for(case, from, "configmap \"late\" not found", map);
}

fn var_of_earlier_variables(case: &Case<'_>) {
    has(case, &["EARLIER=p-$(LATER)"]);
}

fn var_of_service_variables(case: &Case<'_>) {
    has(case, &["DB=10.96.7.7"]);
}

fn var_escaped(case: &Case<'_>) {
    has(case, &["ESCAPED=$(PLAIN)"]);
}

fn var_unknown_stays(case: &Case<'_>) {
    has(case, &["UNKNOWN=$(NOBODY) $PLAIN $"]);
}

fn field_ref_metadata_name(case: &Case<'_>) {
    has(case, &["NAME=all"]);
}

fn field_ref_metadata_namespace(case: &Case<'_>) {
    has(case, &["SPACE=environment"]);
}

fn field_ref_metadata_uid(case: &Case<'_>) {
    has(case, &[&format!("UID_OF={}", text(&objects(case)["pod"]["metadata"]["uid"]))]);
}

fn field_ref_metadata_labels(case: &Case<'_>) {
    has(case, &["LABEL=label"]);
}

fn field_ref_metadata_annotations(case: &Case<'_>) {
    has(case, &["NOTE=a note"]);
}

fn field_ref_spec_node_name(case: &Case<'_>) {
    has(case, &["NODE=node"]);
}

fn field_ref_spec_service_account_name(case: &Case<'_>) {
    has(case, &["ACCOUNT=default"]);
}

fn field_ref_status_host_ip(case: &Case<'_>) {
    has(case, &["HOST_IP=198.18.0.1", &format!("HOST_IP={}", text(&objects(case)["pod"]["status"]["hostIP"]))]);
}

fn field_ref_status_host_ips(case: &Case<'_>) {
    has(case, &[&format!("HOST_IPS={}", text(&objects(case)["pod"]["status"]["hostIPs"][0]["ip"]))]);
}

fn field_ref_status_pod_ip(case: &Case<'_>) {
    has(case, &[&format!("POD_IP={}", text(&objects(case)["pod"]["status"]["podIP"]))]);
}

fn field_ref_status_pod_ips(case: &Case<'_>) {
    let status = objects(case)["pod"]["status"]["podIPs"].clone();
    let all: Vec<&str> = status.as_array().into_iter().flatten().map(|ip| text(&ip["ip"])).collect();
    has(case, &[&format!("POD_IPS={}", all.join(","))]);
}

fn resource_field_ref_limits(case: &Case<'_>) {
    has(case, &["LIMIT_CPU=250", "LIMIT_MEMORY=67108864", "LIMIT_DISK=32"]);
}

fn resource_field_ref_requests(case: &Case<'_>) {
    has(case, &["REQUEST_CPU=50", "REQUEST_MEMORY=16", "REQUEST_DISK=8"]);
}

fn resource_field_ref_divisor_rounds_up(case: &Case<'_>) {
    has(case, &["CORES=1", "MEMORY_MB=68"]);
}

fn resource_field_ref_container_name(case: &Case<'_>) {
    has(case, &["OTHER=5"]);
}

fn resource_field_ref_limit_unset_is_node_allocatable(case: &Case<'_>) {
    let allocatable = objects(case)["node"]["status"]["allocatable"].clone();
    let memory = text(&allocatable["memory"]).trim_end_matches("Ki").to_owned();
    has(case, &[&format!("ALL_CPU={}", text(&allocatable["cpu"])), &format!("ALL_MEMORY={memory}")]);
}

fn config_map_key_ref(case: &Case<'_>) {
    has(case, &["KEY=2"]);
}

fn config_map_key_ref_missing(case: &Case<'_>) {
    let env = json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "x"}}}]});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"x": "y"}});
    waits_for(case, env, "configmap \"late\" not found", map);
}

fn config_map_key_ref_missing_key(case: &Case<'_>) {
    let map =
        |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": data});
    case.apply(&[map(json!({"a": "b"}))]);
    let env = json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "x"}}}]});
    let message = format!("couldn't find key x in ConfigMap {}/late", case.namespace);
    waits_for(case, env, &message, map(json!({"x": "y"})));
}

/// OpenKruise's launch priority: each container waits for a key of its own, and holds up no other one. Statuses are in the order
/// of names.
fn config_map_keys_order_containers(case: &Case<'_>) {
    let map = |keys: &[&str]| {
        let data: Value = keys.iter().map(|key| ((*key).to_owned(), json!("open"))).collect();
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p-barrier"}, "data": data})
    };
    let container = |name: &str, key: &str| {
        let key = json!({"configMapKeyRef": {"name": "p-barrier", "key": key}});
        json!({"name": name, "command": shell(SLEEP_FOREVER), "env": [{"name": "BARRIER", "valueFrom": key}]})
    };
    case.apply(&[map(&["p_2"])]);
    case.pod("p", json!({"containers": [container("a", "p_0"), container("b", "p_1"), container("c", "p_2")]}));
    for (keys, ready) in [(&["p_2"][..], [false, false, true]), (&["p_1", "p_2"], [false, true, true])] {
        case.apply(&[map(keys)]);
        case.wait("p", "has its containers in order", |pod| {
            let all = pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is = |status: &Value, ready| match ready {
                true => status["ready"] == true,
                false => status["state"]["waiting"]["reason"] == "CreateContainerConfigError",
            };
            all.len() == 3 && all.iter().zip(ready).all(|(status, ready)| is(status, ready))
        });
    }
    case.apply(&[map(&["p_0", "p_1", "p_2"])]);
    let pod = case.wait_ready("p");
    let restarts = pod["status"]["containerStatuses"].as_array().into_iter().flatten().map(|c| &c["restartCount"]);
    assert!(restarts.into_iter().all(|count| count == 0), "{pod}");
}

fn secret_key_ref(case: &Case<'_>) {
    has(case, &["WORD=psst"]);
}

fn secret_key_ref_missing(case: &Case<'_>) {
    let env = json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "late", "key": "x"}}}]});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "stringData": {"x": "y"}});
    waits_for(case, env, "secret \"late\" not found", secret);
}

fn key_ref_optional(case: &Case<'_>) {
    let environment = environment(case);
    assert!(!environment.iter().any(|l| l.starts_with("NO_MAP=") || l.starts_with("NO_KEY=")), "{environment:#?}");
}

fn service_variables(case: &Case<'_>) {
    has(
        case,
        &[
            "MY_DB_SERVICE_HOST=10.96.7.7",
            "MY_DB_SERVICE_PORT_SQL=5432",
            "MY_DB_SERVICE_PORT_DNS_UDP=53",
            "MY_DB_PORT=tcp://10.96.7.7:5432",
            "MY_DB_PORT_5432_TCP=tcp://10.96.7.7:5432",
            "MY_DB_PORT_5432_TCP_PROTO=tcp",
            "MY_DB_PORT_5432_TCP_PORT=5432",
            "MY_DB_PORT_5432_TCP_ADDR=10.96.7.7",
            "MY_DB_PORT_53_UDP=udp://10.96.7.7:53",
        ],
    );
}

fn service_variables_of_kubernetes(case: &Case<'_>) {
    has(case, &["KUBERNETES_SERVICE_PORT=443", "KUBERNETES_SERVICE_PORT_HTTPS=443"]);
}

fn enable_service_links_false(case: &Case<'_>) {
    let _ = case.kubectl(&["create", "service", "clusterip", "web", "--tcp=80:80"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let seen = |name: &str, spec: Value| {
        let lines = case.run(name, "env", json!({}), spec);
        let any = |prefix: &str| lines.iter().any(|l| l.starts_with(prefix));
        (any("WEB_"), any("KUBERNETES_"))
    };
    assert_eq!(seen("with", json!({})), (true, true));
    assert_eq!(seen("without", json!({"enableServiceLinks": false})), (false, true));
}

fn hostname_of_host_network(case: &Case<'_>) {
    let own = case.run("own", "echo $HOSTNAME", json!({}), json!({}));
    let host = case.run("host", "hostname; echo $HOSTNAME", json!({}), json!({"hostNetwork": true}));
    let machine = case.testbed.sh("hostname").trim().to_owned();
    assert_eq!((own, host), (vec!["own".to_owned()], vec![machine.clone(), machine]));
}

fn command_expands_variables(case: &Case<'_>) {
    has(case, &["command=p2"]);
}

fn args_expand_variables(case: &Case<'_>) {
    has(case, &["args=l$(LATER)$(NOBODY)"]);
}
