//! Recorded trees (tests/fixtures, see record.sh there), unpacked and used as the root.

mod daemons;
mod unreadable;

use std::{
    fs,
    path::{Path, PathBuf},
};

use windlass_kit::moment::Moment;

use super::{cached_file::Buffer, *};
use crate::{
    config::Target,
    model::{BlockDevice, HugePages, Pressure, Psi, PsiLine, Sample},
};

pub(crate) const CONTAINER: &str = "121c04b0ed1889da37e2507bd0a728f95cb1da9540996d2ddc27e55bc86f85b7";
pub(crate) const POD: &str = "0f6ad2a9-5d2f-4b60-9a41-6f9d1b7f2c11";

/// A fixture.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tree {
    /// The recorded hybrid without its unified part.
    V1,
    Hybrid,
    V2,
    /// The first and the last, with the other cgroup driver.
    V1Systemd,
    V2Cgroupfs,
}

/// The cgroup path of the fixtures' pod under each cgroup driver, and prefix and suffix of the names of containers.
pub(crate) const CGROUPFS: (&str, &str, &str) = ("kubepods/burstable/pod0f6ad2a9-5d2f-4b60-9a41-6f9d1b7f2c11", "", "");
pub(crate) const SYSTEMD: (&str, &str, &str) = (
    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f6ad2a9_5d2f_4b60_9a41_6f9d1b7f2c11.slice",
    "docker-",
    ".scope",
);

/// A text with the cgroup names of another driver.
pub(crate) fn as_driver(text: &str, (from, to): ((&str, &str, &str), (&str, &str, &str))) -> String {
    let container = |(pod, before, after): (&str, &str, &str), id: &str| format!("{pod}/{before}{id}{after}");
    let ids = [CONTAINER.to_owned(), "a".repeat(64)];
    let named = ids.iter().fold(text.to_owned(), |text, id| text.replace(&container(from, id), &container(to, id)));
    named.replace(from.0, to.0)
}

/// Unpacks a fixture into a directory that is removed with the value.
pub(crate) fn unpack(tree: Tree) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = match tree {
        Tree::V1 | Tree::Hybrid | Tree::V1Systemd => include_str!("../../../tests/fixtures/hybrid.tree"),
        Tree::V2 | Tree::V2Cgroupfs => include_str!("../../../tests/fixtures/v2.tree"),
    };
    let text = match tree {
        Tree::V1Systemd => as_driver(text, (CGROUPFS, SYSTEMD)),
        Tree::V2Cgroupfs => as_driver(text, (SYSTEMD, CGROUPFS)),
        _ => text.to_owned(),
    };
    for part in format!("\n{text}").split("\n== ").skip(1) {
        let (path, content) = part.split_once('\n').unwrap_or((part, ""));
        let mut content: String = content.lines().map(|line| format!("{line}\n")).collect();
        if matches!(tree, Tree::V1 | Tree::V1Systemd) {
            if path.contains("/unified/") {
                continue;
            }
            content = content.lines().filter(|l| !l.contains(" - cgroup2 ")).map(|l| format!("{l}\n")).collect();
        }
        let file = dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    dir
}

pub(crate) fn target() -> Target {
    Target {
        container_id: CONTAINER.to_owned(),
        pid: 4242,
        name: format!("k8s_busy_web_default_{POD}_0"),
        image: "busybox:1".to_owned(),
        pod_name: "web".to_owned(),
        pod_namespace: "default".to_owned(),
        pod_uid: POD.to_owned(),
        container_name: "busy".to_owned(),
        started_at: "2026-02-03T04:05:06.789Z".parse().unwrap(),
        pod_started_at: "2026-02-03T04:05:05Z".parse().unwrap(),
        ..Target::default()
    }
}

fn read(root: &Path, target: &Target) -> (ContainerFiles, Sample, crate::model::Limits) {
    let layout = cgroups(root).unwrap();
    let mut buffer = Buffer::new();
    let mut files = ContainerFiles::open(root, &layout, target, &mut buffer).unwrap();
    let limits = files.read_limits(&mut buffer).unwrap();
    files.slow(root, &mut buffer).unwrap();
    let mut sample = Sample::empty(Moment::ZERO);
    files.read(true, &Totals::default(), &mut buffer, &mut sample).unwrap();
    (files, sample, limits)
}

