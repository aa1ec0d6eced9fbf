//! Pods compared with the same containers started through Docker's API: the measurements and result rows that every
//! kind of node has.

use std::{
    collections::BTreeSet,
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::runtime::Runtime;

use windlass_tests::{DEFAULT_TIMEOUT, RawDocker, Testbed, client};

use super::compare;

/// The image of measured pods.
pub const IMAGE: &str = "windlass/busybox:1";
/// Their command. As the first process in a container it ends by no signal but SIGKILL.
const COMMAND: [&str; 2] = ["sleep", "100000"];
/// A command that ends at SIGTERM.
const EXITS_ON_SIGTERM: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 100000 & wait; done"];
/// The command of init containers.
const INIT: [&str; 1] = ["true"];

/// A pod with one container.
///
/// # Errors
/// Never.
pub fn pod(name: &str) -> anyhow::Result<Pod> {
    of_containers(name, &COMMAND, 0, false)
}

fn with_init(name: &str) -> anyhow::Result<Pod> {
    of_containers(name, &COMMAND, 0, true)
}

fn of_containers(name: &str, command: &[&str], grace: i64, init: bool) -> anyhow::Result<Pod> {
    let init = init.then(|| json!({"name": "init", "image": IMAGE, "command": INIT}));
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"bench": "yes"}},
        "spec": {"terminationGracePeriodSeconds": grace, "initContainers": Vec::from_iter(init),
                 "containers": [{"name": "main", "image": IMAGE, "command": command}]},
    }))?)
}

/// Creates many pods concurrently.
///
/// # Errors
/// When the API rejects one.
pub async fn create(
    pods: &Api<Pod>,
    count: usize,
    prefix: &str,
    pod: impl Fn(&str) -> anyhow::Result<Pod>,
) -> anyhow::Result<()> {
    futures::stream::iter((0..count).map(|i| pod(&format!("{prefix}-{i}"))))
        .map_ok(|pod| async move { pods.create(&PostParams::default(), &pod).await.map_err(anyhow::Error::from) })
        .try_buffer_unordered(count)
        .try_collect::<Vec<_>>()
        .await?;
    Ok(())
}

/// Waits until so many pods are Ready.
///
/// # Errors
/// When they are not in time.
pub async fn wait_ready(pods: &Api<Pod>, count: usize) -> anyhow::Result<()> {
    let mut ready = BTreeSet::new();
    let mut events = pods.watch(&WatchParams::default(), "0").await?.boxed();
    while ready.len() < count {
        let event =
            tokio::time::timeout(DEFAULT_TIMEOUT, events.try_next()).await.context("the pods are not Ready")??;
        let pod = match event {
            Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => pod,
            Some(_) => continue,
            // An API server ends the watch of a slow client; a new one starts with the current state.
            None => {
                events = pods.watch(&WatchParams::default(), "0").await?.boxed();
                continue;
            }
        };
        let is_ready = pod
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .any(|c| c.type_ == "Ready" && c.status == "True");
        if is_ready {
            ready.insert(pod.metadata.name.unwrap_or_default());
        }
    }
    Ok(())
}

/// Creates a pod, waits until it is Ready and half a second more, deletes it with its grace period, and returns the
/// time from the deletion until the API has removed it.
///
/// # Errors
/// When the API refuses, or the pod is not Ready or gone in time.
pub async fn created_and_deleted(client: &Client, pod: &Pod) -> anyhow::Result<Duration> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let made = pods.create(&PostParams::default(), pod).await?;
    wait_ready(&pods, 1).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let version = made.metadata.resource_version.unwrap_or_default();
    let mut events = pods.watch(&WatchParams::default(), &version).await?.boxed();
    let started = Instant::now();
    pods.delete(&made.metadata.name.unwrap_or_default(), &DeleteParams::default()).await?;
    loop {
        let event = tokio::time::timeout(DEFAULT_TIMEOUT, events.try_next()).await.context("the pod is not gone")??;
        if matches!(event.context("the watch has ended")?, WatchEvent::Deleted(_)) {
            return Ok(started.elapsed());
        }
    }
}

/// Both sides of the comparison: a node's API, and the Docker Engine below it.
pub struct Pods<'w> {
    testbed: &'w Testbed,
    runtime: Runtime,
    client: Client,
    pause: String,
}

impl fmt::Debug for Pods<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods").field("world", self.testbed).finish_non_exhaustive()
    }
}

