//! `make bench-node`: exec, logs and cp through the API server compared with Docker alone in the same run; a restart
//! with 250 pods; image collection while pods start. Prints lines for docs/performance.md.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::DeleteParams};
use windlass_bench::{
    IMAGE, Steal, compare, create, median, milliseconds, pod, running, timed, wait_ready, wait_until_measured,
};
use windlass_tests::{DEFAULT_TIMEOUT, Kubectl, Testbed, client, eventually, resident_megabytes, try_run};

const EXECS: usize = 15;
const EXECS_AT_ONCE: usize = 200;
/// 10^9 bytes.
const LARGE: u64 = 1_000_000_000;
const PODS: usize = 250;
const IMAGES: usize = 500;

fn main() -> anyhow::Result<()> {
    let steal = Steal::begin()?;
    println!("| figure | windlass | raw Docker | | goal |");
    println!("|---|---|---|---|---|");
    {
        let testbed = Testbed::new();
        let mut windlass = testbed.windlass().with(&["--max-pods", "300", "--container-log-max-size", "4Gi"]);
        let kubectl = windlass.up();
        let pid = windlass.daemon().pid();
        testbed.enter()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let api = runtime.block_on(client(&windlass.kubeconfig()))?;
        let target = runtime.block_on(target(&api))?;
        commands(&testbed, &kubectl, &target)?;
        logs(&testbed, &kubectl, pid)?;
        copies(&testbed, &kubectl, &target, pid)?;
        let pods: Api<Pod> = Api::default_namespaced(api);
        runtime.block_on(async {
            pods.delete("target", &DeleteParams::default().grace_period(0)).await?;
            create(&pods, PODS, "held", pod).await?;
            wait_ready(&pods, PODS).await
        })?;
        std::thread::sleep(Duration::from_secs(20));
        let before = running(&testbed);
        windlass.kill();
        let started = Instant::now();
        windlass.start();
        let took = wait_until_measured(PODS, started)?;
        let ready = kubectl_ready(&kubectl)?;
        anyhow::ensure!(ready >= PODS, "{ready} of {PODS} are Ready when all are looked after");
        std::thread::sleep(Duration::from_secs(5));
        let untouched = if running(&testbed) == before { "all" } else { "NOT all" };
        println!("| restart with {PODS} pods: all looked after and Ready | {:.0} ms | | | 2 s |", milliseconds(took));
        println!("| — containers left alone | {untouched} | | | all |");
        println!("| — resident memory | {:.1} MB | | | |", resident_megabytes(windlass.daemon().pid())?);
    }
    collection()?;
    println!("\n{}", steal.summary()?);
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn megabytes_per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

fn kubectl_ready(kubectl: &Kubectl<'_>) -> anyhow::Result<usize> {
    let words =
        kubectl.try_run(&["get", "pods", "-o", "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"])?;
    Ok(words.split_whitespace().filter(|word| *word == "True").count())
}

/// Creates the pod for commands; returns Docker's id of its container.
async fn target(api: &Client) -> anyhow::Result<String> {
    let pods: Api<Pod> = Api::default_namespaced(api.clone());
    let mut target = pod("target")?;
    if let Some(spec) = &mut target.spec {
        spec.volumes = serde_json::from_value(serde_json::json!([{"name": "v", "emptyDir": {}}]))?;
        spec.containers[0].volume_mounts =
            serde_json::from_value(serde_json::json!([{"name": "v", "mountPath": "/v"}]))?;
    }
    pods.create(&kube::api::PostParams::default(), &target).await?;
    wait_ready(&pods, 1).await?;
    let status = pods.get("target").await?.status.context("a status")?;
    let id = status.container_statuses.iter().flatten().find_map(|c| c.container_id.clone()).context("an id")?;
    Ok(id.trim_start_matches("docker://").to_owned())
}

fn quiet(mut command: Command) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    anyhow::ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

fn docker(testbed: &Testbed, args: &[&str]) -> Command {
    let mut command = Command::new("docker");
    command.arg("-H").arg(format!("unix://{}", testbed.docker_socket().display())).args(args);
    command
}

fn kubectl_command(kubectl: &Kubectl<'_>, args: &[&str]) -> Command {
    let mut command = kubectl.command();
    command.args(args);
    command
}

fn commands(testbed: &Testbed, kubectl: &Kubectl<'_>, id: &str) -> anyhow::Result<()> {
    let raw = || timed(|| quiet(docker(testbed, &["exec", id, "true"])));
    let ours = || timed(|| quiet(kubectl_command(kubectl, &["exec", "target", "--", "true"])));
    let both = compare(EXECS, raw, ours)?;
    println!(
        "| `kubectl exec POD -- true`; `docker exec` (median of {EXECS}) | {:.0} ms | {:.0} ms | +{:.0} ms | +60 ms |",
        both.ours,
        both.raw,
        both.ours - both.raw
    );
    let version = || timed(|| quiet(kubectl_command(kubectl, &["version", "--client"])));
    let start: Vec<f64> = (0..5).map(|_| version().map(milliseconds)).collect::<anyhow::Result<_>>()?;
    println!("| — of that kubectl's own start | {:.0} ms | | | |", median(start));
    let many = |one: &(dyn Fn() -> Command + Sync)| {
        timed(|| {
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..EXECS_AT_ONCE).map(|_| scope.spawn(|| quiet(one()))).collect();
                all.into_iter().try_for_each(|thread| thread.join().expect("a worker thread"))
            })
        })
    };
    let raw = many(&|| docker(testbed, &["exec", id, "true"]))?;
    let ours = many(&|| kubectl_command(kubectl, &["exec", "target", "--", "true"]))?;
    println!(
        "| {EXECS_AT_ONCE} at once, all answered | {:.1} s | {:.1} s | {:.2} | all |",
        ours.as_secs_f64(),
        raw.as_secs_f64(),
        ours.as_secs_f64() / raw.as_secs_f64()
    );
    Ok(())
}

