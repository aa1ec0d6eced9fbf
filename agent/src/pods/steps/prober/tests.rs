use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

#[test]
fn urls_of_paths() {
    for (host, path, wanted) in [
        ("10.0.0.1", "/health", "http://10.0.0.1:8080/health"),
        ("10.0.0.1", "health", "http://10.0.0.1:8080/health"),
        ("10.0.0.1", "", "http://10.0.0.1:8080/"),
        ("fd00::1", "/a?b=c d#e", "http://[fd00::1]:8080/a?b=c%20d"),
        ("10.0.0.1", "/a b/\u{e9}%20c", "http://10.0.0.1:8080/a%20b/%C3%A9%20c"),
        ("10.0.0.1", "//elsewhere/x?y", "http://10.0.0.1:8080/x?y"),
        ("10.0.0.1", "//health", "http://10.0.0.1:8080/"),
        ("10.0.0.1", "///x", "http://10.0.0.1:8080///x"),
    ] {
        let url = action_url(false, host, 8080, path).unwrap();
        assert_eq!((url.as_str(), host_of(&url).as_str()), (wanted, host));
    }
    assert!(action_url(false, "no host", 80, "/").is_err());
}

/// A server that answers each request with what `answer` gives for its first line; and where it is.
async fn server(answer: impl Fn(&str) -> String + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = vec![0; 4096];
            let length = stream.read(&mut asked).await.unwrap_or(0);
            let line = String::from_utf8_lossy(&asked[..length]).lines().next().unwrap_or_default().to_owned();
            let head = answer(&line);
            let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await;
        }
    });
    port
}

async fn ask(port: u16, scheme: &str, path: &str) -> ProbeResult {
    let container = Container::default();
    let target = ProbeTarget { container: &container, id: "", address: Some("127.0.0.1".parse().unwrap()) };
    let action = HTTPGetAction {
        port: IntOrString::Int(port.into()),
        path: Some(path.to_owned()),
        scheme: Some(scheme.to_owned()),
        ..HTTPGetAction::default()
    };
    tokio::time::timeout(Duration::from_secs(20), http_get(target, &action, PROBE_USER_AGENT)).await.unwrap()
}

#[tokio::test]
async fn redirections_stay_or_leave() {
    let port = server(|line| {
        let found = |location: &str| format!("302 Found\r\nLocation: {location}");
        match line.split(' ').nth(1).unwrap_or_default() {
            "/app/start" => found("login"),
            "/app/login" => found("../gone?x=a b"),
            "/gone?x=a%20b" => "503 Service Unavailable".to_owned(),
            "/away" => found("https://example.com/x"),
            "/round" => found("/round"),
            "/wrong" => found("http://["),
            "/other" => found("ftp://127.0.0.1/"),
            "/nowhere" => "302 Found".to_owned(),
            "/same" => "304 Not Modified\r\nLocation: /gone?x=a%20b".to_owned(),
            "/with%20space" => "200 OK".to_owned(),
            _ => "404 Not Found".to_owned(),
        }
    })
    .await;
    let bad = |why: &str| ProbeResult::Failure(why.to_owned());
    assert_eq!(ask(port, "HTTP", "/app/start").await, bad("HTTP probe failed with statuscode: 503"));
    assert!(matches!(ask(port, "HTTP", "/away").await, ProbeResult::Warning(_)));
    let stopped = format!("Get \"http://127.0.0.1:{port}/round\": stopped after 10 redirects");
    assert_eq!(ask(port, "HTTP", "/round").await, bad(&stopped));
    for path in ["/wrong", "/other"] {
        assert!(matches!(ask(port, "HTTP", path).await, ProbeResult::Failure(_)), "{path}");
    }
    for path in ["/nowhere", "/same"] {
        let told = ProbeResult::Warning("Probe terminated redirects, Response body: ".to_owned());
        assert_eq!(ask(port, "HTTP", path).await, told, "{path}");
    }
    assert_eq!(ask(port, "HTTP", "/with space").await, ProbeResult::Success);
}

