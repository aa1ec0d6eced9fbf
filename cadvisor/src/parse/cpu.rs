//! CPU: `cpuacct.usage`, `cpuacct.stat` and `cpu.stat` of v1; `cpu.stat` of v2; `/proc/stat`.

use super::{lines, number, pairs, words};
use crate::model::Cpu;

/// `USER_HZ` is 100 on every architecture of Linux.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// `cpuacct.usage` of v1: one number.
pub(crate) fn v1_usage(text: &[u8], cpu: &mut Cpu) -> bool {
    number(text).inspect(|ns| cpu.usage_ns = *ns).is_some()
}

/// `cpuacct.stat` of v1: ticks.
pub(crate) fn v1_split(text: &[u8], cpu: &mut Cpu) {
    for (key, value) in pairs(text) {
        match key {
            b"user" => cpu.user_ns = value.saturating_mul(TICK_NS),
            b"system" => cpu.system_ns = value.saturating_mul(TICK_NS),
            _ => {}
        }
    }
}

/// `cpu.stat` of v1: throttling, in nanoseconds.
pub(crate) fn v1_throttling(text: &[u8], cpu: &mut Cpu) {
    for (key, value) in pairs(text) {
        match key {
            b"nr_periods" => cpu.periods = value,
            b"nr_throttled" => cpu.throttled_periods = value,
            b"throttled_time" => cpu.throttled_ns = value,
            b"nr_bursts" => cpu.burst_periods = value,
            b"burst_time" => cpu.burst_ns = value,
            _ => {}
        }
    }
}

/// `cpu.stat` of v2: everything, in microseconds. False when it has no usage.
pub(crate) fn v2(text: &[u8], cpu: &mut Cpu) -> bool {
    let mut found = false;
    for (key, value) in pairs(text) {
        let ns = value.saturating_mul(1000);
        match key {
            b"usage_usec" => {
                cpu.usage_ns = ns;
                found = true;
            }
            b"user_usec" => cpu.user_ns = ns,
            b"system_usec" => cpu.system_ns = ns,
            b"nr_periods" => cpu.periods = value,
            b"nr_throttled" => cpu.throttled_periods = value,
            b"throttled_usec" => cpu.throttled_ns = ns,
            b"nr_bursts" => cpu.burst_periods = value,
            b"burst_usec" => cpu.burst_ns = ns,
            _ => {}
        }
    }
    found
}

/// First line of `/proc/stat`: all time that was not idle, waiting for I/O or stolen. Guest time is part of user time.
pub(crate) fn machine(text: &[u8], cpu: &mut Cpu) -> bool {
    let Some(line) = lines(text).next() else { return false };
    let mut words = words(line);
    if words.next() != Some(b"cpu") {
        return false;
    }
    let mut ticks = [0_u64; 7];
    for (slot, word) in ticks.iter_mut().zip(&mut words) {
        *slot = number(word).unwrap_or(0);
    }
    let [user, nice, system, _idle, _iowait, irq, softirq] = ticks;
    let in_user = user.saturating_add(nice);
    let in_kernel = system.saturating_add(irq).saturating_add(softirq);
    cpu.user_ns = in_user.saturating_mul(TICK_NS);
    cpu.system_ns = in_kernel.saturating_mul(TICK_NS);
    cpu.usage_ns = cpu.user_ns.saturating_add(cpu.system_ns);
    true
}
