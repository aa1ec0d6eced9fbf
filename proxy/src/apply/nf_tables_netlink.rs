//! The netlink interface of nf_tables, as far as iptables lacks it: the generation id of the ruleset, the use count of
//! a table, the deletion of a table unless the ruleset changed, and the deletion of many chains, for which
//! `iptables-restore` needs minutes. And a monitor of transactions that other processes commit.

use std::io;

use windlass_kit::nf_tables::{self, NFNL_SUBSYS_NFTABLES, NFTA_GEN_ID};

use crate::{
    model::Family,
    netlink::{Attributes, NLM_F_ACK, Netlink, Request, address_family},
    network_policy::{BASE_CHAIN, TABLE, is_policy_chain},
    rules::{JUMPS, Table},
};

// include/uapi/linux/netfilter/nfnetlink.h
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_BATCH_GENID: u16 = 1;
const NFNLGRP_NFTABLES: u32 = 7;
// include/uapi/linux/netfilter/nf_tables.h
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_DELCHAIN: u16 = 5;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_DELRULE: u16 = 8;
const NFT_MSG_NEWGEN: u16 = 15;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_USE: u16 = 3;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;

/// Chains in one transaction: their messages fit into the default socket buffer.
const MAX_BATCH_CHAINS: usize = 1500;

/// `struct nfgenmsg` of the first and last message of a batch, whose resource id is the subsystem.
const BATCH_HEADER: [u8; 4] = [0, 0, 0, NFNL_SUBSYS_NFTABLES.to_be_bytes()[1]];

/// The address families in which a transaction may have changed our chains of services, or jumps to them, and whether it
/// may have changed those of NetworkPolicies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Affected {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
    pub(crate) policies: bool,
}

impl Affected {
    pub(crate) fn has(self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    fn add(&mut self, family: Family) {
        match family {
            Family::V4 => self.v4 = true,
            Family::V6 => self.v6 = true,
        }
    }
}

/// One committed transaction, ours or foreign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Commit {
    /// The generation id after it.
    pub(crate) generation: u32,
    pub(crate) affected: Affected,
}

/// Receives a notification for each committed change to any table. The kernel builds one for every changed rule while a
/// socket listens, so it is opened when nothing is being written, and dropped before the next write.
#[derive(Debug)]
pub(crate) struct NftMonitor {
    socket: Netlink,
    /// Of the transaction whose end was not received yet.
    affected: Affected,
}

impl NftMonitor {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: Netlink::subscribe(1 << (NFNLGRP_NFTABLES - 1))?, affected: Affected::default() })
    }

    /// The transactions since the last call; `None` when some may have been missed.
    pub(crate) fn commits(&mut self) -> Option<Vec<Commit>> {
        let mut commits = Vec::new();
        let affected = &mut self.affected;
        let complete = self.socket.read_notifications(|kind, family, attributes| {
            if kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN {
                if let Some(generation) = Attributes(attributes).be32(NFTA_GEN_ID) {
                    commits.push(Commit { generation, affected: std::mem::take(affected) });
                }
            } else if kind >> 8 == NFNL_SUBSYS_NFTABLES {
                let known = Family::BOTH.into_iter().find(|known| address_family(*known) == family);
                if let Some(family) = known.filter(|_| may_affect_us(kind & 0xff, attributes)) {
                    affected.add(family);
                }
                affected.policies |= may_affect_policies(kind & 0xff, attributes);
            }
        });
        complete.then_some(commits)
    }
}

