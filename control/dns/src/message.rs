//! Reads requests and writes responses: what a server answers without looking up anything, EDNS, truncation. Pure.

use hickory_proto::{
    op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode, emit_message_parts},
    rr::{DNSClass, RecordType},
    serialize::binary::BinEncoder,
};

use super::answer::Answer;

/// The largest response over UDP, of which no link between pods makes fragments.
pub(super) const MAX_UDP: u16 = 1232;
/// The largest response over UDP to a client that says nothing of it.
const MIN_UDP: u16 = 512;
/// A header of a message.
const HEADER: usize = 12;
/// The size of an OPT record without options.
const OPT: u16 = 11;

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

impl Transport {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// A question that can be looked up.
#[derive(Debug, Clone)]
pub(super) struct Request {
    metadata: Metadata,
    pub(super) question: Query,
    edns: Option<Edns>,
    transport: Transport,
}

/// What becomes of a packet.
#[derive(Debug)]
pub(super) enum Read {
    Request(Box<Request>),
    /// It is answered at once.
    Reply(Vec<u8>, ResponseCode),
    /// No answer: it is none, or a response.
    Nothing,
}

/// Reads a packet.
pub(super) fn read(packet: &[u8], transport: Transport) -> Read {
    let Some(header) = packet.first_chunk::<HEADER>() else { return Read::Nothing };
    let (is_response, op_code) = (header[2] & 0x80 != 0, (header[2] >> 3) & 0xF);
    // A response to a response could go on for ever.
    if is_response {
        return Read::Nothing;
    }
    if op_code != u8::from(OpCode::Query) {
        return refusal(header, ResponseCode::NotImp);
    }
    if header[4..6] != [0, 1] {
        return refusal(header, ResponseCode::FormErr);
    }
    let Ok(message) = Message::from_vec(packet) else { return refusal(header, ResponseCode::FormErr) };
    let Some(question) = message.queries.into_iter().next() else { return refusal(header, ResponseCode::FormErr) };
    let request = Request { metadata: message.metadata, question, edns: message.edns, transport };
    let refused = if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        ResponseCode::BADVERS
    } else if request.question.query_class != DNSClass::IN
        || matches!(request.question.query_type, RecordType::AXFR | RecordType::IXFR)
    {
        ResponseCode::Refused
    } else {
        return Read::Request(Box::new(request));
    };
    Read::Reply(write(&request, &Answer::of_code(refused)), refused)
}

/// A response of a header alone, to what cannot be read further.
fn refusal(header: &[u8; HEADER], code: ResponseCode) -> Read {
    const RESPONSE: u8 = 0x80;
    const OP_CODE_AND_RD: u8 = 0x79;
    let mut reply = vec![0; HEADER];
    reply[..2].copy_from_slice(&header[..2]);
    reply[2] = RESPONSE | (header[2] & OP_CODE_AND_RD);
    reply[3] = code.low();
    Read::Reply(reply, code)
}

impl Request {
    /// Decides which of several addresses is first.
    pub(super) const fn turn(&self) -> u16 {
        self.metadata.id
    }

    pub(super) const fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether signatures are wanted.
    pub(super) fn dnssec_ok(&self) -> bool {
        self.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok)
    }

    /// Whether the client verifies signatures itself.
    pub(super) const fn checking_disabled(&self) -> bool {
        self.metadata.checking_disabled
    }

    pub(super) const fn has_edns(&self) -> bool {
        self.edns.is_some()
    }

    /// The query for another server: `question`, with an unpredictable ID, and with EDNS, whether the client's had it
    /// or not, so that an answer may be longer than 512 bytes.
    pub(super) fn forwarded(&self, question: &Query) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = self.metadata.recursion_desired;
        message.metadata.checking_disabled = self.metadata.checking_disabled;
        message.metadata.authentic_data = self.metadata.authentic_data;
        message.queries.push(question.clone());
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP).set_dnssec_ok(self.dnssec_ok());
        message.edns = Some(edns);
        message
    }

    /// The largest response to it.
    fn limit(&self) -> u16 {
        match (self.transport, &self.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, Some(edns)) => edns.max_payload().clamp(MIN_UDP, MAX_UDP),
            (Transport::Udp, None) => MIN_UDP,
        }
    }
}

/// Writes a response. What does not fit is left out, and the TC bit asks the client to retry over TCP.
pub(super) fn write(request: &Request, answer: &Answer) -> Vec<u8> {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.message_type = MessageType::Response;
    metadata.recursion_available = true;
    metadata.authoritative = answer.authoritative;
    metadata.authentic_data = answer.authentic;
    metadata.truncation = answer.truncated;
    // Its other half is in the OPT record.
    metadata.response_code = ResponseCode::from(0, answer.code.low());
    let mut packet = Vec::with_capacity(usize::from(MIN_UDP));
    let mut encoder = BinEncoder::new(&mut packet);
    // The OPT record comes last, and is never what is left out.
    encoder.set_max_size(request.limit() - if request.edns.is_some() { OPT } else { 0 });
    let written = emit_message_parts(
        &metadata,
        &mut std::iter::once(&request.question),
        &mut answer.answers.iter(),
        &mut answer.authorities.iter(),
        &mut answer.additionals.iter(),
        None,
        None,
        &mut encoder,
    );
    // The record that did not fit is still there, behind the last one.
    encoder.trim();
    if written.is_err() {
        packet.clear();
        metadata.response_code = ResponseCode::ServFail;
        let mut encoder = BinEncoder::new(&mut packet);
        let none = || std::iter::empty::<&hickory_proto::rr::Record>();
        let question = &mut std::iter::once(&request.question);
        // What was read before can be written.
        let _ =
            emit_message_parts(&metadata, question, &mut none(), &mut none(), &mut none(), None, None, &mut encoder);
    }
    if request.edns.is_some() {
        append_opt(&mut packet, request.dnssec_ok(), answer.code.high());
    }
    packet
}

/// Appends an OPT record, and counts it.
fn append_opt(packet: &mut Vec<u8>, dnssec_ok: bool, high_code: u8) {
    const COUNT: std::ops::Range<usize> = 10..12;
    let Some(count) = packet.get(COUNT).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok()) else { return };
    packet[COUNT].copy_from_slice(&u16::from_be_bytes(count).saturating_add(1).to_be_bytes());
    // The root, the type, the size, the rest of the code, the version, the flags, no options.
    packet.extend([0, 0, 41]);
    packet.extend(MAX_UDP.to_be_bytes());
    packet.extend([high_code, 0, if dnssec_ok { 0x80 } else { 0 }, 0, 0, 0]);
}
