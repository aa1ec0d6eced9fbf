//! The opposite of a node: everything of it is taken off the machine.

use std::{path::Path, sync::Arc};

use windlass_agent::{self as agent, engine::Engine, network::Network, volumes::Volumes};
use windlass_proxy as proxy;

use super::{cni_config, pod_cidr_file, proxy_config};
use crate::{config::Settings, join::place::Place};

/// Removes the proxy's rules.
pub(crate) fn remove_rules(settings: &Settings) -> Vec<String> {
    proxy::cleanup(&proxy_config(settings)).err().into_iter().flatten().map(|e| e.to_string()).collect()
}

/// Takes everything of the node off the machine; with `purge` also what its data needs to be gone. Gives
/// what stayed.
pub(crate) async fn tear_down(settings: &Settings, purge: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let config = agent::Config {
        data_dir: settings.data_dir.clone(),
        pod_logs_dir: settings.pod_logs_dir.clone(),
        container_logs_dir: settings.container_logs_dir.clone(),
        ..agent::Config::default()
    };
    match Engine::new(&settings.docker_socket.to_string_lossy(), Arc::default()) {
        Ok(engine) => {
            problems.extend(agent::pods::teardown(&engine, &config).await);
            if purge {
                problems.extend(agent::engine::pause::remove(&engine).await.err().map(|e| e.to_string()));
            }
        }
        Err(error) => problems.push(error.to_string()),
    }
    let ranges =
        std::fs::read_to_string(pod_cidr_file(settings)).ok().and_then(|t| agent::node::parse_ranges(t.trim()));
    problems.extend(Network::teardown(&ranges.unwrap_or_default(), cni_config(settings)).await);
    problems.extend(remove_rules(settings));
    if purge {
        for entry in std::fs::read_dir(settings.data_dir.join("pods")).into_iter().flatten().flatten() {
            problems.extend(Volumes::teardown_all(&entry.path()));
        }
    }
    problems
}

/// Whether a folder holds the data of a control plane of ours.
pub(crate) fn has_control_plane(data_dir: &Path) -> bool {
    windlass_control::is_data_dir(data_dir)
}

/// Whether a folder is one of the control plane, or of an agent that keeps no store.
pub(crate) fn is_data_dir(path: &Path) -> bool {
    let of_agent = ["registered", "pod-cidr"].iter().any(|name| path.join(name).is_file());
    has_control_plane(path) || of_agent || path.join("cni").is_dir() || Place::below(path).is_there()
}
