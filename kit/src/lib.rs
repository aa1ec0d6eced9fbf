//! The few things that every part of Windlass needs and no part owns.
//!
//! Imports nothing of ours, and holds no domain code: no pods, rules, cgroups or objects; the one exception is
//! `objects`, what the API server and the node must read alike in the API's objects. What is wanted by one crate only
//! belongs in that crate.

pub mod backoff;
#[cfg(feature = "bootstrap")]
pub mod bootstrap;
#[cfg(feature = "client")]
pub mod client;
pub mod duration;
#[cfg(feature = "events")]
pub mod events;
pub mod expo;
pub mod files;
pub mod finding;
pub mod heartbeat;
pub mod inotify;
#[cfg(feature = "json")]
pub mod json;
#[cfg(feature = "manifests")]
pub mod manifests;
pub mod meter;
pub mod net;
#[cfg(feature = "events")]
pub mod objects;
pub mod percent;
pub mod quantity;
pub mod readable;
#[cfg(feature = "redact")]
pub mod redact;
#[cfg(feature = "reflector")]
pub mod reflector;
#[cfg(feature = "serve")]
pub mod serve;
pub mod supervise;
