//! One process, as a list for people shows it.

/// A process that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Its user's name, or number.
    pub user: String,
    /// Its number.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// `12:34`, or `Jan02` when it began on another day.
    pub started: String,
    /// CPU time against the time since its start.
    pub cpu_percent: f64,
    /// Memory against the machine's.
    pub memory_percent: f64,
    /// Memory that it holds.
    pub rss_bytes: u64,
    /// Addresses that it has taken.
    pub virtual_bytes: u64,
    /// The kernel's letter.
    pub state: String,
    /// CPU time used: `[days-]hh:mm:ss`.
    pub running_time: String,
    /// The cgroup that accounts for its CPU.
    pub cgroup: String,
    /// The program's name.
    pub command: String,
    /// Open files.
    pub files: u64,
    /// The processor that it ran on last.
    pub processor: i32,
}
