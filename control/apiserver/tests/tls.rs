//! TLS of the API's listener: TLS 1.2 and 1.3 with modern ciphers only, tested with OpenSSL, which still supports the
//! old ones. The node's listener uses the same code (`kit/src/serve/tls.rs`).

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
};

use tokio_util::sync::CancellationToken;
use windlass_control::ControlPlane;

mod config;
use config::config;

/// Runs a TLS handshake with these arguments; returns success and output.
fn shake(address: SocketAddr, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &address.to_string(), "-brief"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("openssl, which scripts/install.sh test installs");
    let text = [output.stdout, output.stderr].map(|out| String::from_utf8_lossy(&out).into_owned()).concat();
    (text.contains("CONNECTION ESTABLISHED"), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_and_weak_ciphers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plane = ControlPlane::open(config(dir.path())).await.unwrap();
    let listeners = plane.listen().await.unwrap();
    let address = listeners[0].local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = tokio::spawn({
        let stop = stop.clone();
        async move { plane.serve(listeners, stop).await }
    });

    let tried = tokio::task::spawn_blocking(move || {
        // The lowest security level lets this client offer obsolete ciphers.
        let old = "ALL:COMPLEMENTOFALL:@SECLEVEL=0";
        for offered in [
            &["-tls1_3"][..],
            &["-tls1_2"],
            &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"],
            &["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"],
        ] {
            let (established, said) = shake(address, offered);
            assert!(established, "{offered:?} is refused: {said}");
        }
        for offered in [
            &["-tls1", "-cipher", old][..],
            &["-tls1_1", "-cipher", old],
            // No forward secrecy; CBC; SHA-1; no encryption; no certificate.
            &["-tls1_2", "-cipher", "AES128-GCM-SHA256:AES256-GCM-SHA384"],
            &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES256-SHA384"],
            &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"],
            &["-tls1_2", "-cipher", "NULL:@SECLEVEL=0"],
            &["-tls1_2", "-cipher", "aNULL:@SECLEVEL=0"],
        ] {
            let (established, said) = shake(address, offered);
            assert!(!established, "{offered:?} is taken: {said}");
            // The server must reject it: a client that cannot offer it proves nothing.
            assert!(said.contains("SSL alert number "), "{offered:?} did not reach the server: {said}");
        }
    });
    tried.await.unwrap();
    stop.cancel();
    server.await.unwrap();
}