#[test]
fn reads_v1_and_hybrid() {
    for tree in [Tree::V1, Tree::Hybrid] {
        let dir = unpack(tree);
        let (files, sample, limits) = read(dir.path(), &target());
        assert_eq!(files.cgroup, format!("/kubepods/burstable/pod{POD}/{CONTAINER}"));
        assert_eq!(files.pod_cgroup.as_deref(), Some(&*format!("/kubepods/burstable/pod{POD}")));
        assert!(sample.cpu.usage_ns > 1_000_000_000 && sample.cpu.throttled_periods > 0, "{:?}", sample.cpu);
        assert!(sample.cpu.user_ns + sample.cpu.system_ns <= sample.cpu.usage_ns + 500_000_000);
        let memory = sample.memory.unwrap();
        assert!(memory.usage_bytes > memory.working_set_bytes());
        assert!(memory.max_usage_bytes >= memory.usage_bytes && memory.kernel_bytes > 0);
        assert!(memory.faults > 1000);
        assert_eq!((sample.pids.processes, sample.pids.threads), (Some(1), Some(1)));
        let device =
            BlockDevice { major: 254, minor: 0, read_bytes: 4096, write_bytes: 5_242_880, reads: 1, writes: 12 };
        assert_eq!(sample.block, [device]);
        assert_eq!(limits.memory_bytes, Some(83_886_080));
        assert_eq!((limits.swap_bytes, limits.reservation_bytes, limits.threads), (Some(83_886_080), None, None));
        assert_eq!((limits.cpu_shares, limits.cpu_quota_us, limits.cpu_period_us), (1024, Some(50_000), 100_000));
        assert!(limits.open_files.is_some());
        assert_eq!(sample.pressure.cpu.is_some(), matches!(tree, Tree::Hybrid));
        assert!(sample.network.is_empty(), "the pod's network is the sandbox's");
    }
}

#[test]
fn of_a_container_that_sleeps_only_what_would_tell_is_read() {
    for tree in [Tree::Hybrid, Tree::V2] {
        let dir = unpack(tree);
        let sandbox = Target { container_name: "POD".to_owned(), ..target() };
        let (mut files, first, _) = read(dir.path(), &sandbox);
        let layout = cgroups(dir.path()).unwrap();
        let (cpu, memory, block, rss) = match tree {
            Tree::V2 => ("cpu.stat", "memory.current", "io.stat", "anon"),
            _ => ("cpuacct.usage", "memory.usage_in_bytes", "blkio.throttle.io_service_bytes_recursive", "total_rss"),
        };
        let cgroup = files.cgroup.clone();
        let of = |controller: &str, name: &str| {
            let group = match tree {
                Tree::V2 => layout.v2_dir(&cgroup),
                _ => layout.v1_dir(controller, &cgroup),
            };
            under(dir.path(), &group.unwrap()).join(name)
        };
        let change = |path: &Path, from: String, to: &str| {
            let text = fs::read_to_string(path).unwrap();
            assert!(text.contains(&from), "{} has no {from}: {text}", path.display());
            fs::write(path, text.replace(&from, to)).unwrap();
        };
        // A counter that changes while nothing runs, those that show that something ran, and one that is read only
        // then.
        change(
            &of("memory", "memory.stat"),
            format!("{} {}", rss, first.memory.unwrap().rss_bytes),
            &format!("{rss} 4096"),
        );
        change(&dir.path().join("proc/4242/net/dev"), first.network[0].rx_bytes.to_string(), "777");
        let mut buffer = Buffer::new();
        let mut read_with = |all| {
            let mut sample = Sample::empty(Moment::ZERO);
            files.read(all, &Totals::default(), &mut buffer, &mut sample).unwrap();
            (sample.memory.unwrap().rss_bytes, sample.network[0].rx_bytes)
        };
        assert_eq!(read_with(false), (first.memory.unwrap().rss_bytes, 777), "{tree:?}");
        assert_eq!(read_with(true), (4096, 777), "{tree:?}: now and then all is read");
        let mut rss_now = "4096".to_owned();
        let mut seen_after = |path: &Path, from: String, to: &str, next: &str| {
            change(&of("memory", "memory.stat"), format!("{rss} {rss_now}"), &format!("{rss} {next}"));
            rss_now = next.to_owned();
            change(path, from, to);
            assert_eq!(read_with(false).0.to_string(), next, "{tree:?}: {}", path.display());
        };
        let used = first.cpu.usage_ns;
        let (now, then) = if let Tree::V2 = tree { (used / 1000, "9000000") } else { (used, "9000000000") };
        seen_after(&of("cpuacct", cpu), now.to_string(), then, "8192");
        seen_after(&of("memory", memory), first.memory.unwrap().usage_bytes.to_string(), "9999999", "12288");
        let written = first.block[0].write_bytes;
        seen_after(&of("blkio", block), written.to_string(), &(written + 512).to_string(), "16384");
    }
}