impl std::os::fd::AsRawFd for NftMonitor {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

/// Whether a change may affect one of our chains, or a jump to one; rules that others add to their own chains do not.
/// The notification of a deleted rule has its handle only, so each deletion from a base chain with our jumps counts.
fn may_affect_us(message: u16, attributes: &[u8]) -> bool {
    let is_base = |chain: &str| JUMPS.iter().any(|jump| jump.from == chain);
    let is_ours = |chain: &str| chain.starts_with(KUBE_PREFIX);
    Table::BOTH.iter().any(|table| may_affect(message, attributes, table.name(), is_base, is_ours))
}

/// The same for the chains of NetworkPolicies.
fn may_affect_policies(message: u16, attributes: &[u8]) -> bool {
    may_affect(message, attributes, TABLE, |chain| chain == BASE_CHAIN, is_policy_chain)
}

fn may_affect(
    message: u16,
    attributes: &[u8],
    table: &str,
    is_base: impl Fn(&str) -> bool,
    is_ours: impl Fn(&str) -> bool,
) -> bool {
    let text = |kind: u16| {
        let value = Attributes(attributes).find(kind).unwrap_or_default();
        std::str::from_utf8(value).unwrap_or_default().trim_end_matches('\0')
    };
    if text(1) != table {
        return false;
    }
    match message {
        NFT_MSG_NEWTABLE | NFT_MSG_DELTABLE => true,
        NFT_MSG_NEWCHAIN => is_ours(text(NFTA_CHAIN_NAME)),
        NFT_MSG_DELCHAIN => is_ours(text(NFTA_CHAIN_NAME)) || is_base(text(NFTA_CHAIN_NAME)),
        NFT_MSG_NEWRULE => is_ours(text(NFTA_RULE_CHAIN)),
        NFT_MSG_DELRULE => is_ours(text(NFTA_RULE_CHAIN)) || is_base(text(NFTA_RULE_CHAIN)),
        _ => false,
    }
}

/// The prefix of all chain names of Kubernetes.
const KUBE_PREFIX: &str = "KUBE-";

/// A netlink socket to nf_tables.
#[derive(Debug)]
pub(crate) struct NfTables(Netlink);

impl NfTables {
    pub(crate) fn open() -> io::Result<Self> {
        Netlink::netfilter().map(Self)
    }

    /// The generation id, which grows with every transaction in the network namespace, and wraps.
    pub(crate) fn generation(&mut self) -> io::Result<u32> {
        nf_tables::generation(&mut self.0)
    }

    /// The use count of a table, which is its number of chains and sets; `None` when there is no such table.
    pub(crate) fn users(&mut self, family: Family, table: &str) -> io::Result<Option<u32>> {
        let head = [address_family(family), 0, 0, 0];
        let request = Request::new(NFNL_SUBSYS_NFTABLES, NFT_MSG_GETTABLE, 0, head).text(NFTA_TABLE_NAME, table);
        match self.0.query(vec![request]) {
            Ok(attributes) => Ok(Some(Attributes(&attributes).be32(NFTA_TABLE_USE).unwrap_or(0))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Deletes a table with all its chains, if the generation id is still this one.
    pub(crate) fn delete_table(&mut self, family: Family, table: &str, generation: u32) -> io::Result<()> {
        let order = Request::new(NFNL_SUBSYS_NFTABLES, NFT_MSG_DELTABLE, NLM_F_ACK, [address_family(family), 0, 0, 0])
            .text(NFTA_TABLE_NAME, table);
        let begin =
            Request::raw(NFNL_MSG_BATCH_BEGIN, 0, &BATCH_HEADER).attribute(NFNL_BATCH_GENID, &generation.to_be_bytes());
        self.0.query(vec![begin, order, Request::raw(NFNL_MSG_BATCH_END, 0, &BATCH_HEADER)]).map(drop)
    }

    /// Flushes chains in the given order and then deletes them, many in one transaction. No rule outside of them may
    /// jump to them. Transactions before one that fails stay committed.
    pub(crate) fn delete_chains(&mut self, family: Family, table: &str, chains: &[&str]) -> io::Result<()> {
        let head = [address_family(family), 0, 0, 0];
        let empty = |chain: &&str, flags| {
            Request::new(NFNL_SUBSYS_NFTABLES, NFT_MSG_DELRULE, flags, head)
                .text(NFTA_RULE_TABLE, table)
                .text(NFTA_RULE_CHAIN, chain)
        };
        let delete = |chain: &&str, flags| {
            Request::new(NFNL_SUBSYS_NFTABLES, NFT_MSG_DELCHAIN, flags, head)
                .text(NFTA_CHAIN_TABLE, table)
                .text(NFTA_CHAIN_NAME, chain)
        };
        for order in [&empty as &dyn Fn(&&str, u16) -> Request, &delete] {
            for part in chains.chunks(MAX_BATCH_CHAINS) {
                let last = part.len() - 1;
                // An error is reported before the acknowledgement of the last message.
                let messages =
                    part.iter().enumerate().map(|(i, chain)| order(chain, if i == last { NLM_F_ACK } else { 0 }));
                let mut batch = vec![Request::raw(NFNL_MSG_BATCH_BEGIN, 0, &BATCH_HEADER)];
                batch.extend(messages);
                batch.push(Request::raw(NFNL_MSG_BATCH_END, 0, &BATCH_HEADER));
                self.0.query(batch)?;
                self.0.discard_replies();
            }
        }
        Ok(())
    }
}
