//! What proxy and pod network both ask nf_tables: whether anybody has changed a rule.

use std::io;

use crate::netlink::{Attributes, Netlink, Request};

// include/uapi/linux/netfilter/nfnetlink.h
/// The subsystem.
pub const NFNL_SUBSYS_NFTABLES: u16 = 10;
// include/uapi/linux/netfilter/nf_tables.h
const NFT_MSG_GETGEN: u16 = 16;
/// The attribute of the generation id.
pub const NFTA_GEN_ID: u16 = 1;

/// The generation id, which grows with every transaction in the network namespace, and wraps.
///
/// # Errors
/// What the kernel answers; without nf_tables, that there is no such thing.
pub fn generation(netlink: &mut Netlink) -> io::Result<u32> {
    let answer = netlink.query(vec![Request::new(NFNL_SUBSYS_NFTABLES, NFT_MSG_GETGEN, 0, [0; 4])])?;
    Attributes(&answer)
        .be32(NFTA_GEN_ID)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the reply of nf_tables has no generation id"))
}
