//! `make bench-controllers`: 1,000 pods of 100 Deployments on 50 hollow nodes, compared with the same number of raw writes in the same
//! run; then a Deployment of one pod on a real node compared with raw Docker. Prints lines for docs/performance.md.

#![allow(clippy::print_stdout, reason = "the figures are the output")]

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Binding, Namespace, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use windlass_bench::{Pods, Steal};
use windlass_tests::{HollowNodes, Testbed, Usage, client, resident_megabytes};

const NODES: usize = 50;
const DEPLOYMENTS: usize = 100;
const REPLICAS: usize = 10;
const PODS: usize = DEPLOYMENTS * REPLICAS;
/// Clients that write raw.
const WRITERS: usize = 64;
/// Writes of a raw pod's life: creation, binding, status, deletion, removal.
const WRITES_OF_A_LIFE: usize = 5;
const ROLLOUTS: usize = 3;
const IDLE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(120);
/// How often a Deployment of one pod is applied.
const APPLIED: usize = 15;

fn main() -> anyhow::Result<()> {
    println!("| figure | windlass | raw | ratio | goal |");
    println!("|---|---|---|---|---|");
    let steal = Steal::begin()?;
    std::thread::spawn(on_hollow_nodes).join().map_err(|_| anyhow::anyhow!("the first half panicked"))??;
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    windlass.up();
    let pods = Pods::begin(&testbed, &windlass.kubeconfig())?;
    println!("{}", pods.of_deployment(APPLIED, 150.0)?);
    println!("\n{}", steal.summary()?);
    Ok(())
}

/// In a thread of its own, which is in the testbed's network namespace.
fn on_hollow_nodes() -> anyhow::Result<()> {
    let testbed = Testbed::without_docker();
    let windlass = testbed.windlass();
    let server = windlass.api_alone();
    testbed.enter()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let kubeconfig = windlass.kubeconfig();
    runtime.block_on(async {
        let client = client(&kubeconfig).await?;
        let _nodes = HollowNodes::start(&kubeconfig, NODES).await?;
        let before = raw(&client, "before").await?;

        let started = Instant::now();
        create(&client).await?;
        let scheduled = until(&client, started, |pods, _| pods.iter().filter(|pod| is_bound(pod)).count() == PODS).await?;
        let complete = until(&client, started, |_, all| all.iter().all(is_complete)).await?;
        let rate = PODS as f64 / scheduled.as_secs_f64();
        println!("| {PODS} pods of {DEPLOYMENTS} Deployments on {NODES} nodes: created and scheduled | {rate:.0}/s | | | ≥ 300/s |");
        println!("| — all Deployments complete | {:.2} s | | | |", complete.as_secs_f64());

        let (mut took, mut writes) = (Vec::new(), Vec::new());
        for number in 0..ROLLOUTS {
            let (begun, first) = (Instant::now(), revision(&client).await?);
            roll_out(&client, number).await?;
            took.push(until(&client, begun, |_, all| all.iter().all(is_complete)).await?.as_secs_f64());
            writes.push((revision(&client).await? - first) as f64);
        }
        let after = raw(&client, "after").await?;
        let raw_rate = f64::midpoint(before, after);
        let (took, writes) = (windlass_bench::median(took), windlass_bench::median(writes));
        let raw_time = writes / raw_rate;
        println!(
            "| full rollout of them (median of {ROLLOUTS}); the same {writes:.0} writes by {WRITERS} clients | {took:.2} s | {raw_time:.2} s | {:.2} | 2 |",
            took / raw_time
        );
        let pid = server.pid();
        tokio::time::sleep(Duration::from_secs(30)).await;
        let cpu = Usage::of(pid)?;
        tokio::time::sleep(IDLE).await;
        let share = Usage::of(pid)?.since(&cpu).cpu.as_secs_f64() / IDLE.as_secs_f64() * 100.0;
        println!("| idle with them, {NODES} nodes' heartbeats included | {share:.2} % of a core | | | 1 % |");
        println!("| — resident memory | {:.1} MB | | | |", resident_megabytes(pid)?);
        Ok(())
    })
}

