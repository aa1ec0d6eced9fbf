//! Named packet counters of netfilter (nfacct), updated by two rules and shown by two metrics.

use std::io;

use crate::{
    apply::{Backend, Error},
    netlink::{Attributes, NLM_F_ACK, Netlink, Request},
};

// include/uapi/linux/netfilter/nfnetlink.h, nfnetlink_acct.h
const NFNL_SUBSYS_ACCT: u16 = 7;
const NFNL_MSG_ACCT_NEW: u16 = 0;
const NFNL_MSG_ACCT_GET: u16 = 1;
const NFNL_MSG_ACCT_DEL: u16 = 3;
const NFACCT_NAME: u16 = 1;
const NFACCT_PKTS: u16 = 2;
const NLM_F_CREATE: u16 = 0x400;

/// Packets dropped because of conntrack state INVALID; kube-proxy's name.
pub(crate) const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
/// Connections to node ports at 127.0.0.1; kube-proxy's name.
pub(crate) const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";
/// Attempts at the probe, where the xtables lock is held or the kernel lacks memory.
const MAX_ATTEMPTS: u32 = 6;
const ALL: [&str; 2] = [INVALID_DROPPED, LOCALHOST_ACCEPTED];

fn request(message: u16, flags: u16, name: &str) -> Request {
    Request::new(NFNL_SUBSYS_ACCT, message, flags, [0; 4]).text(NFACCT_NAME, name)
}

fn create() -> io::Result<()> {
    let mut netlink = Netlink::netfilter()?;
    for name in ALL {
        match netlink.query(vec![request(NFNL_MSG_ACCT_NEW, NLM_F_CREATE | NLM_F_ACK, name)]) {
            // The counter exists already (EBUSY).
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// Creates both counters and probes a rule with one; returns whether rules may use them. Blocks.
pub(crate) fn create_counters(backend: &Backend) -> bool {
    let rule = format!("-m nfacct --nfacct-name {INVALID_DROPPED} -j RETURN");
    let usable = create().map_err(|e| e.to_string()).and_then(|()| probe(backend, &rule).map_err(|e| e.to_string()));
    if let Err(error) = &usable {
        tracing::info!(
            error,
            "the kernel lacks packet counters (nfacct); rules do without them, and two metrics are missing"
        );
    }
    usable.is_ok()
}

/// Whether the kernel accepts a rule; what says nothing about the rule is tried again.
fn probe(backend: &Backend, rule: &str) -> Result<(), Error> {
    let mut attempts = 1;
    loop {
        match backend.probe_rule(rule) {
            Err(error) if attempts < MAX_ATTEMPTS && error.is_passing() => attempts += 1,
            other => return other,
        }
    }
}

/// The packet counts of [`INVALID_DROPPED`] and [`LOCALHOST_ACCEPTED`]; `None` where there is no such counter. Blocks.
pub(crate) fn packet_counts() -> [Option<u64>; 2] {
    let Ok(mut netlink) = Netlink::netfilter() else { return [None; 2] };
    ALL.map(|name| {
        let answer = netlink.query(vec![request(NFNL_MSG_ACCT_GET, 0, name)]).ok()?;
        Attributes(&answer).find(NFACCT_PKTS)?.try_into().ok().map(u64::from_be_bytes)
    })
}

/// Deletes both counters; one that a rule still uses stays. Blocks.
pub(crate) fn delete_counters() {
    let Ok(mut netlink) = Netlink::netfilter() else { return };
    for name in ALL {
        let _ = netlink.query(vec![request(NFNL_MSG_ACCT_DEL, NLM_F_ACK, name)]);
    }
}
