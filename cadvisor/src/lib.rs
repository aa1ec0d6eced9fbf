//! Usage of the machine, of pods and of containers: read from cgroup v1, v2 or hybrid, procfs and
//! file systems, kept for a while, and served in the shapes that the kubelet and cAdvisor serve.
//!
//! - [`model`], [`history`], `parse/`, `derive`, `expose/`: plain data and pure functions. No clock, no files, no tokio.
//! - `source/`: the only place that touches `/proc`, `/sys` and directories of containers.
//! - `lane`: threads for reads that may hang. `sampler`, `sizes`: the two tasks that own state; [`Usage`] is the handle to both.
//!
//! May import `windlass-kit` and nothing else of this workspace. Knows no Docker client and no Kubernetes client:
//! who runs containers tells it about them as [`Subject`]s.

mod config;
mod derive;
mod events;
pub mod expose;
pub mod history;
mod lane;
pub mod model;
mod parse;
mod rendered;
mod sampler;
mod sizes;
mod source;
mod usage;

pub use config::{Config, Subject, SystemProcess, Volume};
pub use expose::summary::Summary;
pub use parse::oom::Kill;
pub use rendered::{Page, Ready};
pub use source::{KernelLog, SourceError, tree as disk_usage};
pub use usage::{EventStream, Rest, Usage};
