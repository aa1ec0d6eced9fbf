//! The node's metrics, read by promtool, a real Prometheus and clients of cAdvisor; and the ranges that upstream's node
//! tests require.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use windlass_tests::{DEFAULT_TIMEOUT, Daemon, Testbed, eventually, metrics_table};

use crate::shell_pod;

const NODE: &str = "http://127.0.0.1:10255";
const PAGES: [&str; 4] = ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"];

/// The pod of upstream's tests, with a probe and a claim added.
const POD: &str = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  hostPath: {path: DIR}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claimed}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: stats}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: data, persistentVolumeClaim: {claimName: claimed}}
  containers:
  - name: busybox
    image: windlass/busybox:1
    command: [sh, -c, "dd if=/dev/zero of=/scratch/file bs=100k count=1; dd if=/dev/zero of=/layer bs=1M count=1; while :; do echo hello; for i in 1 2 3 4 5 6 7 8 9; do head -c 100000 /dev/zero | md5sum >/dev/null; done; sleep 0.1; done"]
    resources: {limits: {memory: 80M}}
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: data, mountPath: /data}
"#;

fn get(testbed: &Testbed, path: &str) -> anyhow::Result<String> {
    testbed.try_sh(&format!("curl -fsS --max-time 10 '{NODE}{path}'"))
}

fn json(testbed: &Testbed, path: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&get(testbed, path)?)?)
}

/// The value of the only series with this prefix.
fn series(page: &str, name: &str, labels: &[&str]) -> anyhow::Result<f64> {
    let mut found = page.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|l| line.contains(l))
    });
    let line = found.next().ok_or_else(|| anyhow::anyhow!("no {name} with {labels:?}"))?;
    anyhow::ensure!(found.next().is_none(), "several {name} with {labels:?}");
    let value = line.rsplit_once('}').map_or(line, |(_, rest)| rest);
    Ok(value.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(f64::NAN))
}

fn within(what: &str, value: f64, low: f64, high: f64) -> anyhow::Result<()> {
    anyhow::ensure!((low..=high).contains(&value), "{what} is {value}, not within {low}..{high}");
    Ok(())
}

