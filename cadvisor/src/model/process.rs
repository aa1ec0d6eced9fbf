//! One process of the list of processes.

/// A running process.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Its user's name, or id.
    pub user: String,
    /// Process id.
    pub pid: i32,
    /// Parent's process id.
    pub parent: i32,
    /// Start: `12:34`, or `Jan02` on another day.
    pub started: String,
    /// CPU time divided by the time since its start.
    pub cpu_percent: f64,
    /// Share of the machine's memory.
    pub memory_percent: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Virtual memory.
    pub virtual_bytes: u64,
    /// State letter of the kernel.
    pub state: String,
    /// CPU time used: `[days-]hh:mm:ss`.
    pub running_time: String,
    /// The cgroup of its cpu controller.
    pub cgroup: String,
    /// The program's name.
    pub command: String,
    /// Open files.
    pub files: u64,
    /// The processor that it last ran on.
    pub processor: i32,
}
