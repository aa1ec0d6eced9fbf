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
            b"swap" => memory.swap_bytes = value,
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
        memory.oom_kills = kills;
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
            b"high" => memory.high_events = value,
            b"max" => memory.max_events = value,
            b"oom_kill" => memory.oom_kills = value,
            _ => {}
        }
    }
}

/// The fields of `/proc/meminfo` that are not in [`Memory`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MachineMemory {
    pub(crate) total_bytes: u64,
    pub(crate) swap_total_bytes: u64,
    pub(crate) swap_free_bytes: u64,
}

/// `/proc/meminfo`: the machine's memory in the terms of a cgroup. Cheap where the root's `memory.stat` is not.
pub(crate) fn machine(text: &[u8], memory: &mut Memory) -> MachineMemory {
    let mut found = MachineMemory::default();
    let (mut free, mut buffers, mut cached) = (0, 0, 0);
    for line in lines(text) {
        let mut words = words(line);
        let (Some(key), Some(value)) = (words.next(), words.next().and_then(number)) else { continue };
        let bytes = value.saturating_mul(1024);
        match key {
            b"MemTotal:" => found.total_bytes = bytes,
            b"MemFree:" => free = bytes,
            b"Buffers:" => buffers = bytes,
            b"Cached:" => cached = bytes,
            b"Active(file):" => memory.active_file_bytes = bytes,
            b"Inactive(file):" => memory.inactive_file_bytes = bytes,
            b"SwapTotal:" => found.swap_total_bytes = bytes,
            b"SwapFree:" => found.swap_free_bytes = bytes,
            b"Dirty:" => memory.dirty_bytes = bytes,
            b"Writeback:" => memory.writeback_bytes = bytes,
            b"AnonPages:" => memory.rss_bytes = bytes,
            b"Mapped:" => memory.mapped_file_bytes = bytes,
            b"Slab:" => memory.kernel_bytes = bytes,
            _ => {}
        }
    }
    memory.usage_bytes = found.total_bytes.saturating_sub(free);
    memory.cache_bytes = u64::saturating_add(buffers, cached);
    memory.swap_bytes = found.swap_total_bytes.saturating_sub(found.swap_free_bytes);
    found
}

/// Page faults and OOM kills of `/proc/vmstat`. Returns the kills, which kernels before 4.13 do not count.
pub(crate) fn machine_events(text: &[u8], memory: &mut Memory) -> Option<u64> {
    let mut kills = None;
    for (key, value) in pairs(text) {
        match key {
            b"pgfault" => memory.faults = value,
            b"pgmajfault" => memory.major_faults = value,
            b"oom_kill" => kills = Some(value),
            _ => {}
        }
    }
    memory.oom_kills = kills.unwrap_or(0);
    kills
}