/// Writes per second when pods live without controllers.
async fn raw(client: &Client, name: &str) -> anyhow::Result<f64> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), name);
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), name);
    while accounts.get_opt("default").await?.is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let started = Instant::now();
    futures::stream::iter(0..PODS)
        .map(|number| live(&pods, format!("raw-{number}")))
        .buffer_unordered(WRITERS)
        .try_collect::<Vec<()>>()
        .await?;
    Ok((PODS * WRITES_OF_A_LIFE) as f64 / started.elapsed().as_secs_f64())
}

async fn live(pods: &Api<Pod>, name: String) -> anyhow::Result<()> {
    let mut pod = template(&json!({"app": "raw"}), "0");
    pod["metadata"]["name"] = json!(name);
    pod["spec"]["schedulerName"] = json!("raw");
    let pod: Pod = serde_json::from_value(pod)?;
    pods.create(&PostParams::default(), &pod).await?;
    let binding: Binding = serde_json::from_value(json!({
        "metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": "raw"},
    }))?;
    let _: Value = pods.create_subresource("binding", &name, &PostParams::default(), &binding).await?;
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    pods.delete(&name, &DeleteParams::default()).await?;
    pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

fn template(labels: &Value, version: &str) -> Value {
    json!({
        "metadata": {"labels": labels, "annotations": {"version": version}},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]},
    })
}

fn deployments(client: &Client) -> Api<Deployment> {
    Api::default_namespaced(client.clone())
}

async fn create(client: &Client) -> anyhow::Result<()> {
    for number in 0..DEPLOYMENTS {
        let (name, labels) = (format!("bench-{number}"), json!({"bench": number.to_string()}));
        let made: Deployment = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template(&labels, "0")},
        }))?;
        deployments(client).create(&PostParams::default(), &made).await?;
    }
    Ok(())
}

async fn roll_out(client: &Client, number: usize) -> anyhow::Result<()> {
    let patch = json!({"spec": {"template": {"metadata": {"annotations": {"version": format!("rolled-{number}")}}}}});
    for number in 0..DEPLOYMENTS {
        let name = format!("bench-{number}");
        deployments(client).patch(&name, &PatchParams::default(), &Patch::Strategic(&patch)).await?;
    }
    Ok(())
}

/// The time since `begun` when pods and Deployments are as `check` wants. Asked seldom: the lists cost the server, too.
async fn until(
    client: &Client,
    begun: Instant,
    check: impl Fn(&[Pod], &[Deployment]) -> bool,
) -> anyhow::Result<Duration> {
    let all = ListParams::default();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    loop {
        let listed = pods.list(&all).await?.items;
        let found = deployments(client).list(&all).await?.items;
        if check(&listed, &found) {
            return Ok(begun.elapsed());
        }
        anyhow::ensure!(
            begun.elapsed() < TIMEOUT,
            "not in {TIMEOUT:?}; {} pods, {} of {} Deployments are complete",
            listed.len(),
            found.iter().filter(|deployment| is_complete(deployment)).count(),
            found.len()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

fn is_complete(deployment: &Deployment) -> bool {
    let Some(status) = &deployment.status else { return false };
    let all = i32::try_from(REPLICAS).ok();
    status.observed_generation == deployment.metadata.generation
        && [status.replicas, status.updated_replicas, status.available_replicas] == [all; 3]
}

/// The API's current revision, which each write raises by one.
async fn revision(client: &Client) -> anyhow::Result<u64> {
    let list = deployments(client).list_metadata(&ListParams::default().limit(1)).await?;
    let revision = list.metadata.resource_version.context("a list has a revision")?;
    Ok(revision.parse()?)
}
