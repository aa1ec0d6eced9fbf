//! Many watchers, each with a connection of its own: what they receive and when, and whether they can resume.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::{
    sync::{Mutex, Semaphore},
    task::{JoinHandle, JoinSet},
};
use windlass_bench::client::{Connection, Response, Server, request};

use crate::{
    objects::{Replacement, node_name, pods_path},
    writes::revision,
};

pub(crate) const WATCHERS: usize = 1_000;
/// Numbers of connections of watchers; writers and readers have those below.
const FIRST_CONNECTION: usize = 400;
/// TLS handshakes at a time.
const HANDSHAKES: usize = 32;
/// Every event is a line that ends like this; lines of chunk sizes do not.
const END_OF_EVENT: &[u8] = b"}\n";
const REVISION: &[u8] = b"\"resourceVersion\":\"";

/// The last revision that a watcher has seen.
type Seen = Arc<AtomicU64>;

/// A watch that was answered, or how it was refused.
enum Begun {
    Watching(Box<(Connection, Response)>),
    /// The history does not reach back to the revision: the watcher would have to list again.
    Expired,
}

async fn begin(server: &Server, number: usize, query: &str) -> anyhow::Result<Begun> {
    let mut connection = server.connect(FIRST_CONNECTION + number).await?;
    connection.send(&request("GET", &format!("{}?watch=1&{query}", pods_path()), "")).await?;
    let response = connection.head().await?;
    match response.status {
        200 => Ok(Begun::Watching(Box::new((connection, response)))),
        410 => Ok(Begun::Expired),
        status => anyhow::bail!("a watch was answered with {status}"),
    }
}

/// The number at the last resource version in this text.
fn last_revision(text: &[u8]) -> Option<u64> {
    let at = memchr::memmem::rfind(text, REVISION)? + REVISION.len();
    let digits = text[at..].iter().take_while(|b| b.is_ascii_digit()).count();
    // A number that is cut off by the end of the piece is not taken.
    let whole = text.get(at + digits) == Some(&b'"');
    whole.then(|| std::str::from_utf8(&text[at..at + digits]).ok()?.parse().ok()).flatten()
}

/// One watcher for each node, of its pods, with bookmarks; as kubelets do.
pub(crate) struct NodeWatchers {
    seen: Vec<Seen>,
    tasks: Vec<JoinHandle<()>>,
}

impl NodeWatchers {
    pub(crate) async fn start(server: &Server) -> anyhow::Result<Self> {
        let from = revision(&mut server.connect(0).await?, &pods_path()).await?;
        let seen: Vec<Seen> = (0..WATCHERS).map(|_| Arc::new(AtomicU64::new(from))).collect();
        let (watchers, expired, _) = Self::resume(server, seen).await?;
        anyhow::ensure!(expired == 0, "{expired} new watches were refused");
        Ok(watchers)
    }

    /// Begins watches from the revisions; returns how many were refused, and the time until all were answered.
    pub(crate) async fn resume(server: &Server, seen: Vec<Seen>) -> anyhow::Result<(Self, usize, Duration)> {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        let started = Instant::now();
        let mut beginning = JoinSet::new();
        for (number, seen) in seen.iter().enumerate() {
            let (server, handshakes, from) = (server.clone(), Arc::clone(&handshakes), seen.load(Ordering::Relaxed));
            beginning.spawn(async move {
                let _permit = handshakes.acquire_owned().await?;
                let node = node_name(number);
                let query =
                    format!("fieldSelector=spec.nodeName%3D{node}&allowWatchBookmarks=true&resourceVersion={from}");
                anyhow::Ok((number, begin(&server, number, &query).await?))
            });
        }
        let (mut tasks, mut expired) = (Vec::new(), 0);
        while let Some(begun) = beginning.join_next().await {
            let (number, begun) = begun??;
            match begun {
                Begun::Watching(watch) => tasks.push(tokio::spawn(follow(*watch, Arc::clone(&seen[number])))),
                Begun::Expired => expired += 1,
            }
        }
        Ok((Self { seen, tasks }, expired, started.elapsed()))
    }

