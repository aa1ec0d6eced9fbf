//! Known loads on real containers. Needs root and a Docker engine; creates and removes its own image, network and
//! containers.

use std::{
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{Config, EngineDirs, Target, Usage};
use windlass_kit::{prometheus::Format, published_map::Publisher};

fn docker(arguments: &[&str]) -> Option<String> {
    let out = Command::new("docker").args(arguments).stdin(Stdio::null()).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Removes what the test created, also when it panics.
struct Made {
    image: String,
    containers: Vec<String>,
    networks: Vec<String>,
}

impl Drop for Made {
    fn drop(&mut self) {
        for id in &self.containers {
            docker(&["rm", "-f", "-v", id]);
        }
        for network in &self.networks {
            docker(&["network", "rm", network]);
        }
        docker(&["rmi", "-f", &self.image]);
    }
}

/// An image with only the static busybox of this host.
fn image() -> Option<Made> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| std::fs::metadata(path).is_ok())?;
    docker(&["version"])?;
    let dir = tempfile::tempdir().ok()?;
    let bin = dir.path().join("bin");
    std::fs::create_dir_all(&bin).ok()?;
    std::fs::create_dir_all(dir.path().join("data")).ok()?;
    std::fs::copy(busybox, bin.join("busybox")).ok()?;
    for name in ["sh", "dd", "cat", "nc", "sleep", "sync"] {
        std::os::unix::fs::symlink("busybox", bin.join(name)).ok()?;
    }
    let archive = dir.path().with_extension("tar");
    let made = Command::new("tar").arg("-C").arg(dir.path()).arg("-cf").arg(&archive).arg(".").status().ok()?;
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let name = format!("windlass-cadvisor-test:{}-{serial}", std::process::id());
    let loaded = made.success().then(|| docker(&["import", archive.to_str()?, &name])).flatten();
    let _ = std::fs::remove_file(&archive);
    loaded.map(|_| Made { image: name, containers: Vec::new(), networks: Vec::new() })
}

impl Made {
    fn network(&mut self, mtu: &str) -> Option<String> {
        let name = self.image.replace(':', "-");
        docker(&["network", "create", "-o", &format!("com.docker.network.driver.mtu={mtu}"), &name])?;
        self.networks.push(name.clone());
        Some(name)
    }

    fn run(&mut self, options: &[&str], script: &str) -> Option<Target> {
        let image = self.image.clone();
        let mut arguments = vec!["run", "-d"];
        arguments.extend(options);
        arguments.extend([image.as_str(), "/bin/sh", "-c", script]);
        let id = docker(&arguments)?;
        self.containers.push(id.clone());
        let pid = docker(&["inspect", "-f", "{{.State.Pid}}", &id])?.parse().ok()?;
        Some(Target {
            container_id: id,
            pid,
            name: "load".to_owned(),
            image,
            pod_name: String::new(),
            pod_namespace: String::new(),
            pod_uid: String::new(),
            container_name: "load".to_owned(),
            started_at: jiff::Timestamp::now(),
            pod_started_at: jiff::Timestamp::now(),
            ..Target::default()
        })
    }
}

/// These run.
fn set(targets: &Publisher<Arc<str>, Arc<Target>>, running: &[&Target]) {
    for target in running {
        targets.set(Arc::from(target.container_id.as_str()), Arc::new(Target::clone(target)));
    }
}

/// Docker's data directory.
fn root() -> Option<String> {
    docker(&["info", "-f", "{{.DockerRootDir}}"])
}

/// The device of Docker's data directory.
fn disk() -> Option<String> {
    let out = Command::new("df").args(["--output=source", &root()?]).output().ok()?;
    String::from_utf8_lossy(&out.stdout).lines().nth(1).map(|device| device.trim().to_owned())
}

/// What a process has used of processors, in nanoseconds, in steps of a hundredth of a second.
fn cpu_time(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    // utime and stime of proc_pid_stat(5), where the state is the third.
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number") * 10_000_000).sum()
}

