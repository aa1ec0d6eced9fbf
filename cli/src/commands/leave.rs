//! `windlass leave`: the opposite of `join`.

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

use super::{down, require_root, runtime, say};
use crate::{
    assemble,
    config::Settings,
    exit, instance,
    join::{discovery::reason, place::Place, unit},
};

/// How long the running process may take to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a pod that may not be evicted yet is left alone, as kubectl's drain does.
const AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Have all pods but those of DaemonSets evicted first, so that they run elsewhere
    #[arg(long)]
    drain: bool,
    /// How long that may take
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = super::join::duration)]
    timeout: Duration,
    /// Credentials that may delete the node's object, which the node itself may not
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Remove the whole data folder too: what is known of images, pods' own seccomp profiles
    #[arg(long)]
    purge: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass leave")?;
    let place = Place::below(&settings.data_dir);
    anyhow::ensure!(
        !assemble::has_control_plane(&settings.data_dir),
        "this machine is a cluster of its own: `windlass down` stops it, `windlass down --purge` removes it"
    );
    if !place.is_there() && place.credentials().is_none() && !assemble::is_data_dir(&settings.data_dir) {
        unit::stop()?;
        say("this machine is a node of no cluster; there is nothing to leave");
        return Ok(ExitCode::SUCCESS);
    }
    let cluster = place.cluster().unwrap_or_else(|| "its cluster".to_owned());
    if !args.yes
        && !confirmed(&format!("This ends all pods of this machine and its being a node of {cluster}. Go on?"))?
    {
        say("nothing was changed");
        return Ok(ExitCode::from(exit::FAILED));
    }
    let runtime = runtime()?;
    if args.drain {
        let kubeconfig = args.kubeconfig.clone().or_else(|| place.credentials()).context(
            "there are no credentials to drain the node with; name some with --kubeconfig, or leave --drain away",
        )?;
        runtime.block_on(async {
            drain(assemble::client_of(&kubeconfig).await?, &settings.node_name, args.timeout).await
        })?;
    }
    unit::stop()?;
    let instance = instance::stop_running(&settings.run_dir, PATIENCE)?;
    say("[stop] the agent has ended");
    // Volumes too: they hold what the cluster has given its pods.
    let mut problems = runtime.block_on(assemble::tear_down(settings, true));
    if problems.is_empty() {
        say("[pods] pods, rules and interfaces are gone");
    }
    match &args.kubeconfig {
        Some(kubeconfig) => match runtime.block_on(delete_node(kubeconfig, &settings.node_name)) {
            Ok(()) => say(format!("[cluster] node {} is deleted", settings.node_name)),
            Err(error) => problems.push(format!("node {} of the cluster: {error:#}", settings.node_name)),
        },
        None => say(format!(
            "[cluster] a node may not delete its own object; where that is allowed: kubectl delete node {}",
            settings.node_name
        )),
    }
    // Where something is left, what tells of it stays, so that the same line goes on where this one ended.
    if problems.is_empty() {
        if args.purge {
            // While the marks are there that make it one of ours.
            down::remove_data_dir(settings, &mut problems);
        } else {
            problems.extend(place.forget());
        }
    }
    drop(instance);
    if problems.is_empty() {
        say(format!("[files] this machine is no node of {cluster} any more"));
        return Ok(ExitCode::SUCCESS);
    }
    for problem in &problems {
        say(format!("left behind: {problem}"));
    }
    say("the same line again goes on from here");
    Ok(ExitCode::from(exit::FAILED))
}

/// Asks on the terminal.
fn confirmed(question: &str) -> anyhow::Result<bool> {
    let stdin = std::io::stdin();
    anyhow::ensure!(
        stdin.is_terminal(),
        "there is no terminal to ask on; give --yes if it is meant. Nothing was changed"
    );
    let mut out = std::io::stdout().lock();
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

async fn delete_node(kubeconfig: &std::path::Path, name: &str) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(assemble::client_of(kubeconfig).await?);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(anyhow::anyhow!(reason(&error))),
    }
}

/// Whether a pod is to be evicted: it has not ended, is not the node's own, and no DaemonSet would make it again here.
fn is_evicted(pod: &Pod) -> bool {
    let of_daemon_set = pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet");
    let ended =
        pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| matches!(p, "Succeeded" | "Failed"));
    !(of_daemon_set || ended || windlass_agent::pods::is_mirror_pod(pod))
}

/// Has no new pods come and those that are there evicted, as `kubectl drain --ignore-daemonsets` does.
async fn drain(client: Client, node: &str, limit: Duration) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = json!({"spec": {"unschedulable": true}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&cordon))
        .await
        .map_err(|error| anyhow::anyhow!("node {node} could not be cordoned: {}", reason(&error)))?;
    say(format!("[drain] node {node} takes no more pods"));
    let begun = Instant::now();
    let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
    loop {
        let all = Api::<Pod>::all(client.clone())
            .list(&here)
            .await
            .map_err(|e| anyhow::anyhow!("pods could not be listed: {}", reason(&e)))?;
        let mut waits = Vec::new();
        for pod in all.items.iter().filter(|pod| is_evicted(pod)) {
            let (namespace, name) = (
                pod.metadata.namespace.as_deref().unwrap_or("default"),
                pod.metadata.name.as_deref().unwrap_or_default(),
            );
            let named = format!("{namespace}/{name}");
            if pod.metadata.deletion_timestamp.is_some() {
                waits.push(named);
                continue;
            }
            match Api::<Pod>::namespaced(client.clone(), namespace).evict(name, &EvictParams::default()).await {
                Ok(_) => {
                    say(format!("[drain] evicted {named}"));
                    waits.push(named);
                }
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(kube::Error::Api(answer)) if answer.code == 429 => {
                    waits.push(format!("{named} ({})", answer.message))
                }
                Err(error) => anyhow::bail!("{named} could not be evicted: {}", reason(&error)),
            }
        }
        if waits.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(
            begun.elapsed() < limit,
            "after {} s these pods are still here: {}. Nothing else was changed; `kubectl uncordon {node}` lets pods come again",
            limit.as_secs(),
            waits.join(", ")
        );
        tokio::time::sleep(AGAIN.min(limit)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_would_come_again_are_not_evicted() {
        let pod = |metadata: serde_json::Value, phase: &str| -> Pod {
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
        };
        let owner =
            |kind: &str| json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u"}]});
        assert!(is_evicted(&pod(json!({"name": "p"}), "Running")));
        assert!(is_evicted(&pod(owner("ReplicaSet"), "Pending")));
        assert!(!is_evicted(&pod(owner("DaemonSet"), "Running")));
        assert!(!is_evicted(&pod(json!({}), "Succeeded")));
        assert!(!is_evicted(&pod(json!({"annotations": {"kubernetes.io/config.mirror": "x"}}), "Running")));
    }
}
