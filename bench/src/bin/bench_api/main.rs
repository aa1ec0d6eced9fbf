//! `make bench-api`: the API server with 10,000 pods of 4 KB and 1,000 watchers, compared with what the disk gives in the same run.
//! Prints tables for docs/performance.md. `bench-api compile` measures a build instead.
//!
//! The server is `windlass up --no-node`; clients are raw HTTP/1.1 over TLS on the same cores. `PODS=1000` makes it smaller.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the figures are the output")]

mod compile;
mod disk;
mod objects;
mod reads;
mod watchers;
mod writes;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
};
use tokio::sync::Mutex;
use windlass_bench::{
    Steal,
    client::{Server, request},
};
use windlass_tests::{Daemon, Testbed, Usage, Windlass, resident_megabytes};

use disk::Disk;
use objects::{PODS, Replacement, pods_path};
use watchers::{NodeWatchers, WATCHERS};
use writes::WRITERS;

/// The server allows connections by the files that it may open.
const OPEN_FILES: u64 = 8192;
const WRITE_TIME: Duration = Duration::from_secs(10);
const RAW_TIME: Duration = Duration::from_secs(3);
const GET_TIME: Duration = Duration::from_secs(15);
const LISTS: usize = 11;
const STARTS: usize = 3;
/// Writes that all watchers receive, and the pause before each.
const DELIVERIES: usize = 100;
const DELIVERY_PAUSE: Duration = Duration::from_millis(150);
/// Writes that watchers miss while the server is started again.
const MISSED: usize = 100;
const START_TIMEOUT: Duration = Duration::from_secs(120);

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        None => measure(),
        Some("compile") => compile::measure(),
        Some(other) => anyhow::bail!("{other:?} is not measured; `bench-api` or `bench-api compile`"),
    }
}

