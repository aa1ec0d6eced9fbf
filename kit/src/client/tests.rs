//! Against a fake API server that speaks just enough HTTP, and stops doing so.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::ListParams, runtime::watcher};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;

const SHORT: Limits = Limits { answer: Duration::from_millis(300), watch: Duration::from_millis(300) };
/// Far more than the limits, and far less than what a kernel waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that gives each connection, by its number, to `serve`; where it is, and how often it was dialled.
async fn server<F>(serve: impl Fn(usize, TcpStream) -> F + Send + 'static) -> (kube::Config, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dialled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&dialled);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(count.fetch_add(1, Ordering::SeqCst), stream));
        }
    });
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
    config.default_retry = false;
    (config, dialled)
}

/// The request line of the next request, or `None` when the client has gone.
async fn heard(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&text).lines().next()?.to_owned())
}

async fn say(stream: &mut TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes()).await;
}

async fn answer(stream: &mut TcpStream, json: &str) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", json.len());
    say(stream, &(head + json)).await;
}

/// The connection stays open and nothing comes.
async fn silent(_: TcpStream) {
    std::future::pending().await
}

fn list(version: u32) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMapList","metadata":{{"resourceVersion":"{version}"}},"items":[]}}"#)
}

fn event(name: &str, version: u32) -> String {
    let map = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}}}}"#
    );
    let line = format!("{{\"type\":\"ADDED\",\"object\":{map}}}\n");
    format!("{:x}\r\n{line}\r\n", line.len())
}

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";

fn maps(config: kube::Config) -> Api<ConfigMap> {
    Api::namespaced(client(config, SHORT).unwrap(), "n")
}

#[tokio::test]
async fn a_request_without_an_answer_ends_and_the_next_one_dials_anew() {
    let (config, dialled) = server(|number, mut stream| async move {
        if number == 0 {
            return silent(stream).await;
        }
        while heard(&mut stream).await.is_some() {
            answer(&mut stream, &list(1)).await;
        }
    })
    .await;
    let api = maps(config);
    let first = tokio::time::timeout(PATIENCE, api.list(&ListParams::default())).await.unwrap();
    let error = first.unwrap_err().to_string();
    assert!(error.contains("no answer to GET /api/v1/namespaces/n/configmaps within 300ms"), "{error}");
    api.list(&ListParams::default()).await.unwrap();
    api.list(&ListParams::default()).await.unwrap();
    assert_eq!(dialled.load(Ordering::SeqCst), 2, "the connection that answers is used again");
}

#[tokio::test]
async fn an_answer_that_stops_half_way_ends() {
    let (config, _) = server(|_, mut stream| async move {
        heard(&mut stream).await;
        say(&mut stream, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{").await;
        silent(stream).await;
    })
    .await;
    let asked = tokio::time::timeout(PATIENCE, maps(config).list(&ListParams::default())).await.unwrap();
    assert!(asked.is_err());
}

/// The peer of all connections is gone at once, as when its machine is: none of those that were kept is tried.
#[tokio::test]
async fn after_one_silence_no_old_connection_is_used() {
    let gone = Arc::new(tokio::sync::watch::Sender::new(false));
    let shared = Arc::clone(&gone);
    let (config, dialled) = server(move |number, mut stream| {
        let mut gone = shared.subscribe();
        async move {
            while heard(&mut stream).await.is_some() {
                if number < 3 && *gone.borrow_and_update() {
                    return silent(stream).await;
                }
                // So that three are asked at the same time.
                tokio::time::sleep(Duration::from_millis(50)).await;
                answer(&mut stream, &list(1)).await;
            }
        }
    })
    .await;
    let api = maps(config);
    let at_once = || async { api.list(&ListParams::default()).await };
    let all = tokio::join!(at_once(), at_once(), at_once());
    assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok(), "{all:?}");
    assert_eq!(dialled.load(Ordering::SeqCst), 3);
    gone.send_replace(true);
    assert!(at_once().await.is_err(), "one is lost");
    at_once().await.unwrap();
    assert_eq!(dialled.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_watch_that_goes_silent_goes_on_over_a_new_connection() {
    let (config, dialled) = server(|_, mut stream| async move {
        while let Some(line) = heard(&mut stream).await {
            if !line.contains("watch=true") {
                answer(&mut stream, &list(1)).await;
                continue;
            }
            say(&mut stream, STREAM).await;
            // From where the first one fell silent.
            let next = if line.contains("resourceVersion=2") { event("second", 3) } else { event("first", 2) };
            say(&mut stream, &next).await;
            return silent(stream).await;
        }
    })
    .await;
    let mut events = std::pin::pin!(watcher(maps(config), watcher::Config::default()));
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let next = tokio::time::timeout(PATIENCE, events.try_next()).await.expect("the watch is stuck");
        if let watcher::Event::Apply(map) = next.expect("a silent watch is no error").unwrap() {
            seen.push(map.metadata.name.unwrap());
        }
    }
    assert_eq!(seen, ["first", "second"]);
    assert_eq!(dialled.load(Ordering::SeqCst), 2);
}

/// A watch gets as long as a watch may be silent, however short the limit on other answers is.
#[tokio::test]
async fn a_watch_with_news_goes_on() {
    let (config, _) = server(|_, mut stream| async move {
        while let Some(line) = heard(&mut stream).await {
            if !line.contains("watch=true") {
                answer(&mut stream, &list(1)).await;
                continue;
            }
            say(&mut stream, STREAM).await;
            for version in 2..8 {
                tokio::time::sleep(Duration::from_millis(120)).await;
                say(&mut stream, &event("x", version)).await;
            }
            return silent(stream).await;
        }
    })
    .await;
    let limits = Limits { answer: Duration::from_millis(100), watch: Duration::from_secs(5) };
    let api: Api<ConfigMap> = Api::namespaced(client(config, limits).unwrap(), "n");
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
    let mut seen = 0;
    while seen < 6 {
        let next = tokio::time::timeout(PATIENCE, events.try_next()).await.expect("the watch is stuck");
        seen += usize::from(matches!(next.unwrap().unwrap(), watcher::Event::Apply(_)));
    }
}

#[test]
fn which_answers_have_no_end() {
    for (uri, watch) in [
        ("/api/v1/pods?limit=500&watch=true", true),
        ("/api/v1/pods?watch=1", true),
        ("/api/v1/namespaces/n/pods/p/log?follow=true", true),
        ("/api/v1/pods?watch=false", false),
        ("/api/v1/pods?fieldSelector=watch", false),
        ("/api/v1/pods", false),
    ] {
        assert_eq!(is_watch(&uri.parse().unwrap()), watch, "{uri}");
    }
}
