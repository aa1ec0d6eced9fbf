//! The running processes, as `ps -e` lists them. Names of programs without their arguments, which may contain secrets.

use std::{collections::HashMap, io};

use jiff::{Timestamp, tz::TimeZone};
use nix::unistd::{Uid, User};
use procfs::{Current as _, ProcResult, Uptime, WithCurrentSystemInfo as _, process};

use crate::model::Process;

/// All processes; one that ends meanwhile is left out.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn processes() -> io::Result<Vec<Process>> {
    let broken = |e: procfs::ProcError| io::Error::other(e.to_string());
    let uptime = Uptime::current().map_err(broken)?.uptime;
    let memory = procfs::Meminfo::current().map_err(broken)?.mem_total;
    let context = ProcessContext { uptime, memory, now: Timestamp::now(), zone: TimeZone::system() };
    let mut users = HashMap::new();
    let all = process::all_processes().map_err(broken)?;
    Ok(all.filter_map(|process| context.describe(&process.ok()?, &mut users).ok()).collect())
}

/// What the numbers of processes are relative to.
struct ProcessContext {
    uptime: f64,
    memory: u64,
    now: Timestamp,
    zone: TimeZone,
}

impl ProcessContext {
    fn describe(&self, process: &process::Process, users: &mut HashMap<u32, String>) -> ProcResult<Process> {
        let stat = process.stat()?;
        let uid = process.uid()?;
        let user = users.entry(uid).or_insert_with(|| {
            let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
            known.map_or_else(|| uid.to_string(), |user| user.name)
        });
        #[allow(clippy::cast_precision_loss, reason = "percentages for people")]
        let (used, began, share) = {
            let tick = procfs::ticks_per_second() as f64;
            let rss = stat.rss_bytes().get() as f64;
            ((stat.utime + stat.stime) as f64 / tick, stat.starttime as f64 / tick, rss / self.memory as f64)
        };
        let alive = (self.uptime - began).max(0.01);
        Ok(Process {
            user: user.clone(),
            pid: stat.pid,
            parent: stat.ppid,
            started: self.clock(alive),
            cpu_percent: tenth(100.0 * used / alive),
            memory_percent: tenth(100.0 * share),
            rss_bytes: stat.rss_bytes().get(),
            virtual_bytes: stat.vsize,
            state: stat.state.to_string(),
            running_time: duration(used),
            cgroup: cgroup(process)?,
            command: stat.comm.clone(),
            // Another user's descriptors may not be readable.
            files: process.fd_count().unwrap_or(0) as u64,
            processor: stat.processor.unwrap_or(0),
        })
    }

    /// The time of day, or the date if it is another day.
    fn clock(&self, seconds_ago: f64) -> String {
        let began =
            jiff::SignedDuration::try_from_secs_f64(seconds_ago).ok().and_then(|ago| self.now.checked_sub(ago).ok());
        let (now, began) =
            (self.now.to_zoned(self.zone.clone()), began.unwrap_or(self.now).to_zoned(self.zone.clone()));
        let form = if began.date() == now.date() { "%H:%M" } else { "%b%d" };
        began.strftime(form).to_string()
    }
}

fn tenth(percent: f64) -> f64 {
    (percent * 10.0).round() / 10.0
}

/// `hh:mm:ss` of CPU time, with days before it if there are any.
fn duration(seconds: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "CPU time is small and positive")]
    let all = seconds.max(0.0) as u64;
    let (days, hours, minutes, seconds) = (all / 86_400, all / 3600 % 24, all / 60 % 60, all % 60);
    let time = format!("{hours:02}:{minutes:02}:{seconds:02}");
    if days > 0 { format!("{days}-{time}") } else { time }
}

/// The cgroup of its cpu controller.
fn cgroup(process: &process::Process) -> ProcResult<String> {
    let all = process.cgroups()?.0;
    let of_cpu = all.iter().find(|group| group.controllers.iter().any(|c| c == "cpu"));
    let unified = || all.iter().find(|group| group.hierarchy == 0);
    Ok(of_cpu.or_else(unified).map(|group| group.pathname.clone()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_listed() {
        let all = processes().unwrap();
        let own = all.iter().find(|p| u32::try_from(p.pid) == Ok(std::process::id())).unwrap();
        assert!(own.rss_bytes > 1 << 20 && own.virtual_bytes > own.rss_bytes, "{own:?}");
        assert!(own.cgroup.starts_with('/') && own.files > 2 && own.started.len() == 5, "{own:?}");
        assert!(all.iter().any(|p| p.pid == own.parent) || own.parent == 0);
    }

    #[test]
    fn times_are_written_as_ps_does() {
        for (seconds, expected) in [(0.4, "00:00:00"), (61.0, "00:01:01"), (90_061.0, "1-01:01:01")] {
            assert_eq!(duration(seconds), expected);
        }
    }
}
