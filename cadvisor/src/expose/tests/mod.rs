//! Pages from a recorded tree, compared with files under tests/golden.
//! After an intended change: run with UPDATE_GOLDEN=1 and review the difference.

mod upstream;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use windlass_kit::{moment::Moment, prometheus::Format};

use super::*;
use crate::{
    config::Target,
    model::*,
    source::{
        Buffer, ContainerFiles, MachineFiles, cgroups, machine,
        tests::{CGROUPFS, CONTAINER, POD, SYSTEMD, Tree, as_driver, target, unpack},
    },
};

fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    for (at, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(wanted, found, "{name}, line {}", at + 1);
    }
    assert_eq!(wanted.lines().count(), found.lines().count(), "{name}: number of lines");
}

pub(super) fn at(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(1_770_091_600_250 + second * 1000).unwrap()
}

fn row(root: &Path, target: Target, usage_nano_cores: Option<u64>, second: i64) -> Row {
    let layout = cgroups(root).unwrap();
    let mut buffer = Buffer::new();
    let mut files = ContainerFiles::open(root, &layout, &target, &mut buffer).unwrap();
    let limits = files.read_limits(&mut buffer).unwrap();
    let slow = files.slow(root, &mut buffer).unwrap();
    let mut sample = Sample::empty(Moment { wall: at(second), mono_ns: 0 });
    files.read(true, &crate::source::Totals::default(), &mut buffer, &mut sample).unwrap();
    Row {
        cgroup: Arc::from(files.cgroup.as_str()),
        target: Arc::new(target),
        sample,
        usage_nano_cores,
        limits,
        slow: Arc::new(SlowStats {
            files: Some(5),
            sockets: Some(1),
            tasks: Some(Tasks { sleeping: 1, running: 1, ..Tasks::default() }),
            ..slow
        }),
        host_network: false,
        stale: false,
    }
}

/// An emptyDir on the disk, one in memory, and a claim's.
fn volumes(space: Filesystem) -> Vec<VolumeSize> {
    let of = |name: &str, claim: Option<&str>, ephemeral, used_bytes| VolumeSize {
        name: name.to_owned(),
        claim: claim.map(|claim| ("default".to_owned(), claim.to_owned())),
        ephemeral,
        space: Filesystem { used_bytes, ..space },
        inodes_used: 3,
        stale: false,
    };
    vec![of("data", Some("claim"), false, 7 << 30), of("memory", None, false, 4096), of("scratch", None, true, 1 << 20)]
}

pub(crate) fn view(tree: Tree) -> View {
    let dir = unpack(tree);
    let root = dir.path();
    let layout = cgroups(root).unwrap();
    let busy = row(root, target(), Some(499_000_000), 0);
    let sandbox = Target {
        container_name: "POD".to_owned(),
        name: "k8s_POD_web".to_owned(),
        image: "pause".to_owned(),
        ..target()
    };
    let mut sandbox = row(root, sandbox, Some(0), 1);
    sandbox.limits.memory_bytes = None;
    let memory = Memory { usage_bytes: 500_000, rss_bytes: 40_000, faults: 900, ..Memory::default() };
    sandbox.sample.memory = Some(Memory { swap_bytes: Some(0), oom_kills: Some(0), ..memory });
    sandbox.sample.cpu = Cpu { usage_ns: 20_000_000, ..Cpu::default() };
    sandbox.sample.block.clear();
    let mut subject_of_sandbox = Target::clone(&sandbox.target);
    subject_of_sandbox.container_id = "a".repeat(64);
    sandbox.target = Arc::new(subject_of_sandbox);
    sandbox.cgroup = Arc::from(sandbox.cgroup.replace(CONTAINER, &"a".repeat(64)));
    let (files, mut buffer) = (MachineFiles::open(root, Some(&layout)), Buffer::new());
    let totals = files.totals(&mut buffer);
    let mut node = files.read(&totals, &mut buffer, Sample::empty(Moment { wall: at(2), mono_ns: 0 })).unwrap();
    node.usage_nano_cores = Some(612_000_000);
    let space = Filesystem {
        at: at(-20),
        capacity_bytes: 100 << 30,
        available_bytes: 40 << 30,
        used_bytes: 55 << 30,
        inodes: 6_000_000,
        inodes_free: 5_000_000,
    };
    let size = ContainerSize {
        at: at(-10),
        rootfs: Some(Size { bytes: 5_251_072, inodes: Some(7) }),
        logs: Some(Size { bytes: 4096, inodes: Some(1) }),
        stale: false,
    };
    let mut machine = machine(root, jiff::Timestamp::UNIX_EPOCH);
    machine.os_version = "Debian GNU/Linux 12 (bookworm)".to_owned();
    let snapshot = Snapshot {
        moment: Moment { wall: at(2), mono_ns: 0 },
        machine: Arc::new(machine),
        node: Arc::new(node),
        rows: [Arc::new(sandbox), Arc::new(busy)].into_iter().collect(),
        pods: SharedMap::default(),
        system: Arc::new(vec![SystemRow {
            name: "kubelet".to_owned(),
            started_at: at(-3000),
            moment: Moment { wall: at(1), mono_ns: 0 },
            cpu: Cpu { usage_ns: 3_000_000_000, ..Cpu::default() },
            memory: Some(Memory { usage_bytes: 30_000_000, rss_bytes: 30_000_000, faults: 8000, ..Memory::default() }),
            usage_nano_cores: Some(2_000_000),
        }]),
        all_pods: None,
        runtime_cgroups: Arc::default(),
        devices: Arc::new(BTreeMap::from([((254, 0), "/dev/vda".to_owned())])),
    };
    let storage = Storage {
        node: Some(space),
        image_root: None,
        images: Some(space),
        is_one_file_system: Some(true),
        logs: Some(space),
        images_device: "/dev/vda".to_owned(),
        containers: SharedMap::from([(Arc::from(CONTAINER), size)]),
        volumes: SharedMap::from([(Arc::from(POD), volumes(space))]),
        pod_files: SharedMap::from([(Arc::from(POD), Size { bytes: 8192, inodes: Some(2) })]),
        image_bytes: None,
    };
    View {
        node_name: "n1".to_owned(),
        snapshot: Arc::new(snapshot),
        storage: Arc::new(storage),
        image_bytes: Some(123_456_789),
        pods_memory_bytes: Some(3 << 30),
    }
}

