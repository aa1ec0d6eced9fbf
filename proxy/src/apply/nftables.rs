//! Two questions and two orders to nf_tables: the generation of the rule set, a table's number of users, "delete
//! this table if nothing changed since" and "delete these chains". iptables has no command for the third, and leaves
//! empty tables behind; for the last it needs minutes where there are many chains. And a monitor that hears what
//! others commit.

use std::io;

use crate::{
    model::Family,
    netlink::{ACK, Attributes, Netlink, Request, family_number},
    rules::{JUMPS, Table},
};

// include/uapi/linux/netfilter/nfnetlink.h
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const BATCH_GENID: u16 = 1;
const GROUP: u32 = 7;
// include/uapi/linux/netfilter/nf_tables.h
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_GENERATION: u16 = 15;
const GET_GENERATION: u16 = 16;
const GENERATION_ID: u16 = 1;
const TABLE_NAME: u16 = 1;
const TABLE_USE: u16 = 3;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;

/// Chains in one transaction: their messages fit a socket's usual buffer.
const CHAINS: usize = 1500;

/// The header of a batch's first and last message: which subsystem it is for.
const BOUNDS: [u8; 4] = [0, 0, 0, SUBSYSTEM.to_be_bytes()[1]];

/// One transaction that was committed, by us or by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Commit {
    /// The generation that it began.
    pub(crate) generation: u32,
    /// By family: it may have changed chains of ours, or jumps to them.
    pub(crate) concerns: [bool; 2],
}

/// Hears each committed change to any table. While one listens the kernel describes every changed rule
/// to it: it is opened when nothing is being written and dropped before the next write.
#[derive(Debug)]
pub(crate) struct NftMonitor {
    socket: Netlink,
    /// Of the transaction whose end was not heard yet.
    concerns: [bool; 2],
}

impl NftMonitor {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: Netlink::listen(1 << (GROUP - 1))?, concerns: [false; 2] })
    }

    /// The transactions heard of since the last call; `None` when some may have been missed.
    pub(crate) fn commits(&mut self) -> Option<Vec<Commit>> {
        let mut commits = Vec::new();
        let concerns = &mut self.concerns;
        let whole = self.socket.heard(|kind, family, attributes| {
            if kind == SUBSYSTEM << 8 | NEW_GENERATION {
                if let Some(generation) = number(attributes, GENERATION_ID) {
                    commits.push(Commit { generation, concerns: std::mem::take(concerns) });
                }
            } else if kind >> 8 == SUBSYSTEM {
                for (concerned, known) in concerns.iter_mut().zip(Family::BOTH) {
                    *concerned |= family_number(known) == family && concerns_us(kind & 0xff, attributes);
                }
            }
        });
        whole.then_some(commits)
    }
}

impl std::os::fd::AsRawFd for NftMonitor {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

/// Whether a change may be one of our chains, or of a jump to one: rules that others add to chains of theirs are not.
/// A rule that is deleted is told by its number alone, so that each one from a base chain that we jump from counts.
fn concerns_us(message: u16, attributes: &[u8]) -> bool {
    let text = |kind: u16| {
        let value = Attributes(attributes).find(kind).unwrap_or_default();
        std::str::from_utf8(value).unwrap_or_default().trim_end_matches('\0')
    };
    let table = text(1);
    if !Table::BOTH.iter().any(|t| t.name() == table) {
        return false;
    }
    let is_base = |chain: &str| JUMPS.iter().any(|jump| jump.from == chain);
    let is_ours = |chain: &str| chain.starts_with(OURS);
    match message {
        NEW_TABLE | DELETE_TABLE => true,
        NEW_CHAIN => is_ours(text(CHAIN_NAME)),
        DELETE_CHAIN => is_ours(text(CHAIN_NAME)) || is_base(text(CHAIN_NAME)),
        NEW_RULE => is_ours(text(RULE_CHAIN)),
        DELETE_RULE => is_ours(text(RULE_CHAIN)) || is_base(text(RULE_CHAIN)),
        _ => false,
    }
}

/// What the names of our chains start with.
const OURS: &str = "KUBE-";

/// An open conversation with nf_tables.
#[derive(Debug)]
pub(crate) struct NfTables(Netlink);

impl NfTables {
    pub(crate) fn open() -> io::Result<Self> {
        Netlink::netfilter().map(Self)
    }

    /// Counts every committed change to any table of the namespace, wrapping.
    pub(crate) fn generation(&mut self) -> io::Result<u32> {
        let answer = self.0.ask(vec![Request::new(SUBSYSTEM, GET_GENERATION, 0, [0; 4])])?;
        number(&answer, GENERATION_ID)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "nf_tables did not tell its generation"))
    }

    /// How many chains and sets a table holds; `None` when there is no such table.
    pub(crate) fn users(&mut self, family: Family, table: &str) -> io::Result<Option<u32>> {
        let head = [family_number(family), 0, 0, 0];
        let request = Request::new(SUBSYSTEM, GET_TABLE, 0, head).text(TABLE_NAME, table);
        match self.0.ask(vec![request]) {
            Ok(attributes) => Ok(Some(number(&attributes, TABLE_USE).unwrap_or(0))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Deletes a table with all that is in it, if the rule set is still of this generation.
    pub(crate) fn delete_table(&mut self, family: Family, table: &str, generation: u32) -> io::Result<()> {
        let order =
            Request::new(SUBSYSTEM, DELETE_TABLE, ACK, [family_number(family), 0, 0, 0]).text(TABLE_NAME, table);
        let begin = Request::raw(BATCH_BEGIN, 0, &BOUNDS).attribute(BATCH_GENID, &generation.to_be_bytes());
        self.0.ask(vec![begin, order, Request::raw(BATCH_END, 0, &BOUNDS)]).map(drop)
    }

    /// Empties chains in the given order and then deletes them, many at a time. None of them may be led to from
    /// elsewhere. What was done stays done when a later one fails.
    pub(crate) fn delete_chains(&mut self, family: Family, table: &str, chains: &[&str]) -> io::Result<()> {
        let head = [family_number(family), 0, 0, 0];
        let empty = |chain: &&str, flags| {
            Request::new(SUBSYSTEM, DELETE_RULE, flags, head).text(RULE_TABLE, table).text(RULE_CHAIN, chain)
        };
        let delete = |chain: &&str, flags| {
            Request::new(SUBSYSTEM, DELETE_CHAIN, flags, head).text(CHAIN_TABLE, table).text(CHAIN_NAME, chain)
        };
        for order in [&empty as &dyn Fn(&&str, u16) -> Request, &delete] {
            for part in chains.chunks(CHAINS) {
                let last = part.len() - 1;
                // A refusal is answered before the acknowledgement of the last.
                let orders = part.iter().enumerate().map(|(i, chain)| order(chain, if i == last { ACK } else { 0 }));
                let mut batch = vec![Request::raw(BATCH_BEGIN, 0, &BOUNDS)];
                batch.extend(orders);
                batch.push(Request::raw(BATCH_END, 0, &BOUNDS));
                self.0.ask(batch)?;
                self.0.drain();
            }
        }
        Ok(())
    }
}

/// Finds a 32-bit attribute in network order.
fn number(attributes: &[u8], wanted: u16) -> Option<u32> {
    Attributes(attributes).find(wanted)?.get(..4)?.try_into().ok().map(u32::from_be_bytes)
}
