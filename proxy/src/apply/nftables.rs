//! Two questions and two orders to nf_tables: the generation of the rule set, a table's number of users, "delete
//! this table if nothing changed since" and "delete these chains". iptables has no command for the third, and leaves
//! empty tables behind; for the last it needs minutes where there are many chains. And an ear for changes by others.

use std::io;

use crate::{
    model::Family,
    netlink::{ACK, Attributes, Netfilter, Request, family_number},
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
const DELETE_CHAIN: u16 = 5;
const DELETE_RULE: u16 = 8;
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

/// Hears each committed change to any table. While one listens the kernel describes every changed rule
/// to it: it is opened when nothing is being written and dropped before the next write.
pub(crate) fn listen() -> io::Result<Netfilter> {
    Netfilter::listen(1 << (GROUP - 1))
}

/// An open conversation with nf_tables.
#[derive(Debug)]
pub(crate) struct NfTables(Netfilter);

impl NfTables {
    pub(crate) fn open() -> io::Result<Self> {
        Netfilter::open().map(Self)
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
        let begin = Request::raw(BATCH_BEGIN, 0, BOUNDS).attribute(BATCH_GENID, &generation.to_be_bytes());
        self.0.ask(vec![begin, order, Request::raw(BATCH_END, 0, BOUNDS)]).map(drop)
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
                let mut batch = vec![Request::raw(BATCH_BEGIN, 0, BOUNDS)];
                batch.extend(orders);
                batch.push(Request::raw(BATCH_END, 0, BOUNDS));
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
