//! Speaks with name servers: one question to any number of them over UDP, and to one over TCP.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use hickory_proto::{
    op::{Header, Message, MessageType, Query},
    rr::Record,
    serialize::binary::{BinDecodable as _, BinDecoder},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::Instant,
};

/// The largest packet that is read: some servers exceed the size that the request allows.
const MAX_PACKET: usize = 4096;

/// An answer, and the bytes that it had.
pub(super) type Exchanged = (Message, usize);

/// What came of asking a server.
pub(super) struct Heard {
    pub(super) server: SocketAddr,
    pub(super) asked_at: Instant,
    pub(super) result: io::Result<Exchanged>,
}

struct Talk {
    server: SocketAddr,
    socket: Arc<UdpSocket>,
}

/// One question, and the servers that were asked over UDP. Each has a socket of its own, so that an answer cannot be
/// forged by who does not see the question.
pub(super) struct Talks<'q> {
    question: &'q Message,
    open: Vec<Talk>,
    heard: FuturesUnordered<BoxFuture<'q, Heard>>,
}

impl<'q> Talks<'q> {
    /// No server is asked yet. `question` has what answers must repeat.
    pub(super) fn new(question: &'q Message) -> Self {
        Self { question, open: Vec::new(), heard: FuturesUnordered::new() }
    }

    /// Asks a server, or asks it again, with a form of the question.
    pub(super) async fn ask(&mut self, server: SocketAddr, form: &Message) -> io::Result<()> {
        let packet = form.to_vec().map_err(io::Error::other)?;
        if let Some(talk) = self.open.iter().find(|talk| talk.server == server) {
            talk.socket.send(&packet).await?;
            return Ok(());
        }
        let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = Arc::new(UdpSocket::bind((any, 0)).await?);
        // Only this server's packets are received, and its refusals too.
        socket.connect(server).await?;
        socket.send(&packet).await?;
        self.open.push(Talk { server, socket: Arc::clone(&socket) });
        let (question, asked_at) = (self.question, Instant::now());
        self.heard.push(Box::pin(async move { Heard { server, asked_at, result: receive(&socket, question).await } }));
        Ok(())
    }

    /// The next answer or refusal of a server that was asked; pending for ever if none is outstanding.
    pub(super) async fn next(&mut self) -> Heard {
        match self.heard.next().await {
            Some(heard) => {
                self.open.retain(|talk| talk.server != heard.server);
                heard
            }
            None => std::future::pending().await,
        }
    }
}

async fn receive(socket: &UdpSocket, question: &Message) -> io::Result<Exchanged> {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let size = socket.recv(&mut buffer).await?;
        if let Some(answer) = answer_to(question, buffer.get(..size).unwrap_or_default()) {
            return Ok((answer, size));
        }
    }
}

/// Asks over TCP; the caller limits the time.
pub(super) async fn over_tcp(server: SocketAddr, question: &Message) -> io::Result<Exchanged> {
    let packet = question.to_vec().map_err(io::Error::other)?;
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(packet.len()).map_err(io::Error::other)?;
    let framed: Vec<u8> = length.to_be_bytes().into_iter().chain(packet).collect();
    stream.write_all(&framed).await?;
    let size = usize::from(stream.read_u16().await?);
    let mut buffer = vec![0; size];
    stream.read_exact(&mut buffer).await?;
    let answer = answer_to(question, &buffer).ok_or_else(|| io::Error::other("the answer is to another question"))?;
    Ok((answer, size))
}

/// The message, if it answers the question.
fn answer_to(question: &Message, packet: &[u8]) -> Option<Message> {
    let answer = Message::from_vec(packet).ok().or_else(|| cut_off(packet))?;
    let is_answer = answer.metadata.message_type == MessageType::Response && answer.metadata.id == question.metadata.id;
    // A server that refuses may leave the question out.
    (is_answer && (answer.queries == question.queries || answer.queries.is_empty())).then_some(answer)
}

/// A message that was cut off in a record, and says so, with the answers before it.
fn cut_off(packet: &[u8]) -> Option<Message> {
    let mut decoder = BinDecoder::new(packet);
    let header = Header::read(&mut decoder).ok().filter(|header| header.metadata.truncation)?;
    let mut message = Message::query();
    message.metadata = header.metadata;
    for _ in 0..header.counts.queries {
        message.queries.push(Query::read(&mut decoder).ok()?);
    }
    let read = std::iter::from_fn(|| Record::read(&mut decoder).ok());
    message.answers = read.take(header.counts.answers.into()).collect();
    Some(message)
}
