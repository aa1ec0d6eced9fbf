//! Against a fake API server that speaks just enough HTTP, and stops doing so.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::ListParams, runtime::watcher};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;

mod credentials;
#[cfg(feature = "serve")]
mod http2;
#[cfg(feature = "serve")]
mod sessions;

const SHORT: Limits = Limits { response: Duration::from_millis(300), watch: Duration::from_millis(300), retry: false };
const LONG: Limits = Limits { response: LONG_TIMEOUT, watch: LONG_TIMEOUT, retry: false };
/// Far more than the limits, and far less than what a kernel waits for.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);

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
    (kube::Config::new(format!("http://{address}").parse().unwrap()), dialled)
}

/// The request line of the next request, or `None` when the client has gone.
async fn heard(stream: &mut TcpStream) -> Option<String> {
    Some(heard_all(stream).await?.lines().next()?.to_owned())
}

/// The head of the next request.
async fn heard_all(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&text).into_owned())
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

fn maps_of(access: &Access, limits: Limits) -> Api<ConfigMap> {
    Api::namespaced(access.client(limits), "n")
}

fn maps(config: kube::Config) -> Api<ConfigMap> {
    maps_of(&Access::new(config).unwrap(), SHORT)
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
    let first = tokio::time::timeout(LONG_TIMEOUT, api.list(&ListParams::default())).await.unwrap();
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
    let asked = tokio::time::timeout(LONG_TIMEOUT, maps(config).list(&ListParams::default())).await.unwrap();
    assert!(asked.is_err());
}

