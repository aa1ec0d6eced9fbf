//! `docs/kube-prometheus-stack.yaml`: its scrape targets exist and are readable with the chart's permissions, and each
//! job provides the series that the chart's rules and dashboards query.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, eventually};

const VALUES: &str = include_str!("../../../docs/kube-prometheus-stack.yaml");

/// The chart's account with its ClusterRole, and the Service that the operator keeps for kubelets.
const CHART: &str = r"
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
- {apiGroups: [''], resources: [nodes, nodes/metrics, services, endpoints, pods], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
- {nonResourceURLs: [/metrics, /metrics/cadvisor], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
";

/// The series that the chart's rules and dashboards query per job, of those that exist from the start.
const ASKED: [(&str, &[&str]); 6] = [
    (
        "apiserver",
        &[
            "apiserver_request_total",
            "apiserver_request_sli_duration_seconds_bucket",
            "apiserver_client_certificate_expiration_seconds_bucket",
            "workqueue_depth",
            "process_resident_memory_bytes",
        ],
    ),
    (
        "kube-scheduler",
        &[
            "scheduler_schedule_attempts_total",
            "scheduler_scheduling_attempt_duration_seconds_bucket",
            "process_cpu_seconds_total",
        ],
    ),
    (
        "kube-controller-manager",
        &[
            "workqueue_adds_total",
            "workqueue_depth",
            "workqueue_queue_duration_seconds_bucket",
            "rest_client_requests_total",
            "process_cpu_seconds_total",
        ],
    ),
    ("coredns", &["coredns_dns_requests_total", "coredns_cache_entries", "process_cpu_seconds_total"]),
    (
        "kube-proxy",
        &[
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket",
            "kubeproxy_network_programming_duration_seconds_bucket",
        ],
    ),
    ("kubelet", &["kubelet_node_name", "kubelet_running_pods", "container_memory_working_set_bytes"]),
];

/// The names of the series of a page.
fn names(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

/// What `metricRelabelings` leave of names; other labels than the name are not looked at.
fn relabelled(names: BTreeSet<String>, rules: &Value) -> BTreeSet<String> {
    let mut names = names;
    for rule in rules.as_array().into_iter().flatten() {
        if rule["sourceLabels"] != serde_json::json!(["__name__"]) {
            continue;
        }
        let regex = Regex::new(&format!("^(?:{})$", rule["regex"].as_str().expect("a regex"))).expect("it compiles");
        let keeps = match rule["action"].as_str() {
            Some("keep") => true,
            Some("drop") => false,
            other => panic!("{other:?} is not tried here"),
        };
        names.retain(|name| regex.is_match(name) == keeps);
    }
    names
}

/// The addresses of the Service that a monitor selects, with the port of this name.
fn targets(kubectl: &Kubectl<'_>, monitor: &Value, port: &str) -> anyhow::Result<Vec<String>> {
    let namespace = monitor["namespaceSelector"]["matchNames"][0].as_str().unwrap_or_default();
    let labels = monitor["selector"]["matchLabels"].as_object().expect("labels");
    let selector: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    let services = kubectl.json(&["services", "-n", namespace, "-l", &selector.join(",")])?;
    let service = services["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    anyhow::ensure!(!service.is_empty(), "no Service with {selector:?} in {namespace}");
    let of_service = format!("kubernetes.io/service-name={service}");
    let slices = kubectl.json(&["endpointslices", "-n", namespace, "-l", &of_service])?;
    let mut found = Vec::new();
    for slice in slices["items"].as_array().into_iter().flatten() {
        let ports = slice["ports"].as_array().into_iter().flatten();
        let numbers: Vec<u64> = ports.filter(|p| p["name"] == port).filter_map(|p| p["port"].as_u64()).collect();
        for address in slice["endpoints"].as_array().into_iter().flatten().flat_map(|e| e["addresses"].as_array()) {
            let of = |ip: &Value, number: u64| format!("{}:{number}", ip.as_str().unwrap_or_default());
            found.extend(address.iter().flat_map(|ip| numbers.iter().map(move |number| of(ip, *number))));
        }
    }
    anyhow::ensure!(!found.is_empty(), "Service {namespace}/{service} has no endpoint with a port {port}");
    Ok(found)
}

/// The job and the page of one endpoint of a monitor.
fn scrape(
    testbed: &Testbed,
    kubectl: &Kubectl<'_>,
    token: &str,
    monitor: &Value,
) -> anyhow::Result<(String, BTreeSet<String>)> {
    let endpoint = &monitor["endpoints"][0];
    let scheme = endpoint["scheme"].as_str().unwrap_or("http");
    let mut target = targets(kubectl, monitor, endpoint["port"].as_str().unwrap_or_default())?.remove(0);
    let mut job = String::new();
    for rule in endpoint["relabelings"].as_array().into_iter().flatten() {
        let replacement = rule["replacement"].as_str().unwrap_or_default();
        match rule["targetLabel"].as_str() {
            Some("job") => job = replacement.to_owned(),
            Some("__address__") => {
                let regex = Regex::new(&format!("^(?:{})$", rule["regex"].as_str().expect("a regex")))?;
                target = regex.replace(&target, replacement.replace("$1", "${1}").as_str()).into_owned();
            }
            other => panic!("{other:?} is not tried here"),
        }
    }
    let credentials = match endpoint["bearerTokenFile"].as_str() {
        Some(_) => format!("-H 'Authorization: Bearer {token}'"),
        None => String::new(),
    };
    // The name in the certificate that Prometheus is configured to expect.
    let (host, port) = target.rsplit_once(':').expect("a port");
    let name = endpoint["tlsConfig"]["serverName"].as_str().unwrap_or(host);
    let ca = testbed.dir().join("ca.crt");
    let tls = if scheme == "https" {
        format!("--cacert {} --resolve {name}:{port}:{host}", ca.display())
    } else {
        String::new()
    };
    let page =
        testbed.try_sh(&format!("curl -fsS --max-time 10 {tls} {credentials} {scheme}://{name}:{port}/metrics"))?;
    Ok((job, relabelled(names(&page), &endpoint["metricRelabelings"])))
}

#[test]
fn the_values_of_kube_prometheus_stack_lead_to_what_is_asked_for() {
    let values: Value = serde_saphyr::from_str(VALUES).expect("YAML");
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass().with(&["--metrics-bind-address", "0.0.0.0:10249"]);
    let kubectl = windlass.up();
    kubectl.apply(CHART);
    let address =
        kubectl.run(&["get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}"]);
    // As the operator keeps it.
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: kubelet, namespace: kube-system, labels: {{k8s-app: kubelet, app.kubernetes.io/name: kubelet}}}}\n\
         spec: {{clusterIP: None, ports: [{{name: https-metrics, port: 10250}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: kubelet, namespace: kube-system, labels: {{kubernetes.io/service-name: kubelet}}}}\n\
         addressType: IPv4\nports: [{{name: https-metrics, port: 10250, protocol: TCP}}]\nendpoints: [{{addresses: ['{address}']}}]\n"
    ));
    let token = kubectl.run(&["create", "token", "prometheus"]).trim().to_owned();
    let ca = kubectl.run(&["get", "configmap", "kube-root-ca.crt", "-o", r"jsonpath={.data.ca\.crt}"]);
    std::fs::write(testbed.dir().join("ca.crt"), ca).expect("the CA");
    // A name is asked for, so that the DNS has counted one; a pod is placed, so that the scheduler has.
    kubectl.apply(&crate::shell_pod("asks", "Never", "nslookup kubernetes.default.svc.cluster.local; sleep 600"));

    let tls = serde_json::json!({"serverName": "kubernetes"});
    let chart = |port: &str, metric: &Value| {
        serde_json::json!({"selector": {"matchLabels": {"component": "apiserver", "provider": "kubernetes"}},
            "namespaceSelector": {"matchNames": ["default"]},
            "endpoints": [{"port": port, "scheme": "https", "bearerTokenFile": "token", "tlsConfig": tls,
                "relabelings": [{"targetLabel": "job", "replacement": "apiserver"}], "metricRelabelings": metric}]})
    };
    let mut monitors = vec![chart("https", &values["kubeApiServer"]["serviceMonitor"]["metricRelabelings"])];
    monitors.extend(values["prometheus"]["additionalServiceMonitors"].as_array().cloned().unwrap_or_default());
    assert_eq!(monitors.len(), 5);
    eventually(DEFAULT_TIMEOUT, "every job has what is asked for of it", || {
        let mut missing = Vec::new();
        for monitor in &monitors {
            let (job, found) = scrape(&testbed, &kubectl, &token, monitor)?;
            let asked = ASKED.iter().find(|(of, _)| *of == job).unwrap_or_else(|| panic!("who asks for {job}?")).1;
            missing.extend(asked.iter().filter(|name| !found.contains(**name)).map(|name| format!("{job}: {name}")));
            // What another job counts would be counted twice.
            let strange = found.iter().filter(|name| match job.as_str() {
                "apiserver" | "kube-controller-manager" => {
                    name.starts_with("scheduler_") || name.starts_with("coredns_")
                }
                "kube-scheduler" => name.starts_with("apiserver_"),
                _ => name.starts_with("apiserver_") || name.starts_with("scheduler_"),
            });
            missing.extend(strange.map(|name| format!("{job} has {name}")));
        }
        let mut kubelet = BTreeSet::new();
        for path in ["/metrics", "/metrics/cadvisor", "/metrics/probes"] {
            let line =
                format!("curl -kfsS --max-time 10 -H 'Authorization: Bearer {token}' https://{address}:10250{path}");
            kubelet.extend(names(&testbed.try_sh(&line)?));
        }
        missing
            .extend(ASKED[5].1.iter().filter(|name| !kubelet.contains(**name)).map(|name| format!("kubelet: {name}")));
        anyhow::ensure!(missing.is_empty(), "{missing:#?}");
        Ok(())
    });
    // And not without rights.
    let refused = testbed.sh(&format!("curl -ks -o /dev/null -w '%{{http_code}}' https://{address}:6443/metrics"));
    assert_eq!(refused.trim(), "401");
}
