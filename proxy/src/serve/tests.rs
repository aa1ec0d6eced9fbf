use std::time::Instant;

use serde_json::json;

use super::*;
use crate::model::{Family, Model};

#[test]
fn healthz_fails_while_a_change_is_pending_for_too_long() {
    let status = Status::new(Duration::from_secs(30));
    status.start(Family::V4);
    status.start(Family::V6);
    // A base for alerts on what was queued and is not synced.
    assert!(status.lock().families.values().all(|family| family.last_queued.is_some()));
    let now = jiff::Timestamp::now();
    let (ok, body) = status.health(true, now);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(!ok && body["healthy"] == true && body["nodeEligible"] == false, "our node is not known yet: {body}");
    status.lock().eligible = true;
    assert!(status.health(true, now).0 && status.health(false, now).0);
    // A change that does not concern a family does not make it wait.
    status.queued(|family| family == Family::V6);
    let pending = |family| status.lock().families[&family].pending_since.is_some();
    assert_eq!(Family::BOTH.map(pending), [false, true]);
    status.queued(|_| true);
    assert!(status.health(true, now).0);
    let long_ago = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
    status.lock().families.get_mut(&Family::V6).unwrap().pending_since = Some(long_ago);
    let (ok, body) = status.health(true, now);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(!ok && body["status"]["IPv4"]["healthy"] == true && body["status"]["IPv6"]["healthy"] == false);
    assert_eq!(body["nodeEligible"], true);
    status.record_sync(Family::V6, Duration::from_millis(5), SyncOutcome::Failed { full: false }, |_| {});
    assert!(!status.is_healthy());
    status.record_sync(Family::V6, Duration::from_millis(5), SyncOutcome::Done { full: true }, |_| {});
    assert!(status.health(true, now).0);
    let page = metrics::page(&status, [Some(1); 2]);
    let silent = ["rest_client_requests_total", "rest_client_request_duration_seconds"];
    assert_eq!(windlass_tests::metrics_table::differences("proxy", &page, &silent), [""; 0]);
    assert_eq!(windlass_tests::metrics_table::unlike("proxy", &page), [""; 0]);
    for line in [
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.008\"} 1",
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1",
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv6\"} 1",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 2",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1",
    ] {
        assert!(page.lines().any(|l| l == line), "{line}\n{page}");
    }
}

async fn get(port: u16) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"GET /any HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn health_check_node_ports_report_local_endpoints() {
    let free = || std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let (first, second) = (free(), free());
    let status = Arc::new(Status::new(Duration::from_secs(30)));
    let mut health = HealthCheckServers::new(status.clone(), None, CancellationToken::new());
    let everywhere = |family| vec![if family == Family::V4 { "0.0.0.0" } else { "::" }.parse().unwrap()];
    let wanted = |port, count| LocalEndpoints { services: [("ns/web".into(), (port, count))].into() };
    for family in Family::BOTH {
        assert!(health.set(family, wanted(first, 2), &everywhere(family), Instant::now()));
    }
    let text = get(first).await;
    assert!(text.contains(" 200 ") && text.to_lowercase().contains("x-load-balancing-endpoint-weight: 2"), "{text}");
    assert!(text.contains("\t\"localEndpoints\": 2,"), "{text}");
    assert!(health.set(Family::V4, wanted(first, 0), &everywhere(Family::V4), Instant::now()));
    assert!(get(first).await.contains(" 503 "));
    // The port moves to another Service at once, as when one is replaced by force, and to a single address.
    let other = LocalEndpoints { services: [("ns/other".into(), (first, 1))].into() };
    assert!(health.set(Family::V4, other, &everywhere(Family::V4), Instant::now()));
    assert!(get(first).await.contains("\"name\": \"other\""));
    assert!(health.set(Family::V4, wanted(first, 1), &["127.0.0.1".parse().unwrap()], Instant::now()));
    assert!(get(first).await.contains("\"name\": \"web\""));
    let taken = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    assert!(!health.set(Family::V6, wanted(port, 1), &everywhere(Family::V6), Instant::now()), "a port that is taken");
    for family in Family::BOTH {
        assert!(health.set(family, wanted(second, 1), &everywhere(family), Instant::now()));
    }
    assert!(get(second).await.contains(" 200 "));
    assert!(tokio::net::TcpStream::connect(("::1", second)).await.is_ok());
    health.close().await;
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", second)).await.is_err());
}

/// A load balancer that weighs nodes by this number must not count a pod of two families twice.
#[test]
fn each_family_counts_its_own_endpoints() {
    let mut model = Model::default();
    let service = json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {
        "type": "LoadBalancer", "clusterIP": "172.30.0.1", "clusterIPs": ["172.30.0.1", "fd00:172::1"],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000, "ports": [{"port": 80}, {"name": "b", "port": 81}]}});
    model.put_service(&serde_json::from_value(service).unwrap());
    assert!(model.take_changes().health_checks);
    for (family, addresses) in [("IPv4", &["10.0.0.1"][..]), ("IPv6", &["fd00::1", "fd00::2"])] {
        let endpoints: Vec<_> = addresses.iter().map(|a| json!({"addresses": [a], "nodeName": "n1"})).collect();
        let slice = json!({"metadata": {"name": family, "namespace": "ns", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": family, "ports": [{"name": "", "port": 80}, {"name": "b", "port": 81}], "endpoints": endpoints});
        model.put_slice(&serde_json::from_value(slice).unwrap(), "n1");
    }
    assert!(model.take_changes().health_checks);
    for (family, count) in [(Family::V4, 1), (Family::V6, 2)] {
        assert_eq!(LocalEndpoints::of(&model, family).services["ns/web"], (30_000, count));
    }
    let other = json!({"metadata": {"name": "x", "namespace": "ns"}, "spec": {"clusterIP": "172.30.0.2", "ports": [{"port": 80}]}});
    model.put_service(&serde_json::from_value(other).unwrap());
    assert!(!model.take_changes().health_checks);
}