/// Changes each row.
fn change_rows(snapshot: &mut Snapshot, change: impl Fn(&mut Row)) {
    let changed = snapshot.rows.iter().map(|row| {
        let mut row = Row::clone(row);
        change(&mut row);
        Arc::new(row)
    });
    snapshot.rows = changed.collect();
}

#[test]
fn pages_are_golden() {
    for (tree, name) in [(Tree::V1, "v1"), (Tree::Hybrid, "hybrid"), (Tree::V2, "v2")] {
        let view = view(tree);
        let json = |only| serde_json::to_string_pretty(&summary::summary(&view, only)).unwrap() + "\n";
        golden(&format!("{name}.summary.json"), &json(false));
        golden(&format!("{name}.summary.reduced.json"), &json(true));
        golden(&format!("{name}.cadvisor.txt"), &prom_cadvisor::text(&view, at(5), Format::Plain));
        golden(&format!("{name}.resource.txt"), &prom_resource::text(&view, Format::Plain));
    }
}

#[test]
fn families_are_those_that_dashboards_ask_for() {
    use windlass_kit::prometheus::Text;
    use windlass_tests::metrics_table::{differences, unlike};
    let view = view(Tree::V2);
    let page = prom_cadvisor::text(&view, at(5), Format::Plain);
    assert_eq!(differences("node/cadvisor", &page, &[]), [""; 0]);
    let page = prom_resource::text(&view, Format::Plain);
    assert_eq!(differences("node/resource", &page, &[]), [""; 0]);
    assert_eq!(unlike("node/resource", &page), [""; 0]);
    let mut page = Text::new();
    prom_kubelet::put(&view, 1, &mut page);
    assert_eq!(unlike("node", &page.finish()), [""; 0]);
}

/// The numbers do not depend on the cgroup driver, only the paths do.
#[test]
fn drivers_of_cgroups_differ_in_paths_alone() {
    for (tree, other, names) in
        [(Tree::V1, Tree::V1Systemd, (SYSTEMD, CGROUPFS)), (Tree::V2, Tree::V2Cgroupfs, (CGROUPFS, SYSTEMD))]
    {
        let (view, other) = (view(tree), view(other));
        let (page, of_other) = [&view, &other].map(|view| prom_cadvisor::text(view, at(5), Format::Plain)).into();
        assert_ne!(page, of_other);
        assert_eq!(page, as_driver(&of_other, names));
        assert_eq!(prom_resource::text(&view, Format::Plain), prom_resource::text(&other, Format::Plain));
        let json = |view| serde_json::to_value(summary::summary(view, false)).unwrap();
        assert_eq!(json(&view), json(&other));
    }
}

