//! The sampler on a recorded tree.

use std::time::Duration;

use super::{cgroup_state::Key, reading::ReadResult, *};
use crate::{
    Usage,
    source::SourceError,
    source::tests::{CONTAINER, POD, Tree, target, unpack},
};

/// Waits until the newest snapshot is as wanted.
async fn until(usage: &Usage, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    for _ in 0..500 {
        let snapshot = usage.snapshot();
        if wanted(&snapshot) {
            return snapshot;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 5 s: {:?}", usage.snapshot());
}

fn config(root: &std::path::Path) -> Config {
    Config { root: root.to_owned(), interval: Duration::from_secs(3600), max_age: Duration::ZERO, ..Config::default() }
}

fn start(dir: &tempfile::TempDir, targets: watch::Receiver<Arc<Vec<Target>>>) -> Usage {
    Usage::start(config(dir.path()), targets, watch::channel(Arc::default()).1, CancellationToken::new())
}

#[tokio::test]
async fn new_containers_are_read_at_once_and_again_for_a_rate() {
    let dir = unpack(Tree::Hybrid);
    let (sender, targets) = watch::channel(Arc::default());
    let usage = start(&dir, targets);
    usage.refresh().await;
    assert!(usage.snapshot().rows.is_empty());
    let missing = Target { container_id: "e".repeat(64), pid: 7, ..target() };
    sender.send_replace(Arc::new(vec![missing, target()]));
    let snapshot = until(&usage, |s| !s.rows.is_empty()).await;
    assert_eq!(snapshot.rows.len(), 1, "the other is not there, and costs its own row only");
    let snapshot = until(&usage, |s| s.rows[0].usage_nano_cores.is_some()).await;
    assert_eq!(snapshot.rows[0].usage_nano_cores, Some(0), "recorded counters stand still");
    let pod = snapshot.pods.get(POD).expect("the pod's own cgroup");
    assert!(pod.cgroup.ends_with(POD) && pod.sample.memory.is_some_and(|memory| memory.usage_bytes > 0));
    assert_eq!(usage.history(CONTAINER).await.len(), 2);
    assert!(usage.history("").await.len() >= 2);

    sender.send_replace(Arc::default());
    let snapshot = until(&usage, |s| s.rows.is_empty()).await;
    assert!(snapshot.pods.is_empty());
}

#[tokio::test]
async fn two_thousand_short_lived_containers_leave_nothing() {
    let dir = unpack(Tree::V2);
    let (sender, targets) = watch::channel(Arc::default());
    let usage = start(&dir, targets);
    let of_tree = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(dir.path().join("sys")))).count()
    };
    usage.refresh().await;
    let before = of_tree();
    // Forty batches of fifty, each container with its own cgroup.
    let scope = dir.path().join("proc/4242/cgroup");
    let path = std::fs::read_to_string(&scope).unwrap();
    let of = |id: &str| path.replace(CONTAINER, id);
    let cgroup = dir.path().join("sys/fs/cgroup").join(path.trim().trim_start_matches("0::/"));
    for turn in 0..40_usize {
        let batch: Vec<Target> = (0..50)
            .map(|n| {
                let (id, pid) = (format!("{:064x}", turn * 50 + n), 10_000 + i32::try_from(n).unwrap());
                let process = dir.path().join(format!("proc/{pid}"));
                std::fs::create_dir_all(&process).unwrap();
                std::fs::write(process.join("cgroup"), of(&id)).unwrap();
                let new = std::path::PathBuf::from(cgroup.to_str().unwrap().replace(CONTAINER, &id));
                std::fs::create_dir_all(&new).unwrap();
                for file in ["cpu.stat", "memory.current", "memory.stat", "cgroup.procs"] {
                    std::fs::copy(cgroup.join(file), new.join(file)).unwrap();
                }
                Target { container_id: id, pid, pod_name: format!("p{turn}"), ..target() }
            })
            .collect();
        let removed: Vec<String> =
            batch.iter().map(|s| cgroup.to_str().unwrap().replace(CONTAINER, &s.container_id)).collect();
        sender.send_replace(Arc::new(batch));
        until(&usage, |s| s.rows.len() == 50).await;
        sender.send_replace(Arc::default());
        until(&usage, |s| s.rows.is_empty()).await;
        removed.iter().for_each(|dir| std::fs::remove_dir_all(dir).unwrap());
    }
    let snapshot = usage.snapshot();
    assert!(snapshot.rows.is_empty() && snapshot.pods.is_empty() && usage.storage().containers.is_empty());
    assert_eq!(of_tree(), before);
}

#[tokio::test]
async fn a_machine_without_cgroups_still_shows_the_node() {
    let dir = unpack(Tree::V2);
    std::fs::write(dir.path().join("proc/self/mountinfo"), "1 0 8:1 / / rw - ext4 /dev/sda rw\n").unwrap();
    let (_tell, targets) = watch::channel(Arc::new(vec![target()]));
    let usage = start(&dir, targets);
    usage.refresh().await;
    let summary = usage.summary(false);
    assert!(summary.node.cpu.usage_core_nano_seconds > 0 && summary.pods.is_empty());
}

