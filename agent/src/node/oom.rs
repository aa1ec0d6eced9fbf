//! The kernel's own log, for the news that it ended a process because the whole machine was out of memory.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read as _, Seek as _, SeekFrom},
    os::unix::fs::OpenOptionsExt as _,
};

/// A process that the kernel has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Victim {
    pub(super) name: String,
    pub(super) pid: i64,
}

/// The log from now on; without the right to read it there is never any news.
#[derive(Debug)]
pub(super) struct KernelLog(Option<File>);

impl KernelLog {
    pub(super) fn open() -> Self {
        let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
        let open = || {
            let mut file = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg")?;
            file.seek(SeekFrom::End(0)).map(|_| file)
        };
        Self(open().inspect_err(|error| tracing::debug!(%error, "the kernel's log cannot be read")).ok())
    }

    /// What happened since the last call. Never waits.
    pub(super) fn victims(&mut self) -> Vec<Victim> {
        /// No record is longer; the kernel's own limit.
        const RECORD: usize = 8192;
        let Some(file) = &mut self.0 else { return Vec::new() };
        let mut found = Vec::new();
        let mut record = [0; RECORD];
        loop {
            match file.read(&mut record) {
                Ok(0) => return found,
                Ok(length) => found.extend(victim(&String::from_utf8_lossy(&record[..length]))),
                // Records that were overwritten before they were read.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
                Err(_) => return found,
            }
        }
    }
}

/// Reads one record: `6,1234,5678,-;oom-kill:constraint=CONSTRAINT_NONE,…,task=name,pid=1,uid=0`. Whoever was over a
/// limit of a cgroup was not the machine's fault.
fn victim(record: &str) -> Option<Victim> {
    let text = record.split_once(';')?.1.lines().next()?;
    let fields = text.strip_prefix("oom-kill:constraint=CONSTRAINT_NONE,")?;
    // A name may hold a comma, so that the end decides.
    let (before, after) = fields.rsplit_once(",pid=")?;
    let name = before.rsplit_once(",task=")?.1;
    let pid = after.split(',').next()?.parse().ok()?;
    Some(Victim { name: name.to_owned(), pid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machines_own_ends() {
        let line = |constraint: &str| {
            format!(
                "6,1234,5678,-;oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
                 task_memcg=/user.slice,task=stress,pid=4242,uid=0\n SUBSYSTEM=x\n"
            )
        };
        assert_eq!(victim(&line("CONSTRAINT_NONE")), Some(Victim { name: "stress".into(), pid: 4242 }));
        assert_eq!(victim(&line("CONSTRAINT_MEMCG")), None);
        for text in ["", "6,1,2,-;something else", "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task=x"] {
            assert_eq!(victim(text), None, "{text}");
        }
    }
}
