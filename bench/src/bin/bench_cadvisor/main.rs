//! `make bench-cadvisor`: the cost of one collection compared with plain reads of the same files in the same run, what a
//! container's start costs with ten and with a thousand others, the memory per container, and the latency of the endpoints
//! with 250 pods, which the argument `sampling` leaves out; `rounds` is the first of it alone. Prints lines for
//! docs/performance.md.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

mod client;

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use windlass_bench::{Steal, inspect_running, median, milliseconds};
use windlass_tests::{DEFAULT_TIMEOUT, RawDocker, Testbed, eventually, own_megabytes, page};

const IMAGE: &str = "windlass/busybox:1";
const SLEEP: [&str; 2] = ["sleep", "100000"];
/// Containers outside of pods: they add to the cost of measuring only.
const LONE: [usize; 2] = [100, 500];
/// With how many of them starts are compared.
const STARTED_BESIDE: [usize; 2] = [10, 1_000];
const STARTS: usize = 20;
/// A new container is read twice, a second apart.
const START_LASTS: Duration = Duration::from_millis(1700);
/// The interval of requested rounds: the node does not repeat a more recent one.
const ROUNDS: usize = 20;
const APART: Duration = Duration::from_millis(1150);
/// The interval of the node's own rounds.
const INTERVAL: Duration = Duration::from_secs(10);
const PODS: usize = 250;
const CLIENTS: usize = 10;
/// Long enough to contain one of the node's own rounds.
const LOAD: Duration = Duration::from_secs(10);
/// For a page with a target the median of this many stretches counts, because other users of the machine may disturb
/// one.
const STRETCHES: usize = 5;
/// The interval of the clients that request at the same moment.
const BEAT: Duration = Duration::from_millis(100);

fn main() -> anyhow::Result<()> {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass().with(&["--max-pods", "300"]);
    let kubectl = windlass.up();
    testbed.enter()?;
    let pid = windlass.daemon().pid();
    std::thread::sleep(Duration::from_secs(10));
    // Without pages of the program, which are the same for one container.
    let empty = own_megabytes(pid)?;
    let part = std::env::args().nth(1).unwrap_or_default();

    let (mut columns, mut made) = (Vec::new(), 0);
    let with_ten = match &*part {
        "rounds" => None,
        _ => Some(starts(&testbed, pid, &mut made, STARTED_BESIDE[0])?),
    };
    println!("| figure | 100 containers | 500 containers | goal |");
    println!("|---|---|---|---|");
    for count in LONE {
        fill(&testbed, &mut made, count)?;
        let output = inspect_running(&testbed, "{{.State.Pid}}");
        let processes: Vec<i32> = output.lines().map(str::parse).collect::<Result<_, _>>()?;
        let ran = measure(pid, &processes)?;
        let slept = measure(pid, &[])?;
        #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
        let containers = count as f64;
        columns.push(Column {
            share: ran.round_ms / 1000.0 / INTERVAL.as_secs_f64() / containers * 100.0,
            kilobytes: (own_megabytes(pid)? - empty) * 1024.0 / containers,
            ran,
            slept,
        });
    }
    let row = |what: &str, of: &dyn Fn(&Column) -> String, goal: &str| {
        println!("| {what} | {} | {} | {goal} |", of(&columns[0]), of(&columns[1]));
    };
    row("one round, all containers ran since the last: CPU", &|c| format!("{:.2} ms", c.ran.round_ms), "");
    row("— the same files read again by bare calls", &|c| format!("{:.2} ms", c.ran.bare_ms), "");
    row("— ratio", &|c| format!("{:.2}{}", c.ran.ratio, miss(c.ran.ratio > 1.2)), "1.2");
    row("one round, none ran: CPU", &|c| format!("{:.2} ms", c.slept.round_ms), "");
    row(
        "— ratio to bare calls for all files",
        &|c| format!("{:.2}{}", c.slept.ratio, miss(c.slept.ratio > 1.2)),
        "1.2",
    );
    row("— of a core at 10 s, for each container", &|c| format!("{:.4} %{}", c.share, miss(c.share > 0.1)), "0.1 %");
    row(
        "memory of its own for each container",
        &|c| format!("{:.1} KB{}", c.kilobytes, miss(c.kilobytes > 40.0)),
        "40 KB",
    );

    let Some(with_ten) = with_ten else { return Ok(()) };
    let with_thousand = starts(&testbed, pid, &mut made, STARTED_BESIDE[1])?;
    let ratio = with_thousand / with_ten;
    println!("\n| figure | beside 10 containers | beside 1,000 | ratio | goal |");
    println!("|---|---|---|---|---|");
    let missed = miss(ratio > 1.5);
    println!("| one start: CPU of measuring | {with_ten:.2} ms | {with_thousand:.2} ms | {ratio:.2}{missed} | 1.5 |");
    if part == "sampling" {
        return Ok(());
    }

    let ids = testbed.docker(&["ps", "-aq"]);
    let mut args = vec!["rm", "-f"];
    args.extend(ids.lines());
    testbed.docker(&args);
    let pods: String = (0..PODS).map(pod).collect();
    kubectl.apply(&pods);
    eventually(DEFAULT_TIMEOUT * 5, "all pods are measured", || {
        let output: serde_json::Value = serde_json::from_str(&page(10255, "/stats/summary")?)?;
        let all =
            output["pods"].as_array().map_or(0, |all| all.iter().filter(|p| p["containers"][0].is_object()).count());
        anyhow::ensure!(all >= PODS, "{all} of {PODS}");
        Ok(())
    });
    // The work of creating the pods has ended.
    std::thread::sleep(Duration::from_secs(30));
    println!(
        "\n| page, {PODS} pods, {CLIENTS} clients at once | all the time: p50 | p99 | size | answers/s | packed: p50 | p99 \
         | size | answers/s | together each {} ms: p50 | p99 | goal, p99 |",
        BEAT.as_millis()
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let pages = [
        ("/stats/summary", Some(5.0)),
        ("/stats/summary?only_cpu_and_memory=true", None),
        ("/metrics/resource", None),
        ("/metrics/cadvisor", None),
        ("/metrics/probes", None),
        ("/metrics", None),
        ("/api/v2.1/machinestats", None),
    ];
    let steal = Steal::begin()?;
    let stretches = |goal: Option<f64>| if goal.is_some() { STRETCHES } else { 1 };
    // The lightest load comes first.
    let together = pages.map(|(path, goal)| loads(stretches(goal), path, "gzip", Some(BEAT)));
    for ((path, goal), together) in pages.into_iter().zip(together) {
        let of = |takes| loads(stretches(goal), path, takes, None);
        let (together, plain, packed) = (together?, of("identity")?, of("gzip")?);
        let p99 = |load: &Load| format!("{:.2} ms{}", load.p99, miss(goal.is_some_and(|goal| load.p99 > goal)));
        let line =
            |load: &Load| format!("{:.2} ms | {} | {:.0} KB | {:.0}", load.p50, p99(load), load.kilobytes, load.rate);
        println!(
            "| `{path}` | {} | {} | {:.2} ms | {} | {} |",
            line(&plain),
            line(&packed),
            together.p50,
            p99(&together),
            goal.map_or(String::new(), |goal| format!("{goal:.0} ms"))
        );
    }
    println!("\n{}", steal.summary()?);
    Ok(())
}

fn miss(missed: bool) -> &'static str {
    if missed { " ✗" } else { "" }
}

