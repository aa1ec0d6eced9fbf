//! A storm: Deployments on hollow nodes are changed at random while the control plane is killed again and again. At the
//! end all of them have converged, and nothing is left over or double.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{Dice, HollowNodes, Testbed, client};

const NODES: usize = 20;
/// The time that all have to converge after the last change.
const CONVERGENCE: Duration = Duration::from_secs(180);
/// Changes between two kills at least, however slow the machine is.
const LEAST_CHANGES: usize = 30;
/// Old revisions of each.
const HISTORY: usize = 3;

/// How hard it blows.
#[derive(Debug, Clone, Copy)]
pub struct Storm {
    /// The number of Deployments.
    pub deployments: usize,
    /// How long they are changed.
    pub time: Duration,
    /// How often the control plane is killed meanwhile.
    pub kills: u32,
    /// Of the random changes.
    pub seed: u64,
}

/// What happened.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Changes that the API has taken, by kind.
    pub changes: BTreeMap<&'static str, usize>,
    /// From the last change until all had converged.
    pub converged: Duration,
    /// Pods at the end.
    pub pods: usize,
    /// Open files of the control plane, without sockets, before the storm and after all was deleted again.
    pub files: (usize, usize),
}

impl Storm {
    /// Runs it in a testbed without a node of its own. Moves the calling thread into the testbed's network namespace.
    ///
    /// # Errors
    /// When something has not converged, is left over or double.
    pub fn run(&self, testbed: &Testbed) -> anyhow::Result<Weather> {
        let windlass = testbed.windlass();
        let mut server = windlass.api_alone();
        testbed.enter()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let kubeconfig = windlass.kubeconfig();
        let (client, mut nodes) = runtime.block_on(async {
            let client = client(&kubeconfig).await?;
            anyhow::Ok((client, HollowNodes::start(&kubeconfig, NODES).await?))
        })?;
        let before = open_files(server.pid())?;
        let mut wind = Wind { client: client.clone(), dice: Dice::new(self.seed), changes: BTreeMap::new() };
        for number in 0..self.deployments {
            runtime.block_on(wind.create(number))?;
        }
        let begun = Instant::now();
        for kill in 0..=self.kills {
            let until = begun + self.time * (kill + 1) / (self.kills + 1);
            runtime.block_on(wind.blow(self.deployments, until));
            if kill < self.kills {
                server.end(Signal::SIGKILL);
                server = windlass.api_alone();
            }
        }
        let calm = Instant::now();
        runtime.block_on(wind.calm(self.deployments))?;
        let pods = runtime.block_on(converged(&client, self.deployments)).with_context(|| {
            let log = server.log();
            let complaints: Vec<&str> = log.lines().filter(|l| l.contains(" WARN ") || l.contains("ERROR ")).collect();
            format!("the control plane says: {}", complaints.join("\n"))
        })?;
        let converged = calm.elapsed();
        runtime.block_on(removed(&client))?;
        let after = open_files(server.pid())?;
        anyhow::ensure!(!nodes.have_ended(), "hollow nodes have ended");
        anyhow::ensure!(after <= before + 3, "{before} open files before, {after} after");
        anyhow::ensure!(!server.log().contains("panicked"), "{}", server.log());
        Ok(Weather { changes: wind.changes, converged, pods, files: (before, after) })
    }
}

/// Makes the changes.
struct Wind {
    client: Client,
    dice: Dice,
    changes: BTreeMap<&'static str, usize>,
}

fn name_of(number: usize) -> String {
    format!("storm-{number}")
}

/// A Deployment with one container that never runs.
fn deployment(number: usize) -> Value {
    let labels = json!({"storm": number.to_string()});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name_of(number)},
        "spec": {
            "replicas": 1 + number % 4, "revisionHistoryLimit": HISTORY, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}},
        },
    })
}

impl Wind {
    fn deployments(&self) -> Api<Deployment> {
        Api::default_namespaced(self.client.clone())
    }

    async fn create(&self, number: usize) -> anyhow::Result<()> {
        let made: Deployment = serde_json::from_value(deployment(number))?;
        self.deployments().create(&PostParams::default(), &made).await?;
        Ok(())
    }

