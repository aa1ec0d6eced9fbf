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

type Running = Publisher<Arc<str>, Arc<Target>>;

fn start(dir: &tempfile::TempDir, targets: &Running) -> Usage {
    let volumes = Publisher::default().subscribe().follow();
    Usage::start(config(dir.path()), targets.subscribe().follow(), volumes, CancellationToken::new())
}

/// These containers run, and no others.
fn run_only(targets: &Running, list: &[Target]) {
    let by_id = |target: &Target| (Arc::from(target.container_id.as_str()), Arc::new(target.clone()));
    targets.replace(list.iter().map(by_id).collect());
}

fn running(list: &[Target]) -> Running {
    let targets = Running::default();
    run_only(&targets, list);
    targets
}

fn sampler(dir: &tempfile::TempDir) -> (Sampler, watch::Receiver<Arc<Snapshot>>) {
    Sampler::new(config(dir.path()), Layers::default(), Events::default())
}

#[tokio::test]
async fn new_containers_are_read_at_once_and_again_for_a_rate() {
    let dir = unpack(Tree::Hybrid);
    let targets = Running::default();
    let usage = start(&dir, &targets);
    usage.refresh().await;
    assert!(usage.snapshot().rows.is_empty());
    let missing = Target { container_id: "e".repeat(64), pid: 7, ..target() };
    run_only(&targets, &[missing, target()]);
    let snapshot = until(&usage, |s| !s.rows.is_empty()).await;
    assert_eq!(snapshot.rows.len(), 1, "the other is not there, and costs its own row only");
    let snapshot = until(&usage, |s| s.rows[0].usage_nano_cores.is_some()).await;
    assert_eq!(snapshot.rows[0].usage_nano_cores, Some(0), "recorded counters stand still");
    let pod = snapshot.pods.get(POD).expect("the pod's own cgroup");
    assert!(pod.cgroup.ends_with(POD) && pod.sample.memory.is_some_and(|memory| memory.usage_bytes > 0));
    assert_eq!(usage.history(CONTAINER).await.len(), 2);
    assert!(usage.history("").await.len() >= 2);

    run_only(&targets, &[]);
    until(&usage, |s| s.rows.is_empty() && s.pods.is_empty()).await;
}

