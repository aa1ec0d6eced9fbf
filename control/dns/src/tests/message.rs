//! Packets: what is refused, EDNS, truncation.

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType},
};

use super::{packet, question};
use crate::{
    answer::Answer,
    message::{MAX_UDP, Read, Request, Transport, read, write},
};

fn request(packet: &[u8], transport: Transport) -> Request {
    match read(packet, transport) {
        Read::Request(request) => *request,
        other => panic!("{other:?}"),
    }
}

fn with_edns(size: u16, dnssec_ok: bool) -> impl FnOnce(&mut Message) {
    move |message| {
        let mut edns = Edns::new();
        edns.set_max_payload(size).set_dnssec_ok(dnssec_ok);
        message.edns = Some(edns);
    }
}

/// An answer with a number of addresses.
fn addresses(count: u32) -> Answer {
    let name = question("web.default.svc.cluster.local A").name;
    let record = |n: u32| Record::from_rdata(name.clone(), 30, RData::A(std::net::Ipv4Addr::from_bits(n).into()));
    Answer { answers: (0..count).map(record).collect(), ..Answer::own() }
}

#[test]
fn what_is_refused_at_once() {
    let good = || packet("web.default.svc.cluster.local A", |_| {});
    let changed = |at: usize, byte: u8| {
        let mut packet = good();
        packet[at] = byte;
        packet
    };
    let of = |text: &str| packet(text, |_| {});
    let mut more = good();
    more.truncate(20);
    for (packet, expected) in [
        (good(), None),
        // NOTIFY and UPDATE.
        (changed(2, 0x20), Some(ResponseCode::NotImp)),
        (changed(2, 0x28), Some(ResponseCode::NotImp)),
        // No question, two, and one that is cut off.
        (changed(5, 0), Some(ResponseCode::FormErr)),
        (changed(5, 2), Some(ResponseCode::FormErr)),
        (more, Some(ResponseCode::FormErr)),
        (of("cluster.local AXFR"), Some(ResponseCode::Refused)),
        (packet("cluster.local A", |m| m.queries[0].query_type = RecordType::IXFR), Some(ResponseCode::Refused)),
        (packet("version.bind TXT", |m| m.queries[0].query_class = DNSClass::CH), Some(ResponseCode::Refused)),
        (
            packet("cluster.local A", |m| {
                let mut edns = Edns::new();
                edns.set_version(1);
                m.edns = Some(edns);
            }),
            Some(ResponseCode::BADVERS),
        ),
    ] {
        match (read(&packet, Transport::Udp), expected) {
            (Read::Request(_), None) => {}
            (Read::Reply(reply, code), Some(expected)) => {
                assert_eq!(code, expected);
                let reply = Message::from_vec(&reply).unwrap();
                // BADVERS and BADSIG have one number.
                assert_eq!(u16::from(reply.metadata.response_code), u16::from(expected));
                assert_eq!(reply.metadata.message_type, MessageType::Response);
                assert_eq!(reply.metadata.id.to_be_bytes(), packet[..2]);
            }
            (other, expected) => panic!("{other:?} in place of {expected:?}"),
        }
    }
    // What is no request gets no response.
    for packet in [&good()[..11], &[], &changed(2, 0x81)] {
        assert!(matches!(read(packet, Transport::Udp), Read::Nothing), "{packet:?}");
    }
}

#[test]
fn a_response_repeats_the_question_letter_by_letter() {
    let sent = packet("wEb.deFault.svc.cluster.loCal A", |_| {});
    let request = request(&sent, Transport::Udp);
    let reply = write(&request, &addresses(1));
    let asked = Message::from_vec(&sent).unwrap();
    let got = Message::from_vec(&reply).unwrap();
    assert!(got.queries[0].name.eq_case(&asked.queries[0].name));
    let flags = got.metadata;
    assert_eq!((flags.id, flags.op_code), (asked.metadata.id, OpCode::Query));
    assert!(flags.authoritative && flags.recursion_desired && flags.recursion_available && !flags.truncation);
    assert!(got.edns.is_none(), "the client has none");
    assert_eq!(got.answers.len(), 1);
}

#[test]
fn what_does_not_fit_is_left_out_and_said_to_be() {
    for (edns, transport, limit) in [
        (None, Transport::Udp, 512),
        (Some(100), Transport::Udp, 512),
        (Some(1000), Transport::Udp, 1000),
        (Some(1232), Transport::Udp, MAX_UDP),
        (Some(65535), Transport::Udp, MAX_UDP),
        (None, Transport::Tcp, u16::MAX),
        (Some(512), Transport::Tcp, u16::MAX),
    ] {
        let sent = packet("web.default.svc.cluster.local A", |message| {
            if let Some(size) = edns {
                with_edns(size, false)(message);
            }
        });
        let reply = write(&request(&sent, transport), &addresses(200));
        assert!(reply.len() <= usize::from(limit), "{} of {limit}", reply.len());
        let got = Message::from_vec(&reply).unwrap();
        assert_eq!(got.metadata.truncation, transport == Transport::Udp, "{edns:?} {transport:?}");
        if transport == Transport::Udp {
            // As many as fit: the encoder needs room for a whole name before it shortens it.
            assert!(reply.len() + 64 > usize::from(limit), "{} of {limit}", reply.len());
        } else {
            assert_eq!(got.answers.len(), 200);
        }
        assert_eq!(got.edns.map(|edns| edns.max_payload()), edns.map(|_| MAX_UDP), "never left out");
    }
}

#[test]
fn more_than_a_message_can_hold_is_cut_over_tcp_too() {
    let sent = packet("web.default.svc.cluster.local A", with_edns(1232, true));
    let reply = write(&request(&sent, Transport::Tcp), &addresses(5000));
    let got = Message::from_vec(&reply).unwrap();
    assert!(got.metadata.truncation && got.answers.len() > 1000, "{}", got.answers.len());
    assert!(reply.len() > 65_000, "{}", reply.len());
    assert!(got.edns.unwrap().flags().dnssec_ok);
}

#[test]
fn a_question_goes_on_with_another_id_and_the_same_wishes() {
    let sent = packet("example.com A", |message| {
        with_edns(4096, true)(message);
        message.metadata.checking_disabled = true;
    });
    let request = request(&sent, Transport::Udp);
    let question = question("Example.org AAAA");
    let ids: std::collections::BTreeSet<u16> = (0..20).map(|_| request.forwarded(&question).metadata.id).collect();
    assert!(ids.len() > 10, "an ID that can be guessed: {ids:?}");
    let forwarded = request.forwarded(&question);
    assert!(forwarded.metadata.recursion_desired && forwarded.metadata.checking_disabled);
    assert_eq!(forwarded.queries, std::slice::from_ref(&question));
    let edns = forwarded.edns.unwrap();
    assert!(edns.flags().dnssec_ok && edns.max_payload() == MAX_UDP);
    let plain = request_without_edns();
    // A server is asked with EDNS whatever the client has: 512 bytes are little.
    assert!(!plain.has_edns());
    let edns = plain.forwarded(&question).edns.unwrap();
    assert!(!edns.flags().dnssec_ok && edns.max_payload() == MAX_UDP);
    assert_eq!(plain.question.name, Name::from_ascii("example.com.").unwrap());
}

fn request_without_edns() -> Request {
    request(&packet("example.com A", |_| {}), Transport::Udp)
}
