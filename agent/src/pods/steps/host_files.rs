//! Files of a pod on the host: log links, termination messages, its directory.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;

use super::{container_files, context::PodContext};
use crate::{
    Config,
    engine::{
        inspect::{Instance, State},
        names::Identity,
    },
    pods::lifecycle::spec,
    volumes::mountinfo,
};

/// Bytes of a termination message that are kept, from its end; upstream's limit.
const MAX_MESSAGE_BYTES: u64 = 4096;
/// Limits of the log's tail that is the fallback of a termination message; upstream's.
const MAX_LOG_TAIL_LINES: usize = 80;
const MAX_LOG_TAIL_BYTES: usize = 2048;

/// The longest file name on Linux.
const MAX_FILE_NAME_LEN: usize = 255;

/// Creates the empty file of a termination message, which any user in the container can write.
pub(crate) fn make_message_file(path: &Path) -> Result<(), String> {
    let make = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        container_files::create_world_writable(path)
    };
    make().map_err(|e| format!("failed to create termination message file {}: {e}", path.display()))
}

/// Adds the termination message of a container that has exited.
pub(crate) async fn with_message(context: &PodContext, instance: Instance) -> Instance {
    let mut instance = with_written_message(context, instance);
    let wanted = needs_log_tail(&instance);
    if let State::Exited(exit) = &mut instance.state
        && wanted
    {
        match context.node.engine.log_tail(&instance.id, MAX_LOG_TAIL_LINES, MAX_LOG_TAIL_BYTES).await {
            Ok(end) => exit.message = end,
            Err(error) => {
                tracing::debug!(%error, container = instance.id, "failed to read the log's tail as termination message")
            }
        }
    }
    instance
}

/// Whether the tail of the log is the termination message, by the policy FallbackToLogsOnError.
pub(crate) fn needs_log_tail(instance: &Instance) -> bool {
    matches!(&instance.state, State::Exited(exit)
        if instance.message_from_log && exit.code != 0 && exit.message.is_empty() && exit.started_at.is_some())
}

/// Adds the termination message that the container itself has written; and the user of one that runs.
pub(crate) fn with_written_message(context: &PodContext, mut instance: Instance) -> Instance {
    if let Some(process) = instance.process() {
        instance.user = process.user();
    }
    if let State::Exited(exit) = &mut instance.state {
        let who = &instance.identity;
        let file = context.message_file(&who.uid, &who.container, who.attempt);
        match container_files::read_tail(&file, MAX_MESSAGE_BYTES) {
            Ok(end) => exit.message = String::from_utf8_lossy(&end).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => exit.message = format!("Error on reading termination log {}: {error}", file.display()),
        }
    }
    instance
}

/// The link to the log of one attempt, where log shippers expect it.
pub(crate) fn log_path(config: &Config, who: &Identity) -> PathBuf {
    let pod = config.pod_logs_dir.join(format!("{}_{}_{}", who.namespace, who.pod, who.uid));
    pod.join(&who.container).join(format!("{}.log", who.attempt))
}

fn container_link(config: &Config, instance: &Instance) -> PathBuf {
    let who = &instance.identity;
    let mut name = format!("{}_{}_{}-{}", who.pod, who.namespace, who.container, instance.id);
    // Names of pods are ASCII; upstream truncates here too.
    name.truncate(MAX_FILE_NAME_LEN - ".log".len());
    config.container_logs_dir.join(name + ".log")
}

/// Creates the links that log shippers follow to Docker's log file.
pub(crate) fn link_log(config: &Config, instance: &Instance) {
    if instance.log_path.is_empty() {
        return;
    }
    let link = || -> io::Result<()> {
        let by_pod = log_path(config, &instance.identity);
        fs::create_dir_all(by_pod.parent().unwrap_or(&by_pod))?;
        fs::create_dir_all(&config.container_logs_dir)?;
        replace_link(Path::new(&instance.log_path), &by_pod)?;
        replace_link(&by_pod, &container_link(config, instance))
    };
    if let Err(error) = link() {
        tracing::warn!(%error, container = instance.id, "failed to create log links of a container; kubectl logs works, log shippers do not see it");
    }
}

fn replace_link(target: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|is| is == target) {
        return Ok(());
    }
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => symlink(target, link),
    }
}

/// Removes the links to a container's log; `keeps_number` says that the one in the pod's directory stays.
pub(crate) fn unlink_log(config: &Config, instance: &Instance, keeps_number: bool) {
    let _ = fs::remove_file(container_link(config, instance));
    if !keeps_number {
        let _ = fs::remove_file(log_path(config, &instance.identity));
    }
}

/// Removes the termination message of a container.
pub(crate) fn remove_message(file: &Path) {
    let _ = fs::remove_file(file);
}

/// The highest attempt of each container of a pod that a log exists of.
pub(crate) fn last_logged_attempts(config: &Config, pod: &Pod) -> BTreeMap<String, u32> {
    let dir = config.pod_logs_dir.join(format!("{}_{}_{}", spec::namespace(pod), spec::name(pod), spec::uid(pod)));
    let mut all = BTreeMap::new();
    for container in fs::read_dir(dir).into_iter().flatten().flatten() {
        if let Some(highest) = last_logged_attempt(&container.path()) {
            all.insert(container.file_name().to_string_lossy().into_owned(), highest);
        }
    }
    all
}

/// The highest attempt that a directory has a log of, or what was rotated out of one.
pub(super) fn last_logged_attempt(dir: &Path) -> Option<u32> {
    let attempt_of = |name: &str| {
        let (number, _) = name.split_once(".log")?;
        number.parse().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let logs = fs::read_dir(dir).into_iter().flatten().flatten();
    logs.filter_map(|log| attempt_of(&log.file_name().to_string_lossy())).max()
}

/// Removes the log directories of a pod, whatever its name was.
pub(crate) fn remove_log_dirs(pod_logs: &Path, uid: &str) {
    for entry in fs::read_dir(pod_logs).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(&format!("_{uid}")) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes a pod's directory, unless something is still mounted below it.
pub(crate) fn remove_pod_dir(dir: &Path) -> Result<(), String> {
    let mounts = mountinfo::mounts_below(dir).map_err(|e| format!("failed to read the mount table: {e}"))?;
    if let Some(mount) = mounts.first() {
        return Err(format!("{} is still mounted below the pod's directory, which is kept", mount.display()));
    }
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("failed to remove the pod's directory {}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}
