//! Removes everything of a node from the machine.

use std::{path::Path, sync::Arc};

use windlass_agent::{self as agent, engine::Engine, network::Network, volumes::Volumes};
use windlass_proxy as proxy;

use crate::{
    config::{Settings, agent::cni_config, proxy::proxy_config},
    join::join_dir::JoinDir,
};

/// Removes the proxy's rules; returns what could not be removed.
pub(crate) fn remove_rules(settings: &Settings) -> Vec<String> {
    proxy::cleanup(&proxy_config(settings)).err().into_iter().flatten().map(|e| e.to_string()).collect()
}

/// Removes pods, network and rules of the node and unmounts its volumes, with `purge` also removes those and the pause image,
/// so that the data directory can be removed. Returns what could not be removed.
pub(crate) async fn tear_down(settings: &Settings, purge: bool) -> Vec<String> {
    let (mut problems, mut pods_are_gone) = (Vec::new(), false);
    let config = agent::Config {
        data_dir: settings.data_dir.clone(),
        pod_logs_dir: settings.pod_logs_dir.clone(),
        container_logs_dir: settings.container_logs_dir.clone(),
        ..agent::Config::default()
    };
    match Engine::new(&settings.docker_socket.to_string_lossy(), Arc::default()) {
        Ok(engine) => {
            problems.extend(agent::pods::teardown(&engine, &config).await);
            pods_are_gone = problems.is_empty();
            // While containers are left, so is their image.
            if purge && pods_are_gone {
                problems.extend(agent::engine::pause::remove(&engine).await.err().map(|e| e.to_string()));
            }
        }
        Err(error) => problems.push(error.to_string()),
    }
    let pod_cidrs = std::fs::read_to_string(agent::node::pod_cidr_file(&settings.data_dir))
        .ok()
        .and_then(|text| agent::node::parse_pod_cidrs(text.trim()));
    problems.extend(Network::teardown(&pod_cidrs.unwrap_or_default(), cni_config(settings)).await);
    problems.extend(remove_rules(settings));
    // Containers that are left may be running, with their volumes.
    if purge || pods_are_gone {
        problems.extend(Volumes::end_all(&settings.data_dir.join("pods"), purge));
    }
    problems
}

/// Whether a directory contains the data of a control plane.
pub(crate) fn has_control_plane(data_dir: &Path) -> bool {
    windlass_control::is_data_dir(data_dir)
}

/// The file that marks a data directory whose removal has begun; it is removed last.
pub(crate) const PURGE_MARK: &str = "purging";

/// Whether the removal of a data directory has begun and not ended.
pub(crate) fn is_being_purged(path: &Path) -> bool {
    path.join(PURGE_MARK).is_file()
}

/// Whether a directory is the data directory of a control plane or an agent, or was until its removal began.
pub(crate) fn is_data_dir(path: &Path) -> bool {
    let of_agent = ["registered", "pod-cidr"].iter().any(|name| path.join(name).is_file());
    has_control_plane(path)
        || is_being_purged(path)
        || of_agent
        || path.join("cni").is_dir()
        || JoinDir::in_data_dir(path).exists()
}
