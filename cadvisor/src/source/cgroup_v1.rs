//! The files of one cgroup on v1, where each controller has its own directory.

use std::{io, path::PathBuf};

use super::{
    MemoryFiles, SlowFiles,
    cached_file::{Buffer, CachedFile, number_of, read_number, text_of},
    huge_page_sizes, no_transfer,
    node::Totals,
};
use crate::{
    model::{BlockDevice, Cpu, HugePages, Limits, Sample},
    parse::{self, cpu, memory},
    rates,
};

/// The controllers whose directories are needed.
pub(super) const CONTROLLERS: [&str; 6] = ["cpuacct", "cpu", "memory", "blkio", "pids", "hugetlb"];

/// The directories of [`CONTROLLERS`].
pub(super) type Dirs = [Option<PathBuf>; 6];

/// Open files of a cgroup, and the directories of those that are opened for each read.
#[derive(Debug)]
pub(super) struct V1 {
    cpu_usage: CachedFile,
    cpu_split: Option<CachedFile>,
    cpu_throttling: Option<CachedFile>,
    memory: Option<MemoryFiles>,
    memory_oom: Option<CachedFile>,
    block_bytes: Option<CachedFile>,
    block_requests: Option<CachedFile>,
    pids: Option<CachedFile>,
    dirs: Dirs,
}

impl V1 {
    /// Opens the files in each controller's directory; `None` without the cpuacct controller.
    pub(super) fn open(dirs: &Dirs) -> io::Result<Option<Self>> {
        let [cpuacct, cpu, memory, block, pids, _] = dirs;
        let cached = |dir: &Option<PathBuf>, name: &str| match dir {
            Some(dir) => CachedFile::open(dir, name),
            None => Ok(None),
        };
        let first = |dir: &Option<PathBuf>, names: [&str; 3]| {
            for name in names {
                if let Some(file) = cached(dir, name)? {
                    return Ok::<_, io::Error>(Some(file));
                }
            }
            Ok(None)
        };
        let Some(cpu_usage) = cached(cpuacct, "cpuacct.usage")? else { return Ok(None) };
        let files = cached(memory, "memory.usage_in_bytes")?.zip(cached(memory, "memory.stat")?);
        Ok(Some(Self {
            cpu_usage,
            cpu_split: cached(cpuacct, "cpuacct.stat")?,
            cpu_throttling: cached(cpu, "cpu.stat")?,
            memory: files.map(|(usage, stat)| MemoryFiles { usage, stat }),
            memory_oom: cached(memory, "memory.oom_control")?,
            // The throttling layer counts every request, whichever scheduler the device has.
            block_bytes: first(
                block,
                [
                    "blkio.throttle.io_service_bytes_recursive",
                    "blkio.throttle.io_service_bytes",
                    "blkio.bfq.io_service_bytes_recursive",
                ],
            )?,
            block_requests: first(
                block,
                [
                    "blkio.throttle.io_serviced_recursive",
                    "blkio.throttle.io_serviced",
                    "blkio.bfq.io_serviced_recursive",
                ],
            )?,
            pids: cached(pids, "pids.current")?,
            dirs: dirs.clone(),
        }))
    }

    /// Whether a controller was not there when the files were opened; it may be mounted by now.
    pub(super) fn lacks_controllers(&self) -> bool {
        self.memory.is_none() || self.block_bytes.is_none() || self.pids.is_none()
    }

    /// Reads what changes whenever a process of the cgroup runs: CPU time, memory in use, bytes of block devices.
    pub(super) fn read(&self, buffer: &mut Buffer, sample: &mut Sample) -> io::Result<()> {
        if !cpu::v1_usage(self.cpu_usage.read(buffer)?, &mut sample.cpu) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        sample.memory = self.memory.as_ref().map(|files| files.usage(buffer)).transpose()?;
        if let Some(text) = text_of(self.block_bytes.as_ref(), buffer)? {
            parse::io::v1(text, parse::io::V1::Bytes, &mut sample.block);
        }
        Ok(())
    }