/// Writes files of a container's cgroup on v1: controller, name, text.
fn v1_writer(root: &Path, files: &ContainerFiles) -> impl Fn(&str, &str, &str) + use<> {
    let (root, layout, cgroup) = (root.to_owned(), cgroups(root).unwrap(), files.cgroup.clone());
    move |controller, name, text| {
        let group = under(&root, &layout.v1_dir(controller, &cgroup).unwrap());
        fs::write(group.join(name), text).unwrap();
    }
}

#[test]
fn of_a_container_that_ran_what_cannot_have_changed_is_left_out() {
    let dir = unpack(Tree::Hybrid);
    let (mut files, first, _) = read(dir.path(), &target());
    let write = v1_writer(dir.path(), &files);
    let throttled = |periods: u64| {
        write("cpu", "cpu.stat", &format!("nr_periods {periods}\nnr_throttled 2\nthrottled_time 3\n"));
    };
    let requests = |reads: u64| {
        let text = format!("254:0 Read {reads}\n254:0 Write 12\nTotal {}\n", reads + 12);
        write("blkio", "blkio.throttle.io_serviced_recursive", &text);
    };
    let mut used = first.cpu.usage_ns;
    let mut buffer = Buffer::new();
    let mut read_with = |files: &mut ContainerFiles, all: bool| {
        used += 1000;
        write("cpuacct", "cpuacct.usage", &format!("{used}\n"));
        if all {
            files.read_limits(&mut buffer).unwrap();
        }
        let mut sample = Sample::empty(Moment::ZERO);
        files.read(all, &Totals::default(), &mut buffer, &mut sample).unwrap();
        assert_eq!((sample.cpu.usage_ns, sample.cpu.user_ns), (used, first.cpu.user_ns));
        (sample.cpu.periods, sample.block[0].reads)
    };
    throttled(100);
    requests(5);
    assert_eq!(read_with(&mut files, false), (100, 1), "it has a quota; no bytes were moved");
    write("cpu", "cpu.cfs_quota_us", "-1\n");
    assert_eq!(read_with(&mut files, true), (100, 5), "with the limits all is read");
    throttled(200);
    let bytes = "254:0 Read 8192\n254:0 Write 5242880\nTotal 5251072\n";
    write("blkio", "blkio.throttle.io_service_bytes_recursive", bytes);
    requests(6);
    assert_eq!(read_with(&mut files, false), (100, 6), "nothing is held back without a quota; bytes were moved");
    write("cpu", "cpu.cfs_quota_us", "50000\n");
    assert_eq!(read_with(&mut files, true), (200, 6));
    throttled(300);
    assert_eq!(read_with(&mut files, false), (300, 6));
}

/// Writes the same pressure for all resources of a cgroup.
fn press(group: &Path, average: &str, total: u64) {
    for name in ["cpu.pressure", "memory.pressure", "io.pressure"] {
        let line = format!("avg10={average} avg60={average} avg300={average} total={total}\n");
        fs::write(group.join(name), format!("some {line}full {line}")).unwrap();
    }
}

#[test]
fn the_pressure_of_a_container_that_sleeps_is_read_until_there_is_none() {
    let dir = unpack(Tree::V2);
    let (mut files, first, _) = read(dir.path(), &target());
    let group = under(dir.path(), &cgroups(dir.path()).unwrap().v2_dir(&files.cgroup).unwrap());
    let mut buffer = Buffer::new();
    let mut read_with = || {
        let mut sample = Sample::empty(Moment::ZERO);
        files.read(false, &Totals::default(), &mut buffer, &mut sample).unwrap();
        sample.pressure.io.unwrap().some.total_us
    };
    // A process waits for a disk: the container uses no CPU time, and its pressure grows.
    press(&group, "1.50", 100);
    assert_eq!(read_with(), 100);
    press(&group, "0.00", 200);
    assert_eq!(read_with(), 200);
    press(&group, "0.00", 300);
    assert_eq!(read_with(), 200, "nothing waited at the last read, and nothing has run since");
    let used = (first.cpu.usage_ns / 1000).to_string();
    let stat = fs::read_to_string(group.join("cpu.stat")).unwrap();
    fs::write(group.join("cpu.stat"), stat.replace(&used, "9000000")).unwrap();
    assert_eq!(read_with(), 300);
    press(&group, "0.00", 400);
    assert_eq!(read_with(), 400, "once more after it ran: what has just begun to wait shows in no average");
}