    /// How many have ended.
    pub(crate) fn ended(&self) -> usize {
        self.tasks.iter().filter(|task| task.is_finished()).count()
    }

    /// Closes all connections; returns what the watchers have seen.
    pub(crate) async fn stop(self) -> Vec<Seen> {
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let _ = task.await;
        }
        self.seen
    }
}

/// Follows a watch until its end. An event of the type ERROR ends it too.
async fn follow((mut connection, mut response): (Connection, Response), seen: Seen) {
    // The end of the piece before: a revision may be cut in two.
    let mut text = Vec::new();
    loop {
        let mut failed = false;
        let mut take = |piece: &[u8]| {
            text.extend_from_slice(piece);
            failed |= memchr::memmem::find(&text, b"\"type\":\"ERROR\"").is_some();
            if let Some(revision) = last_revision(&text) {
                seen.store(revision, Ordering::Relaxed);
            }
            text.drain(..text.len().saturating_sub(64));
        };
        match connection.piece(&mut response, &mut take).await {
            Ok(true) if !failed => {}
            _ => return,
        }
    }
}

/// The times until writes reach all watchers, sorted.
pub(crate) async fn delivery(
    server: &Server,
    pods: &[Mutex<Replacement>],
    writes: usize,
    pause: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let mut writer = server.connect(0).await?;
    let from = revision(&mut writer, &pods_path()).await?;
    let (handshakes, begun) = (Arc::new(Semaphore::new(HANDSHAKES)), Instant::now());
    let all_begun = Arc::new(tokio::sync::Barrier::new(WATCHERS + 1));
    let mut tasks: JoinSet<anyhow::Result<Vec<Duration>>> = JoinSet::new();
    for number in 0..WATCHERS {
        let (server, handshakes, all_begun) = (server.clone(), Arc::clone(&handshakes), Arc::clone(&all_begun));
        tasks.spawn(async move {
            let permit = handshakes.acquire().await?;
            let started = begin(&server, number, &format!("resourceVersion={from}")).await;
            drop(permit);
            all_begun.wait().await;
            let Begun::Watching(watch) = started? else { anyhow::bail!("a new watch was refused") };
            let (mut connection, mut response) = *watch;
            let (mut times, mut last) = (Vec::with_capacity(writes), b'\0');
            while times.len() < writes {
                let mut take = |piece: &[u8]| {
                    let now = begun.elapsed();
                    let split = usize::from(last == b'}' && piece.first() == Some(&b'\n'));
                    let events = memchr::memmem::find_iter(piece, END_OF_EVENT).count() + split;
                    times.extend(std::iter::repeat_n(now, events));
                    last = piece.last().copied().unwrap_or(last);
                };
                anyhow::ensure!(connection.piece(&mut response, &mut take).await?, "a watch ended");
            }
            times.truncate(writes);
            Ok(times)
        });
    }
    all_begun.wait().await;
    let mut answered = Vec::with_capacity(writes);
    for number in 0..writes {
        tokio::time::sleep(pause).await;
        let mut pod = pods[number % pods.len()].lock().await;
        let round = u32::try_from(number)? + 50_000_000;
        let status = writer.exchange(pod.numbered(round), |_| ()).await?;
        anyhow::ensure!(status == 200, "a write was answered with {status}");
        answered.push(begun.elapsed());
    }
    let mut received = Vec::with_capacity(WATCHERS);
    while let Some(times) = tasks.join_next().await {
        received.push(times??);
    }
    let mut all = Vec::with_capacity(WATCHERS * writes);
    for (number, answered) in answered.into_iter().enumerate() {
        // A watcher may hear of a write before its writer: it was committed before both.
        let first = received.iter().map(|times| times[number]).min().context("no watcher")?;
        let committed = answered.min(first);
        all.extend(received.iter().map(|times| times[number] - committed));
    }
    all.sort_unstable();
    Ok(all)
}