/// Runs `work` and returns the peak of a process's additional memory in megabytes.
fn with_peak(pid: u32, work: impl FnOnce() -> anyhow::Result<Duration>) -> anyhow::Result<(Duration, f64)> {
    let before = resident_megabytes(pid)?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = before;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                peak = peak.max(resident_megabytes(pid).unwrap_or(0.0));
                std::thread::sleep(Duration::from_millis(20));
            }
            peak
        });
        let took = work();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let peak = watcher.join().expect("the watcher");
        Ok((took?, peak - before))
    })
}

fn logs(testbed: &Testbed, kubectl: &Kubectl<'_>, pid: u32) -> anyhow::Result<()> {
    let line = "x".repeat(200);
    let print = format!("yes {line} | head -c {LARGE}; sleep 100000");
    let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "printer"}, "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": IMAGE, "command": ["sh", "-c", print]}]}});
    kubectl.apply(&pod.to_string());
    let id = eventually(10 * DEFAULT_TIMEOUT, "all is printed", || {
        let pod = kubectl.json(&["pod", "printer"])?;
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().context("no container yet")?;
        let id = id.trim_start_matches("docker://").to_owned();
        let host = format!("unix://{}", testbed.docker_socket().display());
        let top = try_run("docker", &["-H", &host, "top", &id])?;
        anyhow::ensure!(!top.contains("head -c"), "it prints");
        Ok(id)
    });
    let mut rates = (Vec::new(), Vec::new(), Vec::new());
    let mut peak = 0.0_f64;
    for _ in 0..3 {
        let raw = timed(|| quiet(docker(testbed, &["logs", &id])))?;
        let (ours, more) = with_peak(pid, || timed(|| quiet(kubectl_command(kubectl, &["logs", "printer"]))))?;
        let page = ["get", "--raw", "/api/v1/namespaces/default/pods/printer/log"];
        let whole = timed(|| quiet(kubectl_command(kubectl, &page)))?;
        rates.0.push(megabytes_per_second(LARGE, ours));
        rates.1.push(megabytes_per_second(LARGE, raw));
        rates.2.push(megabytes_per_second(LARGE, whole));
        peak = peak.max(more);
    }
    let (ours, raw, whole) = (median(rates.0), median(rates.1), median(rates.2));
    println!(
        "| `kubectl logs` of 1 GB; `docker logs` (median of 3) | {ours:.0} MB/s | {raw:.0} MB/s | {:.1} × | 300 MB/s |",
        ours / raw
    );
    println!("| — the same by `kubectl get --raw`, which does not write each line by itself | {whole:.0} MB/s | | | |");
    println!("| — memory meanwhile | +{peak:.1} MB | | | bounded |");
    let _ = kubectl.run(&["delete", "pod", "printer", "--force", "--grace-period=0"]);
    Ok(())
}

