//! `make bench-store`: engines beside what the disk gives for the same bytes and batches, and the whole store with 64
//! writers, one writer, 10,000 objects and 1,000 watchers. `bench-store DIRECTORY`, which is on the disk to measure.

mod engines;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use windlass_store::{Counters, Expected, Key, Log, Memory, Object, ResourceOptions, Store, Write};

const OBJECT_BYTES: usize = 4096;
const OBJECTS: usize = 10_000;
const WRITERS: usize = 64;
const WATCHERS: usize = 1000;
const SLICE: Duration = Duration::from_secs(3);
const ROUNDS: usize = 3;

fn pod(name: &str, text: usize) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("{text:032}"), "labels": {"app": "bench"}},
        "spec": {"nodeName": format!("node-{}", text % 100), "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running"}
    });
    let size = pod.to_string().len();
    // Not only one letter: nothing below must be able to compress it away.
    let padding: String =
        (0..OBJECT_BYTES.saturating_sub(size)).map(|i| char::from(b'a' + (i * 7919 % 23) as u8)).collect();
    pod["status"]["message"] = padding.into();
    pod
}

fn key(i: usize) -> Key {
    Key { namespace: "default".to_owned(), name: format!("pod-{i:05}") }
}

fn resident_megabytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// Some objects of 4 KB, as the store makes them.
async fn samples() -> Vec<Arc<Object>> {
    let store = Store::open(Box::new(Memory::default()), &[]).expect("a store");
    let pods = store.register("pods", ResourceOptions::default());
    let mut objects = Vec::new();
    for i in 0..WRITERS {
        let value = Some(pod(&key(i).name, i));
        let write = Write { resource: pods, key: key(i), expected: Expected::Absent, value, guards: Vec::new() };
        objects.push(store.write(write).await.expect("written"));
    }
    objects
}

fn commits(engine: &mut dyn engines::Candidate, samples: &[Arc<Object>], batch: usize, revision: &mut u64) -> f64 {
    let (begun, mut written, resource) = (Instant::now(), 0, Arc::<str>::from("pods"));
    while begun.elapsed() < SLICE {
        let objects = samples.iter().take(batch).map(|object| {
            *revision += 1;
            let mut object = Object::clone(object);
            object.revision = *revision;
            Arc::new(object)
        });
        engine.commit(&engines::records(&resource, objects));
        written += batch;
    }
    written as f64 / begun.elapsed().as_secs_f64()
}

/// Each engine in turn, several rounds, so that a disk that others use is as slow for all of them.
fn compare(dir: &Path, samples: &[Arc<Object>]) {
    for batch in [1, WRITERS] {
        let mut best = [0.0_f64; engines::NAMES.len()];
        for _ in 0..ROUNDS {
            for (at, name) in engines::NAMES.iter().enumerate() {
                let place = dir.join(format!("engine-{at}"));
                let mut engine = engines::open(name, &place);
                let rate = commits(engine.as_mut(), samples, batch, &mut 0);
                drop(engine);
                let _ = fs::remove_dir_all(&place);
                best[at] = best[at].max(rate);
            }
        }
        for (name, rate) in engines::NAMES.iter().zip(best) {
            println!("{batch:3} a batch  {name:18} {rate:8.0}/s  {:.2} of the disk", rate / best[0]);
        }
    }
}

/// Writers that each change objects of their own, one after another.
async fn storm(store: &Store, writers: usize) -> f64 {
    let pods = store.resource("pods");
    let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (store, ends, count) = (store.clone(), Arc::clone(&ends), Arc::clone(&count));
            tokio::spawn(async move {
                let (mut i, mut value) = (writer, pod("", writer));
                while !ends.load(Ordering::Relaxed) {
                    let object = store.get(pods, &key(i)).expect("a pod");
                    value["metadata"]["name"] = object.key.name.as_str().into();
                    let (expected, value) = (Expected::Revision(object.revision), Some(value.clone()));
                    let write = Write { resource: pods, key: key(i), expected, value, guards: Vec::new() };
                    store.write(write).await.expect("written");
                    count.fetch_add(1, Ordering::Relaxed);
                    i = (i + writers) % OBJECTS;
                }
            })
        })
        .collect();
    tokio::time::sleep(SLICE).await;
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a writer");
    }
    count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

