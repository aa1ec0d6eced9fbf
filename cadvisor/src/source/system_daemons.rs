//! Daemons of the node: their processes and their cgroups.

use std::{
    io,
    path::{Path, PathBuf},
};

use windlass_kit::moment::Moment;

use super::{
    SourceError,
    cached_file::{Buffer, read_once},
    under,
};
use crate::{
    config::SystemProcess,
    model::{Cpu, Memory, SystemRow},
    parse::{
        self,
        cgroup::{Layout, Mode, path_of},
        machine as parsed,
    },
};

/// The process of a daemon; `None` without one.
pub(crate) fn daemon_pid(root: &Path, process: &SystemProcess, buffer: &mut Buffer) -> Option<i32> {
    let file = under(root, process.pid_file.as_deref()?);
    i32::try_from(parse::number(read_once(&file, buffer).ok()?)?).ok()
}

/// The process that has started another one.
pub(crate) fn parent_pid(root: &Path, pid: i32, buffer: &mut Buffer) -> Option<i32> {
    let stat = read_once(&root.join(format!("proc/{pid}/stat")), buffer).ok()?;
    let after = stat.iter().rposition(|byte| *byte == b')').and_then(|close| stat.get(close + 1..))?;
    i32::try_from(parse::words(after).nth(1).and_then(parse::number)?).ok()
}

/// The cgroup of a process.
pub(crate) fn cgroup_of(root: &Path, layout: &Layout, pid: i32, buffer: &mut Buffer) -> Option<String> {
    let text = read_once(&root.join(format!("proc/{pid}/cgroup")), buffer).ok()?;
    let path = if layout.mode == Mode::V2 {
        path_of(text, "")
    } else {
        path_of(text, "memory").or_else(|| path_of(text, "cpuacct"))
    };
    path.map(str::to_owned)
}

/// Usage of the process of a daemon.
pub(crate) fn daemon(
    root: &Path,
    process: &SystemProcess,
    booted_at: jiff::Timestamp,
    moment: Moment,
    buffer: &mut Buffer,
) -> Result<SystemRow, SourceError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| SourceError::Read { path, source }
    };
    let dir: PathBuf = match &process.pid_file {
        None => root.join("proc/self"),
        Some(file) => {
            let gone = || failed(file)(io::ErrorKind::NotFound.into());
            root.join(format!("proc/{}", daemon_pid(root, process, buffer).ok_or_else(gone)?))
        }
    };
    let path = dir.join("stat");
    let found = read_once(&path, buffer)
        .and_then(|text| parsed::daemon(text).ok_or_else(|| io::ErrorKind::InvalidData.into()))
        .map_err(failed(&path))?;
    let resident = found.resident_pages.saturating_mul(procfs::page_size());
    let mut row = SystemRow {
        name: process.name.clone(),
        started_at: booted_at.checked_add(std::time::Duration::from_nanos(found.started_ns)).unwrap_or(booted_at),
        moment,
        cpu: Cpu { user_ns: found.user_ns, system_ns: found.system_ns, ..Cpu::default() },
        memory: Some(Memory {
            usage_bytes: resident,
            rss_bytes: resident,
            faults: found.faults,
            major_faults: found.major_faults,
            ..Default::default()
        }),
        usage_nano_cores: None,
    };
    row.cpu.usage_ns = found.user_ns.saturating_add(found.system_ns);
    Ok(row)
}
