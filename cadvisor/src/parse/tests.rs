//! Valid and malformed kernel files.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::{cgroup::*, *};
use crate::model::{Cpu, InterfaceName, Memory};

#[test]
fn numbers_are_digits_alone() {
    assert_eq!(number(b" 42\n"), Some(42));
    for bad in [&b""[..], b"max", b"-1", b"4 2", b"99999999999999999999"] {
        assert_eq!(number(bad), None, "{}", String::from_utf8_lossy(bad));
    }
}

#[test]
fn the_machine_cpu_leaves_idle_waiting_and_stolen_time_out() {
    let mut found = Cpu::default();
    assert!(cpu::machine(b"cpu  100 10 50 9000 400 3 7 800 20 0\ncpu0 1 1 1 1\n", &mut found));
    assert_eq!(found.usage_ns, 170 * cpu::TICK_NS);
    assert!(!cpu::machine(b"nonsense", &mut found));
}

#[test]
fn v1_memory_prefers_the_whole_subtree() {
    let mut found = Memory::default();
    memory::v1_stat(
        b"cache 1\nrss 2\ninactive_file 3\ntotal_cache 10\ntotal_rss 20\ntotal_inactive_file 30\n",
        &mut found,
    );
    assert_eq!((found.cache_bytes, found.rss_bytes, found.inactive_file_bytes), (10, 20, 30));
    memory::v1_oom(b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", &mut found);
    assert_eq!(found.oom_kills, Some(3));
}

#[test]
fn pressure_tolerates_missing_lines() {
    let only_some = psi::pressure(b"some avg10=1.50 avg60=0.10 avg300=0.00 total=77\n").unwrap();
    assert_eq!((only_some.some.avg10, only_some.some.total_us, only_some.full.total_us), (1.5, 77, 0));
    assert_eq!(psi::pressure(b""), None);
    for text in ["0.00", "0.01", "0.29", "1.15", "33.33", "99.99", "100.00"] {
        let line = format!("some avg10={text} avg60=0.10 avg300=0.00 total=77\n");
        assert_eq!(psi::pressure(line.as_bytes()).unwrap().some.avg10, text.parse::<f64>().unwrap(), "{text}");
    }
    for text in ["", ".", "1", "1.5", "-1.50", "nan", "1.5x", "99999999999999999999.00"] {
        let line = format!("some avg10={text} avg60=0.10 avg300=0.00 total=77\n");
        assert_eq!(psi::pressure(line.as_bytes()).unwrap().some.avg10, 0.0, "{text}");
    }
}

#[test]
fn a_bad_network_row_costs_itself_only() {
    let text = b"Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n\
        wl0123456789a: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\nwlan0: 9 8 7 6 0 0 0 0 5 4 3 2 0 0 0 0\n bad: 1 2 3\n\
        eth0:736 8 0 0 0 0 0 0 12 1 0 0 0 0 0 0\n";
    let mut found = Vec::new();
    net::devices(text, &mut found);
    let names: Vec<_> = found.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["wlan0", "eth0"]);
    assert_eq!((found[0].rx_dropped, found[0].tx_dropped, found[1].tx_bytes), (6, 2, 12));
    assert_eq!(InterfaceName::new(b"0123456789abcdef"), None);
}

