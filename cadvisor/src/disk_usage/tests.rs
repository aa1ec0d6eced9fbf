//! Usage of real directories.

use std::fs;

use windlass_kit::moment::Moment;

use super::*;
use crate::{
    config::Target,
    events::Events,
    model::{Limits, Row, Sample},
    sampler::Sampler,
};

/// Before the first sample.
fn no_rows(config: &Config) -> Snapshot {
    let (_, snapshot) = Sampler::new(config.clone(), watch::channel(Arc::default()).0, Events::default());
    Snapshot::clone(&snapshot.borrow())
}

type Senders = (watch::Sender<u64>, watch::Sender<Arc<BTreeMap<String, u64>>>, mpsc::Sender<oneshot::Sender<()>>);

/// What is told from outside, with the senders.
fn told() -> (Senders, Inputs) {
    let (requests, rescans) = mpsc::channel(1);
    let (images, layers) = (watch::Sender::new(0), watch::Sender::<Arc<BTreeMap<String, u64>>>::default());
    let inputs = Inputs { image_bytes: images.subscribe(), layer_bytes: layers.subscribe(), rescans };
    ((images, layers, requests), inputs)
}

/// A container of a pod that has used so much CPU time.
fn row(id: &str, uid: &str, usage_ns: u64) -> Arc<Row> {
    let mut sample = Sample::empty(Moment::ZERO);
    sample.cpu.usage_ns = usage_ns;
    let target = Target { container_id: id.to_owned(), pod_uid: uid.to_owned(), ..Target::default() };
    Arc::new(Row {
        target: Arc::new(target),
        cgroup: Arc::from(""),
        sample,
        usage_nano_cores: None,
        limits: Limits::default(),
        slow: Arc::default(),
        host_network: false,
        stale: false,
    })
}