/// A minute for a request, ten seconds for a lease or the node's status, five minutes for a watch that says nothing: by a clock that
/// runs ahead while nothing else happens.
#[tokio::test]
async fn what_gets_no_answer_ends_when_its_limit_says() {
    let (config, _) = server(|_, stream| silent(stream)).await;
    let access = Access::new(config).unwrap();
    for (limits, seconds) in [(Limits::DEFAULT, 60), (Limits::HEARTBEAT, 10)] {
        let api = maps_of(&access, Limits { retry: false, ..limits });
        tokio::time::pause();
        let begun = tokio::time::Instant::now();
        let error = api.list(&ListParams::default()).await.unwrap_err().to_string();
        assert_eq!(begun.elapsed().as_secs(), seconds, "{error}");
        tokio::time::resume();
    }
    let (config, _) = server(|_, mut stream| async move {
        heard(&mut stream).await;
        say(&mut stream, &(STREAM.to_owned() + &event("a", 1))).await;
        silent(stream).await;
    })
    .await;
    let api = maps_of(&Access::new(config).unwrap(), Limits::DEFAULT);
    let begun = tokio::time::Instant::now();
    let mut watch = Box::pin(api.watch(&kube::api::WatchParams::default(), "1").await.unwrap());
    assert!(watch.try_next().await.unwrap().is_some(), "the first event");
    tokio::time::pause();
    // kube reports it as the end of the watch.
    assert!(!matches!(watch.try_next().await, Ok(Some(_))), "nothing was said");
    // The limit runs from the event, which came in this machine's own time.
    assert!((300..360).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
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
        let next = tokio::time::timeout(LONG_TIMEOUT, events.try_next()).await.expect("the watch is stuck");
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
    let limits = Limits { response: Duration::from_millis(100), watch: Duration::from_secs(5), retry: false };
    let api = maps_of(&Access::new(config).unwrap(), limits);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
    let mut seen = 0;
    while seen < 6 {
        let next = tokio::time::timeout(LONG_TIMEOUT, events.try_next()).await.expect("the watch is stuck");
        seen += usize::from(matches!(next.unwrap().unwrap(), watcher::Event::Apply(_)));
    }
}

fn with_token(config: &kube::Config, token: &str) -> kube::Config {
    let mut config = config.clone();
    config.auth_info.token = Some(token.to_owned().into());
    config
}

/// The token in the head of a request.
fn token_in(head: &str) -> String {
    let line = head.lines().find(|line| line.to_lowercase().starts_with("authorization:")).unwrap_or_default();
    line.rsplit(' ').next().unwrap_or_default().to_owned()
}

const UNAUTHORIZED: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// A server that records the connection and token of each request; watches get one event, named after the token.
async fn telling() -> (kube::Config, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let (config, _) = server(move |number, mut stream| {
        let tell = Arc::clone(&tell);
        async move {
            while let Some(head) = heard_all(&mut stream).await {
                let token = token_in(&head);
                tell.lock().push(format!("{number} {token}"));
                if head.contains("watch=true") {
                    say(&mut stream, STREAM).await;
                    say(&mut stream, &event(&token, 2)).await;
                    return silent(stream).await;
                }
                answer(&mut stream, &list(1)).await;
            }
        }
    })
    .await;
    (config, told)
}

#[tokio::test]
async fn another_identity_takes_over_requests_and_watches() {
    let (config, told) = telling().await;
    let access = Access::new(with_token(&config, "old")).unwrap();
    let api = maps_of(&access, LONG);
    api.list(&ListParams::default()).await.unwrap();
    let mut events = std::pin::pin!(watcher(api.clone(), watcher::Config::default()));
    let mut next = async || loop {
        let next = tokio::time::timeout(LONG_TIMEOUT, events.try_next()).await.expect("the watch is stuck");
        if let watcher::Event::Apply(map) = next.unwrap().unwrap() {
            return map.metadata.name.unwrap();
        }
    };
    assert_eq!(next().await, "old");
    assert!(!access.replace(with_token(&config, "old")).unwrap(), "nothing is different");
    assert!(access.replace(with_token(&config, "new")).unwrap());
    assert_eq!(next().await, "new", "an open watch goes on as somebody else");
    api.list(&ListParams::default()).await.unwrap();
    let told = told.lock().clone();
    let of = |token: &str| {
        told.iter().filter(|t| t.ends_with(token)).map(|t| t.split(' ').next().unwrap()).collect::<Vec<_>>()
    };
    assert!(of("new").iter().all(|number| !of("old").contains(number)), "no connection serves both: {told:?}");
}

#[tokio::test]
async fn what_cannot_be_used_changes_nothing() {
    let (config, _) = telling().await;
    let access = Access::new(with_token(&config, "old")).unwrap();
    let api = maps_of(&access, LONG);
    let mut broken = config.clone();
    broken.auth_info.client_certificate_data = Some("not base64".to_owned());
    broken.auth_info.client_key_data = Some("not base64".to_owned().into());
    assert!(access.replace(broken).is_err());
    let mut missing = config.clone();
    missing.auth_info.client_certificate = Some("/nowhere/kubelet.pem".to_owned());
    let why = access.replace(missing).unwrap_err().to_string();
    assert!(why.contains("/nowhere/kubelet.pem could not be read"), "{why}");
    api.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn requests_wait_for_an_identity_and_say_why_there_is_none() {
    let (config, told) = telling().await;
    let access = Access::without_credentials(&config, "this node has no certificate yet", &[]).unwrap();
    let why = maps_of(&access, SHORT).list(&ListParams::default()).await.unwrap_err();
    assert!(format!("{why:?}").contains("this node has no certificate yet"), "{why:?}");
    let api = maps_of(&access, LONG);
    let (asked, ()) = tokio::join!(tokio::spawn(async move { api.list(&ListParams::default()).await }), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        access.replace(with_token(&config, "first")).unwrap();
    });
    asked.unwrap().unwrap();
    assert_eq!(*told.lock(), ["0 first"]);
    access.forget("it has ended");
    let why = maps_of(&access, SHORT).list(&ListParams::default()).await.unwrap_err();
    assert!(format!("{why:?}").contains("it has ended"), "{why:?}");
}

/// As after a rotation that the API server has seen before us: the connection's identity is over, a new one is known.
#[tokio::test]
async fn an_identity_that_was_known_is_shown_once_more_over_a_new_connection() {
    let (config, dialled) = server(|number, mut stream| async move {
        let mut asked = 0;
        while heard(&mut stream).await.is_some() {
            asked += 1;
            if number == 0 && asked > 1 || number > 1 {
                say(&mut stream, UNAUTHORIZED).await;
            } else {
                answer(&mut stream, &list(1)).await;
            }
        }
    })
    .await;
    let access = Access::new(config).unwrap();
    let api = maps_of(&access, LONG);
    api.list(&ListParams::default()).await.unwrap();
    api.list(&ListParams::default()).await.unwrap();
    assert_eq!(dialled.load(Ordering::SeqCst), 2, "the second answer came over a new connection");
    tokio::time::timeout(LONG_TIMEOUT, access.unauthorized()).await.expect("whoever reads credentials is told");
    // A rejected token is not sent again and again.
    let (config, dialled) = server(|_, mut stream| async move {
        while heard(&mut stream).await.is_some() {
            say(&mut stream, UNAUTHORIZED).await;
        }
    })
    .await;
    let api = maps(config);
    for _ in 0..3 {
        assert!(api.list(&ListParams::default()).await.is_err());
    }
    assert_eq!(dialled.load(Ordering::SeqCst), 3);
}

async fn answering() -> (kube::Config, Arc<AtomicUsize>) {
    server(|_, mut stream| async move {
        while heard(&mut stream).await.is_some() {
            answer(&mut stream, &list(1)).await;
        }
    })
    .await
}

/// An address without a listener.
async fn nobody() -> http::Uri {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap()).parse().unwrap()
}

