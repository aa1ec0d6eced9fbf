//! The façade on a real socket, with a client of HTTP/2 and a Docker that answers from a script.

use std::{future::Future, path::PathBuf, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::{body::Frame, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{io::AsyncWriteExt as _, net::UnixStream};
use windlass_cadvisor::Usage;

use super::{
    grpc::{Code, framed, unframed},
    messages::{
        ContainerStatusRequest, ContainerStatusResponse, ExecSyncRequest, ListContainersRequest,
        ListContainersResponse, Message, StopContainerRequest, VersionRequest, VersionResponse,
    },
    *,
};
use crate::{
    engine::{
        fake,
        inspect::{Exit, Limits, State},
        names::{Identity, SANDBOX_NAME},
    },
    images::ImagesConfig,
    testing::until,
};

type Client = SendRequest<Full<Bytes>>;

/// A façade that is served, and what it looks at.
struct Served {
    dir: tempfile::TempDir,
    containers: PodContainers,
    docker: watch::Sender<Health>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    async fn start(answer: impl Fn(&str) -> String + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake::scripted(dir.path(), answer);
        let config = ImagesConfig {
            file: dir.path().join("images.json"),
            records_dir: dir.path().join("records"),
            high: 100,
            low: 100,
            minimum_age: Duration::ZERO,
            maximum_age: Duration::ZERO,
            foreign: false,
            parallel_pulls: None,
            pull_progress_deadline: Duration::from_secs(60),
            verification: crate::images::PullVerificationPolicy::default(),
            plugins: crate::images::Plugins::default(),
        };
        let (images, _) = Images::build(engine.clone(), config, Arc::default());
        let (docker, health) = watch::channel(Health::Up { version: "20.10.24".to_owned() });
        let (containers, shutdown) = (PodContainers::kept(), CancellationToken::new());
        let (_, pods) = watch::channel(Arc::default());
        let (_, network) = watch::channel(Readiness::Ready);
        let usage = Usage::start(
            windlass_cadvisor::Config::default(),
            windlass_kit::published_map::Publisher::default().subscribe().follow(),
            windlass_kit::published_map::Publisher::default().subscribe().follow(),
            shutdown.clone(),
        );
        let cri = Cri { engine, images, containers: containers.clone(), pods, docker: health, network, usage };
        let listener = SocketListener::bind(&dir.path().join("cri.sock")).await.unwrap();
        let task = tokio::spawn(run(cri, listener, shutdown.clone()));
        Self { dir, containers, docker, shutdown, task }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("cri.sock")
    }

    async fn client(&self) -> Client {
        self.connect().await
    }

    async fn connect<B>(&self) -> SendRequest<B>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + Unpin
            + 'static,
    {
        let stream = UnixStream::connect(self.socket()).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

/// No Docker is asked.
fn nothing(line: &str) -> String {
    panic!("Docker was asked: {line}")
}

fn request(method: &str, body: Vec<u8>, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::post(format!("http://localhost/runtime.v1.{method}"));
    for (name, value) in [("content-type", "application/grpc")].iter().chain(headers) {
        request = request.header(*name, *value);
    }
    request.body(Full::from(body)).unwrap()
}

/// The code of a call, and its message or that of its error.
async fn ended(answer: hyper::Response<hyper::body::Incoming>) -> (u16, Bytes) {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap();
    let code = |all: &HeaderMap| all.get("grpc-status").map(|code| code.to_str().unwrap().parse().unwrap());
    match code(&head.headers) {
        Some(code) => (code, Bytes::copy_from_slice(head.headers["grpc-message"].as_bytes())),
        None => (code(body.trailers().unwrap()).unwrap(), unframed(&body.to_bytes()).unwrap()),
    }
}

async fn call(client: &mut Client, method: &str, message: &impl Message) -> (u16, Bytes) {
    let request = request(method, framed(&message.encoded()).to_vec(), &[]);
    ended(client.send_request(request).await.unwrap()).await
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("not within a minute")
}

fn instance(id: &str, container: &str, state: State) -> crate::engine::inspect::Instance {
    let at = "2026-01-01T00:00:00Z".parse().unwrap();
    crate::engine::inspect::Instance {
        id: id.into(),
        identity: Identity {
            namespace: "ns".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: container.into(),
            attempt: 2,
        },
        state,
        created_at: at,
        image: "sha256:1".into(),
        image_id: "nginx@sha256:2".into(),
        hash: String::new(),
        sandbox: "sandbox".into(),
        log_path: "/log".into(),
        addresses: Vec::new(),
        grace: Some(30),
        runtime: "runc".into(),
        limits: Limits::default(),
        message_from_log: false,
        user: None,
    }
}

fn running(id: &str, container: &str) -> crate::engine::inspect::Instance {
    instance(id, container, State::Running { pid: 1, started_at: "2026-01-01T00:00:01Z".parse().unwrap() })
}

fn exited(id: &str, container: &str, code: i64) -> crate::engine::inspect::Instance {
    let at = "2026-01-01T00:00:02Z".parse().unwrap();
    instance(id, container, State::Exited(Exit { code, ..Exit::killed(at) }))
}

#[tokio::test]
async fn containers_are_those_of_the_table() {
    let served = Served::start(nothing).await;
    let mut client = served.client().await;
    let list = "RuntimeService/ListContainers";
    let (code, why) = call(&mut client, list, &ListContainersRequest::default()).await;
    assert_eq!(code, Code::Unavailable as u16, "nobody knows yet what runs: {why:?}");
    served.containers.set_listed();
    served.containers.set("u", &[running("pod", SANDBOX_NAME), exited("one", "a", 3), running("two", "a")]);
    let (code, answer) = call(&mut client, list, &ListContainersRequest::default()).await;
    let listed = ListContainersResponse::decoded(&answer).unwrap().containers;
    let ids: Vec<&str> = listed.iter().map(|container| container.id.as_str()).collect();
    assert_eq!((code, ids), (0, vec!["one", "two"]), "a sandbox is none");
    assert_eq!(listed[0].annotations["io.kubernetes.container.restartCount"], "2");
    assert_eq!(listed[0].labels["io.kubernetes.pod.uid"], "u");
    let status = "RuntimeService/ContainerStatus";
    let (code, answer) =
        call(&mut client, status, &ContainerStatusRequest { container_id: "one".into(), verbose: true }).await;
    let answer = ContainerStatusResponse::decoded(&answer).unwrap();
    let one = answer.status.unwrap();
    assert_eq!((code, one.exit_code, one.log_path.as_str(), one.image_ref.as_str()), (0, 3, "/log", "nginx@sha256:2"));
    assert!(answer.info["info"].contains("sandboxID"));
    served.docker.send_replace(Health::Down { reason: "Docker did not answer: gone".to_owned() });
    let (code, why) = call(&mut client, list, &ListContainersRequest::default()).await;
    assert_eq!((code, why.as_ref()), (Code::Unavailable as u16, &b"Docker did not answer: gone"[..]));
}

/// Each request that fails: method, message, and the code.
#[tokio::test]
async fn errors_have_codes() {
    let served = Served::start(|line| {
        assert!(line.contains("/stop"), "{line}");
        fake::json(500, r#"{"message":"boom"}"#)
    })
    .await;
    served.containers.set_listed();
    served.containers.set("u", &[running("pod", SANDBOX_NAME), exited("one", "a", 3), running("two", "a")]);
    let mut client = served.client().await;
    let id = |id: &str| StopContainerRequest { container_id: id.into(), timeout: 0 }.encoded();
    let exec = |id: &str, cmd: &[&str]| {
        let cmd = cmd.iter().map(|word| (*word).to_owned()).collect();
        ExecSyncRequest { container_id: id.into(), cmd, timeout: 0 }.encoded()
    };
    for (method, message, code) in [
        ("RuntimeService/StopContainer", id("nope"), Code::NotFound),
        ("RuntimeService/StopContainer", id("pod"), Code::NotFound),
        ("RuntimeService/StopContainer", id(""), Code::InvalidArgument),
        ("RuntimeService/StopContainer", id("two"), Code::Internal),
        ("RuntimeService/StopContainer", vec![0x80], Code::Internal),
        ("RuntimeService/ContainerStatus", id("nope"), Code::NotFound),
        ("RuntimeService/PodSandboxStatus", id("two"), Code::NotFound),
        ("RuntimeService/ExecSync", exec("one", &["true"]), Code::FailedPrecondition),
        ("RuntimeService/ExecSync", exec("two", &[]), Code::InvalidArgument),
        ("RuntimeService/Exec", exec("two", &["true"]), Code::Unimplemented),
        ("RuntimeService/RunPodSandbox", Vec::new(), Code::Unimplemented),
        ("RuntimeService/Nope", Vec::new(), Code::Unimplemented),
        ("ImageService/RemoveImage", Vec::new(), Code::Unimplemented),
        ("ImageService/PullImage", Vec::new(), Code::InvalidArgument),
        ("ImageService/PullImage", vec![0x0a, 4, 0x0a, 2, b'A', b'!'], Code::InvalidArgument),
        ("Other/Version", Vec::new(), Code::Unimplemented),
    ] {
        let answer = client.send_request(request(method, framed(&message).to_vec(), &[])).await.unwrap();
        let (found, why) = ended(answer).await;
        assert_eq!(found, code as u16, "{method} {message:?}: {why:?}");
    }
    // One that has exited is stopped.
    let stop = request("RuntimeService/StopContainer", framed(&id("one")).to_vec(), &[]);
    assert_eq!(ended(client.send_request(stop).await.unwrap()).await.0, 0);
    for (body, headers, code) in [
        (vec![0, 0, 0], vec![], Code::Internal),
        (framed(b"").to_vec(), vec![("grpc-timeout", "x")], Code::Internal),
        (vec![1, 0, 0, 0, 0], vec![], Code::Unimplemented),
        (vec![0; grpc::MAX_BODY_BYTES + 1], vec![], Code::ResourceExhausted),
    ] {
        let mut client = served.client().await;
        let answer = client.send_request(request("RuntimeService/Version", body, &headers)).await.unwrap();
        assert_eq!(ended(answer).await.0, code as u16);
    }
}

#[tokio::test]
async fn what_is_no_grpc_is_refused() {
    let served = Served::start(nothing).await;
    let mut client = served.client().await;
    let page = Request::get("http://localhost/").body(Full::default()).unwrap();
    assert_eq!(client.send_request(page).await.unwrap().status(), 415);
}

/// A Docker that never ends a stop: the client's time limit holds.
#[tokio::test]
async fn a_call_ends_with_the_time_limit_of_its_client() {
    let served =
        Served::start(|_| "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".to_owned()).await;
    served.containers.set_listed();
    served.containers.set("u", &[running("two", "a")]);
    let stop = framed(&StopContainerRequest { container_id: "two".into(), timeout: 30 }.encoded()).to_vec();
    let mut client = served.client().await;
    let answer = client.send_request(request("RuntimeService/StopContainer", stop, &[("grpc-timeout", "50m")])).await;
    assert_eq!(ended(answer.unwrap()).await.0, Code::DeadlineExceeded as u16);
}

async fn answers(client: &mut Client) -> bool {
    let (code, answer) = within(call(client, "RuntimeService/Version", &VersionRequest::default())).await;
    code == 0 && VersionResponse::decoded(&answer).unwrap().runtime_name == "docker"
}

/// Connections that ask nothing, that stop inside of HTTP/2's preface, a frame or a message; more of them than there may be.
#[tokio::test]
async fn a_flood_of_connections_that_hang_shuts_nobody_out() {
    let served = Served::start(nothing).await;
    let mut before = served.client().await;
    assert!(answers(&mut before).await);
    let mut hanging = Vec::new();
    for number in 0..4 * MAX_CONNECTIONS {
        let mut stream = UnixStream::connect(served.socket()).await.unwrap();
        // An empty SETTINGS frame, and one of HEADERS that is longer than what comes.
        let sent: &[u8] = match number % 3 {
            0 => b"",
            1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r",
            _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x40\x01\x04\0\0\0\x01\x88",
        };
        // It may have been closed for others already.
        let _ = stream.write_all(sent).await;
        hanging.push(stream);
    }
    let mut half = Vec::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        // A message whose end never comes.
        let begun = futures::stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[0, 0])))]);
        let body = StreamBody::new(begun.chain(futures::stream::pending()));
        let mut client: SendRequest<_> = served.connect().await;
        let call = request("RuntimeService/Version", Vec::new(), &[]).map(|_| body);
        half.push(tokio::spawn(async move { client.send_request(call).await.map(drop) }));
    }
    let mut after = served.client().await;
    assert!(answers(&mut after).await);
    drop((hanging, half));
    let mut last = served.client().await;
    assert!(answers(&mut last).await);
}

#[tokio::test]
async fn a_client_goes_on_when_the_socket_was_removed_and_comes_back() {
    let served = Served::start(nothing).await;
    let mut before = served.client().await;
    assert!(answers(&mut before).await);
    for _ in 0..3 {
        std::fs::remove_file(served.socket()).unwrap();
        until("the socket is there again", || served.socket().exists()).await;
        let mut after = served.client().await;
        assert!(answers(&mut after).await && answers(&mut before).await);
    }
    served.shutdown.cancel();
    within(served.task).await.unwrap();
    assert!(!served.dir.path().join("cri.sock").exists(), "it goes with the agent");
}