#[test]
fn what_stands_still_on_the_machine_is_not_read_of_its_cgroups() {
    let dir = unpack(Tree::Hybrid);
    let (mut files, first, _) = read(dir.path(), &target());
    let write = v1_writer(dir.path(), &files);
    let unified = under(dir.path(), &cgroups(dir.path()).unwrap().v2_dir(&files.cgroup).unwrap());
    let (mut used, mut total) = (first.cpu.usage_ns, 0);
    let mut buffer = Buffer::new();
    // Before each read the container has run and each of its files has the next number, so a number shows when its file
    // was read.
    let mut read_with = |files: &mut ContainerFiles, all: bool, machine: Option<[u64; 4]>| {
        (used, total) = (used + 1000, total + 1);
        write("cpuacct", "cpuacct.usage", &format!("{used}\n"));
        write("memory", "memory.oom_control", &format!("under_oom 0\noom_kill {total}\n"));
        press(&unified, "0.00", total);
        let waited = |us| Some(Psi { some: PsiLine { total_us: us, ..PsiLine::default() }, ..Psi::default() });
        let totals = machine.map_or_else(Totals::default, |[cpu, memory, io, kills]| Totals {
            pressure: Pressure { cpu: waited(cpu), memory: waited(memory), io: waited(io) },
            kills: Some(kills),
            ..Totals::default()
        });
        let mut sample = Sample::empty(Moment::ZERO);
        files.read(all, &totals, &mut buffer, &mut sample).unwrap();
        let total = |psi: Option<Psi>| psi.unwrap().some.total_us;
        let pressure = sample.pressure;
        [total(pressure.cpu), total(pressure.memory), total(pressure.io), sample.memory.unwrap().oom_kills.unwrap()]
    };
    assert_eq!(read_with(&mut files, false, None), [1; 4], "of a machine without pressure files");
    assert_eq!(read_with(&mut files, false, Some([5, 5, 5, 5])), [2; 4], "nobody knows what was between");
    assert_eq!(
        read_with(&mut files, false, Some([5, 5, 5, 5])),
        [3, 3, 3, 2],
        "averages come after what has just waited"
    );
    assert_eq!(read_with(&mut files, false, Some([5, 5, 5, 5])), [3, 3, 3, 2], "nobody waited, nobody was killed");
    assert_eq!(read_with(&mut files, false, Some([6, 5, 5, 5])), [5, 3, 3, 2]);
    assert_eq!(read_with(&mut files, false, Some([6, 7, 5, 5])), [6, 6, 3, 2]);
    assert_eq!(read_with(&mut files, false, Some([6, 7, 8, 9])), [6, 7, 7, 7]);
    assert_eq!(read_with(&mut files, false, Some([6, 7, 8, 9])), [6, 7, 8, 7]);
    assert_eq!(read_with(&mut files, true, Some([6, 7, 8, 9])), [9; 4], "with the limits all is read");
}

#[test]
fn reads_v2_under_systemd() {
    let dir = unpack(Tree::V2);
    let (mut files, sample, limits) = read(dir.path(), &Target { container_name: "POD".to_owned(), ..target() });
    assert!(files.cgroup.ends_with(&format!("docker-{CONTAINER}.scope")));
    assert!(
        files.pod_cgroup.as_deref().is_some_and(|path| path.ends_with("_6f9d1b7f2c11.slice")),
        "{:?}",
        files.pod_cgroup
    );
    assert_eq!(
        (sample.cpu.usage_ns, sample.cpu.throttled_ns, sample.cpu.burst_ns),
        (1_600_123_000, 1_494_043_000, 250_000)
    );
    let memory = sample.memory.unwrap();
    assert_eq!(memory.working_set_bytes(), 5_832_704 - 5_242_880);
    assert_eq!((memory.swap_bytes, memory.max_usage_bytes, memory.kernel_bytes), (Some(12_288), 7_475_200, 417_792));
    assert_eq!((memory.high_events, memory.max_events, memory.oom_kills), (Some(4), Some(7), Some(1)));
    assert_eq!((sample.pids.processes, sample.pids.threads), (Some(2), Some(3)));
    assert_eq!(sample.block.iter().map(|d| d.write_bytes).sum::<u64>(), 5_242_880);
    let cpu = sample.pressure.cpu.unwrap();
    assert_eq!((cpu.some.avg10, cpu.full.total_us), (6.52, 1_250_000));
    assert_eq!(sample.network.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["eth0"]);
    assert_eq!((limits.cpu_shares, limits.cpu_quota_us, limits.memory_bytes), (4537, Some(50_000), Some(83_886_080)));
    let slow = files.slow(dir.path(), &mut Buffer::new()).unwrap();
    let page = |size: &str, usage_bytes, failures| HugePages {
        size: size.to_owned(),
        usage_bytes,
        max_usage_bytes: 0,
        failures,
    };
    assert_eq!(slow.huge_pages, [page("1GB", 0, 0), page("2MB", 6 << 20, 3)]);
    let sockets = slow.sockets_of.unwrap();
    assert_eq!((sockets.tcp[0], sockets.tcp[5], sockets.tcp[9], sockets.tcp6[9]), (1, 1, 1, 1));
    assert_eq!((sockets.udp.listen, sockets.udp.rx_queued, sockets.udp.dropped), (1, 0x300, 5));
    let upper = files.upper_dir(dir.path(), None);
    let expected = "var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/13/fs";
    assert_eq!(upper, Some(dir.path().join(expected)));
    let images = crate::parse::cgroup::containerd_root(&upper.unwrap());
    assert_eq!(images, Some(dir.path().join("var/lib/containerd")), "images are where the layers are");
    assert_eq!(crate::parse::cgroup::containerd_root(Path::new("/var/lib/docker/overlay2/ab/diff")), None);
}

