//! Asks one name server one question, over UDP and, if the answer does not fit, over TCP.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use hickory_proto::op::{Message, MessageType};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
};

/// The largest packet that is read: some servers send more than they were told that fits.
const MAX_PACKET: usize = 4096;

/// An answer, and the bytes that it had.
pub(super) type Exchanged = (Message, usize);

/// Asks; the caller limits the time. Each question has a port of its own, so that an answer cannot be forged by who does
/// not see the question.
pub(super) async fn exchange(server: SocketAddr, question: &Message) -> io::Result<Exchanged> {
    let packet = question.to_vec().map_err(io::Error::other)?;
    let (answer, size) = over_udp(server, question, &packet).await?;
    if answer.metadata.truncation { over_tcp(server, question, &packet).await } else { Ok((answer, size)) }
}

async fn over_udp(server: SocketAddr, question: &Message, packet: &[u8]) -> io::Result<Exchanged> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Only this server's packets are received, and its refusals too.
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let size = socket.recv(&mut buffer).await?;
        if let Some(answer) = answer_to(question, buffer.get(..size).unwrap_or_default()) {
            return Ok((answer, size));
        }
    }
}

async fn over_tcp(server: SocketAddr, question: &Message, packet: &[u8]) -> io::Result<Exchanged> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(packet.len()).map_err(io::Error::other)?;
    let framed: Vec<u8> = length.to_be_bytes().into_iter().chain(packet.iter().copied()).collect();
    stream.write_all(&framed).await?;
    let size = usize::from(stream.read_u16().await?);
    let mut buffer = vec![0; size];
    stream.read_exact(&mut buffer).await?;
    let answer = answer_to(question, &buffer).ok_or_else(|| io::Error::other("the answer is to another question"))?;
    Ok((answer, size))
}

/// The message, if it answers the question.
fn answer_to(question: &Message, packet: &[u8]) -> Option<Message> {
    let answer = Message::from_vec(packet).ok()?;
    let is_answer = answer.metadata.message_type == MessageType::Response && answer.metadata.id == question.metadata.id;
    // A server that refuses may leave the question out.
    (is_answer && (answer.queries == question.queries || answer.queries.is_empty())).then_some(answer)
}