/// Checks the sections of the Summary API against upstream's expectations for such a pod.
fn check_summary(testbed: &Testbed) -> anyhow::Result<()> {
    let summary = json(testbed, "/stats/summary")?;
    let all = summary["pods"].as_array().cloned().unwrap_or_default();
    let pod = all.iter().find(|p| p["podRef"]["name"] == "stats").ok_or_else(|| anyhow::anyhow!("no pod"))?;
    let container = &pod["containers"][0];
    let range = |of: &Value, path: &str, low: f64, high: f64| {
        let value = of.pointer(path).and_then(Value::as_f64).ok_or_else(|| anyhow::anyhow!("no {path} in {of}"))?;
        within(path, value, low, high)
    };
    let (node_memory, limit) = (1e12, 80e6);
    for (path, low, high) in [
        ("/cpu/usageNanoCores", 1e4, 1e9),
        ("/cpu/usageCoreNanoSeconds", 1e7, 1e11),
        ("/memory/availableBytes", 1e3, limit),
        ("/memory/usageBytes", 1e4, limit),
        ("/memory/workingSetBytes", 1e4, limit),
        ("/memory/rssBytes", 1e3, limit),
        ("/memory/pageFaults", 100.0, 1e9),
        ("/memory/majorPageFaults", 0.0, 1e9),
        ("/rootfs/usedBytes", 1e3, 1e7),
        ("/rootfs/availableBytes", 1e8, 1e13),
        ("/rootfs/capacityBytes", 1e8, 1e13),
        ("/rootfs/inodesUsed", 0.0, 1e8),
        ("/logs/usedBytes", 1e3, 1e7),
        ("/logs/capacityBytes", 1e8, 1e13),
        ("/swap/swapUsageBytes", 0.0, limit),
    ] {
        range(container, path, low, high)?;
    }
    for (path, low, high) in [
        ("/cpu/usageNanoCores", 1e4, 1e9),
        ("/memory/workingSetBytes", 1e4, limit),
        ("/network/rxBytes", 0.0, 1e7),
        ("/network/interfaces/0/txErrors", 0.0, 1000.0),
        ("/ephemeral-storage/usedBytes", 1e3, 21e6),
        ("/process_stats/process_count", 1.0, 1e8),
    ] {
        range(pod, path, low, high)?;
    }
    anyhow::ensure!(pod["network"]["name"] == "eth0" && container["userDefinedMetrics"].is_null(), "{pod}");
    let volumes = pod["volume"].as_array().cloned().unwrap_or_default();
    let volume =
        |name: &str| volumes.iter().find(|v| v["name"] == name).ok_or_else(|| anyhow::anyhow!("no {name}: {pod}"));
    range(volume("scratch")?, "/usedBytes", 1e5, 1e6)?;
    anyhow::ensure!(volume("scratch")?["pvcRef"].is_null());
    let claim = serde_json::json!({"name": "claimed", "namespace": "default"});
    anyhow::ensure!(volume("data")?["pvcRef"] == claim, "{volumes:?}");
    range(volume("data")?, "/capacityBytes", 1e8, 1e13)?;
    for (path, low, high) in [
        ("/cpu/usageNanoCores", 1e5, 3e10),
        ("/cpu/usageCoreNanoSeconds", 1e9, 1e16),
        ("/memory/availableBytes", 1e8, node_memory),
        ("/memory/workingSetBytes", 1e7, node_memory),
        ("/memory/pageFaults", 1000.0, 1e12),
        ("/fs/usedBytes", 1e3, 1e13),
        ("/runtime/imageFs/usedBytes", 1e3, 1e13),
        ("/runtime/containerFs/availableBytes", 1e8, 1e13),
        ("/rlimit/maxpid", 1.0, 1e8),
        ("/rlimit/curproc", 1.0, 1e8),
    ] {
        range(&summary["node"], path, low, high)?;
    }
    let system: Vec<&str> = summary["node"]["systemContainers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|c| c["name"].as_str())
        .collect();
    anyhow::ensure!(system.contains(&"kubelet") && system.contains(&"pods"), "{system:?}");
    let reduced = json(testbed, "/stats/summary?only_cpu_and_memory=true")?;
    let pods = reduced["pods"].as_array().cloned().unwrap_or_default();
    let small = pods.iter().find(|p| p["podRef"]["name"] == "stats").ok_or_else(|| anyhow::anyhow!("no pod"))?;
    let mut keys: Vec<&String> = small.as_object().into_iter().flatten().map(|(key, _)| key).collect();
    keys.sort();
    anyhow::ensure!(keys == ["containers", "cpu", "memory", "podRef", "startTime", "swap"], "{keys:?}");
    Ok(())
}

fn check_metrics(testbed: &Testbed) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let page = get(testbed, "/metrics/cadvisor")?;
    let of = ["container=\"busybox\"", "pod=\"stats\"", "namespace=\"default\"", "image=\"windlass/busybox:1\""];
    for (name, low, high) in [
        ("container_cpu_usage_seconds_total", 0.0, 100.0),
        ("container_file_descriptors", 1.0, 100.0),
        ("container_fs_usage_bytes", 1e3, 1e7),
        ("container_last_seen", now - 60.0, now + 120.0),
        ("container_start_time_seconds", now - 300.0, now + 120.0),
        ("container_memory_cache", 0.0, 1e7),
        ("container_memory_failcnt", 0.0, 0.0),
        ("container_oom_events_total", 0.0, 0.0),
        ("container_memory_max_usage_bytes", 1e4, 80e6),
        ("container_memory_working_set_bytes", 1e4, 80e6),
        ("container_processes", 1.0, 10.0),
        ("container_sockets", 0.0, 10.0),
        ("container_threads", 1.0, 10.0),
        ("container_ulimits_soft", -1.0, 1_073_741_816.0),
        ("container_spec_cpu_period", 100_000.0, 100_000.0),
        ("container_spec_cpu_shares", 2.0, 2.0),
        ("container_spec_memory_limit_bytes", 79_953_920.0, 80_000_000.0),
    ] {
        within(name, series(&page, name, &of)?, low, high)?;
    }
    let sandbox = ["container=\"POD\"", "pod=\"stats\"", "interface=\"eth0\""];
    within("tx", series(&page, "container_network_transmit_bytes_total", &sandbox)?, 0.0, 1e7)?;
    within("cores", series(&page, "machine_cpu_cores", &[])?, 1.0, 1024.0)?;
    let page = get(testbed, "/metrics/resource")?;
    let of = ["container=\"busybox\"", "pod=\"stats\"", "namespace=\"default\""];
    within("cpu", series(&page, "container_cpu_usage_seconds_total", &of)?, 0.001, 100.0)?;
    within("memory", series(&page, "container_memory_working_set_bytes", &of)?, 1e4, 80e6)?;
    within("start", series(&page, "container_start_time_seconds", &of)?, now - 300.0, now + 120.0)?;
    within("node", series(&page, "node_memory_working_set_bytes", &[])?, 1e7, 1e12)?;
    within("error", series(&page, "resource_scrape_error", &[])?, 0.0, 0.0)?;
    let page = get(testbed, "/metrics/probes")?;
    let of = ["probe_type=\"Liveness\"", "result=\"successful\"", "container=\"busybox\"", "pod=\"stats\""];
    within("probes", series(&page, "prober_probe_total", &of)?, 2.0, 1e4)?;
    let page = get(testbed, "/metrics")?;
    let of = ["namespace=\"default\"", "persistentvolumeclaim=\"claimed\""];
    within("volume", series(&page, "kubelet_volume_stats_capacity_bytes", &of)?, 1e8, 1e13)
}