fn copies(testbed: &Testbed, kubectl: &Kubectl<'_>, id: &str, pid: u32) -> anyhow::Result<()> {
    let _ = kubectl.run(&["exec", "target", "--", "sh", "-c", &format!("head -c {LARGE} /dev/zero > /v/large")]);
    let here = testbed.dir().join("large");
    let path = here.to_string_lossy().into_owned();
    // A warm-up, which brings the file into the page cache.
    quiet(docker(testbed, &["exec", id, "cat", "/v/large"]))?;
    let raw = timed(|| quiet(docker(testbed, &["exec", id, "tar", "cf", "-", "/v/large"])))?;
    let (ours, more) = with_peak(pid, || timed(|| quiet(kubectl_command(kubectl, &["cp", "target:/v/large", &path]))))?;
    anyhow::ensure!(fs::metadata(&here)?.len() == LARGE, "the copy is complete");
    println!(
        "| `kubectl cp` of 1 GB out of a pod; `docker exec tar` | {:.0} MB/s | {:.0} MB/s | | 200 MB/s |",
        megabytes_per_second(LARGE, ours),
        megabytes_per_second(LARGE, raw)
    );
    println!("| — memory meanwhile | +{more:.1} MB | | | bounded |");
    let into = |command: &mut Command| -> anyhow::Result<()> {
        let status = command.stdin(fs::File::open(&here)?).stdout(Stdio::null()).status()?;
        anyhow::ensure!(status.success(), "{command:?} ended with {status}");
        Ok(())
    };
    let raw = timed(|| into(&mut docker(testbed, &["exec", "-i", id, "sh", "-c", "cat > /v/copy"])))?;
    let (ours, more) = with_peak(pid, || timed(|| quiet(kubectl_command(kubectl, &["cp", &path, "target:/v/copy"]))))?;
    println!(
        "| — into a pod; `docker exec cat` | {:.0} MB/s | {:.0} MB/s | | 200 MB/s |",
        megabytes_per_second(LARGE, ours),
        megabytes_per_second(LARGE, raw)
    );
    println!("| — memory meanwhile | +{more:.1} MB | | | bounded |");
    fs::remove_file(&here)?;
    let _ = kubectl.run(&["exec", "target", "--", "sh", "-c", "rm -f /v/large /v/copy"]);
    Ok(())
}

/// A node whose disk is so full that image collection runs while pods start.
fn collection() -> anyhow::Result<()> {
    let testbed = Testbed::new();
    let seed = testbed.dir().join("seed.tar");
    for number in 0..IMAGES {
        archive(&seed, &format!("image {number}"))?;
        let name = format!("bench/{number}:1");
        quiet(docker(&testbed, &["import", &seed.to_string_lossy(), &name]))?;
    }
    let config = testbed.dir().join("config.yaml");
    fs::write(
        &config,
        windlass_tests::configuration(
            "imageGCHighThresholdPercent: 1\nimageGCLowThresholdPercent: 0\nimageMinimumGCAge: 1s\n\
             imageGCForeignImages: true\n             evictionHard: {memory.available: 100Mi}\n",
        ),
    )?;
    let mut windlass = testbed.windlass().with(&["--config", &config.to_string_lossy()]);
    windlass.up();
    testbed.enter()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let api = runtime.block_on(client(&windlass.kubeconfig()))?;
    let pods: Api<Pod> = Api::default_namespaced(api);
    // Keeps the image of the pods below in use.
    runtime.block_on(async {
        create(&pods, 1, "keeper", pod).await?;
        wait_ready(&pods, 1).await
    })?;
    let mut number = 0;
    let mut start = || -> anyhow::Result<f64> {
        number += 1;
        let name = format!("timed{number}");
        let took = runtime.block_on(async {
            let begun = Instant::now();
            create(&pods, 1, &name, pod).await?;
            wait_ready(&pods, number + 1).await?;
            anyhow::Ok(begun.elapsed())
        })?;
        Ok(milliseconds(took))
    };
    let left = || -> usize {
        let names = testbed.docker(&["images", "--format", "{{.Repository}}"]);
        names.lines().filter(|name| name.starts_with("bench/")).count()
    };
    let quiet: Vec<f64> = (0..7).map(|_| start()).collect::<anyhow::Result<_>>()?;
    eventually(2 * DEFAULT_TIMEOUT, "the collection has begun", || {
        anyhow::ensure!(left() < IMAGES);
        Ok(())
    });
    let (begun, mut busy) = (Instant::now(), Vec::new());
    while left() > 0 {
        busy.push(start()?);
        anyhow::ensure!(begun.elapsed() < 5 * DEFAULT_TIMEOUT, "{} images are left", left());
    }
    anyhow::ensure!(!busy.is_empty(), "the collection was over before a pod was started");
    let most = busy.iter().copied().fold(0.0, f64::max);
    let count = busy.len();
    println!(
        "| one pod, created to Ready, while {IMAGES} images are removed (median of {count}); before that | {:.0} ms | {:.0} ms before | {:.2} | no stall |",
        median(busy.clone()),
        median(quiet.clone()),
        median(busy) / median(quiet)
    );
    println!("| — the slowest of them | {most:.0} ms | | | |");
    println!("| — the collection | {:.1} s | | | |", begun.elapsed().as_secs_f64());
    Ok(())
}

/// A tar archive of one small file.
fn archive(path: &Path, text: &str) -> anyhow::Result<()> {
    let file = path.with_extension("txt");
    fs::File::create(&file)?.write_all(text.as_bytes())?;
    let (dir, name) = (file.parent().context("a folder")?, file.file_name().context("a name")?);
    let mut command = Command::new("tar");
    quiet({
        command.arg("-cf").arg(path).arg("-C").arg(dir).arg(name);
        command
    })
}
