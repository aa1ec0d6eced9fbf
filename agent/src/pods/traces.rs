//! What a pod leaves on the host beside its containers: log links, message files, its folder.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;

use super::{container_files, shared::Shared, spec};
use crate::{
    Config,
    engine::{
        instance::{Instance, State},
        names::Identity,
        process,
    },
    volumes::mounted,
};

/// At most this much of a termination message is kept, the end of it; upstream's limit.
const MESSAGE_LIMIT: u64 = 4096;
/// The end of a log that stands in for a message; upstream's limits.
const LOG_LINES: usize = 80;
const LOG_BYTES: usize = 2048;

/// The longest name that a file can have on Linux.
const LONGEST_NAME: usize = 255;

/// An empty file that any user in the container can write.
pub(crate) fn make_message_file(path: &Path) -> Result<(), String> {
    let make = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        container_files::make_writable_by_all(path)
    };
    make().map_err(|e| format!("the termination message's file {} could not be made: {e}", path.display()))
}

/// Adds what a container that ended has left as its message.
pub(crate) async fn with_message(shared: &Shared, instance: Instance) -> Instance {
    let mut instance = with_written_message(shared, instance);
    let wanted = needs_log(&instance);
    if let State::Exited(exit) = &mut instance.state
        && wanted
    {
        match shared.engine.log_end(&instance.id, LOG_LINES, LOG_BYTES).await {
            Ok(end) => exit.message = end,
            Err(error) => tracing::debug!(%error, container = instance.id, "the end of a log is no message"),
        }
    }
    instance
}

/// Whether the end of the log is to be taken for a message that is missing.
pub(crate) fn needs_log(instance: &Instance) -> bool {
    matches!(&instance.state, State::Exited(exit)
        if instance.message_from_log && exit.code != 0 && exit.message.is_empty() && exit.started_at.is_some())
}

/// The same, of what the container has written alone; and of one that runs, who it runs as.
pub(crate) fn with_written_message(shared: &Shared, mut instance: Instance) -> Instance {
    if let Some(pid) = instance.pid() {
        instance.user = process::user_of(pid, &instance.id);
    }
    if let State::Exited(exit) = &mut instance.state {
        let who = &instance.identity;
        let file = shared.message_file(&who.uid, &who.container, who.attempt);
        match container_files::read_end(&file, MESSAGE_LIMIT) {
            Ok(end) => exit.message = String::from_utf8_lossy(&end).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => exit.message = format!("Error on reading termination log {}: {error}", file.display()),
        }
    }
    instance
}

/// Where log agents find the log of one run.
pub(crate) fn log_of(config: &Config, who: &Identity) -> PathBuf {
    let pod = config.pod_logs_dir.join(format!("{}_{}_{}", who.namespace, who.pod, who.uid));
    pod.join(&who.container).join(format!("{}.log", who.attempt))
}

fn container_link(config: &Config, instance: &Instance) -> PathBuf {
    let who = &instance.identity;
    let mut name = format!("{}_{}_{}-{}", who.pod, who.namespace, who.container, instance.id);
    // Names of pods are ASCII; upstream cuts here too.
    name.truncate(LONGEST_NAME - ".log".len());
    config.container_logs_dir.join(name + ".log")
}

/// Makes the links that log shippers follow to Docker's own file.
pub(crate) fn link_log(config: &Config, instance: &Instance) {
    if instance.log_path.is_empty() {
        return;
    }
    let link = || -> io::Result<()> {
        let by_pod = log_of(config, &instance.identity);
        fs::create_dir_all(by_pod.parent().unwrap_or(&by_pod))?;
        fs::create_dir_all(&config.container_logs_dir)?;
        replace_link(Path::new(&instance.log_path), &by_pod)?;
        replace_link(&by_pod, &container_link(config, instance))
    };
    if let Err(error) = link() {
        tracing::warn!(%error, container = instance.id, "the links to a container's log could not be made; kubectl logs works, log shippers will not see it");
    }
}

fn replace_link(target: &Path, link: &Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => symlink(target, link),
    }
}

pub(crate) fn unlink_log(config: &Config, instance: &Instance) {
    let _ = fs::remove_file(container_link(config, instance));
    let _ = fs::remove_file(log_of(config, &instance.identity));
}

/// The highest attempt at each container of a pod that a log is there of.
pub(crate) fn logged_attempts(config: &Config, pod: &Pod) -> BTreeMap<String, u32> {
    let dir = config.pod_logs_dir.join(format!("{}_{}_{}", spec::namespace(pod), spec::name(pod), spec::uid(pod)));
    let mut all = BTreeMap::new();
    for container in fs::read_dir(dir).into_iter().flatten().flatten() {
        let logs = fs::read_dir(container.path()).into_iter().flatten().flatten();
        let attempts = logs.filter_map(|l| l.file_name().to_string_lossy().strip_suffix(".log")?.parse::<u32>().ok());
        if let Some(highest) = attempts.max() {
            all.insert(container.file_name().to_string_lossy().into_owned(), highest);
        }
    }
    all
}

/// The log folders of a pod, whatever it was called.
pub(crate) fn remove_log_dirs(pod_logs: &Path, uid: &str) {
    for entry in fs::read_dir(pod_logs).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(&format!("_{uid}")) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes a pod's folder, unless something is still mounted below it.
pub(crate) fn remove_pod_dir(dir: &Path) -> Result<(), String> {
    let mounts = mounted::below(dir).map_err(|e| format!("the mounts could not be read: {e}"))?;
    if let Some(mount) = mounts.first() {
        return Err(format!("{} is still mounted below the pod's folder, which is therefore kept", mount.display()));
    }
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("the pod's folder {} could not be removed: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}
