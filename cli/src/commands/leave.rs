//! `windlass leave`: removes this machine from its cluster; the opposite of `join`.

use std::{
    io::{BufRead as _, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use windlass_kit::client::message;

use super::{purge, require_root, runtime, say};
use crate::{
    assemble,
    config::{Settings, connect},
    exit,
    join::join_dir::JoinDir,
    service,
};

/// The retry interval of evictions that a disruption budget refuses, as kubectl's.
const EVICTION_RETRY_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Drain the node first: evict all pods but those of DaemonSets
    #[arg(long)]
    drain: bool,
    /// Timeout of the drain
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = super::join::duration)]
    timeout: Duration,
    /// Credentials that may delete the Node, which the node itself may not
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Remove the whole data directory too, with image records and seccomp profiles
    #[arg(long)]
    purge: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass leave")?;
    let join_dir = JoinDir::in_data_dir(&settings.data_dir);
    anyhow::ensure!(
        !assemble::has_control_plane(&settings.data_dir),
        "this machine is a cluster of its own: `windlass down` stops it, `windlass down --purge` removes it"
    );
    if !join_dir.exists() && join_dir.credentials().is_none() && !assemble::is_data_dir(&settings.data_dir) {
        if service::is_of_join() {
            // The unit runs what is no node of a cluster any more.
            let _stopped = service::stop(&settings.run_dir)?;
            service::forget_join()?;
        }
        say("this machine is not a node of a cluster; there is nothing to leave");
        return Ok(ExitCode::SUCCESS);
    }
    let cluster = join_dir.cluster().unwrap_or_else(|| "its cluster".to_owned());
    if !args.yes
        && !confirmed(&format!("This stops all pods of this machine and removes it from {cluster}. Continue?"))?
    {
        say("nothing was changed");
        return Ok(ExitCode::from(exit::FAILED));
    }
    let runtime = runtime()?;
    if args.drain {
        let kubeconfig = args
            .kubeconfig
            .clone()
            .or_else(|| join_dir.credentials())
            .context("there are no credentials to drain the node; set --kubeconfig, or omit --drain")?;
        runtime.block_on(async {
            drain(connect::client_of(&kubeconfig).await?, &settings.node_name, args.timeout).await
        })?;
    }
    // The lock is held to the end, so that nothing starts in what is being removed.
    let stopped = service::stop(&settings.run_dir)?;
    say("[stop] the agent has ended");
    // Volumes too: they contain data of the cluster's objects.
    let mut problems = runtime.block_on(assemble::tear_down(settings, true));
    let is_torn_down = problems.is_empty();
    // Also if something is left: a machine that leaves is no node again after a reboot.
    problems.extend(service::disable_join().err().map(|error| format!("{error:#}")));
    if is_torn_down {
        say("[pods] pods, rules and interfaces are removed");
    }
    match &args.kubeconfig {
        Some(kubeconfig) => match runtime.block_on(delete_node(kubeconfig, &settings.node_name)) {
            Ok(()) => say(format!("[cluster] node {} is deleted", settings.node_name)),
            Err(error) => problems.push(format!("node {} of the cluster: {error:#}", settings.node_name)),
        },
        None => say(format!(
            "[cluster] a node may not delete its own Node; with the rights to: kubectl delete node {}",
            settings.node_name
        )),
    }
    // If something is left, the join directory stays, so that the same command continues.
    if problems.is_empty() {
        if args.purge {
            purge::remove_data_dir(&settings.data_dir, &mut problems);
        } else {
            problems.extend(join_dir.remove_all());
        }
    }
    if problems.is_empty() {
        problems.extend(service::forget_join().err().map(|error| format!("{error:#}")));
    }
    drop(stopped);
    if problems.is_empty() {
        say(format!("[files] this machine is no longer a node of {cluster}"));
        return Ok(ExitCode::SUCCESS);
    }
    for problem in &problems {
        say(format!("left behind: {problem}"));
    }
    say("run the same command again to continue");
    Ok(ExitCode::from(exit::FAILED))
}

/// Asks for confirmation on the terminal.
fn confirmed(question: &str) -> anyhow::Result<bool> {
    let stdin = std::io::stdin();
    anyhow::ensure!(stdin.is_terminal(), "there is no terminal to confirm on; use --yes. Nothing was changed");
    let mut out = std::io::stdout().lock();
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

async fn delete_node(kubeconfig: &std::path::Path, name: &str) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(connect::client_of(kubeconfig).await?);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(anyhow::anyhow!(message(&error))),
    }
}

/// Whether a pod is to be evicted: not terminal, not a mirror pod, not of a DaemonSet.
fn should_evict(pod: &Pod) -> bool {
    let of_daemon_set = pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet");
    let ended =
        pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| matches!(p, "Succeeded" | "Failed"));
    !(of_daemon_set || ended || windlass_agent::pods::is_mirror_pod(pod))
}

/// Cordons the node and evicts its pods, like `kubectl drain --ignore-daemonsets`.
async fn drain(client: Client, node: &str, limit: Duration) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = json!({"spec": {"unschedulable": true}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&cordon))
        .await
        .map_err(|error| anyhow::anyhow!("node {node} could not be cordoned: {}", message(&error)))?;
    say(format!("[drain] node {node} is cordoned"));
    let started_at = Instant::now();
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    loop {
        let all = Api::<Pod>::all(client.clone())
            .list(&on_node)
            .await
            .map_err(|e| anyhow::anyhow!("pods could not be listed: {}", message(&e)))?;
        let mut pending = Vec::new();
        for pod in all.items.iter().filter(|pod| should_evict(pod)) {
            let (namespace, name) = (
                pod.metadata.namespace.as_deref().unwrap_or("default"),
                pod.metadata.name.as_deref().unwrap_or_default(),
            );
            let named = format!("{namespace}/{name}");
            if pod.metadata.deletion_timestamp.is_some() {
                pending.push(named);
                continue;
            }
            match Api::<Pod>::namespaced(client.clone(), namespace).evict(name, &EvictParams::default()).await {
                Ok(_) => {
                    say(format!("[drain] evicted {named}"));
                    pending.push(named);
                }
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(kube::Error::Api(answer)) if answer.code == 429 => {
                    pending.push(format!("{named} ({})", answer.message))
                }
                Err(error) => anyhow::bail!("{named} could not be evicted: {}", message(&error)),
            }
        }
        if pending.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(
            started_at.elapsed() < limit,
            "after {} s these pods are not evicted: {}. Nothing else was changed; `kubectl uncordon {node}` makes the node schedulable again",
            limit.as_secs(),
            pending.join(", ")
        );
        tokio::time::sleep(EVICTION_RETRY_INTERVAL.min(limit)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_would_be_recreated_are_not_evicted() {
        let pod = |metadata: serde_json::Value, phase: &str| -> Pod {
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
        };
        let owner =
            |kind: &str| json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u"}]});
        assert!(should_evict(&pod(json!({"name": "p"}), "Running")));
        assert!(should_evict(&pod(owner("ReplicaSet"), "Pending")));
        assert!(!should_evict(&pod(owner("DaemonSet"), "Running")));
        assert!(!should_evict(&pod(json!({}), "Succeeded")));
        assert!(!should_evict(&pod(json!({"annotations": {"kubernetes.io/config.mirror": "x"}}), "Running")));
    }
}
