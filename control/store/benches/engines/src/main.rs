//! `make bench-store`: engines compared with what the disk gives for the same bytes and batches, and the whole store with 64
//! writers, one writer, 10,000 objects and 1,000 watchers. `bench-store DIRECTORY`, which is on the disk to measure.
//!
//! The whole store and the disk have turns of a quarter of a second. The disk gets the size of an object for each write
//! and the average batch of the commits that the store made, on the same file system: at the end of a file that grows,
//! and in one whose blocks are there and written, which is the limit.

mod engines;

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use windlass_store::{Counters, Engine, Expected, Key, Log, Memory, Object, Record, ResourceOptions, Store, Write};

/// That of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const OBJECT_BYTES: usize = 4096;
const OBJECTS: usize = 10_000;
const WRITERS: usize = 64;
const WATCHERS: usize = 1000;
const SLICE: Duration = Duration::from_secs(3);
const ROUNDS: usize = 3;
/// Of the store and the disk in turn.
const TURN: Duration = Duration::from_millis(250);
const TURNS: usize = 24;

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
        let write = Write { resource: pods, key: key(i), expected: Expected::Absent, value, guards: Vec::new(), companions: Vec::new() };
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

/// Writers that each change objects of their own, one after another, for a while; returns the number of writes and the time.
async fn storm(store: &Store, writers: usize, time: Duration) -> (usize, Duration) {
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
                    let write = Write { resource: pods, key: key(i), expected, value, guards: Vec::new(), companions: Vec::new() };
                    store.write(write).await.expect("written");
                    count.fetch_add(1, Ordering::Relaxed);
                    i = (i + writers) % OBJECTS;
                }
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a writer");
    }
    (count.load(Ordering::Relaxed), begun.elapsed())
}

/// A log that counts its commits.
#[derive(Debug)]
struct Counted(Log, Arc<AtomicUsize>);

impl Engine for Counted {
    fn load(&mut self, each: &mut dyn FnMut(Vec<Record>, &Counters)) -> Result<(), windlass_store::Error> {
        self.0.load(each)
    }

    fn commit(&mut self, records: &[Record], counters: &Counters) -> Result<(), windlass_store::Error> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.commit(records, counters)
    }

    fn restore(&mut self) -> Result<(), windlass_store::Error> {
        self.0.restore()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn rewrite(&mut self, records: Vec<Record>, counters: Counters) {
        self.0.rewrite(records, counters);
    }
}

/// The store and the disk in turn, each for a short time, so that both have the same hours of the machine: the disk gets
/// the bytes and the batches that the store made, by turns at the end of a file and in one whose blocks are there.
async fn beside_the_disk(store: &Store, commits: &AtomicUsize, dir: &Path, writers: usize) {
    let (mut written, mut time, mut cpu) = (0, Duration::ZERO, 0.0);
    let mut disks = [(0, Duration::ZERO); 2];
    let (mut files, begun) = ([Disk::new(dir, "growing"), Disk::new(dir, "written")], commits.load(Ordering::Relaxed));
    files[1].fill();
    for _ in 0..TURNS {
        let cpu_before = cpu_seconds();
        let (more, took) = storm(store, writers, TURN).await;
        (written, time, cpu) = (written + more, time + took, cpu + cpu_seconds() - cpu_before);
        let batch = written / (commits.load(Ordering::Relaxed) - begun).max(1);
        for (file, (written, time)) in files.iter_mut().zip(&mut disks) {
            let started = Instant::now();
            while started.elapsed() < TURN {
                file.commit(batch.max(1) * OBJECT_BYTES);
                *written += batch.max(1);
            }
            *time += started.elapsed();
        }
    }
    let (rate, batch) =
        (written as f64 / time.as_secs_f64(), written as f64 / (commits.load(Ordering::Relaxed) - begun) as f64);
    let [growing, there] = disks.map(|(written, time)| written as f64 / time.as_secs_f64());
    println!(
        "store, {writers:2} writers: {rate:.0}/s, {batch:.1} a batch, {:.1} us of CPU for each with the client's",
        cpu * 1e6 / written as f64
    );
    println!(
        "  {:.2} of the disk's {growing:.0}/s at the end of a file, {:.2} of its {there:.0}/s in one whose blocks are there",
        rate / growing,
        rate / there
    );
}

