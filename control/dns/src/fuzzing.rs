//! What the fuzzer calls: packets of any bytes to a server that knows some records.

use std::sync::{Arc, LazyLock};

use hickory_proto::op::{Message, MessageType};
use k8s_openapi::api::{
    core::v1::{Namespace, Service},
    discovery::v1::EndpointSlice,
};
use kube::runtime::watcher::Event;
use serde_json::json;

use super::{
    forward::Forwarder,
    lookup::Zone,
    message::{MAX_UDP, Transport},
    metrics::Metrics,
    records::Key,
    responder::{Responder, Step},
    sources::Sources,
    watch::Change,
};

fn apply<K>(object: K) -> Box<Event<K>> {
    Box::new(Event::Apply(object))
}

static RESPONDER: LazyLock<Responder> = LazyLock::new(|| {
    let metrics = Arc::new(Metrics::new());
    let zone = Zone::new("c", 1, Key::new("n", "w")).expect("a name");
    let forwarder = Forwarder::new(Some("".into()), Vec::new(), Arc::clone(&metrics));
    let responder = Responder::new(zone, Sources::new(Vec::new()), forwarder, metrics);
    let object = |value| serde_json::from_value::<Service>(value).expect("a Service");
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "n"}})).expect("a Namespace");
    let endpoints: Vec<_> =
        (0..100).map(|n| json!({"addresses": [format!("10.0.0.{n}")], "hostname": format!("h{n}")})).collect();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "h-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "h"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "p", "port": 1}],
    }))
    .expect("a slice");
    for change in [
        Change::Namespace(apply(namespace)),
        Change::Service(apply(object(json!({
            "metadata": {"name": "w", "namespace": "n"}, "spec": {"clusterIPs": ["10.96.0.1"], "ports": [{"name": "p", "port": 1}]},
        })))),
        Change::Service(apply(object(
            json!({"metadata": {"name": "h", "namespace": "n"}, "spec": {"clusterIPs": ["None"]}}),
        ))),
        Change::Service(apply(object(json!({
            "metadata": {"name": "x", "namespace": "n"}, "spec": {"type": "ExternalName", "externalName": "x.n.svc.c"},
        })))),
        Change::Slice(apply(slice)),
    ] {
        responder.apply(change);
    }
    responder.skip_lists();
    responder
});

/// Answers a packet over both transports.
///
/// # Panics
/// When an answer is none, is to another request, or does not fit.
pub fn packet(bytes: &[u8]) {
    let from = ([127, 0, 0, 1], 1).into();
    for (transport, limit) in [(Transport::Udp, MAX_UDP), (Transport::Tcp, u16::MAX)] {
        if let Step::Reply(reply) = RESPONDER.respond(bytes, transport, from) {
            assert!(reply.len() <= usize::from(limit), "{} bytes over {transport:?}", reply.len());
            let message = Message::from_vec(&reply).expect("a message");
            assert_eq!(message.metadata.message_type, MessageType::Response);
            assert_eq!(message.metadata.id.to_be_bytes(), bytes[..2]);
        }
    }
}

#[test]
fn any_bytes_are_answered_or_not() {
    use proptest::prelude::*;
    let labels: [&[u8]; 12] = [
        b"\x01c",
        b"\x01n",
        b"\x03svc",
        b"\x03pod",
        b"\x01h",
        b"\x01w",
        b"\x01x",
        b"\x02h7",
        b"\x04_tcp",
        b"\x02_p",
        b"\xc0\x0c",
        b"\x00",
    ];
    let labels = proptest::sample::select(labels.to_vec());
    let input = (any::<[u8; 4]>(), proptest::collection::vec(labels, 0..9), any::<Vec<u8>>(), any::<u8>());
    proptest!(|((start, labels, rest, kind) in input)| {
        let mut bytes = start.to_vec();
        // Mostly a query with one question.
        bytes[2] &= 0x87;
        bytes.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        labels.iter().for_each(|label| bytes.extend(*label));
        bytes.extend([0, 0, kind, 0, 1]);
        packet(&bytes);
        bytes.extend(rest);
        packet(&bytes);
    });
}
