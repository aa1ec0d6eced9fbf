//! The server with its sockets, over the embedded API.

use std::{net::SocketAddr, time::Duration};

use hickory_proto::op::{Message, ResponseCode};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
};
use tokio_util::sync::CancellationToken;
use windlass_control::{ControlPlane, apiserver::User};
use windlass_kit::{liveness::Heartbeats, metrics::Registry, prometheus::Format};

use super::{config::config, packet};
use crate::{
    ClusterDns, Config,
    records::tests::{service, slice},
};

struct Server {
    _dir: tempfile::TempDir,
    udp: SocketAddr,
    tcp: SocketAddr,
    client: Client,
    metrics: Registry,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(resolv_conf: &str) -> Self {
        let dns = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            service_ip: "10.96.0.10".parse().unwrap(),
            domain: "cluster.local".to_owned(),
            resolv_conf: Some(resolv_conf.into()),
            pod_cidrs: Vec::new(),
        };
        let dns = ClusterDns::bind(dns).await.unwrap();
        let (udp, tcp) = (dns.udp.local_addr().unwrap(), dns.tcp.local_addr().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let plane = ControlPlane::open(config(dir.path())).await.unwrap();
        let client = plane.client(User::internal("system:coredns"));
        let (metrics, stop) = (Registry::default(), CancellationToken::new());
        dns.register_metrics(&metrics);
        let task = tokio::spawn(dns.run(client.clone(), Heartbeats::default(), stop.clone()));
        Self { _dir: dir, udp, tcp, client, metrics, stop, task }
    }

    async fn ask(&self, text: &str) -> Message {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.udp).await.unwrap();
        socket.send(&packet(text, |_| {})).await.unwrap();
        let mut buffer = [0; 4096];
        let size = tokio::time::timeout(Duration::from_secs(10), socket.recv(&mut buffer)).await.unwrap().unwrap();
        Message::from_vec(&buffer[..size]).unwrap()
    }

    /// Asks until the answer's data are these.
    async fn becomes(&self, text: &str, expected: &[&str]) {
        for _ in 0..500 {
            let found: Vec<String> =
                self.ask(text).await.answers.iter().map(|record| record.data.to_string()).collect();
            if found == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{text} does not become {expected:?}");
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn answers_follow_the_objects() {
    let server = Server::start("").await;
    // A request before the records are known waits for them.
    let first = server.ask("web.default.svc.cluster.local A").await;
    assert_eq!(first.metadata.response_code, ResponseCode::NXDomain);
    let services: Api<Service> = Api::namespaced(server.client.clone(), "default");
    let slices: Api<EndpointSlice> = Api::namespaced(server.client.clone(), "default");
    let ports = json!([{"name": "http", "port": 80}]);
    let web = service("default", "web", json!({"ports": ports}));
    let web = services.create(&PostParams::default(), &web).await.unwrap();
    let ip = web.spec.unwrap().cluster_ip.unwrap();
    server.becomes("web.default.svc.cluster.local A", &[&ip]).await;
    let headless = service("default", "nginx", json!({"clusterIP": "None", "ports": ports}));
    services.create(&PostParams::default(), &headless).await.unwrap();
    let one = slice(("default", "nginx"), "nginx-1", &[("10.244.0.5", "web-0")], ports.clone());
    slices.create(&PostParams::default(), &one).await.unwrap();
    server.becomes("web-0.nginx.default.svc.cluster.local A", &["10.244.0.5"]).await;
    let change = json!({"endpoints": [{"addresses": ["10.244.0.6"], "hostname": "web-0"}]});
    slices.patch("nginx-1", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    server.becomes("web-0.nginx.default.svc.cluster.local A", &["10.244.0.6"]).await;
    server.becomes("6.0.244.10.in-addr.arpa PTR", &["web-0.nginx.default.svc.cluster.local."]).await;
    services.delete("web", &DeleteParams::default()).await.unwrap();
    server.becomes("web.default.svc.cluster.local A", &[]).await;
    // There is no server to forward other names to.
    assert_eq!(server.ask("example.com A").await.metadata.response_code, ResponseCode::Refused);
    let page = server.metrics.page(Format::Plain);
    for line in [
        "coredns_dns_requests_total{server=\"dns://:53\",zone=\"cluster.local.\",proto=\"udp\",family=\"1\",type=\"A\"}",
        "coredns_dns_responses_total{server=\"dns://:53\",zone=\".\",rcode=\"REFUSED\",plugin=\"forward\"} 1",
        "coredns_dns_request_duration_seconds_count{",
        "coredns_cache_entries{server=\"dns://:53\",zones=\".\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    server.end().await;
}

#[tokio::test]
async fn several_requests_use_one_connection() {
    let server = Server::start("").await;
    let mut stream = TcpStream::connect(server.tcp).await.unwrap();
    for text in ["cluster.local SOA", "dns-version.cluster.local TXT", "none.cluster.local A"] {
        let packet = packet(text, |_| {});
        stream.write_u16(u16::try_from(packet.len()).unwrap()).await.unwrap();
        stream.write_all(&packet).await.unwrap();
    }
    for code in [ResponseCode::NoError, ResponseCode::NoError, ResponseCode::NXDomain] {
        let mut reply = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(Message::from_vec(&reply).unwrap().metadata.response_code, code);
    }
    // What is no request ends it.
    stream.write_all(&[0, 2, 1, 2]).await.unwrap();
    assert!(stream.read_u16().await.is_err());
    server.end().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let config = Config {
        listen: taken.local_addr().unwrap(),
        service_ip: "10.96.0.10".parse().unwrap(),
        domain: "cluster.local".to_owned(),
        resolv_conf: None,
        pod_cidrs: Vec::new(),
    };
    let error = ClusterDns::bind(config.clone()).await.unwrap_err().to_string();
    assert!(error.contains(&config.listen.to_string()) && error.contains("clusterDNSBindAddress"), "{error}");
    let free = Config { listen: "127.0.0.1:0".parse().unwrap(), domain: "a..b".to_owned(), ..config };
    let error = ClusterDns::bind(free).await.unwrap_err().to_string();
    assert!(error.contains("a..b"), "{error}");
}
