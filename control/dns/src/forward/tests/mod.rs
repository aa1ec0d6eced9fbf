//! Which servers are asked, and how one is.

mod health;
mod property;

use std::net::{IpAddr, SocketAddr};

use hickory_proto::{
    op::{Edns, Message, MessageType, ResponseCode},
    rr::{RData, Record},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UdpSocket},
};
use windlass_kit::resolv_conf::ResolvConf;

use super::{Forwarder, exchange::Talks, upstreams::Upstreams};
use crate::{
    message::{Read, Request, Transport, read},
    tests::{packet, question},
};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn servers_of_a_file() {
    let own: IpAddr = "10.96.0.10".parse().unwrap();
    let index_of = |name: &str| (name == "eth0").then_some(3);
    let text = "nameserver 192.0.2.1\nnameserver 10.96.0.10\nnameserver 2001:db8::1\nnameserver fe80::1%eth0\n\
                nameserver fe80::1%7\nnameserver fe80::1%none\nnameserver name\nnameserver 192.0.2.1\n\
                nameserver 192.0.2.1%eth0\n";
    let read = Upstreams::of(&ResolvConf::parse(text), &[own], index_of);
    assert_eq!(read.servers, [at("192.0.2.1:53"), at("[2001:db8::1]:53"), at("[fe80::1%3]:53"), at("[fe80::1%7]:53")]);
    assert_eq!(read.own, [own]);
    assert_eq!(read.unreadable, ["fe80::1%none", "name", "192.0.2.1%eth0"]);
    let many: String = (0..40).map(|n| format!("nameserver 192.0.2.{n}\n")).collect();
    assert_eq!(Upstreams::of(&ResolvConf::parse(&many), &[], index_of).servers.len(), 15);
    assert_eq!(Upstreams::of(&ResolvConf::default(), &[], index_of), Upstreams::default());
}

fn asked() -> Message {
    let mut message = Message::query();
    message.queries.push(question("www.example.com A"));
    message
}

/// The answer of a server: `change` is what is wrong with it.
fn answer(packet: &[u8], change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::from_vec(packet).unwrap();
    message.metadata.message_type = MessageType::Response;
    let address = RData::A(std::net::Ipv4Addr::new(192, 0, 2, 9).into());
    message.answers.push(Record::from_rdata(message.queries[0].name.clone(), 60, address));
    change(&mut message);
    message.to_vec().unwrap()
}

#[tokio::test]
async fn only_the_answer_to_the_question_counts() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let serve = tokio::spawn(async move {
        let mut buffer = [0; 512];
        let (size, from) = server.recv_from(&mut buffer).await.unwrap();
        let packet = &buffer[..size];
        let forged = [
            answer(packet, |m| m.metadata.id = m.metadata.id.wrapping_add(1)),
            answer(packet, |m| m.queries = vec![question("other.example.com A")]),
            answer(packet, |m| m.metadata.message_type = MessageType::Query),
            b"no message".to_vec(),
        ];
        for packet in forged {
            server.send_to(&packet, from).await.unwrap();
        }
        let good = answer(packet, |m| m.answers[0].ttl = 61);
        server.send_to(&good, from).await.unwrap();
    });
    let asked = asked();
    let mut talks = Talks::new(&asked);
    talks.ask(address, &asked).await.unwrap();
    let (message, _) = talks.next().await.result.unwrap();
    assert_eq!(message.answers[0].ttl, 61);
    serve.await.unwrap();
}

fn request(text: &str, change: impl FnOnce(&mut Message)) -> Request {
    match read(&packet(text, change), Transport::Udp) {
        Read::Request(request) => *request,
        other => panic!("{other:?}"),
    }
}

/// A server of a test: its two sockets at one address.
struct Server {
    udp: UdpSocket,
    tcp: TcpListener,
    at: SocketAddr,
}

impl Server {
    async fn bind() -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = tcp.local_addr().unwrap();
        Self { udp: UdpSocket::bind(at).await.unwrap(), tcp, at }
    }

    /// The next question over UDP.
    async fn receive(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = vec![0; 4096];
        let (size, from) = self.udp.recv_from(&mut buffer).await.unwrap();
        buffer.truncate(size);
        (buffer, from)
    }
}

#[tokio::test]
async fn what_did_not_fit_is_asked_again_over_tcp() {
    let server = Server::bind().await;
    let forwarder = Forwarder::of_servers(vec![server.at]);
    let serve = async {
        let (packet, from) = server.receive().await;
        server.udp.send_to(&answer(&packet, |m| m.metadata.truncation = true), from).await.unwrap();
        let (mut stream, _) = server.tcp.accept().await.unwrap();
        let mut packet = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut packet).await.unwrap();
        let whole = answer(&packet, |m| {
            let more = m.answers[0].clone();
            m.answers.extend(vec![more; 500]);
        });
        stream.write_u16(u16::try_from(whole.len()).unwrap()).await.unwrap();
        stream.write_all(&whole).await.unwrap();
    };
    let request = request("www.example.com A", |_| {});
    let (found, ()) = tokio::join!(forwarder.ask(&request, &request.question), serve);
    assert_eq!((found.answers.len(), found.truncated), (501, false));
    assert_eq!(forwarder.cached(), 1);
}

