//! The files of one cgroup on v1, where each controller has its own directory.

use std::{io, path::PathBuf};

use super::{
    SlowFiles,
    cached_file::{Buffer, CachedFile, number_of, read_number, text_of},
    huge_page_sizes, no_transfer,
    node::Totals,
};
use crate::{
    model::{BlockDevice, Cpu, HugePages, Limits, Memory, Sample},
    parse::{self, cpu, memory},
    rates,
};

/// Open files of a cgroup, and the directories of those that are opened for each read.
#[derive(Debug)]
pub(super) struct V1 {
    cpu_usage: CachedFile,
    cpu_split: Option<CachedFile>,
    cpu_throttling: Option<CachedFile>,
    memory_usage: Option<CachedFile>,
    memory_stat: Option<CachedFile>,
    memory_oom: Option<CachedFile>,
    block_bytes: Option<CachedFile>,
    block_requests: Option<CachedFile>,
    pids: Option<CachedFile>,
    cpu_dir: Option<PathBuf>,
    memory_dir: Option<PathBuf>,
    pids_dir: Option<PathBuf>,
    huge_dir: Option<PathBuf>,
}

impl V1 {
    /// Opens the files in each controller's directory; `None` without the cpuacct controller.
    pub(super) fn open(dir_of: impl Fn(&str) -> Option<PathBuf>) -> Option<Self> {
        let dirs = ["cpuacct", "cpu", "memory", "blkio", "pids", "hugetlb"].map(dir_of);
        let [cpuacct, cpu, memory, block, pids, huge] = &dirs;
        let cached = |dir: &Option<PathBuf>, name: &str| dir.as_deref().and_then(|dir| CachedFile::open(dir, name));
        let first = |dir: &Option<PathBuf>, names: [&str; 3]| names.iter().find_map(|name| cached(dir, name));
        Some(Self {
            cpu_usage: cached(cpuacct, "cpuacct.usage")?,
            cpu_split: cached(cpuacct, "cpuacct.stat"),
            cpu_throttling: cached(cpu, "cpu.stat"),
            memory_usage: cached(memory, "memory.usage_in_bytes"),
            memory_stat: cached(memory, "memory.stat"),
            memory_oom: cached(memory, "memory.oom_control"),
            // The throttling layer counts every request, whichever scheduler the device has.
            block_bytes: first(
                block,
                [
                    "blkio.throttle.io_service_bytes_recursive",
                    "blkio.throttle.io_service_bytes",
                    "blkio.bfq.io_service_bytes_recursive",
                ],
            ),
            block_requests: first(
                block,
                [
                    "blkio.throttle.io_serviced_recursive",
                    "blkio.throttle.io_serviced",
                    "blkio.bfq.io_serviced_recursive",
                ],
            ),
            pids: cached(pids, "pids.current"),
            cpu_dir: cpu.clone(),
            memory_dir: memory.clone(),
            pids_dir: pids.clone(),
            huge_dir: huge.clone(),
        })
    }