    /// Reads what does not change while no process of the cgroup runs. With the previous sample, files are skipped that
    /// cannot have changed: throttling without a quota, OOM kills where the machine had none, and requests where no
    /// bytes were transferred.
    pub(super) fn read_rest(
        &self,
        last: Option<&Sample>,
        totals: &Totals,
        slow: &mut SlowFiles,
        buffer: &mut Buffer,
        sample: &mut Sample,
    ) -> io::Result<()> {
        let cpu = &mut sample.cpu;
        if let Some(last) = last.filter(|_| !slow.has_quota) {
            *cpu = Cpu { usage_ns: cpu.usage_ns, ..last.cpu };
        } else if let Some(text) = text_of(self.cpu_throttling.as_ref(), buffer)? {
            cpu::v1_throttling(text, cpu);
        }
        if let Some(text) = text_of(self.cpu_split.as_ref(), buffer)? {
            cpu::v1_split(text, cpu);
        }
        if let (Some(files), Some(memory)) = (&self.memory, &mut sample.memory) {
            memory::v1_stat(files.stat.read(buffer)?, memory);
            // The kernel counts a kill for the machine before it does for the cgroup; a kill in between is found when
            // the limits are read.
            let nobody_killed = totals.kills.is_some() && totals.kills == slow.machine_kills;
            if let Some(last) = last.and_then(|last| last.memory.as_ref()).filter(|_| nobody_killed) {
                memory.oom_kills = last.oom_kills;
            } else if let Some(text) = text_of(self.memory_oom.as_ref(), buffer)? {
                memory::v1_oom(text, memory);
                slow.machine_kills = totals.kills;
            }
        }
        let devices: &mut Vec<BlockDevice> = &mut sample.block;
        // No bytes means no requests; without the file of bytes the requests are read.
        let counted = self.block_bytes.is_some();
        if let Some(last) = last.filter(|last| counted && no_transfer(&last.block, devices)) {
            devices.clone_from(&last.block);
        } else if (!counted || !devices.is_empty())
            && let Some(text) = text_of(self.block_requests.as_ref(), buffer)?
        {
            parse::io::v1(text, parse::io::V1::Requests, devices);
        }
        sample.pids.threads = number_of(self.pids.as_ref(), buffer)?;
        Ok(())
    }

    /// Counters that change slowly.
    pub(super) fn counters(&self, buffer: &mut Buffer, found: &mut SlowFiles) -> io::Result<()> {
        let [_, _, memory, ..] = &self.dirs;
        let memory = memory.as_deref();
        found.max_usage_bytes = read_number(memory, "memory.max_usage_in_bytes", buffer)?;
        // Kernels without accounting of kernel memory have no such file.
        found.kernel_bytes = read_number(memory, "memory.kmem.usage_in_bytes", buffer)?.unwrap_or(0);
        if found.has_memory_limit {
            found.limit_hits = read_number(memory, "memory.failcnt", buffer)?.unwrap_or(0);
        }
        Ok(())
    }

    pub(super) fn limits(&self, buffer: &mut Buffer, found: &mut SlowFiles) -> io::Result<Limits> {
        let [_, cpu, memory, _, pids, _] = &self.dirs;
        let (cpu, memory, pids) = (cpu.as_deref(), memory.as_deref(), pids.as_deref());
        let memory_bytes = rates::limit(read_number(memory, "memory.limit_in_bytes", buffer)?);
        let swap_file_bytes = rates::limit(read_number(memory, "memory.memsw.limit_in_bytes", buffer)?);
        // "-1", no quota, does not parse as a number.
        let cpu_quota_us = read_number(cpu, "cpu.cfs_quota_us", buffer)?;
        (found.has_quota, found.has_memory_limit) = (cpu_quota_us.is_some(), memory_bytes.is_some());
        Ok(Limits {
            cpu_shares: read_number(cpu, "cpu.shares", buffer)?.unwrap_or(0),
            cpu_quota_us,
            cpu_period_us: read_number(cpu, "cpu.cfs_period_us", buffer)?.unwrap_or(0),
            memory_bytes,
            reservation_bytes: rates::limit(read_number(memory, "memory.soft_limit_in_bytes", buffer)?),
            swap_bytes: swap_file_bytes.zip(memory_bytes).map(|(both, memory)| both.saturating_sub(memory)),
            swap_file_bytes,
            threads: read_number(pids, "pids.max", buffer)?,
            open_files: None,
        })
    }

    pub(super) fn huge_pages(&self, buffer: &mut Buffer) -> io::Result<Vec<HugePages>> {
        let [.., huge] = &self.dirs;
        let Some(dir) = huge.as_deref() else { return Ok(Vec::new()) };
        let mut page = |size: String| {
            // Reserved pages are unavailable to others whether they are touched or not.
            let mut read = |what: &str| {
                let mut number = |name: String| read_number(Some(dir), &name, buffer);
                let reserved = number(format!("hugetlb.{size}.rsvd.{what}"))?;
                let number = if reserved.is_some() { reserved } else { number(format!("hugetlb.{size}.{what}"))? };
                Ok::<_, io::Error>(number.unwrap_or(0))
            };
            let (usage_bytes, max_usage_bytes) = (read("usage_in_bytes")?, read("max_usage_in_bytes")?);
            Ok(HugePages { usage_bytes, max_usage_bytes, failures: read("failcnt")?, size })
        };
        huge_page_sizes(dir, ".usage_in_bytes").into_iter().map(&mut page).collect()
    }
}