#[tokio::test]
async fn two_thousand_short_lived_containers_leave_nothing() {
    let dir = unpack(Tree::V2);
    let targets = Running::default();
    let usage = start(&dir, &targets);
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
        run_only(&targets, &batch);
        until(&usage, |s| s.rows.len() == 50).await;
        run_only(&targets, &[]);
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
    let targets = running(&[target()]);
    let usage = start(&dir, &targets);
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
    let (mut sampler, snapshot) = sampler(&dir);
    sampler.context = Arc::new(context);
    sampler.apply(running(&[target(), slow]).subscribe().follow().take());
    let row = |name: &str| -> Arc<Row> {
        let snapshot = snapshot.borrow();
        Arc::clone(snapshot.rows.iter().find(|row| row.target.container_name == name).expect("row"))
    };
    sampler.housekeeping();
    assert!(!row("slow").stale && !row("busy").stale);
    // From now on limits are read again, and with them the pipe.
    std::fs::remove_file(&pipe).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for slot in sampler.cgroups.slots() {
        sampler.cgroups.of(slot).unwrap().slow_due = 0;
    }
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
    let (mut sampler, snapshot) = sampler(&dir);
    let second = Target { container_id: "d".repeat(64), pid: 77, ..target() };
    sampler.apply(running(&[target(), second]).subscribe().follow().take());
    sampler.housekeeping();
    assert_eq!(snapshot.borrow().rows.len(), 1, "the second was gone before its files were opened");
    // The result of a read whose cgroup was removed.
    let slot = sampler.cgroups.slots_of(POD, "")[0];
    let state = sampler.cgroups.of(slot).unwrap();
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
    let (mut sampler, _) = sampler(&dir);
    sampler.apply(running(&[target()]).subscribe().follow().take());
    sampler.housekeeping();
    let logged = |sampler: &mut Sampler| {
        let slot = sampler.cgroups.slots().into_iter().find(|slot| !slot.of_pod).unwrap();
        let state = sampler.cgroups.of(slot).unwrap();
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
    let (mut sampler, snapshot) = sampler(&dir);
    let with_limits = |limit: i64| Target { limits: vec![limit], ..target() };
    let limits = |sampler: &mut Sampler| {
        sampler.housekeeping();
        snapshot.borrow().rows[0].limits.threads
    };
    sampler.apply(running(&[with_limits(1)]).subscribe().follow().take());
    let before = limits(&mut sampler);
    let layout = crate::source::cgroups(dir.path()).unwrap();
    let cgroup = snapshot.borrow().rows[0].cgroup.to_string();
    let group = source::under(dir.path(), &layout.v2_dir(&cgroup).unwrap());
    std::fs::write(group.join("pids.max"), "77\n").unwrap();
    assert_eq!(limits(&mut sampler), before, "not in each housekeeping");
    sampler.apply(running(&[with_limits(2)]).subscribe().follow().take());
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
    let usage = start(&dir, &Running::default());
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
    let targets = running(&[target()]);
    let usage = start(&dir, &targets);
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

/// A machine with this number of pods of one container each, in separate cgroups.
fn pods_of(dir: &tempfile::TempDir, count: usize) -> Vec<Target> {
    let path = std::fs::read_to_string(dir.path().join("proc/4242/cgroup")).unwrap();
    let place = |of: &str, id: &str, uid: &str| {
        of.replace(CONTAINER, id).replace(POD, uid).replace(&POD.replace('-', "_"), &uid.replace('-', "_"))
    };
    let cgroups = dir.path().join("sys/fs/cgroup");
    let cgroup = |path: &str| cgroups.join(path.trim().trim_start_matches("0::/"));
    let one = |n: usize| {
        let (id, uid) = (format!("{n:064x}"), format!("{n:08x}{}", &POD[8..]));
        let pid = 100_000 + i32::try_from(n).unwrap();
        let process = dir.path().join(format!("proc/{pid}"));
        std::fs::create_dir_all(&process).unwrap();
        let own = place(&path, &id, &uid);
        std::fs::write(process.join("cgroup"), &own).unwrap();
        let (from, to) = (cgroup(&path), cgroup(&own));
        std::fs::create_dir_all(&to).unwrap();
        for (from, to) in [(&*from, &*to), (from.parent().unwrap(), to.parent().unwrap())] {
            for file in ["cpu.stat", "memory.current", "memory.stat", "cgroup.procs"] {
                std::fs::copy(from.join(file), to.join(file)).unwrap();
            }
        }
        let (container_id, pod_uid, pod_name) = (id, uid, format!("pod-{n}"));
        Target { container_id, pid, pod_uid, pod_name, ..target() }
    };
    (0..count).map(one).collect()
}

#[tokio::test]
async fn a_start_costs_the_same_with_ten_pods_and_with_a_thousand() {
    let mut costs = Vec::new();
    for count in [10, 1_000] {
        let dir = unpack(Tree::V2);
        let mut pods = pods_of(&dir, count + 1);
        let last = pods.pop().unwrap();
        let layers = Layers::default();
        let (mut sampler, snapshot) = Sampler::new(config(dir.path()), layers.clone(), Events::default());
        let mut layers = layers.subscribe().follow();
        let targets = running(&pods);
        let mut changes = targets.subscribe().follow();
        sampler.apply(changes.take());
        sampler.housekeeping();
        std::thread::sleep(Duration::from_millis(2));
        sampler.housekeeping();
        assert_eq!((layers.take().len(), sampler.cgroups.oldest_young()), (count, None));
        // A page is being made of it, so that nothing of it can be changed in place.
        let before = Arc::clone(&snapshot.borrow());
        assert_eq!((before.rows.len(), before.pods.len()), (count, count));

        sampler.cgroups.visits.set(0);
        run_only(&targets, &[pods.as_slice(), std::slice::from_ref(&last)].concat());
        let changed = changes.take();
        assert_eq!(changed.len(), 1);
        let given = changed.values().flatten().next().cloned().unwrap();
        let new = sampler.apply(changed);
        sampler.sample_new(new);
        let started = sampler.cgroups.visits.replace(0);
        let after = Arc::clone(&snapshot.borrow());
        assert_eq!((after.rows.len(), after.pods.len(), layers.take().len()), (count + 1, count + 1, 1));
        let (new, gone) = after.rows.since(&before.rows);
        assert!(new.len() == 1 && gone.is_empty(), "{} new, {} gone", new.len(), gone.len());
        assert!(Arc::ptr_eq(&new[0].target, &given), "from the worker to the page");
        assert!(new[0].usage_nano_cores.is_none() && sampler.next_second().is_some(), "it is read again for a rate");
        let slot = sampler.cgroups.young_until(u64::MAX);
        sampler.cgroups.visits.set(0);
        sampler.sample_new(slot);
        let second = sampler.cgroups.visits.replace(0);
        assert_eq!(sampler.next_second(), None);
        let after = Arc::clone(&snapshot.borrow());
        assert_eq!(after.rows.since(&before.rows).0.len(), 1, "and none of the others");

        targets.remove(last.container_id.as_str());
        let new = sampler.apply(changes.take());
        sampler.sample_new(new);
        let ended = sampler.cgroups.visits.replace(0);
        let ended_rows = snapshot.borrow().rows.clone();
        let (new, gone) = ended_rows.since(&after.rows);
        let (new, gone) = (new.len(), gone.len());
        assert_eq!((new, gone, layers.take().len()), (0, 1, 1));
        costs.push([started, second, ended]);
    }
    assert_eq!(costs[0], costs[1], "cgroups that were looked at for a start, its second sample and an end");
}

#[tokio::test]
async fn the_machines_properties_are_read_again_now_and_then() {
    let dir = unpack(Tree::V2);
    let (mut sampler, snapshot) = sampler(&dir);
    let before = snapshot.borrow().machine.memory_bytes;
    let meminfo = dir.path().join("proc/meminfo");
    let good = std::fs::read_to_string(&meminfo).unwrap();
    let kilobytes = before / 1024;
    let plugged_in = good.replace(&format!(" {kilobytes} kB"), &format!(" {} kB", kilobytes * 2));
    let mut bytes = |text: &str, passed: Duration| {
        std::fs::write(&meminfo, text).unwrap();
        sampler.machine_read = Instant::now().checked_sub(passed).unwrap();
        sampler.housekeeping();
        snapshot.borrow().machine.memory_bytes
    };
    assert_eq!(bytes(&plugged_in, Duration::ZERO), before, "not in each housekeeping");
    assert_eq!(bytes(&plugged_in, MACHINE_INTERVAL), before * 2);
    assert_eq!(bytes("nonsense\n", MACHINE_INTERVAL), before * 2, "what cannot be read is as it was");
}

#[tokio::test]
async fn histories_of_many_are_one_request_and_not_told_is_not_empty() {
    let dir = unpack(Tree::V2);
    let pods = pods_of(&dir, 100);
    let shutdown = CancellationToken::new();
    let targets = running(&pods);
    let volumes = Publisher::default().subscribe().follow();
    let usage = Usage::start(config(dir.path()), targets.subscribe().follow(), volumes, shutdown.clone());
    until(&usage, |s| s.rows.len() == 100).await;
    // More containers than the sampler's queue has places.
    let Ok(crate::Rest::Page(page)) = usage.rest("/api/v1.3/subcontainers/", "", b"").await else { panic!("no page") };
    let listed: serde_json::Value = serde_json::from_slice(&page).unwrap();
    let with_past =
        listed.as_array().unwrap().iter().filter(|one| !one["stats"].as_array().unwrap().is_empty()).count();
    assert!(with_past > 100, "{with_past} with their pasts");
    shutdown.cancel();
    usage.stopped().await;
    let Err((status, _)) = usage.rest("/api/v1.3/subcontainers/", "", b"").await else { panic!("an empty past") };
    assert_eq!(status, 503);
}

#[tokio::test]
async fn one_list_of_processes_is_for_all_who_ask() {
    let dir = unpack(Tree::V2);
    let usage = start(&dir, &Running::default());
    // A busy machine may take more than the list's second between two of them, but not each time.
    for _ in 0..10 {
        let (first, second) = tokio::join!(usage.processes(), usage.processes());
        if Arc::ptr_eq(&first.unwrap(), &second.unwrap()) {
            return;
        }
    }
    panic!("each request walks over all of /proc");
}
