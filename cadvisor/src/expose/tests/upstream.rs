//! Numbers of the summary that are worked out by upstream's formulas from the recorded files themselves, besides the golden
//! files, which hold what the code gives. The formulas are those of the cgroups library (`fs/memory.go`,
//! `fs2/memory.go`), of cAdvisor's `setMemoryStats` and of `pkg/kubelet/stats/helper.go`.

use serde_json::Value;

use super::*;

/// KiB of `/proc/meminfo`, which both trees have: total, anonymous, file pages (cached, buffers, swap cache) and inactive
/// ones of these.
const MEMINFO: [u64; 4] = [24_684_092, 60_300, 1_990_472 + 10_088, 1_250_272];

/// Tree, where in the summary, and the number; `None` is left out upstream.
fn numbers() -> Vec<(Tree, &'static str, Option<u64>)> {
    let [total, anonymous, file, inactive] = MEMINFO.map(|kib| kib << 10);
    let mut all = Vec::new();
    for tree in [Tree::V1, Tree::Hybrid, Tree::V2] {
        all.extend([
            // `rootStatsFromMeminfo`; on v1 the kernel's `usage_in_bytes` of the root is the same sum.
            (tree, "/node/memory/usageBytes", Some(anonymous + file)),
            (tree, "/node/memory/workingSetBytes", Some(anonymous + file - inactive)),
            (tree, "/node/memory/availableBytes", Some(total - (anonymous + file - inactive))),
            (tree, "/node/memory/rssBytes", Some(anonymous)),
            (tree, "/node/memory/pageFaults", Some(34_473_634)),
            (tree, "/node/memory/majorPageFaults", Some(5_070)),
            (tree, "/node/swap/swapUsageBytes", Some(0)),
            (tree, "/node/rlimit/maxpid", Some(32_768)),
            (tree, "/node/rlimit/curproc", Some(128)),
            (tree, "/pods/0/swap/swapAvailableBytes", None),
        ]);
    }
    for tree in [Tree::V1, Tree::Hybrid] {
        all.extend([
            // usage_in_bytes, total_inactive_file, limit_in_bytes.
            (tree, "/pods/0/containers/0/memory/usageBytes", Some(6_000_640)),
            (tree, "/pods/0/containers/0/memory/workingSetBytes", Some(6_000_640 - 5_242_880)),
            (tree, "/pods/0/containers/0/memory/availableBytes", Some(83_886_080 - (6_000_640 - 5_242_880))),
            (tree, "/pods/0/containers/0/memory/rssBytes", Some(61_440)),
            (tree, "/pods/0/containers/0/memory/pageFaults", Some(1_416)),
            (tree, "/pods/0/containers/0/cpu/usageCoreNanoSeconds", Some(2_092_023_554)),
            (tree, "/pods/0/containers/0/swap/swapUsageBytes", Some(0)),
        ]);
    }
    all.extend([
        // memory.current, inactive_file, memory.max, memory.swap.current and .max.
        (Tree::V2, "/pods/0/containers/0/memory/usageBytes", Some(5_832_704)),
        (Tree::V2, "/pods/0/containers/0/memory/workingSetBytes", Some(5_832_704 - 5_242_880)),
        (Tree::V2, "/pods/0/containers/0/memory/availableBytes", Some(83_886_080 - (5_832_704 - 5_242_880))),
        (Tree::V2, "/pods/0/containers/0/memory/rssBytes", Some(65_536)),
        (Tree::V2, "/pods/0/containers/0/memory/pageFaults", Some(1_402)),
        (Tree::V2, "/pods/0/containers/0/memory/majorPageFaults", Some(2)),
        (Tree::V2, "/pods/0/containers/0/cpu/usageCoreNanoSeconds", Some(1_600_123 * 1000)),
        (Tree::V2, "/pods/0/containers/0/swap/swapUsageBytes", Some(12_288)),
        (Tree::V2, "/pods/0/containers/0/swap/swapAvailableBytes", Some(83_886_080 - 12_288)),
    ]);
    all
}

fn shown(view: &View) -> Value {
    serde_json::to_value(summary::summary(view, false)).unwrap()
}

fn number(summary: &Value, at: &str) -> Option<u64> {
    summary.pointer(at).map(|found| found.as_u64().unwrap_or_else(|| panic!("{at}: {found}")))
}

#[test]
fn numbers_are_those_of_upstreams_formulas() {
    for (tree, at, expected) in numbers() {
        assert_eq!(number(&shown(&view(tree)), at), expected, "{tree:?} {at}");
    }
}

