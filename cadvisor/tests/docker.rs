//! Known loads on real containers. Needs root and a Docker engine; makes its own image, network and containers,
//! and removes them. Says why when it cannot run.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{Config, Subject, Usage};

fn docker(arguments: &[&str]) -> Option<String> {
    let out = Command::new("docker").args(arguments).stdin(Stdio::null()).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Removes what the test made, however it ends.
struct Made {
    image: String,
    containers: Vec<String>,
}

impl Drop for Made {
    fn drop(&mut self) {
        for id in &self.containers {
            docker(&["rm", "-f", "-v", id]);
        }
        docker(&["rmi", "-f", &self.image]);
    }
}

/// An image with nothing but a static busybox, from this machine's own.
fn image() -> Option<Made> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| std::fs::metadata(path).is_ok())?;
    docker(&["version"])?;
    let dir = tempfile::tempdir().ok()?;
    let bin = dir.path().join("bin");
    std::fs::create_dir_all(&bin).ok()?;
    std::fs::create_dir_all(dir.path().join("data")).ok()?;
    std::fs::copy(busybox, bin.join("busybox")).ok()?;
    for name in ["sh", "dd", "cat", "ping", "sleep", "head", "tail", "sync"] {
        std::os::unix::fs::symlink("busybox", bin.join(name)).ok()?;
    }
    let archive = dir.path().with_extension("tar");
    let made = Command::new("tar").arg("-C").arg(dir.path()).arg("-cf").arg(&archive).arg(".").status().ok()?;
    let name = format!("windlass-cadvisor-test:{}", std::process::id());
    let loaded = made.success().then(|| docker(&["import", archive.to_str()?, &name])).flatten();
    let _ = std::fs::remove_file(&archive);
    loaded.map(|_| Made { image: name, containers: Vec::new() })
}

impl Made {
    fn run(&mut self, options: &[&str], script: &str) -> Option<Subject> {
        let image = self.image.clone();
        let mut arguments = vec!["run", "-d"];
        arguments.extend(options);
        arguments.extend([image.as_str(), "/bin/sh", "-c", script]);
        let id = docker(&arguments)?;
        self.containers.push(id.clone());
        let pid = docker(&["inspect", "-f", "{{.State.Pid}}", &id])?.parse().ok()?;
        Some(Subject {
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
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn known_loads_are_measured() {
    let Some(mut made) = image() else {
        println!("not run: needs a Docker engine and a static busybox");
        return;
    };
    // Half a core by quota; 100 MB held in a memory file system that the cgroup is charged for; 20 MB written to the
    // layer; packets over the bridge to its own gateway, and one container that does nothing.
    let busy = made.run(&["--cpus", "0.5", "--network", "none"], "while :; do :; done").expect("busy container");
    let hog = made
        .run(
            &["--memory", "300m", "--network", "none", "--tmpfs", "/hold:size=150m"],
            "dd if=/dev/zero of=/hold/x bs=1M count=100 2>/dev/null; dd if=/dev/zero of=/data/y bs=1M count=20 2>/dev/null; sleep 1000",
        )
        .expect("hog container");
    let mut talker = made.run(&[], "sleep 1000").expect("talking container");
    talker.pod_uid = "uid-1".to_owned();
    talker.pod_name = "talker".to_owned();
    talker.pod_namespace = "default".to_owned();
    talker.container_name = "POD".to_owned();

    let config =
        Config { node_name: "node".to_owned(), walk_interval: Duration::from_millis(500), ..Config::default() };
    let (tell, subjects) = watch::channel(Arc::new(vec![busy.clone(), hog.clone(), talker.clone()]));
    let shutdown = CancellationToken::new();
    let usage = Usage::start(config, subjects, shutdown.clone());

    tokio::time::sleep(Duration::from_secs(2)).await;
    usage.refresh().await;
    let received = |usage: &Usage| {
        let snapshot = usage.snapshot();
        let row = snapshot.rows.iter().find(|row| row.subject.container_id == talker.container_id);
        row.and_then(|row| row.sample.network.first()).map(|i| i.tx_bytes)
    };
    let before = received(&usage).expect("network of the talking container");
    let gateway = docker(&["inspect", "-f", "{{.NetworkSettings.Gateway}}", &talker.container_id]).expect("gateway");
    let ping = ["exec", &talker.container_id, "/bin/ping", "-c", "20", "-i", "0.05", "-s", "1000", &gateway];
    // Sent is sent, whether the gateway answers or not.
    docker(&ping);

    // A rate over three seconds that begin after the start.
    tokio::time::sleep(Duration::from_secs(3)).await;
    usage.refresh().await;
    let snapshot = usage.snapshot();
    let row = |id: &str| snapshot.rows.iter().find(|row| row.subject.container_id == id).expect("row");
    let rate = row(&busy.container_id).usage_nano_cores.expect("rate");
    println!("busy: {rate} nanocores; node: {:?}", snapshot.node.usage_nano_cores);
    assert!((425_000_000..=575_000_000).contains(&rate), "half a core, measured {rate}");
    assert!(row(&busy.container_id).sample.cpu.throttled_periods > 0);
    assert_eq!(row(&busy.container_id).limits.cpu_quota_us, Some(50_000));
    assert!(snapshot.node.usage_nano_cores.is_some_and(|node| node >= rate * 9 / 10));
    let memory = row(&hog.container_id).sample.memory;
    println!("hog: {memory:?}");
    let held = memory.working_set_bytes();
    assert!((100_000_000..140_000_000).contains(&held), "100 MB held, measured {held}");
    assert_eq!(row(&hog.container_id).limits.memory_bytes, Some(300 << 20));
    let after = received(&usage).unwrap();
    println!("talker: {before} -> {after} bytes sent");
    assert!(after - before >= 15 * 1000, "20 pings of 1 kB, measured {}", after - before);

    let storage = usage.storage();
    let size = storage.containers.get(&hog.container_id).expect("size of the layer");
    println!("hog's layer: {size:?}");
    assert!((20_000_000..25_000_000).contains(&size.rootfs_bytes), "20 MB written, measured {}", size.rootfs_bytes);
    let summary = serde_json::to_value(usage.summary(false)).unwrap();
    assert_eq!(summary["pods"][0]["network"]["name"], "eth0");
    assert!(summary["node"]["fs"]["capacityBytes"].as_u64().is_some_and(|bytes| bytes > 100 << 20));
    assert!(usage.cadvisor_text().contains("container_network_transmit_bytes_total{container=\"POD\""));
    assert!(usage.history(&busy.container_id).await.len() >= 2);

    // A container that dies loses its row; the others keep theirs.
    docker(&["rm", "-f", &busy.container_id]);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    usage.refresh().await;
    let left: Vec<String> = usage.snapshot().rows.iter().map(|row| row.subject.container_id.clone()).collect();
    assert!(!left.contains(&busy.container_id) && left.contains(&hog.container_id), "{left:?}");
    tell.send_replace(Arc::default());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(usage.snapshot().rows.is_empty());

    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(5), usage.stopped()).await.expect("both tasks end");
}