/// What may not have happened yet on a node, or does not hold for its pods: failures, ends, evictions, resizes, quotas.
const SILENT: [&str; 19] = [
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "kubelet_admission_rejections_total",
    "kubelet_cgroup_manager_duration_seconds",
    "kubelet_evictions",
    "kubelet_image_garbage_collected_total",
    "kubelet_image_pull_duration_seconds",
    "kubelet_pod_infeasible_resizes_total",
    "kubelet_pod_pending_resizes",
    "kubelet_preemptions",
    "kubelet_run_podsandbox_errors_total",
    "kubelet_runtime_operations_errors_total",
    "kubelet_started_containers_errors_total",
    "kubelet_terminated_containers_total",
    "kubelet_websocket_streaming_requests_total",
    "kubelet_certificate_manager_server_ttl_seconds",
    "kubelet_volume_stats_health_status_abnormal",
    "rest_client_requests_total",
    "rest_client_request_duration_seconds",
];

/// Every page of the node and of its proxy has upstream's names, types, labels and buckets.
fn check_table(testbed: &Testbed) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    for (table, path) in [
        ("node", "/metrics"),
        ("node/cadvisor", "/metrics/cadvisor"),
        ("node/resource", "/metrics/resource"),
        ("node/probes", "/metrics/probes"),
        ("node/slis", "/metrics/slis"),
    ] {
        let page = get(testbed, path)?;
        problems.extend(metrics_table::differences(table, &page, &SILENT));
        if matches!(table, "node" | "node/resource") {
            problems.extend(metrics_table::unlike(table, &page));
        }
        let served = |name: &&str| page.contains(&format!("# TYPE {name} "));
        problems.extend(metrics_table::absent().filter(served).map(|name| format!("{name} is there")));
    }
    // Whether the kernel counts packets depends on its modules.
    let counted =
        ["kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "kubeproxy_iptables_localhost_nodeports"];
    for (table, path) in [("proxy", "/metrics"), ("proxy/slis", "/metrics/slis")] {
        let page = testbed.try_sh(&format!("curl -fsS --max-time 10 'http://127.0.0.1:10249{path}'"))?;
        let found = metrics_table::differences(table, &page, &SILENT);
        problems.extend(found.into_iter().filter(|problem| !counted.iter().any(|name| problem.starts_with(name))));
        problems.extend(metrics_table::unlike(table, &page));
    }
    anyhow::ensure!(problems.is_empty(), "{problems:#?}");
    Ok(())
}

