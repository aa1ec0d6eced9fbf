//! A server that is measured: its answers' times, and its own CPU time, which what else runs on the machine hardly changes.

use std::time::{Duration, Instant};

use serde_json::Value;
use windlass_bench::{
    client::{Connection, Server, request},
    median,
};
use windlass_tests::Usage;

use crate::objects::{GROUP, NAMESPACE};

/// Requests of one batch.
const BATCH: usize = 150;
/// Batches of each side, which take turns.
const ROUNDS: usize = 7;
const SERVED_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Target {
    pub(crate) pid: u32,
    pub(crate) connection: Connection,
    next: usize,
}

/// What a request costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Microseconds of the server's CPU time.
    pub(crate) cpu: f64,
    /// Microseconds until the answer; the median.
    pub(crate) time: f64,
}

/// Two sides that took turns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) one: Cost,
    pub(crate) other: Cost,
    /// The median of the rounds' ratios of CPU time.
    pub(crate) ratio: f64,
    /// The medians of the rounds' differences.
    pub(crate) more: Cost,
}

/// Makes the request of a number, and says what its answer's code is.
pub(crate) type Make<'a> = dyn Fn(usize) -> (Vec<u8>, u16) + 'a;

impl Target {
    pub(crate) async fn new(server: &Server, pid: u32) -> anyhow::Result<Self> {
        let connection = server.connect(0).await?;
        let mut target = Self { pid, connection, next: 0 };
        target.post("/api/v1/namespaces", &serde_json::json!({"metadata": {"name": NAMESPACE}})).await?;
        Ok(target)
    }

    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        Ok(Usage::of(self.pid)?.cpu)
    }

    pub(crate) async fn post(&mut self, path: &str, object: &Value) -> anyhow::Result<String> {
        self.connection.text(&request("POST", path, &object.to_string()), 201).await
    }

    pub(crate) async fn status(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<u16> {
        self.connection.exchange(&request(method, path, body), |_| ()).await
    }

    /// Creates a definition and waits until its objects are served; the time for both.
    pub(crate) async fn define(&mut self, definition: &Value) -> anyhow::Result<Duration> {
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
        let (path, started) = (objects_path(plural), Instant::now());
        self.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await?;
        while self.status("GET", &format!("{path}?limit=1"), "").await? != 200 {
            anyhow::ensure!(started.elapsed() < SERVED_TIMEOUT, "{path} is not served");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(started.elapsed())
    }

    async fn batch(&mut self, make: &Make<'_>) -> anyhow::Result<Cost> {
        let first = self.next;
        self.next += BATCH;
        let requests: Vec<(Vec<u8>, u16)> = (first..self.next).map(make).collect();
        let (before, mut times) = (self.cpu()?, Vec::with_capacity(BATCH));
        for (request, code) in &requests {
            let started = Instant::now();
            let got = self.connection.exchange(request, |_| ()).await?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
            anyhow::ensure!(got == *code, "{got} instead of {code}: {}", String::from_utf8_lossy(request));
        }
        // What follows from the writes is part of what they cost.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let cpu = (self.cpu()? - before).as_secs_f64() * 1e6 / BATCH as f64;
        Ok(Cost { cpu, time: median(times) })
    }

    /// Compares two kinds of requests.
    pub(crate) async fn compare(&mut self, one: &Make<'_>, other: &Make<'_>) -> anyhow::Result<Pair> {
        let (mut ones, mut others) = (Vec::new(), Vec::new());
        // The first ones pay for connections, caches and compilation.
        self.batch(one).await?;
        self.batch(other).await?;
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                ones.push(self.batch(one).await?);
                others.push(self.batch(other).await?);
            } else {
                others.push(self.batch(other).await?);
                ones.push(self.batch(one).await?);
            }
        }
        let of = |costs: &[Cost], which: fn(&Cost) -> f64| median(costs.iter().map(which).collect());
        let side = |costs: &[Cost]| Cost { cpu: of(costs, |cost| cost.cpu), time: of(costs, |cost| cost.time) };
        let pairs = || ones.iter().zip(&others);
        Ok(Pair {
            one: side(&ones),
            other: side(&others),
            ratio: median(pairs().map(|(one, other)| other.cpu / one.cpu).collect()),
            more: Cost {
                cpu: median(pairs().map(|(one, other)| other.cpu - one.cpu).collect()),
                time: median(pairs().map(|(one, other)| other.time - one.time).collect()),
            },
        })
    }
}

/// The path of the custom objects of a definition.
pub(crate) fn objects_path(plural: &str) -> String {
    format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{plural}")
}
