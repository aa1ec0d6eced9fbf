use std::io;

use bytes::BytesMut;
use futures::{SinkExt as _, channel::mpsc as pipe};
use proptest::prelude::*;

use super::*;

/// The client's end of a connection.
struct Client {
    send: pipe::Sender<io::Result<Bytes>>,
    received: pipe::Receiver<Bytes>,
    decoder: Decoder,
    deflater: Deflater,
}

fn begin() -> (Client, Connection) {
    let (send, input) = pipe::channel(0);
    let (output, received) = pipe::channel(0);
    let output = output.sink_map_err(io::Error::other);
    let connection = start(input, output, &TaskTracker::new(), CancellationToken::new(), Activity::new());
    let deflater = Deflater::new().expect("a dictionary");
    (Client { send, received, decoder: Decoder::default(), deflater }, connection)
}

impl Client {
    async fn send(&mut self, bytes: Bytes) {
        self.send.send(Ok(bytes)).await.expect("the server reads");
    }

    async fn open(&mut self, id: u32, fin: bool) {
        let block = self.deflater.write(&[("streamtype", "data"), ("port", "80")]).expect("a block");
        let mut frame = BytesMut::new();
        frame.extend_from_slice(&[0x80, 3, 0, 1, u8::from(fin)]);
        frame.extend_from_slice(&u32::try_from(10 + block.len()).expect("short").to_be_bytes()[1..]);
        frame.extend_from_slice(&id.to_be_bytes());
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&block);
        self.send(frame.freeze()).await;
    }

    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next().expect("frames") {
                return Some(frame);
            }
            let bytes = self.received.next().await?;
            self.decoder.push(&bytes);
        }
    }
}

#[tokio::test]
async fn a_stream_from_its_opening_to_its_end() {
    let (mut client, mut connection) = begin();
    client.open(1, false).await;
    assert!(matches!(client.next().await, Some(Frame::Headers { stream: 1, fin: false, .. })));
    let mut stream = connection.streams.recv().await.unwrap();
    assert_eq!(stream.headers.get("streamtype"), Some("data"));
    client.send(frame::data(1, false, b"to you")).await;
    client.send(frame::data(1, true, b"")).await;
    assert_eq!(stream.data.recv().await, Some(Bytes::from_static(b"to you")));
    assert_eq!(stream.data.recv().await, None);
    assert!(stream.writer.send(Bytes::from_static(b"to me")).await);
    stream.writer.finish().await;
    let bytes = Bytes::from_static(b"to me");
    assert_eq!(client.next().await, Some(Frame::Data { stream: 1, fin: false, bytes }));
    assert_eq!(client.next().await, Some(Frame::Data { stream: 1, fin: true, bytes: Bytes::new() }));
    client.send(frame::ping(5)).await;
    assert_eq!(client.next().await, Some(Frame::Ping(5)));
    drop(stream);
    let gone = connection.client_gone.clone();
    connection.close().await;
    assert_eq!(client.next().await, Some(Frame::GoAway));
    assert_eq!(client.next().await, None);
    assert!(!gone.is_cancelled(), "the client may still close in order");
    drop(client);
    gone.cancelled().await;
}

#[tokio::test]
async fn resets_of_both_sides() {
    let (mut client, mut connection) = begin();
    client.open(1, false).await;
    let _ = client.next().await;
    let stream = connection.streams.recv().await.unwrap();
    client.send(frame::reset(1, CANCEL)).await;
    stream.writer.reset.cancelled().await;
    assert!(!stream.writer.send(Bytes::from_static(b"x")).await);
    drop(stream);
    client.open(3, false).await;
    let _ = client.next().await;
    drop(connection.streams.recv().await.unwrap());
    assert_eq!(client.next().await, Some(Frame::Reset { stream: 3 }));
    // What is still on the way to a stream that is over does no harm.
    client.send(frame::data(3, true, b"late")).await;
    client.send(frame::ping(1)).await;
    assert_eq!(client.next().await, Some(Frame::Ping(1)));
}

#[tokio::test]
async fn too_many_streams_are_refused_one_by_one() {
    let (mut client, mut connection) = begin();
    let mut kept = Vec::new();
    for i in 0..u32::try_from(MAX_STREAMS).unwrap() {
        client.open(1 + 2 * i, false).await;
        assert!(matches!(client.next().await, Some(Frame::Headers { .. })));
        kept.push(connection.streams.recv().await.unwrap());
    }
    client.open(9_999_999, false).await;
    assert_eq!(client.next().await, Some(Frame::Reset { stream: 9_999_999 }));
    kept.clear();
    while client.next().await != Some(Frame::Reset { stream: 1 }) {}
}

#[tokio::test]
async fn what_no_client_may_do_ends_the_connection() {
    for id in [2, 1] {
        let (mut client, connection) = begin();
        client.open(1, true).await;
        let _ = client.next().await;
        client.open(id, true).await;
        connection.client_gone.cancelled().await;
    }
    let (mut client, connection) = begin();
    client.send(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n\xff\xff\xff\xff")).await;
    drop(client);
    connection.client_gone.cancelled().await;
}

#[tokio::test]
async fn who_does_not_read_is_not_written_to() {
    let (mut client, mut connection) = begin();
    client.open(1, false).await;
    let _ = client.next().await;
    let stream = connection.streams.recv().await.unwrap();
    // The client takes nothing: what is under way stays within the queue, and the sender waits.
    let mut sent = 0;
    while let Ok(true) = tokio::time::timeout(
        std::time::Duration::from_millis(200),
        stream.writer.send(Bytes::from_static(&[0; CHUNK_BYTES])),
    )
    .await
    {
        sent += 1;
    }
    assert!(sent <= FRAME_QUEUE_CAPACITY + 4, "{sent}");
    // The other way: a stream that is not read holds its client up.
    let mut taken = 0;
    while let Ok(Ok(())) = tokio::time::timeout(
        std::time::Duration::from_millis(200),
        client.send.send(Ok(frame::data(1, false, &[0; 1000]))),
    )
    .await
    {
        taken += 1;
    }
    assert!(taken <= STREAM_QUEUE_CAPACITY + 4, "{taken}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes, the connection ends when its client does.
    #[test]
    fn hostile_clients(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8), valid in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (mut client, mut connection) = begin();
            if valid {
                client.open(1, false).await;
            }
            let Client { mut send, received, .. } = client;
            let drain = tokio::spawn(received.for_each(|_| std::future::ready(())));
            for piece in pieces {
                let _ = send.send(Ok(piece.into())).await;
            }
            drop(send);
            while connection.streams.recv().await.is_some() {}
            connection.client_gone.cancelled().await;
            drain.abort();
        });
    }
}