/// A container outside of pods, as seen by clients of cAdvisor.
fn check_stranger(testbed: &Testbed) -> anyhow::Result<()> {
    let found = json(testbed, "/api/v1.3/docker/lonely")?;
    let (name, info) = found.as_object().and_then(|m| m.iter().next()).ok_or_else(|| anyhow::anyhow!("none"))?;
    anyhow::ensure!(info["name"] == *name && info["aliases"][0] == "lonely", "{info}");
    // The labels of the container and its image, without any of ours.
    let labels: Vec<&String> = info["spec"]["labels"].as_object().into_iter().flatten().map(|(key, _)| key).collect();
    anyhow::ensure!(labels == ["bar", "io.windlass.sample"] && info["spec"]["labels"]["bar"] == "baz", "{info}");
    anyhow::ensure!(info["spec"]["memory"]["limit"] == 64 << 20, "{}", info["spec"]);
    let memory = info["stats"].as_array().and_then(|all| all.last()).map_or(&Value::Null, |s| &s["memory"]);
    anyhow::ensure!(memory["usage"].as_u64().is_some_and(|bytes| bytes > 10_000), "{memory}");
    let one = json(testbed, &format!("/api/v2.1/stats{name}?count=1"))?;
    anyhow::ensure!(one[name]["stats"].as_array().map(Vec::len) == Some(1), "{one}");
    let page = get(testbed, "/metrics/cadvisor")?;
    series(&page, "container_memory_usage_bytes", &["name=\"lonely\"", "container=\"\"", "pod=\"\""])?;
    anyhow::ensure!(json(testbed, "/api/v2.1/machinestats?count=1")?[0]["memory"]["usage"].as_u64() > Some(0));
    Ok(())
}

#[test]
fn metrics_are_correct_and_parsed_by_their_clients() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let dir = testbed.dir().join("volume");
    std::fs::create_dir_all(&dir).expect("the volume's folder");
    kubectl.apply(&POD.replace("DIR", &dir.display().to_string()));
    testbed.docker(&[
        "run",
        "-d",
        "--name",
        "lonely",
        "--label",
        "bar=baz",
        "--memory",
        "64m",
        "--network",
        "none",
        "windlass/busybox:1",
        "sleep",
        "100000",
    ]);
    let timeout = Duration::from_secs(150);
    eventually(timeout, "the summary is within upstream's ranges", || check_summary(&testbed));
    eventually(timeout, "the metrics are within upstream's ranges", || check_metrics(&testbed));
    eventually(timeout, "the pages are as the table has them", || check_table(&testbed));
    eventually(DEFAULT_TIMEOUT, "a container outside pods is told", || check_stranger(&testbed));

    for page in PAGES {
        // Code 3 is a style warning, which upstream has too; 1 is an unreadable page.
        let printed = testbed.sh(&format!("curl -fsS {NODE}{page} | promtool check metrics 2>&1; echo code $?"));
        assert!(printed.ends_with("code 0\n") || printed.ends_with("code 3\n"), "{page}: {printed}");
        let open =
            testbed.sh(&format!("curl -fsSi -H 'Accept: application/openmetrics-text;version=1.0.0' {NODE}{page}"));
        assert!(
            open.contains("content-type: application/openmetrics-text") && open.ends_with("# EOF\n"),
            "{page}: {open}"
        );
    }
    let (plain, packed) = (
        testbed.sh(&format!("curl -fsS {NODE}/metrics/cadvisor | wc -c")),
        testbed.sh(&format!("curl -fsS -H 'Accept-Encoding: gzip' {NODE}/metrics/cadvisor | tee packed | wc -c; gzip -t packed; rm packed")),
    );
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or(0);
    assert!(number(&packed) > 0 && number(&packed) * 3 < number(&plain), "{packed} of {plain}");
    scraped(&testbed);

    testbed.docker(&["rm", "-f", "lonely"]);
    eventually(DEFAULT_TIMEOUT, "what is gone is forgotten", || {
        anyhow::ensure!(!get(&testbed, "/metrics/cadvisor")?.contains("lonely"), "still there");
        Ok(())
    });
}