async fn whole_store(dir: &Path, samples: &[Arc<Object>]) {
    let place = dir.join("store");
    fs::create_dir_all(&place).expect("a directory");
    println!("resident, empty: {:.1} MB", resident_megabytes());
    let open = |log: Log| Store::open(Box::new(log), &[("pods", ResourceOptions::default())]).expect("a store");
    let store = open(Log::create(&place, &[], &Counters::default()).expect("a log"));
    let pods = store.resource("pods");
    let fill = (0..OBJECTS).map(|i| {
        let store = store.clone();
        let value = Some(pod(&key(i).name, i));
        let write = Write { resource: pods, key: key(i), expected: Expected::Absent, value, guards: Vec::new() };
        async move { store.write(write).await }
    });
    for written in futures(fill).await {
        written.expect("written");
    }
    for writers in [1, WRITERS] {
        let (mut best, mut disk) = (0.0_f64, 0.0_f64);
        for _ in 0..ROUNDS {
            let bare = dir.join("bare");
            disk = disk.max(commits(engines::open("bare", &bare).as_mut(), samples, writers, &mut 0));
            let _ = fs::remove_dir_all(&bare);
            best = best.max(storm(&store, writers).await);
        }
        println!("store, {writers:2} writers: {best:.0}/s, {:.2} of the disk's {disk:.0}/s", best / disk);
    }
    let files = || {
        fs::read_dir(&place).expect("files").map(|e| e.and_then(|e| e.metadata()).map_or(0, |m| m.len())).sum::<u64>()
    };
    println!("resident after these writes: {:.1} MB, log: {} MB", resident_megabytes(), files() >> 20);
    let last = store.revision();
    store.close().await.expect("closed");
    drop(store);
    let begun = Instant::now();
    let store = open(Log::open(&place).expect("a log"));
    println!("start with {OBJECTS} objects: {:?}", begun.elapsed());
    let pods = store.resource("pods");
    let resumed = (0..WATCHERS).filter(|_| store.watch(pods, last - 100).is_ok()).count();
    println!("{resumed} of {WATCHERS} watchers go on where they were; resident {:.1} MB", resident_megabytes());
    delivery(&store, pods).await;
    store.close().await.expect("closed");
}

/// From the answer of a write to the last of all watchers.
async fn delivery(store: &Store, pods: windlass_store::ResourceId) {
    let (arrived, mut times) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| {
            let (mut watch, arrived) = (store.watch(pods, store.revision()).expect("a watch"), Arc::clone(&arrived));
            tokio::spawn(async move {
                while let Ok(events) = watch.next().await {
                    for event in &events {
                        event.frame(1, || event.object.bytes.clone());
                    }
                    arrived.fetch_add(events.len(), Ordering::Relaxed);
                }
            })
        })
        .collect();
    for i in 0..200 {
        let object = store.get(pods, &key(i)).expect("a pod");
        let (expected, value) = (Expected::Revision(object.revision), Some(pod(&object.key.name, i)));
        arrived.store(0, Ordering::Relaxed);
        store.write(Write { resource: pods, key: key(i), expected, value, guards: Vec::new() }).await.expect("written");
        let begun = Instant::now();
        while arrived.load(Ordering::Relaxed) < WATCHERS {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        times.push(begun.elapsed());
    }
    watchers.into_iter().for_each(|watcher| watcher.abort());
    times.sort_unstable();
    println!("delivery to {WATCHERS} watchers: median {:?}, p99 {:?}", times[100], times[198]);
    println!("resident with them: {:.1} MB", resident_megabytes());
}

/// Runs all futures together.
async fn futures<F: Future + Send + 'static>(all: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F::Output: Send,
{
    let tasks: Vec<_> = all.map(tokio::spawn).collect();
    let mut outputs = Vec::new();
    for task in tasks {
        outputs.push(task.await.expect("a task"));
    }
    outputs
}

fn main() {
    let dir = PathBuf::from(std::env::args().nth(1).expect("bench-store DIRECTORY"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let samples = samples().await;
        // `store` measures the store alone.
        if std::env::args().nth(2).as_deref() != Some("store") {
            compare(&dir, &samples);
        }
        whole_store(&dir, &samples).await;
    });
    let _ = fs::remove_dir_all(&dir);
}