#[tokio::test]
async fn failures_have_upstreams_words() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let hangs_up = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
    });
    assert_eq!(
        ask(port, "HTTP", "/x?y=z").await,
        ProbeResult::Failure(format!("Get \"http://127.0.0.1:{port}/x?y=z\": EOF"))
    );
    hangs_up.await.unwrap();
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(
        ask(port, "HTTP", "/").await,
        ProbeResult::Failure(format!("Get \"http://127.0.0.1:{port}/\": {refused}"))
    );
    let container = Container::default();
    let target = ProbeTarget { container: &container, id: "", address: Some("127.0.0.1".parse().unwrap()) };
    let action = TCPSocketAction { port: IntOrString::Int(port.into()), host: None };
    assert_eq!(tcp(target, &action).await, ProbeResult::Failure(refused));
    let probe = |text: &str| serde_json::from_str::<Probe>(text).unwrap();
    for (handler, why) in [
        (r#"{"exec":{"command":["sleep","9"]}}"#, "command timed out: \"sleep 9\" timed out after 1s"),
        (r#"{"tcpSocket":{"port":80}}"#, "dial tcp 127.0.0.1:80: i/o timeout"),
        (
            r#"{"httpGet":{"port":80}}"#,
            "Get \"http://127.0.0.1:80/\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        ),
        (r#"{"grpc":{"port":80}}"#, "timeout: health rpc did not complete within 1s"),
    ] {
        assert_eq!(late(target, &probe(handler), Duration::from_secs(1)), why);
    }
}

/// A certificate of X.509's first version, which webpki does not read, with its key.
const OLD: &str = "\
-----BEGIN CERTIFICATE-----
MIIBGTCBvwIUWf90QhrfqDZBKeTq+yWI9V9BobUwCgYIKoZIzj0EAwIwDjEMMAoG
A1UEAwwDb2xkMCAXDTI2MTEyMzA2MzE0NFoYDzIxMjYxMDMwMDYzMTQ0WjAOMQww
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQb7YsWmB414Rk4
PziwdvXL544k/FSm+FzhSLbnXl72hHyS8qGyk588LbcUz6C42MldD9arErLr9XWV
yrARTcD6MAoGCCqGSM49BAMCA0kAMEYCIQCd5EzIyikie+Sr/RzQQ7ujXEkd1FQ8
w1ocbG3jGp25zAIhAPaBaArHLz63W6OXpO+MPmF6jTTd2g3HDitK89FaFSY3
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgiU1p4VsqO87CtNTK
xv2rmFfqwgSLKEI60EqtnS0F8FyhRANCAAQb7YsWmB414Rk4PziwdvXL544k/FSm
+FzhSLbnXl72hHyS8qGyk588LbcUz6C42MldD9arErLr9XWVyrARTcD6
-----END PRIVATE KEY-----
";

/// Shows its certificate without looking at it, as other servers do.
#[derive(Debug)]
struct Always(Arc<rustls::sign::CertifiedKey>);

impl rustls::server::ResolvesServerCert for Always {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[tokio::test]
async fn a_probe_takes_any_certificate() {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from_pem_slice(OLD.as_bytes()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(OLD.as_bytes()).unwrap()];
    let key = provider.key_provider.load_private_key(key).unwrap();
    let certified = Arc::new(rustls::sign::CertifiedKey::new(chain, key));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let resolver = Always(Arc::clone(&certified));
        let config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            let mut asked = vec![0; 4096];
            let _ = stream.read(&mut asked).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            let _ = stream.shutdown().await;
        });
        assert_eq!(ask(port, "HTTPS", "/").await, ProbeResult::Success, "{version:?}");
    }
}

#[test]
fn ports_by_number_and_name() {
    let container: Container =
        serde_json::from_str(r#"{"name":"c","ports":[{"name":"web","containerPort":8080}]}"#).unwrap();
    let target = ProbeTarget { container: &container, id: "", address: None };
    assert_eq!(port_number(target, &IntOrString::String("web".into())), Ok(8080));
    assert_eq!(port_number(target, &IntOrString::Int(81)), Ok(81));
    assert!(port_number(target, &IntOrString::String("none".into())).unwrap_err().contains("no port named"));
    assert!(port_number(target, &IntOrString::Int(0)).is_err());
}
