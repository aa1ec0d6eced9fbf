//! Which servers are asked, and how one is.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType},
    rr::{RData, Record},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UdpSocket},
    time::Instant,
};
use windlass_kit::resolv_conf::ResolvConf;

use super::{
    exchange::exchange,
    upstreams::{Failures, Upstreams},
};
use crate::dns::tests::question;

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

#[test]
fn who_has_just_failed_is_asked_last() {
    let servers = [at("192.0.2.1:53"), at("192.0.2.2:53"), at("192.0.2.3:53")];
    let (mut failures, now) = (Failures::default(), Instant::now());
    let after = |seconds: u64| now + Duration::from_secs(seconds);
    assert_eq!(failures.order(&servers, now), servers);
    failures.failed(servers[0], now);
    assert_eq!(failures.order(&servers, after(9)), [servers[1], servers[2], servers[0]]);
    assert_eq!(failures.order(&servers, after(10)), servers);
    failures.failed(servers[0], after(20));
    failures.failed(servers[1], after(20));
    failures.answered(servers[0]);
    assert_eq!(failures.order(&servers, after(21)), [servers[0], servers[2], servers[1]]);
    // All have failed: all are asked all the same.
    servers.iter().for_each(|server| failures.failed(*server, after(22)));
    assert_eq!(failures.order(&servers, after(23)), servers);
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
    let (message, _) = exchange(address, &asked()).await.unwrap();
    assert_eq!(message.answers[0].ttl, 61);
    serve.await.unwrap();
}

#[tokio::test]
async fn what_did_not_fit_is_asked_again_over_tcp() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let udp = UdpSocket::bind(address).await.unwrap();
    let serve = tokio::spawn(async move {
        let mut buffer = [0; 512];
        let (size, from) = udp.recv_from(&mut buffer).await.unwrap();
        udp.send_to(&answer(&buffer[..size], |m| m.metadata.truncation = true), from).await.unwrap();
        let (mut stream, _) = tcp.accept().await.unwrap();
        let mut packet = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut packet).await.unwrap();
        let whole = answer(&packet, |m| {
            let more = m.answers[0].clone();
            m.answers.extend(vec![more; 500]);
        });
        stream.write_u16(u16::try_from(whole.len()).unwrap()).await.unwrap();
        stream.write_all(&whole).await.unwrap();
    });
    let (message, size) = exchange(address, &asked()).await.unwrap();
    assert_eq!(message.answers.len(), 501);
    assert!(size > 4096 && !message.metadata.truncation);
    serve.await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_known_at_once() {
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(exchange(gone, &asked()).await.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}