#[test]
fn a_number_used_again_is_not_taken_for_the_container() {
    let dir = unpack(Tree::Hybrid);
    let layout = cgroups(dir.path()).unwrap();
    let mut buffer = Buffer::new();
    let other = Target { container_id: "f".repeat(64), ..target() };
    let error = ContainerFiles::open(dir.path(), &layout, &other, &mut buffer).unwrap_err();
    assert!(matches!(error, SourceError::NotInCgroup { pid: 4242, .. }), "{error}");
    let dead = Target { pid: 999, ..target() };
    assert!(ContainerFiles::open(dir.path(), &layout, &dead, &mut buffer).is_err());
    fs::remove_dir_all(dir.path().join("sys/fs/cgroup/cpuacct/kubepods")).unwrap();
    let error = ContainerFiles::open(dir.path(), &layout, &target(), &mut buffer).unwrap_err();
    assert!(matches!(error, SourceError::Removed { .. }), "{error}");
}

#[test]
fn missing_controllers_are_unknown_not_errors() {
    let dir = unpack(Tree::V1);
    for controller in ["memory", "pids", "blkio"] {
        fs::remove_dir_all(dir.path().join("sys/fs/cgroup").join(controller)).unwrap();
    }
    let (_, sample, limits) = read(dir.path(), &target());
    assert!(sample.cpu.usage_ns > 0);
    assert_eq!((sample.memory, limits.memory_bytes, sample.block.len()), (None, None, 0));
    assert_eq!(sample.pids.threads, None);
}

#[test]
fn the_machine_is_read() {
    for tree in [Tree::V1, Tree::V2] {
        let dir = unpack(tree);
        let layout = cgroups(dir.path()).unwrap();
        let files = MachineFiles::open(dir.path(), Some(&layout));
        let mut buffer = Buffer::new();
        let totals = files.totals(&mut buffer);
        let node = files.read(&totals, &mut buffer, Sample::empty(Moment::ZERO)).unwrap();
        let sample = &node.sample;
        assert!(sample.cpu.usage_ns > 900_000_000_000 && node.threads > Some(10));
        let memory = sample.memory.unwrap();
        assert!(memory.usage_bytes > memory.working_set_bytes() && memory.rss_bytes > 0);
        assert!(sample.network.iter().all(|i| !i.name.as_str().starts_with("veth") && i.name.as_str() != "lo"));
        assert_eq!(node.default_interface.map(|name| name.as_str().to_owned()), Some("eth0".to_owned()));
        assert!(sample.pressure.memory.is_some());
        let disks: Vec<&str> = node.disks.iter().map(|disk| disk.name.as_str()).collect();
        if matches!(tree, Tree::V2) {
            assert_eq!(disks, ["/dev/vda", "/dev/nvme0n1"], "neither partitions nor loops");
            assert_eq!((sample.block[0].read_bytes, node.disks[0].write_ms), (2_966_546 * 512, 79_212));
            assert!(node.load[0] > 0.0);
        }
        let machine = machine(dir.path(), jiff::Timestamp::UNIX_EPOCH);
        assert_eq!((machine.cores, machine.max_pids > Some(1000), machine.memory_bytes > 1 << 30), (2, true, true));
        assert!(machine.booted_at > jiff::Timestamp::UNIX_EPOCH);
    }
    assert!(matches!(cgroups(&PathBuf::from("/nonexistent")), Err(SourceError::Read { .. })));
}