/// Makes more containers, until there are so many, and waits until all are measured.
fn fill(testbed: &Testbed, made: &mut usize, count: usize) -> anyhow::Result<()> {
    let mut docker = RawDocker::connect(&testbed.docker_socket())?;
    for n in *made..count {
        docker.lone_container(&format!("lone-{n}"), IMAGE, &SLEEP)?;
    }
    *made = count;
    eventually(DEFAULT_TIMEOUT, "all are measured", || {
        let output = page(10255, "/metrics/cadvisor")?;
        let seen = output.lines().filter(|l| l.starts_with("container_start_time_seconds{")).count();
        anyhow::ensure!(seen >= count, "{seen} of {count}");
        Ok(())
    });
    // Disk usage is measured once for each, and histories start.
    std::thread::sleep(Duration::from_secs(15));
    Ok(())
}

/// What measuring costs from a container's start until it has a rate, in milliseconds: the median, since one start in six
/// meets a round of all containers.
fn starts(testbed: &Testbed, pid: u32, made: &mut usize, beside: usize) -> anyhow::Result<f64> {
    fill(testbed, made, beside)?;
    let mut docker = RawDocker::connect(&testbed.docker_socket())?;
    let mut costs = Vec::new();
    for _ in 0..STARTS {
        let before = cpu_of(pid, &["usage", "sizes"])?;
        docker.lone_container(&format!("lone-{made}"), IMAGE, &SLEEP)?;
        *made += 1;
        std::thread::sleep(START_LASTS);
        costs.push(milliseconds(cpu_of(pid, &["usage", "sizes"])? - before));
    }
    Ok(median(costs))
}

/// The cost of a round.
struct Rounds {
    /// Medians.
    round_ms: f64,
    bare_ms: f64,
    /// Median of the ratios of the pairs.
    ratio: f64,
}

struct Column {
    ran: Rounds,
    slept: Rounds,
    share: f64,
    kilobytes: f64,
}