fn row(figure: &str, ours: &str, limit: &str, ratio: &str, promise: &str) {
    println!("| {figure} | {ours} | {limit} | {ratio} | {promise} |");
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn thousands(rate: f64) -> String {
    let text = format!("{rate:.0}");
    let split = text.len().saturating_sub(3);
    if split == 0 { format!("{text}/s") } else { format!("{},{}/s", &text[..split], &text[split..]) }
}

fn percentile<T: Copy>(sorted: &[T], percent: usize) -> T {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// `windlass up --no-node`, started and killed as often as needed.
struct Api<'w> {
    windlass: Windlass<'w>,
    testbed: &'w Testbed,
    daemon: Option<Daemon>,
}

impl Api<'_> {
    /// Starts the process; returns at once.
    fn start(&mut self) -> anyhow::Result<()> {
        let mut command = self.windlass.command("up");
        command.arg("--no-node").env("WINDLASS_LOG", "warn");
        let log = self.testbed.dir().join("server.log");
        self.daemon = Some(Daemon::start("windlass up --no-node", &mut command, &log)?);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.end(Signal::SIGKILL);
        }
    }

    fn daemon(&mut self) -> anyhow::Result<&mut Daemon> {
        self.daemon.as_mut().ok_or_else(|| anyhow::anyhow!("the server was not started"))
    }

    /// Waits for the first answer to a request of an object; returns the server.
    async fn answers(&mut self, path: &str) -> anyhow::Result<Server> {
        let (started, get) = (Instant::now(), request("GET", path, ""));
        loop {
            let daemon = self.daemon()?;
            anyhow::ensure!(daemon.runs(), "the server ended: {}", daemon.log());
            anyhow::ensure!(started.elapsed() < START_TIMEOUT, "no answer: {}", daemon.log());
            let tried = async {
                let server = Server::of(&self.windlass.kubeconfig())?;
                server.connect(0).await?.text(&get, 200).await?;
                anyhow::Ok(server)
            };
            if let Ok(server) = tried.await {
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn resident(&mut self) -> anyhow::Result<f64> {
        resident_megabytes(self.daemon()?.pid())
    }
}

fn measure() -> anyhow::Result<()> {
    let pods: usize = std::env::var("PODS").ok().map_or(Ok(PODS), |pods| pods.parse())?;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    anyhow::ensure!(most >= OPEN_FILES, "{most} files may be open; {WATCHERS} watchers need {OPEN_FILES}");
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let testbed = Testbed::without_docker();
    let mut api = Api { windlass: testbed.windlass(), testbed: &testbed, daemon: None };
    api.start()?;
    // The threads of the runtime are made in the testbed's network namespace, where the API's port is.
    testbed.enter()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (steal, loaded) = (Steal::begin()?, std::fs::read_to_string("/proc/loadavg")?);
    let server = runtime.block_on(api.answers("/api/v1/namespaces/default"))?;
    std::thread::sleep(Duration::from_secs(30));
    println!("| figure | windlass | limit | ratio | promise |\n|---|---|---|---|---|");
    row("resident memory, idle and empty", &format!("{:.1} MB", api.resident()?), "", "", "≤ 40 MB");

    let loaded_pods = runtime.block_on(writes::load(&server, pods))?;
    let bytes = loaded_pods.bytes;
    row(
        &format!("{pods} pods of {bytes} bytes created by {WRITERS} clients"),
        &thousands(loaded_pods.rate),
        "",
        "",
        "",
    );
    let all: Arc<Vec<Mutex<Replacement>>> = Arc::new(loaded_pods.pods.into_iter().map(Mutex::new).collect());
    runtime.block_on(writes::settle(&server))?;
    let alone = runtime.block_on(writes::rate(&server, &all, WRITERS, WRITE_TIME))?;
    row(&format!("durable writes by {WRITERS} writers before anybody watches"), &thousands(alone), "", "", "");
    let watchers = runtime.block_on(NodeWatchers::start(&server))?;

    measure_writes(&mut api, &runtime, &server, &all, bytes)?;
    measure_reads(&runtime, &server, pods)?;
    anyhow::ensure!(watchers.ended() == 0, "{} watches ended", watchers.ended());
    let resident = api.resident()?;
    row(
        &format!("resident memory with {pods} pods and {WATCHERS} watchers, after all that"),
        &format!("{resident:.1} MB"),
        "",
        "",
        "≤ 150 MB",
    );
    measure_restarts(&mut api, &runtime, &server, &all, watchers)?;

    let server = runtime.block_on(api.answers("/api/v1/namespaces/default"))?;
    let times = runtime.block_on(watchers::delivery(&server, &all, DELIVERIES, DELIVERY_PAUSE))?;
    row(
        &format!("a write delivered to {WATCHERS} watchers: p50, p99, last"),
        &[50, 99, 100].map(|p| milliseconds(percentile(&times, p))).join(", "),
        "",
        "",
        "p99 ≤ 50 ms",
    );
    println!("\nLoad averages at the start: {}. {}", loaded.trim(), steal.summary()?);
    Ok(())
}

fn measure_writes(
    api: &mut Api<'_>,
    runtime: &tokio::runtime::Runtime,
    server: &Server,
    pods: &Arc<Vec<Mutex<Replacement>>>,
    bytes: usize,
) -> anyhow::Result<()> {
    let mut disk = Disk::new(api.testbed.dir())?;
    let pid = api.daemon()?.pid();
    for (writers, promise) in [(1, "≥ 0.6"), (WRITERS, "≥ 20,000/s or 0.8")] {
        // The disk before and after: its speed changes.
        let before = disk.rate(bytes, writers, RAW_TIME)?;
        let cpu = Usage::of(pid)?;
        let rate = runtime.block_on(writes::rate(server, pods, writers, WRITE_TIME))?;
        let cpu = Usage::of(pid)?.since(&cpu).cpu.as_secs_f64();
        let raw = f64::midpoint(before, disk.rate(bytes, writers, RAW_TIME)?);
        let figure = if writers == 1 {
            format!("durable writes of {bytes} bytes, one writer; write and fdatasync")
        } else {
            format!("— {writers} writers; {writers} at a time with one fdatasync")
        };
        row(&figure, &thousands(rate), &thousands(raw), &format!("{:.2}", rate / raw), promise);
        let each = cpu / (rate * WRITE_TIME.as_secs_f64()) * 1e6;
        row("— the server's CPU for each", &format!("{each:.0} µs"), "", "", "");
    }
    Ok(())
}

fn measure_reads(runtime: &tokio::runtime::Runtime, server: &Server, pods: usize) -> anyhow::Result<()> {
    let lists = runtime.block_on(reads::lists(server, LISTS))?;
    let median = lists[lists.len() / 2];
    let mut first: Vec<Duration> = lists.iter().map(|list| list.first_byte).collect();
    first.sort_unstable();
    let megabytes = median.bytes as f64 / 1e6;
    row(
        &format!("a list of {megabytes:.1} MB (median of {LISTS}): first byte"),
        &milliseconds(first[first.len() / 2]),
        "",
        "",
        "≤ 20 ms",
    );
    row("— whole", &milliseconds(median.whole), "", "", "≤ 150 ms");
    let (times, lists) = reads::gets_beside_lists(server, pods, GET_TIME)?;
    row(
        &format!("one object beside ten listers ({:.0} lists/s): p50, p99", lists as f64 / GET_TIME.as_secs_f64()),
        &[50, 99].map(|p| milliseconds(percentile(&times, p))).join(", "),
        "",
        "",
        "p99 ≤ 1 ms",
    );
    Ok(())
}

fn measure_restarts(
    api: &mut Api<'_>,
    runtime: &tokio::runtime::Runtime,
    server: &Server,
    pods: &Arc<Vec<Mutex<Replacement>>>,
    watchers: NodeWatchers,
) -> anyhow::Result<()> {
    let seen = runtime.block_on(watchers.stop());
    runtime.block_on(async {
        let mut connection = server.connect(0).await?;
        for pod in pods.iter().take(MISSED) {
            let status = connection.exchange(pod.lock().await.numbered(77_777_777), |_| ()).await?;
            anyhow::ensure!(status == 200, "a write was answered with {status}");
        }
        anyhow::Ok(())
    })?;
    let mut starts = Vec::new();
    let pod = format!("{}/pod-00000", pods_path());
    let mut server = server.clone();
    for _ in 0..STARTS {
        api.kill();
        let started = Instant::now();
        api.start()?;
        server = runtime.block_on(api.answers(&pod))?;
        starts.push(started.elapsed());
    }
    starts.sort_unstable();
    row(
        &format!("start with {} pods after SIGKILL, until an object is answered (median of {STARTS})", pods.len()),
        &milliseconds(starts[starts.len() / 2]),
        "",
        "",
        "≤ 1 s",
    );
    std::thread::sleep(Duration::from_secs(5));
    row("— resident memory then, without watchers", &format!("{:.1} MB", api.resident()?), "", "", "");
    let (watchers, expired, time) = runtime.block_on(NodeWatchers::resume(&server, seen))?;
    std::thread::sleep(Duration::from_secs(2));
    let relists = expired + watchers.ended();
    row(&format!("{WATCHERS} watchers resume over that: have to list again"), &relists.to_string(), "", "", "0");
    row("— all answered", &milliseconds(time), "", "", "");
    let resident = api.resident()?;
    row("— resident memory then", &format!("{resident:.1} MB"), "", "", "≤ 150 MB");
    runtime.block_on(watchers.stop());
    Ok(())
}
