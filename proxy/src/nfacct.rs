//! Named packet counters of netfilter (nfacct), which two rules feed and two metrics show.

use std::io;

use crate::{
    apply::Backend,
    netlink::{ACK, Attributes, Netfilter, Request},
};

// include/uapi/linux/netfilter/nfnetlink.h, nfnetlink_acct.h
const SUBSYSTEM: u16 = 7;
const NEW: u16 = 0;
const GET: u16 = 1;
const DELETE: u16 = 3;
const NAME: u16 = 1;
const PACKETS: u16 = 2;
/// `NLM_F_CREATE`.
const CREATE: u16 = 0x400;

/// Packets dropped because connection tracking finds them invalid; upstream's name.
pub(crate) const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
/// Connections to node ports at 127.0.0.1; upstream's name.
pub(crate) const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";
const ALL: [&str; 2] = [INVALID_DROPPED, LOCALHOST_ACCEPTED];

fn request(message: u16, flags: u16, name: &str) -> Request {
    Request::new(SUBSYSTEM, message, flags, [0; 4]).text(NAME, name)
}

fn create() -> io::Result<()> {
    let mut netlink = Netfilter::open()?;
    for name in ALL {
        match netlink.ask(vec![request(NEW, CREATE | ACK, name)]) {
            // The kernel's word for a counter that is there.
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// Makes both counters and tries a rule with one; whether rules may use them. Blocks.
pub(crate) fn prepare(backend: &Backend) -> bool {
    let trial = format!(
        "*filter\n:KUBE-PROXY-CANARY - [0:0]\n-A KUBE-PROXY-CANARY -m nfacct --nfacct-name {INVALID_DROPPED} -j RETURN\nCOMMIT\n"
    );
    let usable =
        create().map_err(|e| e.to_string()).and_then(|()| backend.restore_text(&trial).map_err(|e| e.to_string()));
    let away = "*filter\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n";
    if let Err(error) = backend.restore_text(away) {
        tracing::debug!(%error, "the chain of the trial stays until clean-up");
    }
    if let Err(error) = &usable {
        tracing::info!(
            error,
            "the kernel has no packet counters (nfacct): the rules do without, and two metrics stay away"
        );
    }
    usable.is_ok()
}

/// The packets that a counter has seen; `None` when there is no such counter.
pub(crate) fn packets(name: &str) -> Option<u64> {
    let answer = Netfilter::open().ok()?.ask(vec![request(GET, 0, name)]).ok()?;
    Attributes(&answer).find(PACKETS)?.try_into().ok().map(u64::from_be_bytes)
}

/// Removes both counters; those that a rule still uses stay. Blocks.
pub(crate) fn remove() {
    let Ok(mut netlink) = Netfilter::open() else { return };
    for name in ALL {
        let _ = netlink.ask(vec![request(DELETE, ACK, name)]);
    }
}
