//! What several crates of Windlass need and none of them owns.
//!
//! Imports `apimachinery` only, for quantities, quoted text and protobuf's wire format, and contains no domain code: no pods, rules, cgroups or objects; the one exception is
//! `objects`, the semantics of API objects that the API server and the node must agree on. What proxy and pod network both say to
//! the kernel is in `netlink`, `nf_tables`, `conntrack`, `local_addresses` and `iptables_save`. What only one crate needs
//! belongs in that crate.

pub mod addresses;
pub mod announced_pod;
pub mod atomic_file;
pub mod backoff;
pub mod blocking;
#[cfg(feature = "bootstrap")]
pub mod bootstrap;
pub mod build_info;
#[cfg(feature = "client")]
pub mod client;
pub mod cluster_dns;
pub mod conntrack;
pub mod der;
#[cfg(feature = "dirfd")]
pub mod dirfd;
pub mod disk;
pub mod duration;
#[cfg(feature = "events")]
pub mod events;
pub mod external_program;
#[cfg(feature = "reflector")]
pub mod fan_out;
pub mod inotify;
pub mod iptables_save;
#[cfg(feature = "json")]
pub mod json;
pub mod liveness;
pub mod local_addresses;
pub mod lru;
#[cfg(feature = "manifests")]
pub mod manifests;
pub mod metrics;
#[cfg(feature = "moment")]
pub mod moment;
pub mod net;
pub mod netlink;
pub mod nf_tables;
#[cfg(feature = "events")]
pub mod object_ref;
#[cfg(feature = "events")]
pub mod objects;
pub mod percent;
#[cfg(feature = "events")]
pub mod pod_ending;
#[cfg(feature = "events")]
pub mod pod_interface;
pub mod preflight;
#[cfg(feature = "keys")]
pub mod private_key;
#[cfg(feature = "serve")]
pub mod process_metrics;
pub mod prometheus;
pub mod published_map;
#[cfg(feature = "redact")]
pub mod redact;
#[cfg(feature = "reflector")]
pub mod reflector;
pub mod repairs;
pub mod resolv_conf;
pub mod rest_client;
#[cfg(feature = "serve")]
pub mod serve;
pub mod slis;
#[cfg(feature = "serve")]
pub mod subject;
pub mod supervise;
#[cfg(feature = "serve")]
pub mod unverified_tls;

pub use windlass_apimachinery::{go_quoted, group_version, protobuf, quantity};
