//! `kill -9` of windlass: pods and traffic survive.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

use crate::{WEB, container_id};

#[test]
fn a_killed_windlass_finds_everything_as_it_was() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(WEB);
    let _ = kubectl.run(&["create", "configmap", "kept", "--from-literal=a=b"]);
    let pods = eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    let ids: Vec<String> = pods.iter().map(container_id).collect();
    let cluster_ip = kubectl.run(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    eventually(DEFAULT_TIMEOUT, "the service answers", || {
        testbed.try_sh(&format!("curl -fsS --max-time 5 http://{cluster_ip}/"))
    });
    let running = testbed.docker(&["ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]);

    // One connection stays open across the crash, and new ones are opened all the time.
    let (stop, failures, asked) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                asked.fetch_add(1, Ordering::Relaxed);
                if testbed.try_sh(&format!("curl -fsS --max-time 3 http://{cluster_ip}/")).is_err() {
                    failures.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let long = scope.spawn(|| {
            // The connection carries a request every half second for eight seconds.
            testbed.try_sh(&format!(
                "(for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do printf 'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'; sleep 0.5; done) | busybox nc -w 3 {cluster_ip} 80 | grep -c '^HTTP/1.1 200'"
            ))
        });
        std::thread::sleep(std::time::Duration::from_secs(1));
        windlass.kill();
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(testbed.docker(&["ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]), running);
        windlass.up();
        assert_eq!(long.join().unwrap().unwrap().trim(), "16", "the open connection must survive");
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(failures.load(Ordering::Relaxed), 0, "of {} requests", asked.load(Ordering::Relaxed));
    assert!(asked.load(Ordering::Relaxed) > 20);

    // Containers are adopted, not restarted; and every object exists.
    let after = eventually(DEFAULT_TIMEOUT, "two pods are Ready", || kubectl.ready_pods("app=web", 2));
    assert_eq!(after.iter().map(container_id).collect::<Vec<_>>(), ids);
    assert!(after.iter().all(|p| p["status"]["containerStatuses"][0]["restartCount"] == 0));
    assert_eq!(testbed.docker(&["ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]), running);
    assert_eq!(kubectl.json(&["configmap", "kept"]).unwrap()["data"]["a"], "b");
    assert_eq!(kubectl.run(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]), cluster_ip);

    // Changes during the downtime are handled: a container that died meanwhile is restarted.
    windlass.kill();
    testbed.docker(&["kill", &ids[0]]);
    windlass.up();
    eventually(DEFAULT_TIMEOUT, "the dead container is replaced", || {
        let pods = kubectl.ready_pods("app=web", 2)?;
        let total: u64 = pods.iter().filter_map(|p| p["status"]["containerStatuses"][0]["restartCount"].as_u64()).sum();
        anyhow::ensure!(total == 1, "{total} restarts");
        Ok(())
    });
}