    /// Reads what changes whenever a process of the cgroup runs: CPU time, memory in use, bytes of block devices.
    pub(super) fn read(&self, buffer: &mut Buffer, sample: &mut Sample) -> io::Result<()> {
        cpu::v1_usage(self.cpu_usage.read(buffer)?, &mut sample.cpu);
        sample.memory.usage_bytes = number_of(self.memory_usage.as_ref(), buffer).unwrap_or(0);
        if let Some(text) = text_of(self.block_bytes.as_ref(), buffer) {
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
    ) {
        let (cpu, memory): (&mut Cpu, &mut Memory) = (&mut sample.cpu, &mut sample.memory);
        if let Some(last) = last.filter(|_| !slow.has_quota) {
            *cpu = Cpu { usage_ns: cpu.usage_ns, ..last.cpu };
        } else if let Some(text) = text_of(self.cpu_throttling.as_ref(), buffer) {
            cpu::v1_throttling(text, cpu);
        }
        if let Some(text) = text_of(self.cpu_split.as_ref(), buffer) {
            cpu::v1_split(text, cpu);
        }
        if let Some(text) = text_of(self.memory_stat.as_ref(), buffer) {
            memory::v1_stat(text, memory);
        }
        // The kernel counts a kill for the machine before it does for the cgroup; a kill in between is found when the
        // limits are read.
        let nobody_killed = totals.kills.is_some() && totals.kills == slow.machine_kills;
        if let Some(last) = last.filter(|_| nobody_killed) {
            memory.oom_kills = last.memory.oom_kills;
        } else if let Some(text) = text_of(self.memory_oom.as_ref(), buffer) {
            memory::v1_oom(text, memory);
            slow.machine_kills = totals.kills;
        }
        let devices: &mut Vec<BlockDevice> = &mut sample.block;
        // No bytes means no requests; without the file of bytes the requests are read.
        let counted = self.block_bytes.is_some();
        if let Some(last) = last.filter(|last| counted && no_transfer(&last.block, devices)) {
            devices.clone_from(&last.block);
        } else if (!counted || !devices.is_empty())
            && let Some(text) = text_of(self.block_requests.as_ref(), buffer)
        {
            parse::io::v1(text, parse::io::V1::Requests, devices);
        }
        sample.pids.threads = number_of(self.pids.as_ref(), buffer).unwrap_or(0);
    }

    /// Counters that change slowly.
    pub(super) fn counters(&self, buffer: &mut Buffer, found: &mut SlowFiles) {
        let memory = self.memory_dir.as_deref();
        found.max_usage_bytes = read_number(memory, "memory.max_usage_in_bytes", buffer).unwrap_or(0);
        found.kernel_bytes = read_number(memory, "memory.kmem.usage_in_bytes", buffer).unwrap_or(0);
        if found.has_memory_limit {
            found.limit_hits = read_number(memory, "memory.failcnt", buffer).unwrap_or(0);
        }
    }

    pub(super) fn limits(&self, buffer: &mut Buffer, found: &mut SlowFiles) -> Limits {
        let (cpu, memory, pids) = (self.cpu_dir.as_deref(), self.memory_dir.as_deref(), self.pids_dir.as_deref());
        let memory_bytes = rates::limit(read_number(memory, "memory.limit_in_bytes", buffer));
        let swap_file_bytes = rates::limit(read_number(memory, "memory.memsw.limit_in_bytes", buffer));
        // "-1", no quota, does not parse as a number.
        let cpu_quota_us = read_number(cpu, "cpu.cfs_quota_us", buffer);
        (found.has_quota, found.has_memory_limit) = (cpu_quota_us.is_some(), memory_bytes.is_some());
        Limits {
            cpu_shares: read_number(cpu, "cpu.shares", buffer).unwrap_or(0),
            cpu_quota_us,
            cpu_period_us: read_number(cpu, "cpu.cfs_period_us", buffer).unwrap_or(0),
            memory_bytes,
            reservation_bytes: rates::limit(read_number(memory, "memory.soft_limit_in_bytes", buffer)),
            swap_bytes: swap_file_bytes.zip(memory_bytes).map(|(both, memory)| both.saturating_sub(memory)),
            swap_file_bytes,
            threads: read_number(pids, "pids.max", buffer),
            open_files: None,
        }
    }

    pub(super) fn huge_pages(&self, buffer: &mut Buffer) -> Vec<HugePages> {
        let Some(dir) = self.huge_dir.as_deref() else { return Vec::new() };
        let mut page = |size: String| {
            let mut read = |what: &str| read_number(Some(dir), &format!("hugetlb.{size}.{what}"), buffer);
            HugePages {
                // Reserved pages are unavailable to others whether they are touched or not.
                usage_bytes: read("rsvd.usage_in_bytes").or_else(|| read("usage_in_bytes")).unwrap_or(0),
                max_usage_bytes: read("rsvd.max_usage_in_bytes").or_else(|| read("max_usage_in_bytes")).unwrap_or(0),
                failures: read("rsvd.failcnt").or_else(|| read("failcnt")).unwrap_or(0),
                size,
            }
        };
        huge_page_sizes(dir, ".usage_in_bytes").into_iter().map(&mut page).collect()
    }
}
