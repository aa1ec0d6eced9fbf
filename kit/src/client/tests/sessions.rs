//! TLS sessions: each identity is presented in a full handshake, never by resuming a session of an earlier one.

use rustls::{HandshakeKind, ServerConfig};
use tokio_rustls::TlsAcceptor;
use windlass_fixtures::files::key;

use super::*;
use crate::{private_key::PrivateKey, serve::certificates};

const KEYS: [&str; 2] = ["go-p256-sec1.pem", "go-rsa-pkcs1.pem"];

/// A server that has clients resume their sessions, as all do, and closes every connection after one answer. Returns what kind of
/// handshake each connection has had.
async fn resuming_server() -> (kube::Config, Arc<Mutex<Vec<HandshakeKind>>>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let text = key(KEYS[0]);
    let (chain, key) = (certificates(&text).unwrap(), PrivateKey::from_pem(&text).unwrap().to_der());
    let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let (acceptor, kinds) = (TlsAcceptor::from(Arc::new(tls)), Arc::<Mutex<Vec<_>>>::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = kube::Config::new(format!("https://{}", listener.local_addr().unwrap()).parse().unwrap());
    config.accept_invalid_certs = true;
    let seen = Arc::clone(&kinds);
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            seen.lock().push(stream.get_ref().1.handshake_kind().unwrap());
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read_exact(&mut byte).await.is_err() {
                    break;
                }
                head.push(byte[0]);
            }
            let body = list(1);
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    (config, kinds)
}

#[tokio::test]
async fn another_identity_resumes_no_session() {
    let (mut config, kinds) = resuming_server().await;
    let access = Access::new(config.clone()).unwrap();
    let api = maps_of(&access, LONG);
    let ask = async || {
        api.list(&ListParams::default()).await.unwrap();
        *kinds.lock().last().unwrap()
    };
    assert_eq!(ask().await, HandshakeKind::Full);
    // The same identity may; otherwise this server would prove nothing.
    assert_eq!(ask().await, HandshakeKind::Resumed);
    for name in KEYS {
        let pem = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, key(name));
        config.auth_info.client_certificate_data = Some(pem.clone());
        config.auth_info.client_key_data = Some(pem.into());
        assert!(access.replace(config.clone()).unwrap(), "it is another identity");
        assert_eq!(ask().await, HandshakeKind::Full, "the new identity was not shown");
        assert_eq!(ask().await, HandshakeKind::Resumed);
    }
}
