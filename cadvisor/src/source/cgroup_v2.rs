//! The files of one cgroup on v2, which has one directory.

use std::{io, path::PathBuf};

use super::{
    SlowFiles,
    cached_file::{Buffer, CachedFile, number_of, read_number, read_once, text_of},
    huge_page_sizes,
};
use crate::{
    model::{HugePages, Limits, Sample},
    parse::{self, cpu, memory},
    rates,
};

/// Open files of a cgroup, and the directory of those that are opened for each read.
#[derive(Debug)]
pub(super) struct V2 {
    cpu: CachedFile,
    memory_usage: Option<CachedFile>,
    memory_stat: Option<CachedFile>,
    memory_events: Option<CachedFile>,
    memory_swap: Option<CachedFile>,
    block: Option<CachedFile>,
    pids: Option<CachedFile>,
    pub(super) dir: PathBuf,
}

impl V2 {
    /// Opens the files of a cgroup; `None` when it does not exist.
    pub(super) fn open(dir: PathBuf) -> Option<Self> {
        Some(Self {
            cpu: CachedFile::open(&dir, "cpu.stat")?,
            memory_usage: CachedFile::open(&dir, "memory.current"),
            memory_stat: CachedFile::open(&dir, "memory.stat"),
            memory_events: CachedFile::open(&dir, "memory.events"),
            memory_swap: CachedFile::open(&dir, "memory.swap.current"),
            block: CachedFile::open(&dir, "io.stat"),
            pids: CachedFile::open(&dir, "pids.current"),
            dir,
        })
    }

    /// Reads what changes whenever a process of the cgroup runs: CPU time, memory in use, bytes of block devices.
    pub(super) fn read(&self, buffer: &mut Buffer, sample: &mut Sample) -> io::Result<()> {
        cpu::v2(self.cpu.read(buffer)?, &mut sample.cpu);
        sample.memory.usage_bytes = number_of(self.memory_usage.as_ref(), buffer).unwrap_or(0);
        if let Some(text) = text_of(self.block.as_ref(), buffer) {
            parse::io::v2(text, &mut sample.block);
        }
        Ok(())
    }

    /// Reads what does not change while no process of the cgroup runs.
    pub(super) fn read_rest(&self, buffer: &mut Buffer, sample: &mut Sample) {
        let memory = &mut sample.memory;
        if let Some(text) = text_of(self.memory_stat.as_ref(), buffer) {
            memory::v2_stat(text, memory);
        }
        if let Some(text) = text_of(self.memory_events.as_ref(), buffer) {
            memory::v2_events(text, memory);
        }
        memory.swap_bytes = number_of(self.memory_swap.as_ref(), buffer).unwrap_or(0);
        sample.pids.threads = number_of(self.pids.as_ref(), buffer).unwrap_or(0);
    }

    /// Counters that change slowly.
    pub(super) fn counters(&self, buffer: &mut Buffer, found: &mut SlowFiles) {
        found.max_usage_bytes = read_number(Some(&self.dir), "memory.peak", buffer).unwrap_or(0);
    }

    pub(super) fn limits(&self, buffer: &mut Buffer) -> Limits {
        let dir = Some(self.dir.as_path());
        let (mut quota, mut period) = (None, 0);
        if let Ok(text) = read_once(&self.dir.join("cpu.max"), buffer) {
            let mut words = parse::words(text);
            quota = words.next().and_then(parse::number);
            period = words.next().and_then(parse::number).unwrap_or(0);
        }
        let swap_bytes = rates::limit(read_number(dir, "memory.swap.max", buffer));
        Limits {
            cpu_shares: read_number(dir, "cpu.weight", buffer).map_or(0, rates::shares),
            cpu_quota_us: quota,
            cpu_period_us: period,
            memory_bytes: rates::limit(read_number(dir, "memory.max", buffer)),
            reservation_bytes: rates::limit(read_number(dir, "memory.min", buffer)),
            swap_bytes,
            swap_file_bytes: swap_bytes,
            threads: read_number(dir, "pids.max", buffer),
            open_files: None,
        }
    }

    pub(super) fn huge_pages(&self, buffer: &mut Buffer) -> Vec<HugePages> {
        let dir = self.dir.as_path();
        let mut page = |size: String| {
            let mut read = |what: &str| read_number(Some(dir), &format!("hugetlb.{size}.{what}"), buffer);
            let usage_bytes = read("rsvd.current").or_else(|| read("current")).unwrap_or(0);
            let events = read_once(&dir.join(format!("hugetlb.{size}.events")), buffer).unwrap_or_default();
            let failures = parse::pairs(events).find(|(key, _)| *key == b"max").map_or(0, |(_, count)| count);
            HugePages { size, usage_bytes, max_usage_bytes: 0, failures }
        };
        huge_page_sizes(dir, ".current").into_iter().map(&mut page).collect()
    }
}