async fn until(storage: &mut watch::Receiver<Arc<Storage>>, wanted: impl Fn(&Storage) -> bool) -> Arc<Storage> {
    let found = tokio::time::timeout(Duration::from_secs(10), storage.wait_for(|s| wanted(s))).await;
    Arc::clone(&found.expect("within 10 s").expect("the task runs"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn volumes_layers_and_images_have_sizes_until_they_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("docker");
    for (layer, bytes) in [("a", "1000\n"), ("b", "234\n"), ("broken", "x")] {
        let layer = home.join("image/overlay2/layerdb/sha256").join(layer);
        fs::create_dir_all(&layer).unwrap();
        fs::write(layer.join("size"), bytes).unwrap();
    }
    let upper = dir.path().join("upper");
    fs::create_dir_all(&upper).unwrap();
    fs::write(upper.join("x"), vec![1; 300_000]).unwrap();
    let scratch = dir.path().join("scratch");
    fs::create_dir_all(scratch.join("inner")).unwrap();
    fs::write(scratch.join("inner/y"), vec![1; 100_000]).unwrap();
    let volume = |name: &str, path: PathBuf, claim: Option<&str>, of_pod| Volume {
        pod_uid: "u".to_owned(),
        name: name.to_owned(),
        path,
        claim: claim.map(|c| ("n".to_owned(), c.to_owned())),
        of_pod,
    };
    let list = vec![
        volume("data", dir.path().to_owned(), Some("c"), false),
        volume("none", dir.path().join("nowhere"), None, true),
        volume("scratch", scratch, None, true),
    ];
    let (dirs_sender, engine_dirs) = watch::channel(EngineDirs::default());
    let config = Config {
        root: "/".into(),
        engine_dirs,
        data_dir: dir.path().to_owned(),
        pods_dir: Some(dir.path().join("pods")),
        ..Config::default()
    };
    let shutdown = CancellationToken::new();
    let (_snapshot_sender, snapshots) = watch::channel(Arc::new(no_rows(&config)));
    let (told, inputs) = told();
    let (disk_usage, mut storage) = DiskUsage::new(config, inputs, shutdown.clone());
    let pods_dir = dir.path().join("pods");
    fs::create_dir_all(pods_dir.join("u/containers/c")).unwrap();
    fs::write(pods_dir.join("u/containers/c/00000000"), vec![1; 96 << 10]).unwrap();
    fs::write(pods_dir.join("u/etc-hosts"), vec![1; 32 << 10]).unwrap();
    let layer = |id: &str, dir| Layer { container_id: id.to_owned(), pod_uid: "u".to_owned(), dir };
    let found = vec![layer("id", Some(upper.clone())), layer("zfs", None)];
    let (layer_sender, layers) = watch::channel(Arc::new(found));
    let (volume_sender, volumes) = watch::channel(Arc::new(list.clone()));
    let task = tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(disk_usage.run(layers, volumes, snapshots, shutdown));
    });
    let found =
        until(&mut storage, |s| !s.containers.is_empty() && s.volumes.get("u").is_some_and(|all| all.len() == 2)).await;
    assert_eq!((found.image_bytes, found.images, found.logs), (None, None, None), "Docker has not told where they are");
    // It comes back, and counts what nobody else can.
    dirs_sender.send_replace(EngineDirs { data_root: Some(home.clone()), image_root: Some(home) });
    let found = until(&mut storage, |s| s.image_bytes.is_some() && s.images.is_some() && s.containers.len() == 2).await;
    assert_eq!((found.image_bytes, found.logs.is_some()), (Some(1234), true));
    let layer = found.containers["id"].rootfs.unwrap();
    assert!((300_000..400_000).contains(&layer.bytes) && layer.inodes == Some(2), "{found:?}");
    assert_eq!((found.containers["zfs"].rootfs, found.containers["zfs"].logs), (None, None), "unknown is not 0");
    told.1.send_replace(Arc::new(BTreeMap::from([("zfs".to_owned(), 77), ("id".to_owned(), 1)])));
    let found = until(&mut storage, |s| s.containers["zfs"].rootfs.is_some()).await;
    assert_eq!(found.containers["zfs"].rootfs, Some(Size { bytes: 77, inodes: None }));
    assert_eq!(found.containers["id"].rootfs, Some(layer), "what was walked is more exact");
    let [data, scratch] = &found.volumes["u"][..] else { panic!("{found:?}") };
    assert_eq!(
        (data.name.as_str(), data.claim.clone(), data.ephemeral),
        ("data", Some(("n".into(), "c".into())), false)
    );
    let whole = source::space(dir.path(), data.space.at).unwrap().0;
    assert_eq!(data.space.capacity_bytes, whole.capacity_bytes);
    assert!(data.space.used_bytes.abs_diff(whole.used_bytes) < whole.capacity_bytes / 20, "others write too: {data:?}");
    assert_eq!((scratch.name.as_str(), scratch.ephemeral, scratch.inodes_used), ("scratch", true, 3));
    assert!((100_000..200_000).contains(&scratch.space.used_bytes) && scratch.space.capacity_bytes > 1 << 20);
    assert!(!data.stale && !scratch.stale && found.node.is_some());

    let files = found.pod_files["u"];
    assert!((128 << 10..192 << 10).contains(&files.bytes) && files.inodes == Some(4), "{files:?}");
    // Nobody runs who could have written, and nobody waits for the next walk.
    fs::write(upper.join("y"), vec![1; 500_000]).unwrap();
    let (answer, answered) = oneshot::channel();
    told.2.send(answer).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), answered).await.unwrap().unwrap();
    assert!(storage.borrow().containers["id"].rootfs.unwrap().bytes > 800_000);

    volume_sender.send_replace(Arc::new(list[..1].to_vec()));
    until(&mut storage, |s| s.volumes.get("u").is_some_and(|all| all.len() == 1)).await;
    volume_sender.send_replace(Arc::default());
    layer_sender.send_replace(Arc::default());
    until(&mut storage, |s| s.volumes.is_empty() && s.containers.is_empty()).await;
    drop(layer_sender);
    task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_sleeps_is_walked_again_only_once_it_has_run() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let often = Duration::from_millis(10);
    let config = Config { data_dir: dir.path().to_owned(), interval: often, walk_interval: often, ..Config::default() };
    let volume = Volume {
        pod_uid: "u".to_owned(),
        name: "scratch".to_owned(),
        path: scratch.clone(),
        claim: None,
        of_pod: true,
    };
    let shutdown = CancellationToken::new();
    let mut now = no_rows(&config);
    now.rows = vec![row("one", "u", 5), row("two", "u", 0), row("other", "v", 0)];
    let (snapshot_sender, snapshots) = watch::channel(Arc::new(now.clone()));
    let (disk_usage, mut storage) = DiskUsage::new(config, told().1, shutdown.clone());
    let (layer_sender, layers) = watch::channel(Arc::default());
    let (_volume_sender, volumes) = watch::channel(Arc::new(vec![volume]));
    let task = tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(disk_usage.run(layers, volumes, snapshots, shutdown));
    });
    let files = |storage: &Storage| storage.volumes.get("u").map(|all| all[0].inodes_used);
    until(&mut storage, |s| files(s) == Some(1)).await;
    fs::write(scratch.join("x"), "by another").unwrap();
    // Another pod runs, this one does not.
    now.rows[2] = row("other", "v", 7);
    snapshot_sender.send_replace(Arc::new(now.clone()));
    tokio::time::sleep(SCAN_BATCH_WINDOW * 3).await;
    assert_eq!(files(&storage.borrow()), Some(1));
    now.rows[1] = row("two", "u", 1);
    snapshot_sender.send_replace(Arc::new(now));
    until(&mut storage, |s| files(s) == Some(2)).await;
    drop(layer_sender);
    task.await.unwrap();
}

#[test]
fn asleep_is_who_used_nothing_since_the_last_walk() {
    let start = Instant::now();
    let minute = Duration::from_secs(60);
    for (walked, used, later, asleep) in [
        (None, Some(1), minute, false),
        (Some(Some(1)), Some(1), minute, true),
        (Some(None), None, minute, true),
        (Some(Some(1)), Some(2), minute, false),
        (Some(Some(1)), None, minute, false),
        (Some(None), Some(0), minute, false),
        (Some(Some(1)), Some(1), IDLE_SCAN_INTERVAL, false),
    ] {
        let due = ScanSchedule { at: None, walked: walked.map(|then| (start, then)) };
        assert_eq!(due.is_idle(used, start + later), asleep, "{walked:?} {used:?} {later:?}");
    }
}
