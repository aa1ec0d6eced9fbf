//! Usage of the machine, of pods and of containers: read from cgroup v1, v2 or hybrid, procfs and file systems, kept
//! for a while, and served in the formats of the kubelet and cAdvisor.
//!
//! - [`model`], [`history`], `parse/`, `rates`, `expose/`: plain data and pure functions. No clock, no files, no tokio.
//! - `source/`: the only module that accesses `/proc`, `/sys` and directories of containers.
//! - `stall_pool`: threads for reads that may stall. `sampler`, `disk_usage`: the two tasks that own state; [`Usage`]
//!   is the handle to both.
//!
//! May import `windlass-kit` and nothing else of this workspace. Knows neither Docker nor Kubernetes clients: the
//! caller passes the running containers as [`Target`]s.

mod config;
mod disk_usage;
mod events;
pub mod expose;
pub mod history;
pub mod model;
mod page_cache;
mod parse;
mod rates;
mod sampler;
mod source;
mod stall_pool;
mod usage;

pub use config::{Config, EngineDirs, SystemProcess, Target, Volume};
pub use expose::summary::Summary;
pub use page_cache::{CachedPage, Page};
pub use parse::oom::Kill;
pub use source::{Capacity, KernelLog, NodeSignals, SourceError, memory_in_use};
pub use usage::{EventStream, Rest, Usage};