/// Whether a measured number is within 5 % of the true one.
fn near(measured: u64, truth: u64) -> bool {
    measured.abs_diff(truth) <= truth / 20
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn known_loads_are_measured_within_five_percent() {
    let mut made = image().expect("a Docker Engine and a static busybox, which `make test` installs and starts");
    let started = jiff::Timestamp::now();
    // Half a core by quota; 100 MB in a memory file system that the cgroup is charged for; 50 MiB written to the layer
    // past the page cache, since v1 does not know whose pages are written back; 10 MB sent over the bridge to its
    // gateway.
    let busy = made.run(&["--cpus", "0.5", "--network", "none"], "while :; do :; done").expect("busy container");
    // Newer kernels count on v1 only where there is a limit; this one is never reached.
    let limit = format!("{}:10gb", disk().expect("the device of Docker's data"));
    let hog = made
        .run(
            &["--memory", "300m", "--network", "none", "--tmpfs", "/hold:size=150m", "--device-write-bps", &limit],
            "dd if=/dev/zero of=/hold/x bs=1000000 count=100; dd if=/dev/zero of=/data/y bs=1M count=50 oflag=direct; sleep 1000",
        )
        .expect("hog container");
    // Large packets: their headers are part of what is counted, and with ordinary ones nearly 5 % of it.
    let network = made.network("9000").expect("a network of its own");
    let mut talker = made.run(&["--network", &network], "sleep 1000").expect("talking container");
    talker.pod_uid = "uid-1".to_owned();
    talker.pod_name = "talker".to_owned();
    talker.pod_namespace = "default".to_owned();
    talker.container_name = "POD".to_owned();

    let root = root().map(Into::into);
    let (_dirs, engine_dirs) = watch::channel(EngineDirs { data_root: root.clone(), image_root: root });
    let config = Config {
        node_name: "node".to_owned(),
        max_age: Duration::ZERO,
        walk_interval: Duration::from_millis(500),
        engine_dirs,
        ..Config::default()
    };
    let targets = Publisher::default();
    set(&targets, &[&busy, &hog, &talker]);
    let shutdown = CancellationToken::new();
    let usage =
        Usage::start(config, targets.subscribe().follow(), Publisher::default().subscribe().follow(), shutdown.clone());

    let sent = |usage: &Usage| {
        let snapshot = usage.snapshot();
        let row = snapshot.rows.iter().find(|row| row.target.container_id == talker.container_id);
        row.and_then(|row| row.sample.network.first()).map(|i| i.tx_bytes)
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    usage.refresh().await;
    let before = sent(&usage).expect("network of the talking container");
    let gateway =
        docker(&["inspect", "-f", "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}", &talker.container_id])
            .expect("gateway");
    let listener = std::net::TcpListener::bind((gateway.as_str(), 0)).expect("a port of the gateway");
    let port = listener.local_addr().expect("its address").port();
    let takes = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the container's connection");
        std::io::copy(&mut stream, &mut std::io::sink()).expect("all that it sends")
    });
    let send = format!("dd if=/dev/zero bs=1000000 count=10 | nc {gateway} {port}");
    docker(&["exec", &talker.container_id, "/bin/sh", "-c", &send]).expect("sending");
    assert_eq!(takes.join().expect("the listener's thread"), 10_000_000);
    usage.refresh().await;
    let sent = sent(&usage).expect("network") - before;
    println!("talker: {sent} bytes sent");
    assert!(near(sent, 10_000_000), "10 MB sent, measured {sent}");

    // The truth is the kernel's account of the process, since a busy host gives it less than its quota. A refresh may be
    // late in one window, but not in all.
    let mut rates: Vec<[u64; 2]> = Vec::new();
    while rates.len() < 6 && !rates.last().is_some_and(|[measured, truth]| near(*measured, *truth)) {
        let row = |usage: &Usage| {
            let snapshot = usage.snapshot();
            let row = snapshot.rows.iter().find(|row| row.target.container_id == busy.container_id).expect("row");
            (row.sample.moment.mono_ns, row.sample.cpu.usage_ns, row.usage_nano_cores)
        };
        usage.refresh().await;
        let ((from, used, _), spent) = (row(&usage), cpu_time(busy.pid));
        tokio::time::sleep(Duration::from_secs(4)).await;
        usage.refresh().await;
        let ((to, now_used, rate), now_spent) = (row(&usage), cpu_time(busy.pid));
        let per_second = |spent: u64| u64::try_from(u128::from(spent) * 1_000_000_000 / u128::from(to - from)).unwrap();
        let measured = per_second(now_used - used);
        assert!(rate.is_some_and(|rate| near(rate, measured)), "rate {rate:?}, measured {measured}");
        rates.push([measured, per_second(now_spent - spent)]);
    }
    println!("busy: {rates:?} nanocores, measured and true");
    let [measured, truth] = *rates.last().expect("a window");
    assert!(near(measured, truth) && truth > 0, "of half a core, measured and true {rates:?}");
    let snapshot = usage.snapshot();
    let row = |id: &str| snapshot.rows.iter().find(|row| row.target.container_id == id).expect("row");
    let is_throttled = row(&busy.container_id).sample.cpu.throttled_periods > 0;
    assert!(is_throttled || truth < 450_000_000, "{rates:?}");
    assert_eq!(row(&busy.container_id).limits.cpu_quota_us, Some(50_000));
    assert!(snapshot.node.usage_nano_cores.is_some_and(|node| node >= 400_000_000));

    let memory = row(&hog.container_id).sample.memory.expect("a memory controller");
    println!("hog: {memory:?}");
    let working_set = memory.working_set_bytes();
    assert!(near(working_set, 100_000_000), "100 MB used, measured {working_set}");
    assert_eq!(row(&hog.container_id).limits.memory_bytes, Some(300 << 20));
    let written: u64 = row(&hog.container_id).sample.block.iter().map(|device| device.write_bytes).sum();
    println!("hog: {written} bytes written to devices");
    assert!(near(written, 50 << 20), "50 MiB written, measured {written}");
    let storage = usage.storage();
    let size = storage.containers.get(hog.container_id.as_str()).expect("size of the layer");
    println!("hog's layer: {size:?}");
    let layer = size.rootfs.expect("a layer").bytes;
    assert!(near(layer, 50 << 20), "50 MiB in the layer, measured {layer}");
    assert!(storage.image_bytes.is_some_and(|bytes| bytes > 500_000), "{:?}", storage.image_bytes);

    // The ranges of upstream's node tests.
    let summary = serde_json::to_value(usage.summary(false)).unwrap();
    assert_eq!(summary["pods"][0]["network"]["name"], "eth0");
    assert!(summary["node"]["fs"]["capacityBytes"].as_u64().is_some_and(|bytes| bytes > 100 << 20));
    let row = row(&talker.container_id);
    assert!(
        (1..=10).contains(&row.sample.pids.processes.unwrap_or(0)) && row.sample.memory.is_some_and(|m| m.faults > 100),
        "{:?}",
        row.sample
    );
    assert!(
        (1..=100).contains(&row.slow.files.unwrap_or(0)) && row.slow.tasks.is_some_and(|tasks| tasks.sleeping >= 1),
        "{:?}",
        row.slow
    );
    assert!(row.slow.sockets_of.is_some() && row.limits.open_files.is_none_or(|n| n <= 1_073_741_816));
    assert!(row.target.started_at >= started && !row.stale);
    let page = usage.cadvisor_text(Format::Plain);
    let page = std::str::from_utf8(page.as_ref()).unwrap();
    for series in ["container_network_transmit_bytes_total{container=\"POD\"", "container_fs_io_time_seconds_total{"] {
        assert!(page.contains(series), "{series}");
    }
    assert!(usage.history(&busy.container_id).await.len() >= 2);

    // The row of an exited container is removed; the others stay.
    docker(&["rm", "-f", &busy.container_id]);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    usage.refresh().await;
    let left: Vec<String> = usage.snapshot().rows.iter().map(|row| row.target.container_id.clone()).collect();
    assert!(!left.contains(&busy.container_id) && left.contains(&hog.container_id), "{left:?}");
    for target in [&busy, &hog, &talker] {
        targets.remove(target.container_id.as_str());
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(usage.snapshot().rows.is_empty());

    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(5), usage.stopped()).await.expect("both tasks end");
}

