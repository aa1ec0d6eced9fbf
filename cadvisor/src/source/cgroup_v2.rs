//! The files of one cgroup on v2, which has one directory.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    MemoryFiles, SlowFiles,
    cached_file::{Buffer, CachedFile, number_of, read_if_there, read_number, text_of},
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
    memory: Option<MemoryFiles>,
    memory_events: Option<CachedFile>,
    memory_swap: Option<CachedFile>,
    block: Option<CachedFile>,
    pids: Option<CachedFile>,
    dir: PathBuf,
}

impl V2 {
    /// Opens the files of a cgroup; `None` when it does not exist.
    pub(super) fn open(dir: &Path) -> io::Result<Option<Self>> {
        let cached = |name: &str| CachedFile::open(dir, name);
        let Some(cpu) = cached("cpu.stat")? else { return Ok(None) };
        let memory = cached("memory.current")?.zip(cached("memory.stat")?);
        Ok(Some(Self {
            cpu,
            memory: memory.map(|(usage, stat)| MemoryFiles { usage, stat }),
            memory_events: cached("memory.events")?,
            memory_swap: cached("memory.swap.current")?,
            block: cached("io.stat")?,
            pids: cached("pids.current")?,
            dir: dir.to_owned(),
        }))
    }

    /// Whether a controller was not there when the files were opened; it may be enabled by now.
    pub(super) fn lacks_controllers(&self) -> bool {
        self.memory.is_none() || self.block.is_none() || self.pids.is_none()
    }

    /// Reads what changes whenever a process of the cgroup runs: CPU time, memory in use, bytes of block devices.
    pub(super) fn read(&self, buffer: &mut Buffer, sample: &mut Sample) -> io::Result<()> {
        if !cpu::v2(self.cpu.read(buffer)?, &mut sample.cpu) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        sample.memory = self.memory.as_ref().map(|files| files.usage(buffer)).transpose()?;
        if let Some(text) = text_of(self.block.as_ref(), buffer)? {
            parse::io::v2(text, &mut sample.block);
        }
        Ok(())
    }

    /// Reads what does not change while no process of the cgroup runs.
    pub(super) fn read_rest(&self, buffer: &mut Buffer, sample: &mut Sample) -> io::Result<()> {
        if let (Some(files), Some(memory)) = (&self.memory, &mut sample.memory) {
            memory::v2_stat(files.stat.read(buffer)?, memory);
            if let Some(text) = text_of(self.memory_events.as_ref(), buffer)? {
                memory::v2_events(text, memory);
            }
            memory.swap_bytes = number_of(self.memory_swap.as_ref(), buffer)?;
        }
        sample.pids.threads = number_of(self.pids.as_ref(), buffer)?;
        Ok(())
    }

    /// Counters that change slowly.
    pub(super) fn counters(&self, buffer: &mut Buffer, found: &mut SlowFiles) -> io::Result<()> {
        found.max_usage_bytes = read_number(Some(&self.dir), "memory.peak", buffer)?;
        Ok(())
    }

    pub(super) fn limits(&self, buffer: &mut Buffer) -> io::Result<Limits> {
        let dir = Some(self.dir.as_path());
        let (mut quota, mut period) = (None, 0);
        if let Some(text) = read_if_there(dir, "cpu.max", buffer)? {
            let mut words = parse::words(text);
            quota = words.next().and_then(parse::number);
            period = words.next().and_then(parse::number).unwrap_or(0);
        }
        let swap_bytes = rates::limit(read_number(dir, "memory.swap.max", buffer)?);
        Ok(Limits {
            cpu_shares: read_number(dir, "cpu.weight", buffer)?.map_or(0, rates::shares),
            cpu_quota_us: quota,
            cpu_period_us: period,
            memory_bytes: rates::limit(read_number(dir, "memory.max", buffer)?),
            reservation_bytes: rates::limit(read_number(dir, "memory.min", buffer)?),
            swap_bytes,
            swap_file_bytes: swap_bytes,
            threads: read_number(dir, "pids.max", buffer)?,
            open_files: None,
        })
    }

    pub(super) fn huge_pages(&self, buffer: &mut Buffer) -> io::Result<Vec<HugePages>> {
        let dir = self.dir.as_path();
        let mut page = |size: String| {
            let mut read = |what: &str| read_number(Some(dir), &format!("hugetlb.{size}.{what}"), buffer);
            let usage_bytes = match read("rsvd.current")? {
                Some(bytes) => bytes,
                None => read("current")?.unwrap_or(0),
            };
            let events = read_if_there(Some(dir), &format!("hugetlb.{size}.events"), buffer)?.unwrap_or_default();
            let failures = parse::pairs(events).find(|(key, _)| *key == b"max").map_or(0, |(_, count)| count);
            Ok(HugePages { size, usage_bytes, max_usage_bytes: 0, failures })
        };
        huge_page_sizes(dir, ".current").into_iter().map(&mut page).collect()
    }
}
