//! Usage of real directories.

use std::fs;

use windlass_kit::{moment::Moment, published_map::Publisher};

use super::{
    schedule::{IDLE_SCAN_INTERVAL, ScanSchedule},
    *,
};
use crate::{
    config::Target,
    events::Events,
    model::{Limits, Row, Sample},
    sampler::{Layers, Sampler},
};

/// Before the first sample.
fn no_rows(config: &Config) -> Snapshot {
    let (_, snapshot) = Sampler::new(config.clone(), Layers::default(), Events::default());
    Snapshot::clone(&snapshot.borrow())
}

type Senders = (watch::Sender<u64>, watch::Sender<Arc<BTreeMap<String, u64>>>, mpsc::Sender<oneshot::Sender<()>>);

/// Inputs with their senders.
fn told() -> (Senders, Inputs) {
    let (requests, rescans) = mpsc::channel(1);
    let (images, layers) = (watch::Sender::new(0), watch::Sender::<Arc<BTreeMap<String, u64>>>::default());
    let inputs = Inputs { image_bytes: images.subscribe(), layer_bytes: layers.subscribe(), rescans };
    ((images, layers, requests), inputs)
}

fn target(id: &str, uid: &str) -> Arc<Target> {
    Arc::new(Target { container_id: id.to_owned(), pod_uid: uid.to_owned(), ..Target::default() })
}

fn set_layer(layers: &Layers, id: &str, uid: &str, dir: Option<PathBuf>) {
    layers.set(Arc::from(id), Layer { target: target(id, uid), dir });
}

/// A container of a pod that has used so much CPU time.
fn row(id: &str, uid: &str, usage_ns: u64) -> Arc<Row> {
    let mut sample = Sample::empty(Moment::ZERO);
    sample.cpu.usage_ns = usage_ns;
    Arc::new(Row {
        target: target(id, uid),
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
    let layer_sender = Layers::default();
    set_layer(&layer_sender, "id", "u", Some(upper.clone()));
    set_layer(&layer_sender, "zfs", "u", None);
    let layers = layer_sender.subscribe().follow();
    let volume_sender: Publisher<Arc<str>, Arc<Vec<Volume>>> = Publisher::default();
    volume_sender.set(Arc::from("u"), Arc::new(list.clone()));
    let volumes = volume_sender.subscribe().follow();
    let task = tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(disk_usage.run(layers, volumes, snapshots, shutdown));
    });
    let found =
        until(&mut storage, |s| !s.containers.is_empty() && s.volumes.get("u").is_some_and(|all| all.len() == 2)).await;
    assert_eq!((found.image_bytes, found.images, found.logs), (None, None, None), "Docker has not told where they are");
    // Docker comes back, and reports what only it can measure.
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
    // No writer is running, and no one waits for the next walk.
    fs::write(upper.join("y"), vec![1; 500_000]).unwrap();
    let (answer, answered) = oneshot::channel();
    told.2.send(answer).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), answered).await.unwrap().unwrap();
    assert!(storage.borrow().containers["id"].rootfs.unwrap().bytes > 800_000);

    volume_sender.set(Arc::from("u"), Arc::new(list[..1].to_vec()));
    until(&mut storage, |s| s.volumes.get("u").is_some_and(|all| all.len() == 1)).await;
    volume_sender.remove("u");
    layer_sender.remove("id");
    layer_sender.remove("zfs");
    until(&mut storage, |s| s.volumes.is_empty() && s.containers.is_empty() && s.pod_files.is_empty()).await;
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
    now.rows = [row("one", "u", 5), row("two", "u", 0), row("other", "v", 0)].into_iter().collect();
    let (snapshot_sender, snapshots) = watch::channel(Arc::new(now.clone()));
    let (disk_usage, mut storage) = DiskUsage::new(config, told().1, shutdown.clone());
    let layer_sender = Layers::default();
    for (id, uid) in [("one", "u"), ("two", "u"), ("other", "v")] {
        set_layer(&layer_sender, id, uid, None);
    }
    let layers = layer_sender.subscribe().follow();
    let volume_sender = Publisher::default();
    volume_sender.set(Arc::from("u"), Arc::new(vec![volume]));
    let volumes = volume_sender.subscribe().follow();
    let task = tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(disk_usage.run(layers, volumes, snapshots, shutdown));
    });
    let files = |storage: &Storage| storage.volumes.get("u").map(|all| all[0].inodes_used);
    until(&mut storage, |s| files(s) == Some(1)).await;
    fs::write(scratch.join("x"), "by another").unwrap();
    // Another pod runs, this one does not.
    now.rows.insert(row("other", "v", 7));
    snapshot_sender.send_replace(Arc::new(now.clone()));
    tokio::time::sleep(SCAN_BATCH_WINDOW * 3).await;
    assert_eq!(files(&storage.borrow()), Some(1));
    now.rows.insert(row("two", "u", 1));
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
        let due = ScanSchedule { at: None, walked: walked.map(|then| (start, then)), outdated: false };
        assert_eq!(due.is_idle(used, start + later), asleep, "{walked:?} {used:?} {later:?}");
    }
}

