//! What upstream's own tests say of the handlers of probes.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use http_body_util::StreamBody;
use hyper::{body::Frame, service::service_fn};
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::{GRPCAction, HTTPHeader};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use windlass_fixtures::facts::{json_of, rows, text_of, value_of};

use super::*;
use crate::pods::container::env::expand_static;

static HANDLERS: &str = include_str!("../../../../../facts/probe_handlers.tsv");
static PORTS: &str = include_str!("../../../../../facts/probe_ports.tsv");
static REQUESTS: &str = include_str!("../../../../../facts/probe_http_requests.tsv");
static HOOKS: &str = include_str!("../../../../../facts/hook_requests.tsv");
static HTTP: &str = include_str!("../../../../../facts/probe_http.tsv");
static EXEC: &str = include_str!("../../../../../facts/probe_exec.tsv");
static TCP: &str = include_str!("../../../../../facts/probe_tcp.tsv");
static GRPC: &str = include_str!("../../../../../facts/probe_grpc.tsv");

fn target<'a>(container: &'a Container, address: &str) -> ProbeTarget<'a> {
    ProbeTarget { container, id: "", address: Some(address.parse().unwrap()) }
}

fn word(result: &ProbeResult) -> &'static str {
    match result {
        ProbeResult::Success => "success",
        ProbeResult::Warning(_) => "warning",
        ProbeResult::Failure(_) => "failure",
        ProbeResult::Unknown(_) => "unknown",
    }
}

fn handlers_hold(row: &[&str]) {
    let container: Container = value_of(r#"{"name":"c","ports":[{"name":"found","containerPort":93}]}"#);
    match *row {
        ["TestGetURLParts", handler, "bad"] => {
            assert!(first_url(target(&container, "127.0.0.1"), &value_of(handler)).is_err(), "{handler}");
        }
        ["TestGetURLParts", handler, name, port, path] => {
            let url = first_url(target(&container, "127.0.0.1"), &value_of(handler)).unwrap();
            assert_eq!(
                (host_of(&url), url.port_or_known_default()),
                (name.to_owned(), Some(value_of(port))),
                "{handler}"
            );
            assert_eq!(url.path().trim_start_matches('/'), text_of(path), "{handler}");
        }
        ["TestGetTCPAddrParts", handler, ref parts @ ..] => {
            let (action, target) = (value_of::<TCPSocketAction>(handler), target(&container, "1.2.3.4"));
            let found = match port_number(target, &action.port) {
                Ok(port) => vec![host(target, action.host.as_deref()).unwrap(), port.to_string()],
                Err(_) => vec!["bad".to_owned()],
            };
            assert_eq!(found, parts, "{handler}");
        }
        // Which handler a probe has is seen by who runs it.
        ["TestProbe", "null" | "{}", ..] => {}
        ["TestProbe", probe, variables, said, could_run, result, is_error, command] => {
            let ran = match (said, could_run) {
                // A command has succeeded or failed, or could not be run.
                ("warning" | "unknown", "true") => return,
                (_, "false") => Err("exec error".to_owned()),
                (said, _) => Ok(ExecResult { code: i64::from(said == "failure"), output: String::new() }),
            };
            let found = exec_result(ran);
            assert_eq!(matches!(found, ProbeResult::Unknown(_)), is_error == "true", "{row:?}");
            assert_eq!(found == ProbeResult::Success, result == "success", "{row:?}");
            let variables: BTreeMap<String, String> = value_of(variables);
            let env: Vec<Value> = variables.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let container: Container = value_of(&json!({"name": "c", "env": env}).to_string());
            let words = value_of::<Probe>(probe).exec.unwrap().command.unwrap_or_default();
            assert_eq!(expand_static(&words, &container), value_of::<Vec<String>>(command), "{probe}");
        }
        _ => panic!("{row:?}"),
    }
}

#[test]
fn handlers_are_resolved_as_upstreams_tests_say() {
    let seen = rows(HANDLERS).inspect(|row| handlers_hold(row)).count();
    assert!(seen > 20, "{seen}");
}

#[test]
fn ports_are_found_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(PORTS) {
        let [_, case, port, container, expected] = *row else { panic!("{row:?}") };
        let port = port.parse().map_or_else(|_| IntOrString::String(text_of(port)), IntOrString::Int);
        let container: Container = value_of(container);
        let found = port_number(target(&container, "127.0.0.1"), &port);
        assert_eq!(found.ok(), expected.parse().ok(), "{case}");
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn requests_are_made_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(REQUESTS) {
        match *row {
            ["TestFormatURL", scheme, host, port, path, url] => {
                let found = action_url(scheme == "https", host, value_of(port), &text_of(path)).unwrap();
                // A URL without a path has the root's here.
                assert_eq!(found, Url::parse(url).unwrap(), "{url}");
            }
            [_, given, sent] => {
                let given: Vec<(String, String)> = value_of(given);
                let given = given.into_iter().map(|(name, value)| HTTPHeader { name, value }).collect();
                let mut found = HeaderMap::new();
                let action = HTTPGetAction { http_headers: Some(given), ..HTTPGetAction::default() };
                set_headers(&mut found, &action, true).unwrap();
                let sent: BTreeMap<String, Vec<String>> = value_of(sent);
                let names: BTreeSet<String> = found.keys().map(|name| name.as_str().to_owned()).collect();
                assert_eq!(names, sent.keys().map(|name| name.to_lowercase()).collect(), "{row:?}");
                for (name, values) in &sent {
                    let found: Vec<&[u8]> = found.get_all(name).iter().map(HeaderValue::as_bytes).collect();
                    assert_eq!(found, values.iter().map(String::as_bytes).collect::<Vec<_>>(), "{name}");
                }
            }
            _ => panic!("{row:?}"),
        }
        seen += 1;
    }
    assert!(seen > 9, "{seen}");
}

/// Hooks ask as probes do.
#[test]
fn hooks_ask_as_upstreams_tests_say() {
    let container: Container = value_of(r#"{"name":"c","ports":[{"name":"quux","containerPort":8080}]}"#);
    let mut seen = 0;
    for row in rows(HOOKS) {
        let [_, case, address, handler, url, headers] = *row else { panic!("{row:?}") };
        let mut action: HTTPGetAction = value_of(handler);
        // The API has them in capitals, and no others.
        action.scheme = action.scheme.map(|scheme| scheme.to_uppercase());
        if !matches!(action.scheme.as_deref(), Some("HTTP" | "HTTPS")) {
            continue;
        }
        let target = ProbeTarget { container: &container, id: "", address: text_of(address).parse().ok() };
        // What a fragment says is not sent.
        let expected = url.split('#').next().unwrap();
        assert_eq!(first_url(target, &action).unwrap(), Url::parse(expected).unwrap(), "{case}");
        let mut all = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("*/*"))]);
        set_headers(&mut all, &action, true).unwrap();
        let mut headers: BTreeMap<String, Vec<String>> = value_of(headers);
        assert!(headers.remove("User-Agent").unwrap()[0].starts_with("kube-lifecycle/"), "{case}");
        let headers =
            headers.iter().flat_map(|(name, values)| values.iter().map(|value| (name.to_lowercase(), value.clone())));
        let found =
            all.iter().map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        assert_eq!(found.collect::<BTreeSet<_>>(), headers.collect(), "{case}");
        seen += 1;
    }
    assert!(seen > 9, "{seen}");
}

