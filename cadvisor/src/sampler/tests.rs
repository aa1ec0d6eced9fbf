//! The task on a recorded tree.

use std::time::Duration;

use super::*;
use crate::{
    Usage,
    source::tests::{CONTAINER, POD, Tree, subject, unpack},
};

/// Waits until the newest snapshot is as wanted.
async fn until(usage: &Usage, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    for _ in 0..100 {
        let snapshot = usage.snapshot();
        if wanted(&snapshot) {
            return snapshot;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not within 5 s: {:?}", usage.snapshot());
}

fn config(root: &std::path::Path) -> Config {
    Config { root: root.to_owned(), interval: Duration::from_secs(3600), max_age: Duration::ZERO, ..Config::default() }
}

#[tokio::test]
async fn new_containers_are_read_at_once_and_again_for_a_rate() {
    let dir = unpack(Tree::Hybrid);
    let (tell, subjects) = watch::channel(Arc::default());
    let usage = Usage::start(config(dir.path()), subjects, CancellationToken::new());
    usage.refresh().await;
    assert!(usage.snapshot().rows.is_empty());
    let missing = Subject { container_id: "e".repeat(64), pid: 7, ..subject() };
    tell.send_replace(Arc::new(vec![missing, subject()]));
    let snapshot = until(&usage, |s| !s.rows.is_empty()).await;
    assert_eq!(snapshot.rows.len(), 1, "the other is not there, and costs its own row only");
    let snapshot = until(&usage, |s| s.rows[0].usage_nano_cores.is_some()).await;
    assert_eq!(snapshot.rows[0].usage_nano_cores, Some(0), "recorded counters stand still");
    let pod = snapshot.pods.get(POD).expect("the pod's own cgroup");
    assert!(pod.cgroup.ends_with(POD) && pod.sample.memory.usage_bytes > 0);
    assert_eq!(usage.history(CONTAINER).await.len(), 2);
    assert!(usage.history("").await.len() >= 2);

    tell.send_replace(Arc::default());
    let snapshot = until(&usage, |s| s.rows.is_empty()).await;
    assert!(snapshot.pods.is_empty());
}

#[tokio::test]
async fn short_lived_containers_leave_no_descriptors() {
    let dir = unpack(Tree::V2);
    let (tell, subjects) = watch::channel(Arc::default());
    let usage = Usage::start(config(dir.path()), subjects, CancellationToken::new());
    let of_tree = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(dir.path().join("sys")))).count()
    };
    usage.refresh().await;
    let before = of_tree();
    for turn in 0..40 {
        tell.send_replace(Arc::new(vec![Subject { pod_name: format!("p{turn}"), ..subject() }]));
        until(&usage, |s| s.rows.len() == 1).await;
        tell.send_replace(Arc::default());
        until(&usage, |s| s.rows.is_empty()).await;
    }
    assert_eq!(of_tree(), before);
}

#[tokio::test]
async fn a_machine_without_cgroups_still_shows_the_node() {
    let dir = unpack(Tree::V2);
    std::fs::write(dir.path().join("proc/self/mountinfo"), "1 0 8:1 / / rw - ext4 /dev/sda rw\n").unwrap();
    let (_tell, subjects) = watch::channel(Arc::new(vec![subject()]));
    let usage = Usage::start(config(dir.path()), subjects, CancellationToken::new());
    usage.refresh().await;
    let summary = usage.summary(false);
    assert!(summary.node.cpu.usage_core_nano_seconds > 0 && summary.pods.is_empty());
}
