use std::convert::Infallible;

use axum::{extract::Extension, response::IntoResponse as _, routing::get};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpStream;

use super::{
    limits::{BODY_TIMEOUT, WRITE_TIMEOUT},
    *,
};

type Sender = hyper::client::conn::http2::SendRequest<Full<axum::body::Bytes>>;

/// A server with a page of a megabyte for anybody, on a port of this machine.
async fn served(name: &'static str, shutdown: CancellationToken) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let page = || async { vec![b'x'; 1 << 20].into_response() };
    let watch = |Extension(caller): Extension<Caller>| async move {
        caller.authenticated();
        let mut answer = vec![b'x'; 1 << 20].into_response();
        answer.extensions_mut().insert(LongRunning);
        answer
    };
    let read = |body: axum::body::Body| async move {
        match body.collect().await {
            Ok(_) => StatusCode::OK.into_response(),
            Err(error) => format!("{:?}", BodyError::of(&error)).into_response(),
        }
    };
    let router =
        Router::new().route("/page", get(page)).route("/watch", get(watch)).route("/read", get(page).post(read));
    tokio::spawn(serve_plain(name, listener, router, shutdown));
    address
}

/// An HTTP/2 client that takes nothing of its answers.
async fn client_without_window(address: SocketAddr) -> Sender {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn ask(sender: &mut Sender, path: &str) -> hyper::Response<hyper::body::Incoming> {
    let request = hyper::Request::get(format!("http://localhost{path}")).body(Full::default()).unwrap();
    sender.send_request(request).await.unwrap()
}

fn dropped(server: &str, reason: &str) -> u64 {
    let counts = connection_counts().into_iter().find(|c| c.server == server);
    let found = counts.and_then(|c| c.dropped.into_iter().find(|(why, _)| *why == reason));
    found.map_or(0, |(_, count)| count)
}

#[tokio::test]
async fn a_stream_that_takes_nothing_is_reset_and_a_watch_is_not() {
    const NAME: &str = "a test of streams";
    let shutdown = CancellationToken::new();
    let address = served(NAME, shutdown.clone()).await;
    let mut sender = client_without_window(address).await;
    let (page, watch) = (ask(&mut sender, "/page").await, ask(&mut sender, "/watch").await);
    tokio::time::pause();
    tokio::time::sleep(WRITE_TIMEOUT + Duration::from_secs(1)).await;
    tokio::time::resume();
    let ended = tokio::time::timeout(Duration::from_secs(5), page.into_body().collect()).await.unwrap();
    assert!(ended.is_err(), "the stream was reset");
    assert_eq!(dropped(NAME, "stalled"), 1);
    let waits = tokio::time::timeout(Duration::from_millis(100), watch.into_body().collect()).await;
    assert!(waits.is_err(), "a watch may wait for its client");
    shutdown.cancel();
}

#[tokio::test]
async fn clients_that_take_nothing_keep_nobody_out() {
    const NAME: &str = "a test of many";
    let shutdown = CancellationToken::new();
    let address = served(NAME, shutdown.clone()).await;
    let mut all = Vec::new();
    for _ in 0..Limits::of_process().unauthenticated + 20 {
        let mut sender = client_without_window(address).await;
        let answer = ask(&mut sender, "/page").await;
        all.push((sender, answer));
    }
    let mut late = client_without_window(address).await;
    assert_eq!(ask(&mut late, "/page").await.status(), 200);
    assert!(dropped(NAME, "evicted") >= 20);
    assert_eq!(dropped(NAME, "full") + dropped(NAME, "address_full"), 0);
    shutdown.cancel();
}

/// The body of a request whose end never comes.
struct Endless;

impl hyper::body::Body for Endless {
    type Data = axum::body::Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Infallible>>> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_given_up_by_the_server() {
    let shutdown = CancellationToken::new();
    let address = served("a test of bodies", shutdown.clone()).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::post("/read").header("host", "localhost").body(Endless).unwrap();
    let answer = tokio::spawn(sender.send_request(request));
    // The request has to be there before the clock is moved.
    tokio::time::sleep(Duration::from_millis(200)).await;
    tokio::time::pause();
    tokio::time::sleep(BODY_TIMEOUT + Duration::from_secs(1)).await;
    tokio::time::resume();
    let answer = tokio::time::timeout(Duration::from_secs(5), answer).await.unwrap().unwrap().unwrap();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "Some(Timeout)");
    shutdown.cancel();
}

#[tokio::test]
async fn a_large_answer_comes_whole_in_pieces() {
    let shutdown = CancellationToken::new();
    let address = served("a test of pieces", shutdown.clone()).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let answer = ask(&mut sender, "/page").await;
    assert_eq!(answer.headers()["content-length"], "1048576");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), 1 << 20);
    shutdown.cancel();
}