/// A request as a server has it: its path, and its headers as Go calls them.
#[derive(Debug, Clone, Default)]
struct Asked {
    path: String,
    headers: Vec<(String, String)>,
}

impl Asked {
    fn of(text: &str) -> Self {
        let mut lines = text.lines();
        let path = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_owned();
        let word = |word: &str| {
            let (first, rest) = word.split_at(1);
            format!("{}{}", first.to_uppercase(), rest.to_lowercase())
        };
        let name = |name: &str| name.split('-').map(word).collect::<Vec<_>>().join("-");
        let headers =
            lines.filter_map(|line| line.split_once(':')).map(|(of, value)| (name(of), value.trim().to_owned()));
        Self { path, headers: headers.collect() }
    }

    fn host(&self) -> &str {
        self.headers.iter().find(|(name, _)| name == "Host").map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// What a page of upstream's tests shows of the request; the host is not among its headers.
    fn shown(&self, what: &str) -> String {
        let others = || self.headers.iter().filter(|(name, _)| name != "Host");
        let names: BTreeSet<&str> = others().map(|(name, _)| name.as_str()).collect();
        match what {
            "headers" => others().map(|(name, value)| format!("{name}: {value}\n")).collect(),
            "count" => names.len().to_string(),
            "names" => names.into_iter().collect::<Vec<_>>().join("\n"),
            _ => self.host().to_owned(),
        }
    }
}

/// A server of HTTP: `answer` gives status, place and text; `None` ends the connection, and a status of 0 lets it wait. Returns its
/// port, and what it was asked last.
async fn serve(answer: impl Fn(&Asked) -> Option<(u16, String, String)> + Send + 'static) -> (u16, Arc<Mutex<Asked>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let last = Arc::<Mutex<Asked>>::default();
    let seen = Arc::clone(&last);
    tokio::spawn(async move {
        let mut waiting = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => text.push(byte),
                    Err(_) => break,
                }
            }
            let asked = Asked::of(&String::from_utf8_lossy(&text));
            let answer = answer(&asked);
            *seen.lock() = asked;
            match answer {
                None => {}
                Some((0, ..)) => waiting.push(stream),
                Some((status, place, text)) => {
                    let place = if place.is_empty() { place } else { format!("Location: {place}\r\n") };
                    let head = format!("HTTP/1.1 {status} X\r\n{place}Content-Length: {}\r\n\r\n", text.len());
                    let _ = stream.write_all(format!("{head}{text}").as_bytes()).await;
                }
            }
        }
    });
    (port, last)
}