#[test]
fn layouts() {
    let v2 = "24 23 0:22 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    let v1 = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
              35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw master:9 - cgroup cgroup rw,memory\n";
    let named = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
    let mode = |text: &str| layout(text).map(|layout| layout.mode);
    assert_eq!(mode(v2), Some(Mode::V2));
    assert_eq!(mode(v1), Some(Mode::V1));
    assert_eq!(mode(&format!("{v1}{v2}")), Some(Mode::Hybrid));
    assert_eq!(mode(&format!("{named}{v2}")), Some(Mode::V2), "systemd's own hierarchy has no controllers");
    assert_eq!(mode("1 2 3\n\ngarbage"), None);
    let found = layout(v1).unwrap();
    assert_eq!(found.v1_dir("cpuacct", "/docker/x"), Some(PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/docker/x")));
    assert_eq!(found.v1_dir("memory", "/docker/abc/x"), Some(PathBuf::from("/sys/fs/cgroup/memory/x")));
    assert_eq!(found.v1_dir("pids", "/x"), None);
}

#[test]
fn paths_of_containers() {
    let text = b"4:memory:/docker/aa11/init\n2:cpu,cpuacct:/docker/aa11\n0::/system.slice/docker-aa11.scope/x\n";
    assert_eq!(path_of(text, "cpuacct"), Some("/docker/aa11"));
    assert_eq!(path_of(text, "memory").and_then(|p| cut_at(p, "aa11")), Some("/docker/aa11"));
    assert_eq!(path_of(text, "").and_then(|p| cut_at(p, "aa11")), Some("/system.slice/docker-aa11.scope"));
    assert_eq!(cut_at("/docker/bb", "aa11"), None);
    assert_eq!(pod_of("/kubepods/podu-1/aa11", "u-1"), Some("/kubepods/podu-1"));
    let slice = "/kubepods.slice/kubepods-podu_1.slice/docker-aa11.scope";
    assert_eq!(pod_of(slice, "u-1"), Some("/kubepods.slice/kubepods-podu_1.slice"));
    assert_eq!(pod_of("/docker/aa11", "u-1"), None);
    assert_eq!(pod_of("/docker/aa11", ""), None);
}

#[test]
fn upper_dirs() {
    let row = |options: &str| {
        format!("72 48 0:39 / / rw - overlay overlay rw,{options}\n73 72 0:4 / /proc rw - proc proc rw\n")
    };
    let home = Some(Path::new("/d/overlay2"));
    assert_eq!(upper_dir(&row("lowerdir=/a:/b,upperdir=/u/diff"), home), Some(PathBuf::from("/u/diff")));
    assert_eq!(upper_dir(&row("upperdir=abc/diff"), home), Some(PathBuf::from("/d/overlay2/abc/diff")));
    assert_eq!(upper_dir(&row("upperdir=../../etc"), home), None);
    assert_eq!(upper_dir(&row("upperdir=abc/diff"), None), None, "nobody has told where Docker's data is");
    assert_eq!(upper_dir("72 48 254:0 / / rw - ext4 /dev/vda rw\n", home), None);
}

#[test]
fn daemons_with_strange_names() {
    let stat =
        b"77 (a) b (c)) S 1 77 77 0 -1 4194560 500 0 3 0 120 30 0 0 20 0 9 0 4000 1000000 250 18446744073709551615";
    let found = machine::daemon(stat).unwrap();
    assert_eq!(
        (found.faults, found.major_faults, found.user_ns, found.system_ns),
        (500, 3, 1_200_000_000, 300_000_000)
    );
    assert_eq!((found.started_ns, found.resident_pages), (40_000_000_000, 250));
    assert_eq!(machine::daemon(b"77 (x) S 1"), None);
    assert_eq!(
        machine::open_files(b"Max open files            20000                20000                files     \n"),
        Some(20_000)
    );
    assert_eq!(
        machine::open_files(b"Max open files            unlimited            unlimited            files     \n"),
        None
    );
}

fn everything(text: &[u8]) {
    let (mut cpu, mut memory, mut devices, mut interfaces) =
        (Cpu::default(), Memory::default(), Vec::new(), Vec::new());
    cpu::v1_usage(text, &mut cpu);
    cpu::v1_split(text, &mut cpu);
    cpu::v1_throttling(text, &mut cpu);
    cpu::v2(text, &mut cpu);
    cpu::machine(text, &mut cpu);
    memory::v1_stat(text, &mut memory);
    memory::v1_oom(text, &mut memory);
    memory::v2_stat(text, &mut memory);
    memory::v2_events(text, &mut memory);
    memory::machine(text);
    memory::machine_events(text);
    io::v1(text, io::V1::Bytes, &mut devices);
    io::v1(text, io::V1::Requests, &mut devices);
    io::v2(text, &mut devices);
    net::devices(text, &mut interfaces);
    net::default_interface(text);
    psi::pressure(text);
    pids::count(text);
    pids::ids(text).count();
    pids::machine_threads(text);
    machine::daemon(text);
    machine::boot_second(text);
    machine::processors(text);
    machine::open_files(text);
    path_of(text, "memory");
    let text = String::from_utf8_lossy(text);
    cut_at(&text, "aa");
    pod_of(&text, "aa");
    layout(&text);
    upper_dir(&text, Some(Path::new("/d")));
    machine::distribution(&text);
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        everything(&text);
    }

    #[test]
    fn no_near_misses_make_a_parser_panic(
        lines in proptest::collection::vec(
            "(cpu|some|full|total_rss|usage_usec|254:0|7:|:|eth0:|lo|MemTotal:|0::/|24 23 0:22 / / rw)( (Read|rbytes=|avg10=|total=|-|overlay|cgroup2|shared:1|[0-9]{0,22}|upperdir=)){0,18}",
            0..12,
        )
    ) {
        everything(lines.join("\n").as_bytes());
    }
}

#[test]
fn sockets_in_use() {
    let text = b"sockets: used 9\nTCP: inuse 2 orphan 7 tw 3 alloc 8 mem 1\nUDP: inuse 0 mem 4\nUDPLITE: inuse 6\n";
    let cases = [("TCP", Some(5)), ("UDP", Some(0)), ("UDPLITE", Some(6)), ("TCP6", None), ("sockets", None)];
    for (protocol, count) in cases {
        assert_eq!(net::in_use(text, protocol), count, "{protocol}");
    }
    assert_eq!(net::in_use(b"TCP: inuse x", "TCP"), None);
}

/// Recorded at one time on a machine with cgroups v1: `/proc/meminfo`, and what the kernel itself counts for the root
/// cgroup (`memory.usage_in_bytes` and `total_inactive_file` of `memory.stat`), which upstream reports.
#[test]
fn memory_of_the_machine_is_what_its_root_cgroup_counts() {
    let text = b"MemTotal:       24684092 kB\nMemFree:         3854692 kB\nMemAvailable:   20132112 kB\n\
        Buffers:          309820 kB\nCached:         16203944 kB\nSwapCached:            0 kB\n\
        Active(file):    7283132 kB\nInactive(file):  9221844 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\n\
        Dirty:            242636 kB\nWriteback:             0 kB\nAnonPages:       3126824 kB\nMapped:           641988 kB\n\
        Shmem:              8888 kB\nSlab:             722920 kB\nSReclaimable:     630404 kB\n";
    let (usage_in_bytes, total_inactive_file) = (20_118_933_504_u64, 9_443_123_200_u64);
    let (used, machine) = memory::machine(text).unwrap();
    let near = |found: u64, expected: u64| found.abs_diff(expected) < expected / 1000;
    assert!(near(used.usage_bytes, usage_in_bytes), "{used:?}");
    assert!(near(used.working_set_bytes(), usage_in_bytes - total_inactive_file), "{used:?}");
    assert_eq!((machine.total_bytes, used.swap_bytes), (24_684_092 << 10, Some(0)));
    // A machine with many small files: the kernel's caches of them are no usage. By upstream's rootStatsFromMeminfo and
    // kubelet's arithmetic: 16 GiB - (1.5 GiB anon + 3.25 GiB file - 0.25 GiB inactive file).
    let text = b"MemTotal: 16777216 kB\nMemFree: 163840 kB\nBuffers: 262144 kB\nCached: 3145728 kB\nSwapCached: 0 kB\n\
        Inactive(file): 262144 kB\nAnonPages: 1572864 kB\nSlab: 9437184 kB\nSReclaimable: 9175040 kB\n";
    let (used, machine) = memory::machine(text).unwrap();
    assert_eq!(machine.total_bytes - used.working_set_bytes(), (16 << 30) - ((19 << 28) - (1 << 28)));
    assert_eq!(memory::machine(b"MemTotal: 5 kB\nCached: 1 kB\nInactive(file): 1 kB\n"), None, "a part is missing");
}

#[test]
fn interfaces_and_routes() {
    for (name, inner) in
        [("eth0", false), ("br-ex", false), ("br-int", false), ("br-0123456789ab", true), ("docker0", true)]
    {
        assert_eq!(net::is_inner(name.as_bytes()), inner, "{name}");
    }
    // A VPN with `redirect-gateway def1`: two halves of all addresses lead to it, the default route does not.
    let text = b"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        tun0\t00000000\t0108080A\t0003\t0\t0\t0\t00000080\t0\t0\t0\n\
        eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";
    assert_eq!(net::default_interface(text).map(|name| name.as_str().to_owned()), Some("eth0".to_owned()));
}
