//! Rules as text: chain names, the fixed chains, and the chains of service ports. Pure: no kernel,
//! no clock; imports the model and the endpoint selection.

mod dispatch;
mod fixed;
mod names;
mod port;
mod settings;
#[cfg(test)]
mod tests;

pub use dispatch::{Dispatch, FLAT, LineKey, dispatch, is_dispatch};
pub use fixed::{Fixed, JUMPS, Jump, Table, Top, constant_rules, entrances, with_base_chains, writes_firewall};
pub use names::{ChainId, Kind, PARTS, is_owned};
pub use port::{PortRules, port_rules, probability};
pub use settings::{Layout, LocalTraffic, NodePortDestinations, Settings};