async fn ask(port: u16, path: &str, headers: Vec<HTTPHeader>) -> ProbeResult {
    let container = Container::default();
    let action = HTTPGetAction {
        port: IntOrString::Int(port.into()),
        path: Some(path.to_owned()),
        http_headers: Some(headers),
        ..HTTPGetAction::default()
    };
    let asked = http_get(target(&container, "127.0.0.1"), &action, PROBE_USER_AGENT);
    with_timeout(Duration::from_millis(700), || "late".to_owned(), asked).await
}

/// A server of one row of a table.
async fn server_of(row: Value) -> (u16, Arc<Mutex<Asked>>) {
    let status = row[1].as_i64().and_then(|status| u16::try_from(status).ok());
    serve(move |asked| {
        let (is_first, none) = (asked.path == "/", String::new());
        Some(match row[0].as_str().unwrap() {
            "answer" => (status?, none, row[2].as_str().unwrap().to_owned()),
            "sleep" => (0, none.clone(), none),
            "redirect" | "lost" if is_first => (status?, "/new".to_owned(), none),
            "redirect" => (if row[2] == true { 500 } else { 200 }, none.clone(), none),
            "lost" => (status?, none, row[2].as_str().unwrap().to_owned()),
            _ => (200, none.clone(), none),
        })
    })
    .await
}

async fn http_holds(row: &[&str]) {
    match *row {
        ["TestHTTPProbeChecker", server, headers, expected, has, has_not] => {
            let server = json_of(server);
            let (port, last) = server_of(server.clone()).await;
            let headers: BTreeMap<String, Vec<String>> = value_of(headers);
            let all =
                headers.iter().flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())));
            let found = ask(port, "/", all.map(|(name, value)| HTTPHeader { name, value }).collect()).await;
            assert_eq!(word(&found), expected, "{row:?} {found:?}");
            let page = match (&found, server[0].as_str().unwrap()) {
                (ProbeResult::Warning(text), _) => text.clone(),
                // The output of a successful probe is not reported.
                (_, "answer" | "redirect" | "sleep") => return,
                (_, what) => last.lock().shown(what),
            };
            let (has, has_not) = (text_of(has), text_of(has_not));
            assert!(page.contains(&has), "{row:?}: {page}");
            assert!(has_not.is_empty() || !page.contains(&has_not), "{row:?}: {page}");
        }
        ["TestHTTPProbeChecker_NonLocalRedirects", case, place, expected] => {
            let pages = |place: String| {
                move |asked: &Asked| {
                    let (none, to) = (String::new(), |place: &str| (302, place.to_owned(), String::new()));
                    Some(match asked.path.as_str() {
                        "/redirect" => to(&place),
                        "/loop" => to("/loop"),
                        "/success" => (200, none.clone(), none),
                        _ => (500, none.clone(), none),
                    })
                }
            };
            let (other, _) = serve(pages(String::new())).await;
            let place = place.replace("OTHER", &format!("http://127.0.0.1:{other}"));
            let (port, _) = serve(pages(place)).await;
            assert_eq!(word(&ask(port, "/redirect", Vec::new()).await), expected, "{case}");
        }
        ["TestHTTPProbeChecker_HostHeaderPreservedAfterRedirect", case, host, expected] => {
            let (port, _) = serve(|asked| {
                let none = String::new();
                Some(match (asked.path.as_str(), asked.host()) {
                    ("/redirect", _) => (302, "/success".to_owned(), none),
                    (_, "www.success.com") => (200, none.clone(), none),
                    _ => (400, none.clone(), none),
                })
            })
            .await;
            let header = HTTPHeader { name: "Host".to_owned(), value: host.to_owned() };
            assert_eq!(word(&ask(port, "/redirect", vec![header]).await), expected, "{case}");
        }
        _ => panic!("{row:?}"),
    }
}

#[tokio::test]
async fn servers_of_http_are_judged_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(HTTP) {
        http_holds(&row).await;
        seen += 1;
    }
    assert!(seen > 35, "{seen}");
}

