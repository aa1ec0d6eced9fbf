//! What is answered to a question. Pure.

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{Name, RData, Record},
};

/// The sections of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) code: ResponseCode,
    /// From the cluster's own records.
    pub(super) authoritative: bool,
    /// Others have verified it.
    pub(super) authentic: bool,
    /// It is a part of what there is.
    pub(super) truncated: bool,
    pub(super) answers: Vec<Record>,
    pub(super) authorities: Vec<Record>,
    pub(super) additionals: Vec<Record>,
}

impl Answer {
    /// An empty answer from the cluster's records.
    pub(super) fn own() -> Self {
        Self { authoritative: true, ..Self::of_code(ResponseCode::NoError) }
    }

    /// An answer that has a code alone.
    pub(super) const fn of_code(code: ResponseCode) -> Self {
        Self {
            code,
            authoritative: false,
            authentic: false,
            truncated: false,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
        }
    }

    /// The answer of another server.
    pub(super) fn of_message(message: Message) -> Self {
        Self {
            code: message.metadata.response_code,
            authoritative: message.metadata.authoritative,
            authentic: message.metadata.authentic_data,
            truncated: message.metadata.truncation,
            answers: message.answers,
            authorities: message.authorities,
            additionals: message.additionals,
        }
    }

    /// Whether the name does not exist, or has no records of the type.
    pub(super) fn is_negative(&self) -> bool {
        let aliases_only = self.answers.iter().all(|record| matches!(record.data, RData::CNAME(_)));
        self.code == ResponseCode::NXDomain || (self.code == ResponseCode::NoError && aliases_only)
    }

    /// Gives what is about `name` that name's letters: a client may compare them with its own.
    pub(super) fn rename(&mut self, name: &Name) {
        for record in self.answers.iter_mut().filter(|record| record.name == *name) {
            record.name = name.clone();
        }
    }

    /// Puts aliases that led here in front; the first name is the cluster's.
    pub(super) fn after(mut self, aliases: Vec<Record>) -> Self {
        self.answers.splice(0..0, aliases);
        Self { authoritative: true, authentic: false, ..self }
    }

    fn records_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.answers.iter_mut().chain(&mut self.authorities).chain(&mut self.additionals)
    }

    /// Lets no record be kept for longer than `seconds`.
    pub(super) fn limit_ttl(&mut self, seconds: u32) {
        self.records_mut().for_each(|record| record.ttl = record.ttl.min(seconds));
    }

    /// Makes it older.
    pub(super) fn age(&mut self, seconds: u32) {
        self.records_mut().for_each(|record| record.ttl = record.ttl.saturating_sub(seconds));
    }
}
