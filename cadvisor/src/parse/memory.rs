//! Memory: `memory.stat` and `memory.oom_control` of v1; `memory.stat` and `memory.events` of v2; `/proc/meminfo`.

use super::{lines, number, pairs, words};
use crate::model::Memory;

/// `memory.stat` of v1. The `total_` keys include the subtree and win; very old trees without
/// `memory.use_hierarchy` have them too, with the same meaning for leaves. They come last, `total_cache` first of them.
pub(crate) fn v1_stat(text: &[u8], memory: &mut Memory) {
    let totals = memchr::memmem::find(text, b"\ntotal_cache ").and_then(|at| text.get(at..));
    for (key, value) in pairs(totals.unwrap_or(text)) {
        match key.strip_prefix(b"total_").unwrap_or(key) {
            b"cache" => memory.cache_bytes = value,
            b"rss" => memory.rss_bytes = value,
            b"swap" => memory.swap_bytes = Some(value),
            b"mapped_file" => memory.mapped_file_bytes = value,
            b"active_file" => memory.active_file_bytes = value,
            b"inactive_file" => memory.inactive_file_bytes = value,
            b"dirty" => memory.dirty_bytes = value,
            b"writeback" => memory.writeback_bytes = value,
            b"pgfault" => memory.faults = value,
            b"pgmajfault" => memory.major_faults = value,
            b"workingset_refault_anon" => memory.refault_anon_pages = value,
            b"workingset_refault_file" => memory.refault_file_pages = value,
            _ => {}
        }
    }
}

/// `memory.oom_control` of v1 (kernel 4.13 and later count the kills).
pub(crate) fn v1_oom(text: &[u8], memory: &mut Memory) {
    if let Some((_, kills)) = pairs(text).find(|(key, _)| *key == b"oom_kill") {
        memory.oom_kills = Some(kills);
    }
}

/// `memory.stat` of v2.
pub(crate) fn v2_stat(text: &[u8], memory: &mut Memory) {
    for (key, value) in pairs(text) {
        match key {
            b"anon" => memory.rss_bytes = value,
            b"file" => memory.cache_bytes = value,
            b"kernel" => memory.kernel_bytes = value,
            b"file_mapped" => memory.mapped_file_bytes = value,
            b"file_dirty" => memory.dirty_bytes = value,
            b"file_writeback" => memory.writeback_bytes = value,
            b"active_file" => memory.active_file_bytes = value,
            b"inactive_file" => memory.inactive_file_bytes = value,
            b"pgfault" => memory.faults = value,
            b"pgmajfault" => memory.major_faults = value,
            b"pgscan" => memory.pgscan = value,
            b"pgsteal" => memory.pgsteal = value,
            b"workingset_refault_anon" => memory.refault_anon_pages = value,
            b"workingset_refault_file" => memory.refault_file_pages = value,
            _ => {}
        }
    }
}

/// `memory.events` of v2.
pub(crate) fn v2_events(text: &[u8], memory: &mut Memory) {
    for (key, value) in pairs(text) {
        match key {
            b"high" => memory.high_events = Some(value),
            b"max" => memory.max_events = Some(value),
            b"oom_kill" => memory.oom_kills = Some(value),
            _ => {}
        }
    }
}

/// The totals of `/proc/meminfo`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MachineMemory {
    pub(crate) total_bytes: u64,
    pub(crate) swap_total_bytes: u64,
    pub(crate) swap_free_bytes: u64,
}

/// `/proc/meminfo`: the machine's memory in the terms of a cgroup. Cheap where the root's `memory.stat` is not. `None`
/// if it lacks what usage is made of.
///
/// Usage is what the root cgroup counts on both versions (upstream's `rootStatsFromMeminfo` and the kernel's
/// `usage_in_bytes`): anonymous pages, and all file pages, which are `Cached`, `Buffers` and `SwapCached` here. What the
/// kernel itself needs is no usage: slab, which it gives back when memory is short, page tables, stacks.
pub(crate) fn machine(text: &[u8]) -> Option<(Memory, MachineMemory)> {
    let (mut memory, mut found) = (Memory::default(), MachineMemory::default());
    let (mut total, mut anonymous, mut cached, mut inactive) = (None, None, None, None);
    let (mut buffers, mut swap_cached) = (0, 0);
    for line in lines(text) {
        let mut words = words(line);
        let (Some(key), Some(value)) = (words.next(), words.next().and_then(number)) else { continue };
        let bytes = value.saturating_mul(1024);
        match key {
            b"MemTotal:" => total = Some(bytes),
            b"Buffers:" => buffers = bytes,
            b"Cached:" => cached = Some(bytes),
            b"SwapCached:" => swap_cached = bytes,
            b"Active(file):" => memory.active_file_bytes = bytes,
            b"Inactive(file):" => inactive = Some(bytes),
            b"SwapTotal:" => found.swap_total_bytes = bytes,
            b"SwapFree:" => found.swap_free_bytes = bytes,
            b"Dirty:" => memory.dirty_bytes = bytes,
            b"Writeback:" => memory.writeback_bytes = bytes,
            b"AnonPages:" => anonymous = Some(bytes),
            b"Mapped:" => memory.mapped_file_bytes = bytes,
            b"Slab:" => memory.kernel_bytes = bytes,
            _ => {}
        }
    }
    found.total_bytes = total?;
    memory.rss_bytes = anonymous?;
    memory.inactive_file_bytes = inactive?;
    memory.cache_bytes = cached?.saturating_add(buffers).saturating_add(swap_cached);
    memory.usage_bytes = memory.rss_bytes.saturating_add(memory.cache_bytes);
    memory.swap_bytes = Some(found.swap_total_bytes.saturating_sub(found.swap_free_bytes));
    Some((memory, found))
}

/// Counters of `/proc/vmstat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MachineEvents {
    pub(crate) faults: u64,
    pub(crate) major_faults: u64,
    /// OOM kills, which kernels before 4.13 do not count.
    pub(crate) oom_kills: Option<u64>,
}

/// Page faults and OOM kills of `/proc/vmstat`.
pub(crate) fn machine_events(text: &[u8]) -> MachineEvents {
    let mut found = MachineEvents::default();
    for (key, value) in pairs(text) {
        match key {
            b"pgfault" => found.faults = value,
            b"pgmajfault" => found.major_faults = value,
            b"oom_kill" => found.oom_kills = Some(value),
            _ => {}
        }
    }
    found
}