/// A name that is given no value is not asked for, and a length is the request's own.
#[tokio::test]
async fn a_host_that_is_empty_is_the_pods() {
    let (port, last) = serve(|_| Some((200, String::new(), String::new()))).await;
    let header = |name: &str, value: &str| HTTPHeader { name: name.to_owned(), value: value.to_owned() };
    let headers = vec![header("Host", ""), header("Content-Length", "5"), header("Transfer-Encoding", "chunked")];
    assert_eq!(ask(port, "/", headers).await, ProbeResult::Success);
    let asked = last.lock().clone();
    assert_eq!(asked.host(), format!("127.0.0.1:{port}"));
    assert_eq!(asked.shown("names"), "Accept\nConnection\nUser-Agent");
}

#[test]
fn commands_are_judged_as_upstreams_tests_say() {
    let mut seen = 0;
    for row in rows(EXEC) {
        let [_, output, code, why, expected, is_error] = *row else { panic!("{row:?}") };
        let output = output.parse().map_or_else(|_| text_of(output), |length| "x".repeat(length));
        let found = match code.parse() {
            Ok(code) => exec_result(Ok(ExecResult { code, output: output.clone() })),
            // An abandoned command is reported in the words of upstream's runtime.
            Err(_) if why.starts_with("command timed out: ") => {
                let probe: Probe = value_of(r#"{"exec":{"command":["sleep","9"]}}"#);
                let container = Container::default();
                let late = late(target(&container, "127.0.0.1"), &probe, Duration::from_secs(1));
                assert_eq!(late, "command timed out: \"sleep 9\" timed out after 1s");
                ProbeResult::Failure(late)
            }
            Err(_) => exec_result(Err(why.to_owned())),
        };
        assert_eq!(word(&found), expected, "{row:?}");
        assert_eq!(matches!(found, ProbeResult::Unknown(_)), is_error == "true", "{row:?}");
        // A failure without output is described by its exit code: docs/decisions.md.
        if let (ProbeResult::Failure(told), true) = (&found, !output.is_empty()) {
            assert_eq!(*told, output, "{row:?}");
        }
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
}

/// A port of this machine, and who listens there, if anybody is to.
async fn port_of(listens: bool) -> (u16, Option<TcpListener>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap().port(), listens.then_some(listener))
}

#[tokio::test]
async fn connections_are_judged_as_upstreams_tests_say() {
    for row in rows(TCP) {
        let [_, listens, expected] = *row else { panic!("{row:?}") };
        let (port, _listener) = port_of(listens == "true").await;
        let container = Container::default();
        let action = TCPSocketAction { port: IntOrString::Int(port.into()), host: None };
        assert_eq!(word(&tcp(target(&container, "127.0.0.1"), &action).await), expected, "{row:?}");
    }
}

/// A gRPC server that answers health checks with this status after this delay.
async fn grpc_server(listener: TcpListener, health: u8, after: Duration) {
    while let Ok((stream, _)) = listener.accept().await {
        let answer = move |_: Request<hyper::body::Incoming>| async move {
            tokio::time::sleep(after).await;
            let message = Bytes::from(vec![0, 0, 0, 0, 2, 8, health]);
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let frames = [Frame::data(message), Frame::trailers(trailers)].map(Ok::<_, Infallible>);
            let body = StreamBody::new(futures::stream::iter(frames));
            Response::builder().header(header::CONTENT_TYPE, "application/grpc").body(body)
        };
        let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(served.serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

async fn grpc_holds(row: Vec<&'static str>) {
    let [_, case, server, limit, expected, text] = *row else { panic!("{row:?}") };
    let (port, listener) = port_of(server != "nobody").await;
    if let Some(listener) = listener {
        match server {
            "http" => drop(tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                }
            })),
            "late" => drop(tokio::spawn(grpc_server(listener, 1, Duration::from_secs(60)))),
            health => {
                drop(tokio::spawn(grpc_server(listener, if health == "serving" { 1 } else { 2 }, Duration::ZERO)))
            }
        }
    }
    let container = Container::default();
    let action = GRPCAction { port: port.into(), service: None };
    let limit = Duration::from_secs_f64(value_of(limit));
    let found = grpc(target(&container, "127.0.0.1"), &action, limit).await;
    assert_eq!(word(&found), expected, "{case}: {found:?}");
    if let (ProbeResult::Failure(found), true) = (&found, text != "null") {
        // Upstream's test has a pod without an address.
        let expected = text_of(text).replace("\":32\"", &format!("\"127.0.0.1:{port}\""));
        assert_eq!(*found, expected, "{case}");
    }
}

#[tokio::test]
async fn servers_of_grpc_are_judged_as_upstreams_tests_say() {
    let all: Vec<_> = rows(GRPC).map(grpc_holds).collect();
    assert!(all.len() > 5, "{}", all.len());
    futures::future::join_all(all).await;
}
