//! Removes every pod from the node: what `windlass down` does after the process has exited.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt as _, stream};

use super::host_files;
use crate::{
    Config, cgroup,
    engine::{Engine, EngineError, containers::Listed},
};

/// How many containers are stopped or removed at once.
const TEARDOWN_CONCURRENCY: usize = 16;

async fn list(engine: &Engine) -> Result<Vec<Listed>, EngineError> {
    engine.negotiate().await?;
    engine.list().await
}

/// Stops all containers of pods with their grace periods, and removes them with their logs and cgroups. Volumes and
/// addresses are the caller's. Gives every problem instead of stopping at the first.
pub async fn teardown(engine: &Engine, config: &Config) -> Vec<String> {
    let listed = match list(engine).await {
        Ok(listed) => listed,
        Err(error) if error.is_unreachable() => {
            return vec![format!("the containers of pods: {error}; start Docker, as with `systemctl start docker`")];
        }
        Err(error) => return vec![format!("the containers of pods: {error}")],
    };
    let mut problems = Vec::new();
    let mut instances = Vec::new();
    let (helpers, listed): (Vec<_>, Vec<_>) = listed.into_iter().partition(|l| l.helper);
    for helper in &helpers {
        problems.extend(engine.remove(&helper.id).await.err().map(|e| e.to_string()));
    }
    for container in &listed {
        match engine.inspect(&container.id).await {
            Ok(found) => instances.extend(found),
            Err(error) => problems.push(error.to_string()),
        }
    }
    let (sandboxes, containers): (Vec<_>, Vec<_>) = instances.into_iter().partition(|i| i.is_sandbox());
    let ended: Vec<Option<String>> = stream::iter(containers.iter().map(|instance| async move {
        if instance.is_running() {
            let grace = Duration::from_secs(instance.grace.and_then(|g| u64::try_from(g).ok()).unwrap_or(30));
            if let Err(error) = engine.stop(&instance.id, grace).await {
                return Some(error.to_string());
            }
        }
        engine.remove(&instance.id).await.err().map(|e| e.to_string())
    }))
    .buffer_unordered(TEARDOWN_CONCURRENCY)
    .collect()
    .await;
    problems.extend(ended.into_iter().flatten());
    let removed: Vec<Option<String>> =
        stream::iter(sandboxes.iter().map(|s| async move { engine.remove(&s.id).await.err().map(|e| e.to_string()) }))
            .buffer_unordered(TEARDOWN_CONCURRENCY)
            .collect()
            .await;
    problems.extend(removed.into_iter().flatten());
    for instance in &containers {
        host_files::unlink_log(config, instance, false);
    }
    let uids: BTreeSet<&str> = listed.iter().map(|l| l.pod_uid.as_str()).collect();
    for uid in uids {
        host_files::remove_log_dirs(&config.pod_logs_dir, uid);
    }
    cgroup::remove_all();
    // Directories that have no other entries are removed too.
    for dir in [&config.pod_logs_dir, &config.container_logs_dir] {
        let _ = std::fs::remove_dir(dir);
    }
    problems
}
