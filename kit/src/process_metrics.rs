//! Resource usage of this process, under the names that all client libraries of Prometheus give it.

use procfs::{WithCurrentSystemInfo as _, process::Process};

use crate::{
    blocking,
    prometheus::{Kind, Text},
};

/// Writes the families; what cannot be read is left out.
pub fn write(page: &mut Text) {
    let Ok(me) = Process::myself() else { return };
    let Ok(stat) = me.stat() else { return };
    let one = |page: &mut Text, name: &str, help: &str, kind: Kind, value: f64| {
        page.family(name, help, kind);
        page.sample(name, &[], value);
    };
    #[allow(clippy::cast_precision_loss, reason = "sizes and times are far from 2^53")]
    let (ticks, rss, virtual_bytes) =
        ((stat.utime + stat.stime) as f64, stat.rss_bytes().get() as f64, stat.vsize as f64);
    #[allow(clippy::cast_precision_loss, reason = "a hundred or so")]
    let per_second = procfs::ticks_per_second() as f64;
    let counter = Kind::Counter;
    one(page, "process_cpu_seconds_total", "CPU time of this process.", counter, ticks / per_second);
    one(page, "process_resident_memory_bytes", "Resident memory.", Kind::Gauge, rss);
    one(page, "process_virtual_memory_bytes", "Virtual memory.", Kind::Gauge, virtual_bytes);
    if let Ok(open) = me.fd_count() {
        one(page, "process_open_fds", "Open descriptors.", Kind::Gauge, number(open.try_into().unwrap_or(u64::MAX)));
    }
    if let Ok(limits) = me.limits()
        && let procfs::process::LimitValue::Value(max_fds) = limits.max_open_files.soft_limit
    {
        one(page, "process_max_fds", "Descriptors that may be open.", Kind::Gauge, number(max_fds));
    }
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let tasks = runtime.metrics().num_alive_tasks();
        let help = "Tasks of the runtime that have not ended: what goroutines are to a program in Go.";
        one(page, "windlass_tasks", help, Kind::Gauge, number(tasks.try_into().unwrap_or(u64::MAX)));
    }
    blocking::write(page);
    if let Ok(booted) = procfs::boot_time_secs() {
        #[allow(clippy::cast_precision_loss, reason = "seconds of this century, and of an uptime")]
        let (booted, after) = (booted as f64, stat.starttime as f64 / per_second);
        one(page, "process_start_time_seconds", "When the process began, since 1970.", Kind::Gauge, booted + after);
    }
}

#[allow(clippy::cast_precision_loss, reason = "a number of a metric")]
fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prometheus_knows_of_any_process() {
        let mut page = Text::new();
        write(&mut page);
        let page = page.finish();
        for family in [
            "process_cpu_seconds_total counter",
            "process_resident_memory_bytes gauge",
            "process_virtual_memory_bytes gauge",
            "process_open_fds gauge",
            "process_max_fds gauge",
            "process_start_time_seconds gauge",
        ] {
            assert!(page.contains(&format!("# TYPE {family}\n")), "{family} is not in\n{page}");
        }
    }
}