/// A memory emptyDir of 4 GiB was filled before its container was restarted: the pod's own cgroup has it.
#[test]
fn what_is_charged_to_the_pod_alone_is_the_pods() {
    let mut view = view(Tree::V2);
    let mut snapshot = Snapshot::clone(&view.snapshot);
    let mut own = Row::clone(&snapshot.rows[1]);
    own.limits.memory_bytes = None;
    own.sample.memory = Some(Memory { usage_bytes: (4 << 30) + 900, inactive_file_bytes: 100, ..Memory::default() });
    let sample = own.sample.clone();
    snapshot.pods.insert(Arc::from(POD), Arc::new(own));
    // What pods that have ended have left is in the cgroup of all pods, whose limit is what may be allocated.
    let mut memory = sample.memory.unwrap();
    memory.usage_bytes += 1 << 20;
    let all = Sample { memory: Some(memory), ..sample };
    snapshot.all_pods =
        Some(Arc::new(SystemCgroup { path: Arc::from("/kubepods.slice"), sample: all, usage_nano_cores: None }));
    view.snapshot = Arc::new(snapshot);
    view.pods_memory_bytes = Some(16 << 30);
    let summary = shown(&view);
    assert_eq!(number(&summary, "/pods/0/memory/workingSetBytes"), Some((4 << 30) + 800));
    assert_eq!(summary["node"]["systemContainers"][1]["name"], "pods");
    let pods = (4_u64 << 30) + 800 + (1 << 20);
    assert_eq!(number(&summary, "/node/systemContainers/1/memory/workingSetBytes"), Some(pods));
    assert_eq!(number(&summary, "/node/systemContainers/1/memory/availableBytes"), Some((16 << 30) - pods));
    let page = prom_cadvisor::text(&view, at(5), Format::Plain);
    let series = "container_memory_working_set_bytes{container=\"\",id=\"/kubepods.slice\",image=\"\"";
    assert!(page.contains(series), "as kubelet's cgroup roots");
}

/// With a storage driver whose layers only the engine can measure.
#[test]
fn a_layer_that_was_not_measured_is_left_out() {
    let mut view = view(Tree::V2);
    let rootfs = |view: &View| {
        let summary = shown(view);
        let used = |at: &str| number(&summary, at);
        (used("/pods/0/containers/0/rootfs/usedBytes"), used("/pods/0/containers/0/rootfs/inodesUsed"))
    };
    assert_eq!(rootfs(&view), (Some(5_251_072), Some(7)));
    for (layer, expected) in
        [(None, (None, None)), (Some(Size { bytes: 104_857_600, inodes: None }), (Some(104_857_600), None))]
    {
        let mut storage = Storage::clone(&view.storage);
        storage.containers.get_mut(CONTAINER).unwrap().rootfs = layer;
        view.storage = Arc::new(storage);
        assert_eq!(rootfs(&view), expected);
        let page = prom_cadvisor::text(&view, at(5), Format::Plain);
        let series = "container_fs_usage_bytes{container=\"busy\"";
        assert_eq!(page.contains(series), layer.is_some(), "logs alone are not what a container uses");
    }
}

#[test]
fn a_machine_without_the_memory_controller_tells_no_memory() {
    let mut view = view(Tree::V2);
    let mut snapshot = Snapshot::clone(&view.snapshot);
    change_rows(&mut snapshot, |row| row.sample.memory = None);
    view.snapshot = Arc::new(snapshot);
    let summary = shown(&view);
    assert!(summary["pods"][0]["memory"].is_null() && summary["pods"][0]["containers"][0]["memory"].is_null());
    assert!(summary["pods"][0]["containers"][0]["cpu"].is_object());
    assert!(!prom_resource::text(&view, Format::Plain).contains("container_memory_working_set_bytes{"));
    let page = prom_cadvisor::text(&view, at(5), Format::Plain);
    assert!(!page.contains("container_memory_usage_bytes{container=\"busy\"") && page.contains("container=\"busy\""));
}

/// As after a forced deletion, while the old containers run on alongside the new ones.
#[test]
fn pods_of_one_name_are_one_series_of_the_resource_page() {
    let mut view = view(Tree::V2);
    let mut snapshot = Snapshot::clone(&view.snapshot);
    let mut left = Row::clone(&snapshot.rows[1]);
    let container_id = "f".repeat(64);
    let target = Target {
        container_id,
        pod_uid: "left-over".to_owned(),
        pod_started_at: at(-9000),
        ..Target::clone(&left.target)
    };
    left.target = Arc::new(target);
    left.sample.cpu.usage_ns = 1;
    snapshot.rows.insert(Arc::new(left));
    view.snapshot = Arc::new(snapshot);
    let page = prom_resource::text(&view, Format::Plain);
    let series = "container_cpu_usage_seconds_total{container=\"busy\",namespace=\"default\",pod=\"web\"}";
    let found: Vec<&str> = page.lines().filter(|line| line.starts_with(series)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(" 1.600123 "), "the newer one counts: {found:?}");
}