impl<'w> Pods<'w> {
    /// Enters the testbed's network namespace and runs both sides once as warm-up: the first pod pulls the pause image.
    ///
    /// # Errors
    /// When the API or Docker refuses.
    pub fn begin(testbed: &'w Testbed, kubeconfig: &Path) -> anyhow::Result<Self> {
        testbed.enter()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(client(kubeconfig))?;
        let mut pods = Self { testbed, runtime, client, pause: String::new() };
        pods.ours(1, pod)?;
        let found = testbed.docker(&["images", "--format", "{{.Repository}}:{{.Tag}}", "windlass/pause"]);
        found.trim().clone_into(&mut pods.pause);
        pods.raw(1, None)?;
        Ok(pods)
    }

    /// Runs a future that uses the API.
    pub fn ask<T>(&self, work: impl AsyncFnOnce(&Client) -> T) -> T {
        self.runtime.block_on(work(&self.client))
    }

    /// The result row of so many pods at once.
    ///
    /// # Errors
    /// When either side refuses.
    pub fn at_once(&self, count: usize, rounds: usize, goal: f64) -> anyhow::Result<String> {
        let what = if count == 1 {
            "one pod, created to Ready".to_owned()
        } else {
            format!("{count} pods at once, all Ready")
        };
        self.ratio(&what, rounds, goal, || self.raw(count, None), || self.ours(count, pod))
    }

    /// The result row of a pod with an init container.
    ///
    /// # Errors
    /// When either side refuses.
    pub fn with_init(&self, rounds: usize, goal: f64) -> anyhow::Result<String> {
        let what = "one pod with an init container, created to Ready";
        self.ratio(what, rounds, goal, || self.raw(1, Some(&INIT)), || self.ours(1, with_init))
    }

    fn ratio(
        &self,
        what: &str,
        rounds: usize,
        goal: f64,
        raw: impl FnMut() -> anyhow::Result<Duration>,
        ours: impl FnMut() -> anyhow::Result<Duration>,
    ) -> anyhow::Result<String> {
        let both = compare(rounds, raw, ours)?;
        Ok(format!(
            "| {what} (median of {rounds}) | {:.0} ms | {:.0} ms | {:.2} | {goal} |",
            both.ours, both.raw, both.ratio
        ))
    }

    /// The result row of a Deployment of one pod, compared with the containers alone.
    ///
    /// # Errors
    /// When either side refuses.
    pub fn of_deployment(&self, rounds: usize, goal: f64) -> anyhow::Result<String> {
        let both = compare(rounds, || self.raw(1, None), || self.deployed())?;
        Ok(format!(
            "| a Deployment of one pod, created to Ready (median of {rounds}) | {:.0} ms | {:.0} ms | +{:.0} ms | +{goal} ms |",
            both.ours,
            both.raw,
            both.ours - both.raw
        ))
    }

    /// The result row of a pod that ends at SIGTERM, compared with its container alone.
    ///
    /// # Errors
    /// When either side refuses.
    pub fn deletion(&self, rounds: usize, goal: f64) -> anyhow::Result<String> {
        self.gone("delete to gone; the container alone, stopped", &EXITS_ON_SIGTERM, 30, rounds, goal)
    }

    /// The result row of a pod that has to be killed after its grace period.
    ///
    /// # Errors
    /// When either side refuses.
    pub fn deletion_by_force(&self, grace: i64, rounds: usize, goal: f64) -> anyhow::Result<String> {
        self.gone(&format!("— one that runs until its grace of {grace} s is over"), &COMMAND, grace, rounds, goal)
    }

    fn gone(&self, what: &str, command: &[&str], grace: i64, rounds: usize, goal: f64) -> anyhow::Result<String> {
        let deleted = of_containers("deleted", command, grace, false)?;
        let both = compare(
            rounds,
            || self.raw_stop(command, grace),
            || self.runtime.block_on(created_and_deleted(&self.client, &deleted)),
        )?;
        Ok(format!(
            "| {what} (median of {rounds}) | {:.0} ms | {:.0} ms | +{:.0} ms | +{goal} ms |",
            both.ours,
            both.raw,
            both.ours - both.raw
        ))
    }

