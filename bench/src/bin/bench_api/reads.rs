//! Lists of everything, and single objects during many such lists.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::process::{Pid, setpriority_process};
use windlass_bench::client::{Server, request};

use crate::objects::pods_path;

const LISTERS: usize = 10;

/// A list of all pods.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed {
    pub(crate) first_byte: Duration,
    pub(crate) whole: Duration,
    pub(crate) bytes: usize,
}

/// Lists all pods one time after the other; sorted by time.
pub(crate) async fn lists(server: &Server, times: usize) -> anyhow::Result<Vec<Listed>> {
    let mut connection = server.connect(0).await?;
    let list = request("GET", &pods_path(), "");
    let mut all = Vec::new();
    for _ in 0..times {
        let started = Instant::now();
        connection.send(&list).await?;
        let mut response = connection.head().await?;
        let (mut bytes, mut first_byte) = (0, None);
        while connection.piece(&mut response, &mut |piece: &[u8]| bytes += piece.len()).await? {
            if bytes > 0 && first_byte.is_none() {
                first_byte = Some(started.elapsed());
            }
        }
        anyhow::ensure!(response.status == 200, "a list was answered with {}", response.status);
        let whole = started.elapsed();
        all.push(Listed { first_byte: first_byte.context("an empty list")?, whole, bytes });
    }
    all.sort_by_key(|list| list.whole);
    Ok(all)
}

/// Gets pods for some time while others list all of them; returns the times, sorted, and the number of lists.
pub(crate) fn gets_beside_lists(
    server: &Server,
    pods: usize,
    time: Duration,
) -> anyhow::Result<(Vec<Duration>, usize)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let listers = scope.spawn(|| listing(server, &done));
        // Until the lists are on their way.
        std::thread::sleep(Duration::from_secs(1));
        let getter = scope.spawn(|| {
            // On a machine of its own it would not wait for a core either.
            prioritize(-20)?;
            runtime()?.block_on(gets(server, pods, time))
        });
        let times = getter.join();
        done.store(true, Ordering::Relaxed);
        let lists = listers.join().map_err(|_| anyhow::anyhow!("the listers panicked"))??;
        Ok((times.map_err(|_| anyhow::anyhow!("the getter panicked"))??, lists))
    })
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Sets the nice value of this thread.
fn prioritize(nice: i32) -> anyhow::Result<()> {
    Ok(setpriority_process(Pid::from_raw(nix::unistd::gettid().as_raw()), nice)?)
}

/// All listers, on one thread that yields to all others: what they do would be done by other machines.
fn listing(server: &Server, done: &AtomicBool) -> anyhow::Result<usize> {
    prioritize(19)?;
    runtime()?.block_on(async {
        let one = async |number: usize| {
            let mut connection = server.connect(1 + number).await?;
            let (list, mut count) = (request("GET", &pods_path(), ""), 0);
            while !done.load(Ordering::Relaxed) {
                let status = connection.exchange(&list, |_| ()).await?;
                anyhow::ensure!(status == 200, "a list was answered with {status}");
                count += 1;
            }
            anyhow::Ok(count)
        };
        let counts = futures::future::try_join_all((0..LISTERS).map(one)).await?;
        Ok(counts.into_iter().sum())
    })
}

async fn gets(server: &Server, pods: usize, time: Duration) -> anyhow::Result<Vec<Duration>> {
    let mut connection = server.connect(0).await?;
    let (begun, mut times) = (Instant::now(), Vec::new());
    for number in (0..pods).step_by(37).cycle() {
        let get = request("GET", &format!("{}/pod-{number:05}", pods_path()), "");
        let started = Instant::now();
        let status = connection.exchange(&get, |_| ()).await?;
        times.push(started.elapsed());
        anyhow::ensure!(status == 200, "a pod was answered with {status}");
        if begun.elapsed() > time {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    times.sort_unstable();
    Ok(times)
}
