//! The parts of the cluster's DNS together: what is answered to which question.

mod cache;
#[path = "../../../apiserver/tests/config/mod.rs"]
mod config;
mod lookup;
mod message;
mod names;
mod server;
mod sources;

use hickory_proto::{
    op::{Message, Query},
    rr::{Name, RecordType},
};

use super::{lookup::Zone, records::Key};

pub(super) fn zone() -> Zone {
    Zone::new("cluster.local", 7, Key::new("kube-system", "kube-dns")).unwrap()
}

/// `NAME TYPE`
pub(super) fn question(text: &str) -> Query {
    let (name, kind) = text.split_once(' ').unwrap();
    let mut name = Name::from_labels(name.split('.').filter(|label| !label.is_empty()).map(str::as_bytes)).unwrap();
    name.set_fqdn(true);
    Query::query(name, kind.parse::<RecordType>().unwrap())
}

/// The packet that asks a question.
pub(super) fn packet(text: &str, change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.queries.push(question(text));
    change(&mut message);
    message.to_vec().unwrap()
}