/// Debian's prometheus has it; scripts/install.sh installs that for the tests.
fn promtool(page: &str, name: &str) {
    use std::{io::Write as _, process::Stdio};
    let mut command = std::process::Command::new("promtool");
    let spawned =
        command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawned.spawn().expect("promtool: scripts/install.sh test installs it");
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    // Names are upstream's, so complaints about their style are ignored; all others count.
    let style = [
        "counter metrics should have \"_total\" suffix",
        "non-counter metrics should not have \"_total\" suffix",
        "label names should be written in 'snake_case'",
        "should not contain abbreviated units",
    ];
    let style = |line: &str| style.iter().any(|known| line.contains(known)) || line.contains("should be used");
    let other: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty() && !style(line)).collect();
    assert!(other.is_empty(), "{name}: {other:?}");
    assert!(matches!(out.status.code(), Some(0 | 3)), "{name}: {:?} {said}", out.status);
}

#[test]
fn promtool_reads_every_page() {
    for tree in [Tree::V1, Tree::Hybrid, Tree::V2] {
        let view = view(tree);
        promtool(&prom_cadvisor::text(&view, at(5), Format::Plain), "cadvisor");
        promtool(&prom_resource::text(&view, Format::Plain), "resource");
        let mut page = windlass_kit::prometheus::Text::new();
        prom_kubelet::put(&view, 3, &mut page);
        let page = page.finish();
        assert!(
            page.contains(
                "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"claim\"} 7516192768"
            ),
            "{page}"
        );
        promtool(&page, "volumes");
    }
}

#[test]
fn no_series_stands_twice() {
    for tree in [Tree::V1, Tree::V2] {
        let view = view(tree);
        for page in [prom_cadvisor::text(&view, at(5), Format::Plain), prom_resource::text(&view, Format::Plain)] {
            let mut seen = std::collections::BTreeSet::new();
            for line in page.lines().filter(|line| !line.starts_with('#')) {
                let series = line.find('}').map_or_else(|| line.split(' ').next().unwrap(), |end| &line[..=end]);
                assert!(seen.insert(series.to_owned()), "{series}");
            }
        }
    }
}

#[test]
fn a_pod_is_the_sum_of_its_containers_or_its_own_cgroup() {
    let mut view = view(Tree::V2);
    let find = |view: &View| {
        let found = pods(&view.snapshot);
        assert_eq!(found.len(), 1);
        (found[0].total().unwrap(), found[0].containers.len())
    };
    let (total, containers) = find(&view);
    assert_eq!(containers, 1, "the sandbox is not listed");
    assert_eq!(total.cpu.usage_ns, 1_600_123_000 + 20_000_000);
    assert_eq!(total.memory.map(|memory| memory.working_set_bytes()), Some(589_824 + 500_000));
    assert_eq!((total.usage_nano_cores, total.limit_bytes), (Some(499_000_000), Some(83_886_080)));
    let mut own = Row::clone(&view.snapshot.rows[1]);
    own.sample.cpu.usage_ns = 9_000_000_000;
    own.limits.memory_bytes = None;
    let mut snapshot = Snapshot::clone(&view.snapshot);
    snapshot.pods.insert(Arc::from(POD), Arc::new(own));
    view.snapshot = Arc::new(snapshot);
    let (total, _) = find(&view);
    assert_eq!((total.cpu.usage_ns, total.limit_bytes), (9_000_000_000, Some(83_886_080)));
}

#[test]
fn just_made_containers_stay_out_and_host_networks_are_the_machines() {
    let mut view = view(Tree::V2);
    let mut snapshot = Snapshot::clone(&view.snapshot);
    change_rows(&mut snapshot, |row| {
        row.host_network = true;
        if !row.target.is_sandbox() {
            row.sample.cpu.usage_ns = 0;
        }
    });
    view.snapshot = Arc::new(snapshot);
    let page = prom_resource::text(&view, Format::Plain);
    assert!(!page.contains("container=\"busy\""), "a zero would make metrics-server drop the pod");
    assert!(summary::summary(&view, false).pods[0].network.is_some(), "upstream tells the host's counters there");
    assert!(
        !prom_cadvisor::text(&view, at(5), Format::Plain)
            .contains("container_network_receive_bytes_total{container=\"POD\"")
    );
}