    /// Changes Deployments until this time, and often enough.
    async fn blow(&mut self, count: usize, until: Instant) {
        let (mut changed, deadline) = (0, until + CONVERGENCE);
        while Instant::now() < until || (changed < LEAST_CHANGES && Instant::now() < deadline) {
            let number = self.dice.index(count);
            match self.change(number).await {
                Ok(kind) => {
                    changed += 1;
                    *self.changes.entry(kind).or_default() += 1;
                }
                // Some changes do not suit the object as it is, and the API may be away.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn patch(&self, number: usize, patch: Value) -> anyhow::Result<()> {
        self.deployments().patch(&name_of(number), &PatchParams::default(), &Patch::Strategic(patch)).await?;
        Ok(())
    }

    /// One random change; returns its kind.
    async fn change(&mut self, number: usize) -> anyhow::Result<&'static str> {
        match self.dice.below(100) {
            0..30 => {
                let replicas = self.dice.below(6);
                self.patch(number, json!({"spec": {"replicas": replicas}})).await?;
                Ok("scaled")
            }
            30..60 => {
                let version = self.dice.below(5).to_string();
                self.patch(number, json!({"spec": {"template": {"metadata": {"annotations": {"version": version}}}}}))
                    .await?;
                Ok("new template")
            }
            60..68 => {
                let paused = self.dice.below(2) == 0;
                self.patch(number, json!({"spec": {"paused": paused}})).await?;
                Ok("paused or resumed")
            }
            68..78 => {
                let strategies = [
                    json!({"type": "Recreate", "rollingUpdate": null}),
                    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
                    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": "50%"}}),
                ];
                let strategy = &strategies[self.dice.index(strategies.len())];
                self.patch(number, json!({"spec": {"strategy": strategy}})).await?;
                Ok("other strategy")
            }
            78..95 => {
                let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
                let all = pods.list(&ListParams::default().labels(&format!("storm={number}"))).await?;
                let pod = all.items.get(self.dice.index(all.items.len())).context("it has no pods")?;
                pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
                Ok("pod deleted")
            }
            _ => {
                let options =
                    if self.dice.below(2) == 0 { DeleteParams::background() } else { DeleteParams::foreground() };
                self.deployments().delete(&name_of(number), &options).await?;
                self.create(number).await?;
                Ok("deleted and created")
            }
        }
    }

    /// What is missing or paused is brought back.
    async fn calm(&self, count: usize) -> anyhow::Result<()> {
        for number in 0..count {
            let deadline = Instant::now() + CONVERGENCE;
            while let Err(error) = self.unpaused(number).await {
                anyhow::ensure!(Instant::now() < deadline, "{}: {error:#}", name_of(number));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    }

    /// Creates a Deployment that is missing; fails while the last one of its name is on its way out.
    async fn unpaused(&self, number: usize) -> anyhow::Result<()> {
        let known = self.deployments().get_opt(&name_of(number)).await?;
        match known {
            None => self.create(number).await,
            Some(known) => {
                anyhow::ensure!(known.metadata.deletion_timestamp.is_none(), "it is being deleted");
                self.patch(number, json!({"spec": {"paused": false}})).await
            }
        }
    }
}

/// Waits until every Deployment has what it wants, and nothing else exists; returns the number of pods.
async fn converged(client: &Client, count: usize) -> anyhow::Result<usize> {
    let deadline = Instant::now() + CONVERGENCE;
    loop {
        match look(client, count).await {
            Ok(pods) => return Ok(pods),
            Err(error) => anyhow::ensure!(
                Instant::now() < deadline,
                "not converged after {CONVERGENCE:?}: {error:#}; {}",
                what_is_there(client).await?
            ),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn look(client: &Client, count: usize) -> anyhow::Result<usize> {
    let all = ListParams::default();
    let deployments = Api::<Deployment>::default_namespaced(client.clone()).list(&all).await?.items;
    let sets = Api::<ReplicaSet>::default_namespaced(client.clone()).list(&all).await?.items;
    let pods = Api::<Pod>::default_namespaced(client.clone()).list(&all).await?.items;
    anyhow::ensure!(deployments.len() == count, "{} of {count} Deployments", deployments.len());
    let (by_deployment, by_set) = (by_owner(&sets)?, by_owner(&pods)?);
    for deployment in &deployments {
        let (name, wanted) = (deployment.name_any(), deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1));
        let status = serde_json::to_value(&deployment.status)?;
        anyhow::ensure!(
            deployment.status.as_ref().and_then(|s| s.observed_generation) == deployment.metadata.generation,
            "{name} is not seen"
        );
        for field in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
            anyhow::ensure!(
                status[field].as_i64().unwrap_or(0) == i64::from(wanted),
                "{name}: {field} of {wanted}: {status}"
            );
        }
        let sets = by_deployment.get(&deployment.uid().unwrap_or_default()).map_or(&[][..], Vec::as_slice);
        anyhow::ensure!(sets.len() <= HISTORY + 1, "{name} has {} ReplicaSets", sets.len());
        for set in sets {
            let own = by_set.get(&set.uid().unwrap_or_default()).map_or(0, Vec::len);
            let wanted = set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
            anyhow::ensure!(
                i64::try_from(own)? == i64::from(wanted),
                "{}: {own} pods, {wanted} wanted",
                set.name_any()
            );
        }
        let of_all: i32 = sets.iter().filter_map(|set| set.spec.as_ref()?.replicas).sum();
        anyhow::ensure!(of_all == wanted, "{name}: its ReplicaSets want {of_all} of {wanted}");
    }
    // Each belongs to an existing object.
    let owners: BTreeSet<String> = deployments.iter().filter_map(|deployment| deployment.uid()).collect();
    anyhow::ensure!(
        by_deployment.keys().all(|uid| owners.contains(uid)),
        "a ReplicaSet is left of a deleted Deployment"
    );
    let owners: BTreeSet<String> = sets.iter().filter_map(|set| set.uid()).collect();
    anyhow::ensure!(by_set.keys().all(|uid| owners.contains(uid)), "a pod is left of a deleted ReplicaSet");
    anyhow::ensure!(pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()), "a pod is being deleted");
    Ok(pods.len())
}

/// The ReplicaSets that want something and the pods that are not Ready, to see who has stopped.
async fn what_is_there(client: &Client) -> anyhow::Result<Value> {
    let all = ListParams::default();
    let sets = Api::<ReplicaSet>::default_namespaced(client.clone()).list(&all).await?.items;
    let pods = Api::<Pod>::default_namespaced(client.clone()).list(&all).await?.items;
    let wants = |set: &&ReplicaSet| set.spec.as_ref().and_then(|spec| spec.replicas) != Some(0);
    let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    let sets: Vec<Value> = sets
        .iter()
        .filter(wants)
        .map(|set| json!([set.name_any(), set.spec.as_ref().and_then(|spec| spec.replicas), set.status]))
        .collect();
    let pods: Vec<Value> = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some() || !runs(pod))
        .map(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            json!([pod.name_any(), node, pod.metadata.deletion_timestamp, pod.metadata.finalizers, pod.status])
        })
        .collect();
    Ok(json!({"sets": sets, "pods": pods}))
}

/// Objects by the UID of their controller.
fn by_owner<K: Resource>(objects: &[K]) -> anyhow::Result<BTreeMap<String, Vec<&K>>> {
    let mut by_owner: BTreeMap<String, Vec<&K>> = BTreeMap::new();
    for object in objects {
        let owner = object.owner_references().iter().find(|owner| owner.controller == Some(true));
        let owner = owner.with_context(|| format!("{} belongs to nobody", object.name_any()))?;
        by_owner.entry(owner.uid.clone()).or_default().push(object);
    }
    Ok(by_owner)
}

/// Deletes all Deployments and waits until nothing of them is left.
async fn removed(client: &Client) -> anyhow::Result<()> {
    let all = ListParams::default();
    Api::<Deployment>::default_namespaced(client.clone()).delete_collection(&DeleteParams::default(), &all).await?;
    let deadline = Instant::now() + CONVERGENCE;
    loop {
        let sets = Api::<ReplicaSet>::default_namespaced(client.clone()).list_metadata(&all).await?.items.len();
        let pods = Api::<Pod>::default_namespaced(client.clone()).list_metadata(&all).await?.items.len();
        if sets + pods == 0 {
            return Ok(());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "{sets} ReplicaSets and {pods} pods are left of deleted Deployments"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Open files of a process but for sockets: how many connections are open is up to the clients.
fn open_files(pid: u32) -> anyhow::Result<usize> {
    let open =
        std::fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    Ok(open.filter(|target| !target.to_string_lossy().starts_with("socket:")).count())
}