#[test]
fn a_container_that_starts_is_scanned_without_a_look_at_the_others() {
    let mut costs = Vec::new();
    for count in [10, 1_000] {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { data_dir: dir.path().to_owned(), pods_dir: Some(dir.path().into()), ..Config::default() };
        let (mut disk_usage, storage) = DiskUsage::new(config, told().1, CancellationToken::new());
        let layers = Layers::default();
        let mut follower = layers.subscribe().follow();
        let rows = Rows::default();
        for n in 0..count {
            set_layer(&layers, &format!("id-{n}"), &format!("uid-{n}"), None);
        }
        disk_usage.set_layers(follower.take());
        disk_usage.run_due(&rows);
        assert_eq!(storage.borrow().containers.len(), count);
        disk_usage.schedules.visits = 0;
        set_layer(&layers, "new", "new", None);
        disk_usage.set_layers(follower.take());
        disk_usage.run_due(&rows);
        assert!(storage.borrow().containers.get("new").is_some());
        costs.push(disk_usage.schedules.visits);
        layers.remove("new");
        disk_usage.set_layers(follower.take());
        assert_eq!(storage.borrow().containers.len(), count);
    }
    assert_eq!(costs, [2, 2], "its layer, and its pod's files");
}

/// A walk that hangs is marked while it does, and what changes under it is scanned again when it has ended.
#[test]
fn schedules_keep_what_is_in_flight_apart() {
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let key = ScanKey::Container(Arc::from("a"));
    let mut schedules = Schedules::default();
    schedules.set(key.clone(), Scanned::Container(None), now);
    schedules.set(ScanKey::Spaces, Scanned::Spaces, now + second);
    let due = |schedules: &mut Schedules, now| -> Vec<ScanKey> {
        schedules.start_due(now, second, |_| Some(1)).into_iter().map(|(key, _)| key).collect()
    };
    assert_eq!(due(&mut schedules, now), std::slice::from_ref(&key));
    assert_eq!((schedules.in_flight().len(), schedules.next()), (1, Some(now + second)));
    schedules.restart(now, |_, _| true);
    assert!(schedules.finish(&key, now + second * 60, true) && schedules.in_flight().is_empty());
    assert!(schedules.next().is_some_and(|at| at < now + second * 60), "not after its pause");
    assert_eq!(due(&mut schedules, now + second * 2), [ScanKey::Spaces, key.clone()]);
    schedules.finish(&key, now + second * 3, true);
    assert!(due(&mut schedules, now + second * 3).is_empty(), "who could write there has not run since");
    schedules.restart_walks(now + second);
    assert_eq!(due(&mut schedules, now + second), std::slice::from_ref(&key));
    schedules.remove(&key);
    assert!(!schedules.finish(&key, now, true) && schedules.in_flight().len() == 1, "dropped meanwhile");
}