#[tokio::test]
async fn another_server_is_asked_when_the_first_is_gone() {
    let (second, dialled) = answering().await;
    let first = kube::Config::new(nobody().await);
    let access = Access::without_credentials(&first, "", std::slice::from_ref(&second.cluster_url)).unwrap();
    access.replace(first).unwrap();
    let api = maps_of(&access, LONG);
    api.list(&ListParams::default()).await.unwrap();
    api.list(&ListParams::default()).await.unwrap();
    assert_eq!(dialled.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn learned_servers_are_asked_last() {
    let (learned, dialled) = answering().await;
    let first = kube::Config::new(nobody().await);
    let access = Access::without_credentials(&first, "", &[]).unwrap();
    access.replace(first).unwrap();
    let api = maps_of(&access, LONG);
    assert!(api.list(&ListParams::default()).await.is_err());
    tokio::time::timeout(LONG_TIMEOUT, access.dial_failed()).await.expect("whoever looks for servers is told");
    access.learn(&[learned.cluster_url.authority().unwrap().as_str().parse().unwrap()]);
    api.list(&ListParams::default()).await.unwrap();
    assert_eq!(dialled.load(Ordering::SeqCst), 1);
}

/// A server that takes connections and answers nothing: the heartbeat finds it, and everybody's watch moves.
#[tokio::test]
async fn one_silence_moves_all_clients_to_another_server() {
    let (mute, _) = server(|_, mut stream| async move {
        while let Some(line) = heard(&mut stream).await {
            if line.contains("watch=true") {
                say(&mut stream, STREAM).await;
                say(&mut stream, &event("mute", 2)).await;
            } else if line.contains("heartbeat") {
                return silent(stream).await;
            } else {
                answer(&mut stream, &list(1)).await;
            }
        }
    })
    .await;
    let (well, _) = server(|_, mut stream| async move {
        while let Some(line) = heard(&mut stream).await {
            if line.contains("watch=true") {
                say(&mut stream, STREAM).await;
                say(&mut stream, &event("well", 3)).await;
                return silent(stream).await;
            }
            answer(&mut stream, &list(1)).await;
        }
    })
    .await;
    let access = Access::without_credentials(&mute, "", std::slice::from_ref(&well.cluster_url)).unwrap();
    access.replace(mute).unwrap();
    let mut events = std::pin::pin!(watcher(maps_of(&access, LONG), watcher::Config::default()));
    let mut next = async || loop {
        let next = tokio::time::timeout(LONG_TIMEOUT, events.try_next()).await.expect("the watch is stuck");
        if let watcher::Event::Apply(map) = next.unwrap().unwrap() {
            return map.metadata.name.unwrap();
        }
    };
    assert_eq!(next().await, "mute");
    assert!(maps_of(&access, SHORT).get("heartbeat").await.is_err());
    assert_eq!(next().await, "well");
}
