//! Loads the objects, and writes them from one client and from many.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Mutex, task::JoinSet};
use windlass_bench::client::{Connection, Server, request};

use crate::objects::{self, NAMESPACE, NODES, Replacement, Template, pods_path};

pub(crate) const WRITERS: usize = 64;

/// Runs `job` for each number below `count` on as many connections as there are writers.
async fn for_each<T: Send + 'static>(
    server: &Server,
    count: usize,
    body: impl Fn(usize) -> (String, String) + Send + Sync + Clone + 'static,
    keep: impl Fn(String) -> anyhow::Result<T> + Send + Sync + Clone + 'static,
) -> anyhow::Result<Vec<T>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let (server, next, body, keep) = (server.clone(), Arc::clone(&next), body.clone(), keep.clone());
        tasks.spawn(async move {
            let mut connection = server.connect(writer).await?;
            let mut kept = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(kept);
                }
                let (path, body) = body(number);
                kept.push(keep(connection.text(&request("POST", &path, &body), 201).await?)?);
            }
        });
    }
    let mut all = Vec::with_capacity(count);
    while let Some(kept) = tasks.join_next().await {
        all.extend(kept??);
    }
    Ok(all)
}

/// What was loaded.
pub(crate) struct Loaded {
    pub(crate) pods: Vec<Replacement>,
    /// Created pods per second.
    pub(crate) rate: f64,
    /// Bytes of a pod.
    pub(crate) bytes: usize,
}

/// Creates the namespace, the nodes and the pods.
pub(crate) async fn load(server: &Server, pods: usize) -> anyhow::Result<Loaded> {
    let mut first = server.connect(0).await?;
    let namespace = serde_json::json!({"metadata": {"name": NAMESPACE}}).to_string();
    first.text(&request("POST", "/api/v1/namespaces", &namespace), 201).await?;
    for_each(server, NODES, |n| ("/api/v1/nodes".to_owned(), objects::node(n).to_string()), |_| Ok(())).await?;
    let template = Arc::new(Template::measured(&mut first).await?);
    let started = Instant::now();
    let body = move |n: usize| (pods_path(), template.body(&format!("pod-{n:05}"), n));
    let stored = for_each(server, pods, body, Ok).await?;
    let rate = pods as f64 / started.elapsed().as_secs_f64();
    let bytes = stored.iter().map(String::len).sum::<usize>() / stored.len().max(1);
    let pods = stored.iter().map(|text| Replacement::of(text)).collect::<anyhow::Result<_>>()?;
    Ok(Loaded { pods, rate, bytes })
}

/// Waits until nothing was written for ten seconds: controllers have done what new nodes and pods ask for.
pub(crate) async fn settle(server: &Server) -> anyhow::Result<()> {
    let mut connection = server.connect(0).await?;
    let (mut last, mut since, begun) = (0, Instant::now(), Instant::now());
    while since.elapsed() < Duration::from_secs(10) && begun.elapsed() < Duration::from_secs(240) {
        let pods = revision(&mut connection, "/api/v1/pods").await?;
        let now = pods.max(revision(&mut connection, "/api/v1/nodes").await?);
        // Leases of the server itself count in the revision of a list.
        if now > last + 5 {
            since = Instant::now();
        }
        last = now;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// The resource version of a collection.
pub(crate) async fn revision(connection: &mut Connection, path: &str) -> anyhow::Result<u64> {
    let list = connection.text(&request("GET", &format!("{path}?limit=1"), ""), 200).await?;
    let list: serde_json::Value = serde_json::from_str(&list)?;
    Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or_default().parse()?)
}

/// Replaces pods from `writers` clients for some time, each of its own share of them; returns writes per second.
pub(crate) async fn rate(
    server: &Server,
    pods: &Arc<Vec<Mutex<Replacement>>>,
    writers: usize,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut tasks = JoinSet::new();
    let begin = Arc::new(tokio::sync::Barrier::new(writers));
    for writer in 0..writers {
        let (server, pods, begin) = (server.clone(), Arc::clone(pods), Arc::clone(&begin));
        tasks.spawn(async move {
            let mut connection = server.connect(writer).await?;
            begin.wait().await;
            let (started, mut count) = (Instant::now(), 0_u32);
            for number in (writer..pods.len()).step_by(writers).cycle() {
                let mut pod = pods[number].lock().await;
                let mut refused = Vec::new();
                let status =
                    connection.exchange(pod.numbered(count + 1), |piece| refused.extend_from_slice(piece)).await?;
                anyhow::ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&refused));
                count += 1;
                if started.elapsed() >= time {
                    break;
                }
            }
            anyhow::Ok((f64::from(count), started.elapsed().as_secs_f64()))
        });
    }
    let mut rate = 0.0;
    while let Some(done) = tasks.join_next().await {
        let (count, seconds) = done??;
        rate += count / seconds;
    }
    Ok(rate)
}
