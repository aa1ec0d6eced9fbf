//! Named packet counters of netfilter (nfacct), which two rules feed and two metrics show.

use std::io;

use crate::{
    apply::Backend,
    netlink::{ACK, Attributes, Netlink, Request},
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
    let mut netlink = Netlink::netfilter()?;
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
    let rule = format!("-m nfacct --nfacct-name {INVALID_DROPPED} -j RETURN");
    let usable = create().map_err(|e| e.to_string()).and_then(|()| backend.try_rule(&rule).map_err(|e| e.to_string()));
    if let Err(error) = &usable {
        tracing::info!(
            error,
            "the kernel has no packet counters (nfacct): the rules do without, and two metrics stay away"
        );
    }
    usable.is_ok()
}

/// The packets that both counters have seen, of dropped ones and of those to localhost; `None` where there is no such
/// counter. Blocks.
pub(crate) fn packets() -> [Option<u64>; 2] {
    let Ok(mut netlink) = Netlink::netfilter() else { return [None; 2] };
    ALL.map(|name| {
        let answer = netlink.ask(vec![request(GET, 0, name)]).ok()?;
        Attributes(&answer).find(PACKETS)?.try_into().ok().map(u64::from_be_bytes)
    })
}

/// Removes both counters; those that a rule still uses stay. Blocks.
pub(crate) fn remove() {
    let Ok(mut netlink) = Netlink::netfilter() else { return };
    for name in ALL {
        let _ = netlink.ask(vec![request(DELETE, ACK, name)]);
    }
}