/// Each run of the container is OOM killed, and its cgroup is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn kills_for_lack_of_memory_are_counted_over_runs() {
    let mut made = image().expect("a Docker Engine and a static busybox, which `make test` installs and starts");
    let targets = Publisher::default();
    let shutdown = CancellationToken::new();
    let usage = Usage::start(
        Config::default(),
        targets.subscribe().follow(),
        Publisher::default().subscribe().follow(),
        shutdown.clone(),
    );
    // The first victim is a child of the shell; then the shell itself grows.
    let line = "sleep 2; dd if=/dev/zero of=/dev/null bs=100M count=1; sleep 2; exec dd if=/dev/zero of=/dev/null bs=100M count=1";
    for run in 1..=2_u64 {
        let mut target = made.run(&["--memory", "16m", "--memory-swap", "16m"], line).expect("container");
        target.pod_uid = "uid-oom".to_owned();
        target.container_name = "greedy".to_owned();
        set(&targets, &[&target]);
        let count = || usage.snapshot().rows.iter().next().and_then(|row| row.sample.memory?.oom_kills);
        let wanted = (run - 1) * 2 + 1;
        let mut seen = None;
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            usage.refresh().await;
            seen = count().or(seen);
            if seen >= Some(wanted) {
                break;
            }
        }
        println!("run {run}: {seen:?} kills");
        assert_eq!(seen, Some(wanted), "run {run}");
        docker(&["wait", &target.container_id]).expect("its end");
        targets.remove(target.container_id.as_str());
    }
    shutdown.cancel();
    usage.stopped().await;
}