/// A file on the disk to measure.
struct Disk {
    file: fs::File,
    path: PathBuf,
    at: u64,
    /// Written again from the beginning, instead of beginning again.
    is_filled: bool,
}

const DISK_BYTES: u64 = 64 << 20;

impl Disk {
    fn new(dir: &Path, name: &str) -> Self {
        let path = dir.join(name);
        Self { file: fs::File::create(&path).expect("a file"), path, at: 0, is_filled: false }
    }

    fn fill(&mut self) {
        self.file.write_all_at(&vec![1; DISK_BYTES as usize], 0).expect("a disk");
        self.file.sync_all().expect("a disk");
        self.is_filled = true;
    }

    fn commit(&mut self, bytes: usize) {
        if self.at + bytes as u64 > DISK_BYTES {
            self.at = 0;
            if !self.is_filled {
                self.file.set_len(0).expect("a disk");
            }
        }
        self.file.write_all_at(&vec![b'x'; bytes], self.at).expect("a disk");
        self.file.sync_data().expect("a disk");
        self.at += bytes as u64;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// CPU time of this process so far.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.rsplit(") ").next().unwrap_or_default().split(' ').filter_map(|f| f.parse().ok()).collect();
    // The state, which is no number, comes first; ticks of 10 ms.
    fields.get(10).zip(fields.get(11)).map_or(0.0, |(user, system)| (user + system) / 100.0)
}

async fn whole_store(dir: &Path) {
    let place = dir.join("store");
    fs::create_dir_all(&place).expect("a directory");
    println!("resident, empty: {:.1} MB", resident_megabytes());
    let commits = Arc::new(AtomicUsize::new(0));
    let log = Log::create(&place, &[], &Counters::default()).expect("a log");
    let engine = Box::new(Counted(log, Arc::clone(&commits)));
    let store = Store::open(engine, &[("pods", ResourceOptions::default())]).expect("a store");
    let pods = store.resource("pods");
    let fill = (0..OBJECTS).map(|i| {
        let store = store.clone();
        let value = Some(pod(&key(i).name, i));
        let write = Write { resource: pods, key: key(i), expected: Expected::Absent, value, guards: Vec::new(), companions: Vec::new() };
        async move { store.write(write).await }
    });
    for written in futures(fill).await {
        written.expect("written");
    }
    for writers in [1, WRITERS] {
        beside_the_disk(&store, &commits, dir, writers).await;
    }
    let files = || {
        fs::read_dir(&place).expect("files").map(|e| e.and_then(|e| e.metadata()).map_or(0, |m| m.len())).sum::<u64>()
    };
    println!("resident after these writes: {:.1} MB, log: {} MB", resident_megabytes(), files() >> 20);
    let last = store.revision();
    store.close().await.expect("closed");
    drop(store);
    // In a process of its own: what this one has freed is not all given back.
    let program = std::env::current_exe().expect("this program");
    let status = std::process::Command::new(program).arg(dir).arg("start").arg(last.to_string()).status();
    assert!(status.expect("this program").success());
}

/// A start over the store that another process has left at a revision.
async fn start(dir: &Path, last: u64) {
    let begun = Instant::now();
    let log = Box::new(Log::open(&dir.join("store")).expect("a log"));
    let store = Store::open(log, &[("pods", ResourceOptions::default())]).expect("a store");
    println!("start with {OBJECTS} objects: {:?}; resident {:.1} MB", begun.elapsed(), resident_megabytes());
    let pods = store.resource("pods");
    let resumed = (0..WATCHERS).filter(|_| store.watch(pods, last - 100).is_ok()).count();
    println!("{resumed} of {WATCHERS} watchers go on where they were");
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
        store.write(Write { resource: pods, key: key(i), expected, value, guards: Vec::new(), companions: Vec::new() }).await.expect("written");
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
    let what = std::env::args().nth(2).unwrap_or_default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    if what == "start" {
        let last = std::env::args().nth(3).and_then(|last| last.parse().ok()).expect("a revision");
        return runtime.block_on(start(&dir, last));
    }
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory");
    runtime.block_on(async {
        // `store` measures the store alone.
        if what != "store" {
            compare(&dir, &samples().await);
        }
        whole_store(&dir).await;
    });
    let _ = fs::remove_dir_all(&dir);
}
