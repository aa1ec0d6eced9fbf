//! An idle node makes no writes and uses hardly any CPU.

use std::time::Duration;

use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

use crate::{WEB, shell_pod};

/// Long enough for a loop to show, short enough for a test.
const WINDOW: Duration = Duration::from_secs(4);

/// Write requests, without the renewals of leases.
fn writes(log: &str) -> Vec<&str> {
    let writing =
        |line: &str| ["POST", "PUT", "PATCH", "DELETE"].iter().any(|m| line.contains(&format!("method={m} ")));
    log.lines().filter(|l| writing(l) && !l.contains("/leases/")).collect()
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(WEB);
    kubectl.apply(&shell_pod("init-fails", "Never", "exit 1"));
    let _ = kubectl.run(&["wait", "pod", "-l", "app=web", "--for=condition=Ready", "--timeout=60s"]);
    let mut settles = |what: &str| {
        eventually(DEFAULT_TIMEOUT, what, || {
            let before = writes(&windlass.daemon().log()).len();
            std::thread::sleep(WINDOW);
            let log = windlass.daemon().log();
            let after = writes(&log);
            anyhow::ensure!(after.len() == before, "{} writes, the last is {:?}", after.len() - before, after.last());
            Ok(())
        });
    };
    settles("a node that has started its pods is quiet");
    let _ = kubectl.run(&["delete", "pod", "-l", "app=web"]);
    settles("a node that has replaced its pods is quiet");
    windlass.kill();
    windlass.up();
    let page = eventually(DEFAULT_TIMEOUT, "the node tells its metrics", || {
        testbed.try_sh("curl -fsS --max-time 5 http://127.0.0.1:10255/metrics")
    });
    assert!(page.contains("# TYPE windlass_empty_writes_total counter"), "{page}");
    assert!(!page.contains("windlass_empty_writes_total{"), "something was written in vain:\n{page}");
}