/// As behind a firewall that lets DNS through over UDP alone: what fits into a packet is passed on, and the server goes
/// on to be asked for other names.
#[tokio::test]
async fn a_truncated_answer_is_passed_on_where_tcp_is_closed() {
    let server = Server::bind().await;
    let Server { udp, tcp, at } = server;
    drop(tcp);
    let forwarder = Forwarder::of_servers(vec![at]);
    let serve = async {
        let mut buffer = vec![0; 4096];
        for cut in [0, 5, 0] {
            let (size, from) = udp.recv_from(&mut buffer).await.unwrap();
            let mut reply = answer(&buffer[..size], |m| {
                m.metadata.truncation = true;
                m.edns = None;
                let more = m.answers[0].clone();
                m.answers.push(more);
            });
            // Some servers cut the last record off in its middle.
            reply.truncate(reply.len() - cut);
            udp.send_to(&reply, from).await.unwrap();
        }
    };
    let ask = async {
        for (name, records) in [("a.example.com A", 2), ("b.example.com A", 1), ("c.example.com A", 2)] {
            let request = request(name, |_| {});
            let found = forwarder.ask(&request, &request.question).await;
            assert_eq!((found.code, found.truncated), (ResponseCode::NoError, true), "{name}");
            assert_eq!(found.answers.len(), records, "{name}");
            let reply = Message::from_vec(&crate::message::write(&request, &found)).unwrap();
            assert!(reply.metadata.truncation, "the client is told");
        }
    };
    tokio::join!(serve, ask);
    assert_eq!(forwarder.cached(), 0, "a part of an answer is not kept");
    assert_eq!(forwarder.state().health.reach(at), super::health::Reach::Good);
}

#[tokio::test]
async fn servers_are_asked_with_edns_until_they_refuse_it() {
    let server = Server::bind().await;
    let forwarder = Forwarder::of_servers(vec![server.at]);
    let serve = async {
        let mut with_edns = Vec::new();
        for _ in 0..3 {
            let (packet, from) = server.receive().await;
            let edns = Message::from_vec(&packet).unwrap().edns;
            with_edns.push(edns.is_some());
            let reply = answer(&packet, |m| {
                if m.edns.take().is_some() {
                    m.metadata.response_code = ResponseCode::FormErr;
                    m.answers.clear();
                }
            });
            server.udp.send_to(&reply, from).await.unwrap();
        }
        with_edns
    };
    let ask = async {
        for name in ["a.example.com A", "b.example.com A"] {
            let request = request(name, |_| {});
            assert_eq!(forwarder.ask(&request, &request.question).await.code, ResponseCode::NoError, "{name}");
        }
    };
    let (with_edns, ()) = tokio::join!(serve, ask);
    assert_eq!(with_edns, [true, false, false]);
    // A client that wants signatures cannot do without.
    let request = request("c.example.com A", |m| {
        let mut edns = Edns::new();
        edns.set_dnssec_ok(true);
        m.edns = Some(edns);
    });
    let forms = super::Forms::of(&request, &request.question);
    assert!(forms.form(true, false).edns.is_some());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_known_at_once() {
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = Server::bind().await;
    let forwarder = Forwarder::of_servers(vec![gone, server.at]);
    let serve = async {
        let (packet, from) = server.receive().await;
        server.udp.send_to(&answer(&packet, |_| {}), from).await.unwrap();
    };
    let request = request("www.example.com A", |_| {});
    let (found, ()) = tokio::join!(forwarder.ask(&request, &request.question), serve);
    assert_eq!(found.answers.len(), 1);
    assert_eq!(forwarder.state().health.reach(gone), super::health::Reach::Suspected(0));
    let none = Forwarder::of_servers(vec![gone]);
    assert_eq!(none.ask(&request, &request.question).await.code, ResponseCode::ServFail);
}

/// A resolver of this machine that asks the cluster's DNS: its questions would go round.
#[tokio::test]
async fn a_server_that_leads_back_here_is_not_asked() {
    let server = Server::bind().await;
    let forwarder = Forwarder::of_servers(vec![server.at]);
    let shutdown = tokio_util::sync::CancellationToken::new();
    let heartbeats = windlass_kit::liveness::Heartbeats::default();
    let probe = heartbeats.begin("test", "", windlass_kit::liveness::STUCK_AFTER);
    let serve = async {
        let (packet, from) = server.receive().await;
        let asked = Message::from_vec(&packet).unwrap().queries.remove(0);
        // The letters may change on the way.
        let mut back = asked.clone();
        back.name = hickory_proto::rr::Name::from_ascii(asked.name.to_ascii().to_uppercase()).unwrap();
        assert!(forwarder.came_back(&back));
        assert!(!forwarder.came_back(&question("other.example.com HINFO")));
        let refused = answer(&packet, |m| {
            m.answers.clear();
            m.metadata.response_code = ResponseCode::Refused;
        });
        server.udp.send_to(&refused, from).await.unwrap();
        while !forwarder.servers().await.is_empty() {
            tokio::task::yield_now().await;
        }
        shutdown.cancel();
    };
    let (_, ()) = tokio::join!(forwarder.monitor(&probe, &shutdown), serve);
    let request = request("www.example.com A", |_| {});
    assert_eq!(forwarder.ask(&request, &request.question).await.code, ResponseCode::Refused);
    probe.end();
}