    /// Creates pods that stay, and waits until all are Ready.
    ///
    /// # Errors
    /// When the API refuses, or they are not Ready in time.
    pub fn hold(&self, count: usize) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        self.runtime.block_on(async {
            create(&pods, count, "held", pod).await?;
            wait_ready(&pods, count).await
        })
    }

    /// A pod with one container that ends at SIGTERM.
    ///
    /// # Errors
    /// Never.
    pub fn obedient(name: &str) -> anyhow::Result<Pod> {
        of_containers(name, &EXITS_ON_SIGTERM, 30, false)
    }

    /// Creates pods concurrently, waits until all are Ready, deletes them with their grace periods, and waits until the
    /// pods are gone and their last events have arrived.
    ///
    /// # Errors
    /// When the API refuses, or they are not Ready or gone in time.
    pub fn live_at_once(&self, pods: &[Pod]) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            let api: Api<Pod> = Api::default_namespaced(self.client.clone());
            let params = PostParams::default();
            futures::future::try_join_all(pods.iter().map(|pod| api.create(&params, pod))).await?;
            wait_ready(&api, pods.len()).await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
            self.wait_deleted(&api).await
        })
    }

    /// Waits until pods and their containers are gone. Containers are removed later than pods, and that must not slow
    /// the next measurement.
    async fn wait_deleted(&self, pods: &Api<Pod>) -> anyhow::Result<()> {
        let deadline = Instant::now() + DEFAULT_TIMEOUT;
        while !pods.list(&ListParams::default()).await?.items.is_empty()
            || !self.testbed.docker(&["ps", "-aq"]).is_empty()
        {
            anyhow::ensure!(Instant::now() < deadline, "the pods are not gone");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(())
    }

    /// The time that Docker takes to stop a container.
    fn raw_stop(&self, command: &[&str], grace: i64) -> anyhow::Result<Duration> {
        let mut docker = RawDocker::connect(&self.testbed.docker_socket())?;
        let ids = docker.pod("stopped", [&self.pause, IMAGE], None, command)?;
        std::thread::sleep(Duration::from_millis(500));
        let started = Instant::now();
        docker.stop(&ids[1], grace)?;
        let took = started.elapsed();
        self.remove(&ids);
        Ok(took)
    }

    /// The same containers without Kubernetes, those of `count` pods concurrently.
    fn raw(&self, count: usize, init: Option<&[&str]>) -> anyhow::Result<Duration> {
        let socket = self.testbed.docker_socket();
        let started = Instant::now();
        let made: Vec<anyhow::Result<Vec<String>>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..count)
                .map(|i| {
                    let socket = &socket;
                    scope.spawn(move || {
                        RawDocker::connect(socket)?.pod(&format!("raw-{i}"), [&self.pause, IMAGE], init, &COMMAND)
                    })
                })
                .collect();
            workers.into_iter().map(|w| w.join().expect("a worker thread")).collect()
        });
        let took = started.elapsed();
        let ids: Vec<Vec<String>> = made.into_iter().collect::<anyhow::Result<_>>()?;
        self.remove(&ids.concat());
        Ok(took)
    }

    fn remove(&self, ids: &[String]) {
        let mut args = vec!["rm", "-f"];
        args.extend(ids.iter().map(String::as_str));
        self.testbed.docker(&args);
    }

    /// Creates a Deployment and waits until its pod is Ready, then removes it.
    fn deployed(&self) -> anyhow::Result<Duration> {
        let labels = json!({"bench": "deployment"});
        let template = json!({"metadata": {"labels": labels}, "spec": {
            "terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": IMAGE, "command": COMMAND}]}});
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": "deployed"}, "spec": {"selector": {"matchLabels": labels}, "template": template},
        }))?;
        self.runtime.block_on(async {
            let deployments: Api<Deployment> = Api::default_namespaced(self.client.clone());
            let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
            let started = Instant::now();
            deployments.create(&PostParams::default(), &deployment).await?;
            wait_ready(&pods, 1).await?;
            let took = started.elapsed();
            deployments.delete("deployed", &DeleteParams::background()).await?;
            self.wait_deleted(&pods).await?;
            Ok(took)
        })
    }

    /// Creates pods and waits until all are Ready, then removes them.
    fn ours(&self, count: usize, pod: impl Fn(&str) -> anyhow::Result<Pod>) -> anyhow::Result<Duration> {
        self.runtime.block_on(async {
            let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
            let started = Instant::now();
            create(&pods, count, "pod", pod).await?;
            wait_ready(&pods, count).await?;
            let took = started.elapsed();
            pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
            self.wait_deleted(&pods).await?;
            Ok(took)
        })
    }
}