/// A real Prometheus scrapes every page, in its preferred format.
fn scraped(testbed: &Testbed) {
    let dir = testbed.dir().join("prometheus");
    std::fs::create_dir_all(&dir).expect("its folder");
    let jobs: String = PAGES
        .iter()
        .map(|page| {
            format!(
                "- job_name: {page}\n  metrics_path: {page}\n  static_configs: [{{targets: ['127.0.0.1:10255']}}]\n"
            )
        })
        .collect();
    let config = dir.join("prometheus.yml");
    std::fs::write(&config, format!("global: {{scrape_interval: 2s, scrape_timeout: 2s}}\nscrape_configs:\n{jobs}"))
        .expect("its settings");
    let mut command = testbed.command("prometheus");
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg("--web.listen-address=127.0.0.1:9090");
    let _prometheus = Daemon::start("prometheus", &mut command, &dir.join("log")).expect("prometheus");
    let ask = |query: &str| -> anyhow::Result<Vec<Value>> {
        let line =
            format!("curl -fsS --max-time 5 -G --data-urlencode 'query={query}' http://127.0.0.1:9090/api/v1/query");
        let answer: Value = serde_json::from_str(&testbed.try_sh(&line)?)?;
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    };
    eventually(DEFAULT_TIMEOUT, "Prometheus has what the node tells", || {
        let up = ask("up == 1")?;
        anyhow::ensure!(up.len() == PAGES.len(), "{up:?}");
        let rates =
            ask("rate(container_cpu_usage_seconds_total{container=\"busybox\",job=\"/metrics/resource\"}[30s]) > 0")?;
        anyhow::ensure!(rates.len() == 1, "{rates:?}");
        anyhow::ensure!(
            ask("container_memory_working_set_bytes{container=\"busybox\"}")?.len() == 2,
            "one of each page"
        );
        anyhow::ensure!(ask("prober_probe_total{pod=\"stats\",result=\"successful\"}")?.len() == 1);
        Ok(())
    });
    let output = testbed.sh("curl -fsS http://127.0.0.1:9090/metrics");
    for refused in ["sample_duplicate_timestamp", "sample_out_of_order", "sample_out_of_bounds"] {
        let name = format!("prometheus_target_scrapes_{refused}_total");
        assert_eq!(series(&output, &name, &[]).expect("its own count"), 0.0, "{refused}");
    }
}

#[test]
fn oom_kills_are_counted_over_restarts() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    let greedy = shell_pod("greedy", "Always", "sleep 2; exec dd if=/dev/zero of=/dev/null bs=100M count=1")
        .replace("    command:", "    resources: {limits: {memory: 16Mi}}\n    command:");
    kubectl.apply(&greedy);
    eventually(Duration::from_secs(120), "the second run is killed too", || {
        let pods = kubectl.pods("test=greedy")?;
        let restarts = pods[0]["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
        anyhow::ensure!(restarts >= 2, "{restarts} restarts");
        Ok(())
    });
    eventually(DEFAULT_TIMEOUT, "both are counted", || {
        let page = get(&testbed, "/metrics/cadvisor")?;
        let kills = series(&page, "container_oom_events_total", &["container=\"\"", "pod=\"greedy\""])?;
        within("kills", kills, 2.0, 10.0)
    });
}