#[test]
fn sizes_count_links_once_and_logs_alone() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    fs::create_dir_all(top.join("inner")).unwrap();
    fs::write(top.join("inner/data"), vec![1_u8; 100_000]).unwrap();
    fs::hard_link(top.join("inner/data"), top.join("again")).unwrap();
    std::os::unix::fs::symlink("/", top.join("link")).unwrap();
    let (bytes, entries) = tree(&top, &|| true).unwrap();
    assert!((100_000..200_000).contains(&bytes), "{bytes}");
    assert_eq!(entries, 4, "top, inner, one name of data, link");
    assert!(tree(&top.join("none"), &|| true).is_none());
    // More files with several links than are remembered: a container can make any number of them.
    let many = dir.path().join("many");
    fs::create_dir_all(&many).unwrap();
    for file in 0..7_usize {
        let first = many.join(format!("{file}-0"));
        fs::write(&first, vec![1_u8; 10_000 * (file + 1)]).unwrap();
        (1..=file).for_each(|link| fs::hard_link(&first, many.join(format!("{file}-{link}"))).unwrap());
    }
    let exact = tree(&many, &|| true).unwrap();
    assert_eq!(exact.1, 8, "each once, and the directory");
    for max in [0, 1, 3] {
        let found = walk(&many, max, &|| true).unwrap();
        assert!(found.0.abs_diff(exact.0) <= 1 && found.1.abs_diff(exact.1) <= 1, "{max}: {found:?} {exact:?}");
        assert!(found.0 >= exact.0 && found.1 >= exact.1, "who wants to hide something gains nothing");
    }
    let home = dir.path().join("containers/abc");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("abc-json.log"), vec![b'x'; 10_000]).unwrap();
    fs::write(home.join("abc-json.log.1"), vec![b'x'; 10_000]).unwrap();
    fs::write(home.join("config.v2.json"), "{}").unwrap();
    let (bytes, files) = logs(dir.path(), "abc").unwrap();
    assert_eq!(logs(dir.path(), "none"), None);
    assert!(bytes >= 20_000 && files == 2, "{bytes} {files}");
    let (space, _) = space(dir.path(), jiff::Timestamp::UNIX_EPOCH).unwrap();
    assert!(space.capacity_bytes >= space.used_bytes && space.capacity_bytes > 0);
}

/// In this machine's kernel: files of a cgroup that is gone are dead, also when there is another of its name.
#[test]
fn a_cgroup_that_is_removed_and_made_again_is_read_on() {
    struct Dirs(Vec<PathBuf>);
    impl Drop for Dirs {
        fn drop(&mut self) {
            for dir in &self.0 {
                let _ = fs::remove_dir(dir);
            }
        }
    }
    let layout = cgroups(Path::new("/")).unwrap();
    let name = format!("/windlass-test-{}", std::process::id());
    let of_v1 = super::cgroup_v1::CONTROLLERS.iter().filter_map(|controller| layout.v1_dir(controller, &name));
    // Controllers may share a hierarchy, which has one directory.
    let dirs: std::collections::BTreeSet<PathBuf> = of_v1.chain(layout.v2_dir(&name)).collect();
    let dirs = Dirs(dirs.into_iter().collect());
    let each = |act: fn(&PathBuf) -> std::io::Result<()>| dirs.0.iter().for_each(|dir| act(dir).unwrap());
    each(|dir| fs::create_dir(dir));
    let mut buffer = Buffer::new();
    let mut files = ContainerFiles::open_pod(Path::new("/"), &layout, &name).unwrap();
    let mut read = |all| {
        let mut sample = Sample::empty(Moment::now());
        files.read(all, &Totals::default(), &mut buffer, &mut sample).map(|()| sample)
    };
    read(true).unwrap();
    for all in [true, false] {
        each(|dir| fs::remove_dir(dir));
        each(|dir| fs::create_dir(dir));
        assert!(read(all).unwrap().memory.is_some() || layout.v1_dir("memory", &name).is_none());
    }
    each(|dir| fs::remove_dir(dir));
    let error = read(true).unwrap_err();
    assert!(matches!(error, SourceError::Removed { .. }), "{error}");
}