/// Requests rounds one by one, with `awake` before each, and compares their cost with plain reads.
fn measure(pid: u32, awake: &[i32]) -> anyhow::Result<Rounds> {
    let files = kept_files(pid)?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 64 << 10];
    let mut asked = 0;
    while bare.len() < ROUNDS {
        std::thread::sleep(APART);
        run_all(awake)?;
        let (before, rounds) = (round_cpu(pid)?, rounds()?);
        page(10255, "/metrics/resource")?;
        let (after, now) = (round_cpu(pid)?, self::rounds()?);
        asked += 1;
        anyhow::ensure!(asked < 3 * ROUNDS, "{} rounds were taken when {asked} were asked for", ours.len());
        // The node's own round was just before.
        if now == rounds {
            continue;
        }
        ours.push(milliseconds((after - before) / u32::try_from(now - rounds)?));
        // Both sides alternate, so that a change of the machine's speed affects both, and after the same pause, so that
        // neither finds data in the caches that the other has just read. The first read after a container ran makes the
        // kernel flush its counters, so containers run once more in between.
        std::thread::sleep(APART);
        run_all(awake)?;
        let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
        let begun = Duration::from(nix::time::clock_gettime(clock)?);
        for file in &files {
            // A missing one fails as fast.
            let _ = file.read_at(&mut buffer, 0);
        }
        bare.push(milliseconds(Duration::from(nix::time::clock_gettime(clock)?) - begun));
    }
    let ratio = median(ours.iter().zip(&bare).map(|(ours, bare)| ours / bare).collect());
    Ok(Rounds { round_ms: median(ours), bare_ms: median(bare), ratio })
}

/// Makes these processes run for a moment, by stopping and continuing them.
fn run_all(processes: &[i32]) -> anyhow::Result<()> {
    for process in processes {
        for signal in [Signal::SIGSTOP, Signal::SIGCONT] {
            kill(Pid::from_raw(*process), signal)?;
        }
    }
    Ok(())
}

/// The cgroup files that the node keeps open, opened again here.
fn kept_files(pid: u32) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(path) = fs::read_link(entry?.path()) else { continue };
        if path.starts_with("/sys/fs/cgroup") || path.starts_with("/proc") && !path.is_dir() {
            files.extend(File::open(path));
        }
    }
    anyhow::ensure!(files.len() > 100, "the node keeps only {} files of cgroups open", files.len());
    Ok(files)
}

/// CPU time of the threads that collect.
fn round_cpu(pid: u32) -> anyhow::Result<Duration> {
    cpu_of(pid, &["usage"])
}

/// CPU time of the threads whose names begin so.
fn cpu_of(pid: u32, names: &[&str]) -> anyhow::Result<Duration> {
    let mut sum = 0_u64;
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let dir = entry?.path();
        let Ok(name) = fs::read_to_string(dir.join("comm")) else { continue };
        if names.iter().any(|known| name.starts_with(known)) {
            let text = fs::read_to_string(dir.join("schedstat")).unwrap_or_default();
            sum += text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(Duration::from_nanos(sum))
}

fn rounds() -> anyhow::Result<u64> {
    let output = page(10255, "/metrics")?;
    let line =
        output.lines().find_map(|l| l.strip_prefix("windlass_usage_rounds_total ")).context("no count of rounds")?;
    Ok(line.parse()?)
}

fn pod(n: usize) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{n}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
         - {{name: main, image: '{IMAGE}', command: [sleep, '100000']}}\n---\n"
    )
}

struct Load {
    /// Milliseconds.
    p50: f64,
    p99: f64,
    kilobytes: f64,
    /// Responses per second.
    rate: f64,
}

/// The medians of some stretches.
fn loads(stretches: usize, path: &str, takes: &'static str, beat: Option<Duration>) -> anyhow::Result<Load> {
    let all: Vec<Load> = (0..stretches).map(|_| load(path, takes, beat)).collect::<Result<_, _>>()?;
    let of = |figure: fn(&Load) -> f64| median(all.iter().map(figure).collect());
    Ok(Load { p50: of(|l| l.p50), p99: of(|l| l.p99), kilobytes: of(|l| l.kilobytes), rate: of(|l| l.rate) })
}

/// Many clients at once. Each sends the next request after a response, or all at the same beat.
fn load(path: &str, takes: &'static str, beat: Option<Duration>) -> anyhow::Result<Load> {
    let begun = Instant::now();
    let answers: Vec<anyhow::Result<Vec<(f64, usize)>>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(move || {
                    let (mut all, mut client) = (Vec::new(), client::Client::connect(10255, takes)?);
                    let mut next = begun;
                    while begun.elapsed() < LOAD {
                        if let Some(beat) = beat {
                            next += beat;
                            std::thread::sleep(next.saturating_duration_since(Instant::now()));
                        }
                        let asked = Instant::now();
                        let bytes = client.get(path)?;
                        all.push((milliseconds(asked.elapsed()), bytes));
                    }
                    Ok(all)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client's thread")).collect()
    });
    let mut all = Vec::new();
    for answers in answers {
        all.extend(answers?);
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = |share: usize| all.get((all.len() * share / 100).min(all.len() - 1)).map_or(f64::NAN, |(ms, _)| *ms);
    #[allow(clippy::cast_precision_loss, reason = "some thousands of answers, some megabytes each")]
    let (rate, kilobytes) =
        (all.len() as f64 / begun.elapsed().as_secs_f64(), all.first().map_or(0, |(_, bytes)| *bytes) as f64 / 1024.0);
    Ok(Load { p50: at(50), p99: at(99), kilobytes, rate })
}