/// A pipe without a writer represents a kernel file that hangs: opening it blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_hangs_costs_its_own_row_only() {
    let dir = unpack(Tree::V2);
    let path = std::fs::read_to_string(dir.path().join("proc/4242/cgroup")).unwrap();
    let cgroup = dir.path().join("sys/fs/cgroup").join(path.trim().trim_start_matches("0::/"));
    let other = "b".repeat(64);
    let hanging = std::path::PathBuf::from(cgroup.to_str().unwrap().replace(CONTAINER, &other));
    std::fs::create_dir_all(&hanging).unwrap();
    for file in ["cpu.stat", "memory.current", "cgroup.procs"] {
        std::fs::copy(cgroup.join(file), hanging.join(file)).unwrap();
    }
    let pipe = hanging.join("memory.peak");
    std::fs::write(&pipe, "1").unwrap();
    std::fs::create_dir_all(dir.path().join("proc/5000")).unwrap();
    std::fs::write(dir.path().join("proc/5000/cgroup"), path.replace(CONTAINER, &other)).unwrap();
    let slow = Target { container_id: other, pid: 5000, container_name: "slow".to_owned(), ..target() };

    let context = ReadContext::new(&config(dir.path()), Some(source::cgroups(dir.path()).unwrap()));
    let (mut sampler, snapshot) = Sampler::new(config(dir.path()), watch::channel(Arc::default()).0, Events::default());
    sampler.context = Arc::new(context);
    sampler.set_targets(&[target(), slow]);
    let row = |name: &str| -> Arc<Row> {
        let snapshot = snapshot.borrow();
        Arc::clone(snapshot.rows.iter().find(|row| row.target.container_name == name).expect("row"))
    };
    sampler.housekeeping();
    assert!(!row("slow").stale && !row("busy").stale);
    // From now on limits are read again, and with them the pipe.
    std::fs::remove_file(&pipe).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    sampler.cgroups.all_mut().for_each(|state| state.slow_due = 0);
    let before = (row("busy").sample.moment.mono_ns, row("slow").sample.moment.mono_ns);
    let took = sampler.housekeeping();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let after = (row("busy").sample.moment.mono_ns, row("slow").sample.moment.mono_ns);
    assert!(after.0 > before.0 && !row("busy").stale, "the other was read");
    assert!(after.1 == before.1 && row("slow").stale, "the old numbers, marked");
    // The next housekeeping does not wait for it.
    let took = sampler.housekeeping();
    assert!(took < READ_TIMEOUT, "{took:?}");
    assert!(row("slow").stale);
    // A writer opens and closes the pipe: the read ends, and the row is correct again.
    drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
    std::fs::remove_file(&pipe).unwrap();
    for _ in 0..100 {
        sampler.housekeeping();
        if !row("slow").stale {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    sampler.housekeeping();
    assert!(!row("slow").stale && row("slow").sample.moment.mono_ns > after.0);
}

#[tokio::test]
async fn a_container_that_goes_in_the_middle_of_a_read_costs_its_own_row_only() {
    let dir = unpack(Tree::V2);
    let (mut sampler, snapshot) = Sampler::new(config(dir.path()), watch::channel(Arc::default()).0, Events::default());
    let second = Target { container_id: "d".repeat(64), pid: 77, ..target() };
    sampler.set_targets(&[target(), second]);
    sampler.housekeeping();
    assert_eq!(snapshot.borrow().rows.len(), 1, "the second was gone before its files were opened");
    // The result of a read whose cgroup was removed.
    let state = sampler.cgroups.all_mut().find(|t| **t.key.id() == *CONTAINER).unwrap();
    let removed = SourceError::Removed { container: CONTAINER.to_owned() };
    let result = ReadResult { files: None, opened: None, layer: None, slow: None, limits: None, result: Err(removed) };
    state.finish_read(result, 1);
    assert!(state.row.is_none() && state.files.is_none());
    sampler.housekeeping();
    assert_eq!(snapshot.borrow().rows.len(), 1, "it is there after all, and is opened again");
}

#[tokio::test]
async fn a_failure_is_logged_again_after_the_container_was_read() {
    let dir = unpack(Tree::V2);
    let (mut sampler, _) = Sampler::new(config(dir.path()), watch::channel(Arc::default()).0, Events::default());
    sampler.set_targets(&[target()]);
    sampler.housekeeping();
    let logged = |sampler: &mut Sampler| {
        let state = sampler.cgroups.all_mut().find(|t| **t.key.id() == *CONTAINER).unwrap();
        let mut logged = false;
        state.log_once(|_| logged = true);
        logged
    };
    assert!(logged(&mut sampler), "a read that was late");
    assert!(!logged(&mut sampler));
    sampler.housekeeping();
    assert!(logged(&mut sampler), "another failure, a week later");
}

#[tokio::test]
async fn limits_are_read_anew_when_the_engine_says_that_they_are_others() {
    let dir = unpack(Tree::V2);
    let (mut sampler, snapshot) = Sampler::new(config(dir.path()), watch::channel(Arc::default()).0, Events::default());
    let with_limits = |limit: i64| Target { limits: vec![limit], ..target() };
    let limits = |sampler: &mut Sampler| {
        sampler.housekeeping();
        snapshot.borrow().rows[0].limits.threads
    };
    sampler.set_targets(&[with_limits(1)]);
    let before = limits(&mut sampler);
    let layout = crate::source::cgroups(dir.path()).unwrap();
    let cgroup = snapshot.borrow().rows[0].cgroup.to_string();
    let group = source::under(dir.path(), &layout.v2_dir(&cgroup).unwrap());
    std::fs::write(group.join("pids.max"), "77\n").unwrap();
    assert_eq!(limits(&mut sampler), before, "not in each housekeeping");
    sampler.set_targets(&[with_limits(2)]);
    assert_eq!(limits(&mut sampler), Some(77));
}

#[test]
fn what_is_read_now_and_then_is_spread_over_the_rounds() {
    let due: Vec<u64> = (0..100)
        .map(|n| {
            let mut state = CgroupState::new(Key::Container(Arc::from(format!("container-{n}"))), n, Arc::default());
            let seen = || {
                let result = Err(SourceError::NotInCgroup { pid: 1, container: String::new() });
                ReadResult {
                    files: None,
                    opened: None,
                    layer: None,
                    slow: Some(Box::default()),
                    limits: Some(Box::default()),
                    result,
                }
            };
            assert!(state.start_read(0, &Arc::default()).slow);
            state.finish_read(seen(), 5);
            let due = state.slow_due;
            let limits_due = state.limits_due;
            let mut start_at = |mono_ns| state.start_read(mono_ns, &Arc::default());
            assert!(start_at(due).slow && !start_at(due - 1).slow);
            assert!(start_at(limits_due).limits && !start_at(limits_due - 1).limits);
            state.finish_read(seen(), due);
            assert_eq!((state.slow_due, state.limits_due), (due + SLOW_INTERVAL_NS, due + LIMITS_INTERVAL_NS));
            due
        })
        .collect();
    for sixth in 0..6 {
        let (from, to) = (sixth * SLOW_INTERVAL_NS / 6, (sixth + 1) * SLOW_INTERVAL_NS / 6);
        let count = due.iter().filter(|due| (from..to).contains(*due)).count();
        assert!((5..=30).contains(&count), "{count} of 100 in the sixth {sixth}");
    }
}

#[tokio::test]
async fn every_disk_of_the_machine_has_its_name_whoever_uses_it() {
    let dir = unpack(Tree::V2);
    let usage = start(&dir, watch::channel(Arc::default()).1);
    usage.refresh().await;
    let snapshot = until(&usage, |s| !s.devices.is_empty()).await;
    assert!(snapshot.rows.is_empty() && snapshot.node.sample.block.len() > 1, "{:?}", snapshot.node.sample.block);
    for device in &snapshot.node.sample.block {
        assert!(snapshot.devices.contains_key(&(device.major, device.minor)), "{device:?} of {:?}", snapshot.devices);
    }
}

#[tokio::test]
async fn what_cannot_be_read_keeps_its_last_sample_and_is_stale() {
    let dir = unpack(Tree::V2);
    let usage = start(&dir, watch::channel(Arc::new(vec![target()])).1);
    let before = until(&usage, |s| s.rows.len() == 1 && s.rows[0].usage_nano_cores.is_some()).await;
    let kills = |snapshot: &Snapshot| snapshot.rows[0].sample.memory.and_then(|memory| memory.oom_kills);
    assert_eq!((kills(&before), before.rows[0].stale, before.node.stale), (Some(1), false, false));
    let group = dir.path().join("sys/fs/cgroup").join(before.rows[0].cgroup.trim_start_matches('/'));
    // Open files stay readable in a test's tree; nonsense in one of them is what a failed read is.
    let good = std::fs::read(group.join("memory.current")).unwrap();
    let meminfo = std::fs::read(dir.path().join("proc/meminfo")).unwrap();
    std::fs::write(group.join("memory.current"), "nonsense\n").unwrap();
    std::fs::write(dir.path().join("proc/meminfo"), "nonsense\n").unwrap();
    usage.refresh().await;
    let broken = until(&usage, |s| s.rows[0].stale && s.node.stale).await;
    assert_eq!(broken.rows[0].sample.memory, before.rows[0].sample.memory);
    assert_eq!(broken.node.sample.memory, before.node.sample.memory);
    std::fs::write(group.join("memory.current"), good).unwrap();
    std::fs::write(dir.path().join("proc/meminfo"), meminfo).unwrap();
    usage.refresh().await;
    let again = until(&usage, |s| !s.rows[0].stale && !s.node.stale).await;
    assert_eq!(kills(&again), Some(1), "no kill is counted twice");
}
