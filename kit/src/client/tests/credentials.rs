//! Credentials from plugins, which are real programs: shell scripts that sleep, lie and fail.

use std::{fs, path::Path};

use windlass_fixtures::files::key;

use super::{super::credentials::Credentials, *};

/// A kubeconfig's user with a plugin that is this shell script.
fn with_plugin(config: &kube::Config, script: &str) -> kube::Config {
    let mut config = config.clone();
    config.auth_info = serde_json::from_value(serde_json::json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "/bin/sh", "args": ["-c", script],
    }}))
    .unwrap();
    config
}

/// Prints the text of a file as token, and notes each time in another one.
fn token_of(dir: &Path, end: &str) -> String {
    let (token, asked) = (dir.join("token"), dir.join("asked"));
    format!(
        r#"echo asked >> {asked}; printf '{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{{{end}"token":"%s"}}}}' "$(cat {token})""#,
        asked = asked.display(),
        token = token.display()
    )
}

fn asked(dir: &Path) -> usize {
    fs::read_to_string(dir.join("asked")).unwrap_or_default().lines().count()
}

/// A server that accepts the token in a file, and answers all others 401.
async fn server_with(token: std::path::PathBuf) -> (kube::Config, Arc<AtomicUsize>) {
    server(move |_, mut stream| {
        let token = token.clone();
        async move {
            while let Some(head) = heard_all(&mut stream).await {
                let wanted = format!("bearer {}\r\n", fs::read_to_string(&token).unwrap());
                if head.to_lowercase().contains(&wanted) {
                    answer(&mut stream, &list(1)).await;
                } else {
                    say(&mut stream, UNAUTHORIZED).await;
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_credential_plugin_runs_once_and_again_after_a_401() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), "first").unwrap();
    let (config, _) = server_with(dir.path().join("token")).await;
    let access = Access::new(with_plugin(&config, &token_of(dir.path(), ""))).unwrap();
    let clients: Vec<_> = (0..4).map(|_| maps_of(&access, LONG)).collect();
    let params = ListParams::default();
    let all = clients.iter().flat_map(|api| (0..5).map(|_| api.list(&params)).collect::<Vec<_>>());
    futures::future::try_join_all(all).await.unwrap();
    assert_eq!(asked(dir.path()), 1);
    // The same kubeconfig, read again, is no reason to ask.
    assert!(!access.replace(with_plugin(&config, &token_of(dir.path(), ""))).unwrap());
    fs::write(dir.path().join("token"), "second").unwrap();
    assert!(clients[0].list(&ListParams::default()).await.is_err(), "the old token");
    tokio::time::timeout(LONG_TIMEOUT, async {
        while clients[0].list(&ListParams::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
    .expect("the new token");
    assert_eq!(asked(dir.path()), 2);
}

/// On a runtime with one thread: what waits for the plugin is the requests, and nothing else.
#[tokio::test]
async fn a_plugin_that_sleeps_holds_up_its_requests_alone() {
    let (config, dialled) = answering().await;
    let slow = maps(with_plugin(&config, "sleep 1000"));
    let why = tokio::time::timeout(LONG_TIMEOUT, slow.list(&ListParams::default())).await.unwrap().unwrap_err();
    assert!(format!("{why:?}").contains("the credential plugin /bin/sh has not answered yet"), "{why:?}");
    assert_eq!(dialled.load(Ordering::SeqCst), 0, "nothing is sent without credentials");
    maps(config).list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_fails_is_told_at_once_and_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let (config, _) = answering().await;
    let ready = dir.path().join("ready");
    fs::write(dir.path().join("token"), "t").unwrap();
    let script =
        format!("[ -e {} ] || {{ echo please log in >&2; exit 1; }}; {}", ready.display(), token_of(dir.path(), ""));
    let api = maps_of(&Access::new(with_plugin(&config, &script)).unwrap(), LONG);
    let why = api.list(&ListParams::default()).await.unwrap_err();
    assert!(format!("{why:?}").contains("please log in"), "{why:?}");
    fs::write(ready, "").unwrap();
    tokio::time::timeout(LONG_TIMEOUT, async {
        while api.list(&ListParams::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
    .expect("it is asked again");
}

/// Others replace the file; a line's end is no part of the token.
#[tokio::test]
async fn a_token_is_read_from_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let (config, _) = server(|_, mut stream| async move {
        while let Some(head) = heard_all(&mut stream).await {
            let good = head.to_lowercase().contains("bearer from-file\r\n");
            if good { answer(&mut stream, &list(1)).await } else { say(&mut stream, UNAUTHORIZED).await }
        }
    })
    .await;
    let mut config = config;
    config.auth_info.token_file = Some(file.display().to_string());
    let why = maps_of(&Access::new(config.clone()).unwrap(), LONG).list(&ListParams::default()).await.unwrap_err();
    assert!(format!("{why:?}").contains("No such file"), "{why:?}");
    fs::write(&file, "from-file\n").unwrap();
    maps_of(&Access::new(config).unwrap(), LONG).list(&ListParams::default()).await.unwrap();
}

/// As client-go does: a connection shows the certificate that it was made with, and a token is that of each request.
#[tokio::test]
async fn another_certificate_drops_connections_and_another_token_does_not() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let access = Access::new(kube::Config::new("https://127.0.0.1:1".parse().unwrap())).unwrap();
    let identity = |text: &str| {
        let pem = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
        Some((pem.clone(), pem))
    };
    let one = identity(&key("go-p256-sec1.pem"));
    let other = identity(&key("openssl-rsa-pkcs1.pem"));
    let token = |text: &str| Some(http::HeaderValue::from_str(text).unwrap());
    let of = |authorization, identity| Credentials { authorization, identity, until: None };
    let dropped = || access.0.generation().borrow().dropped;
    let mut last = dropped();
    for (source, credentials, drops) in [
        (1, of(token("a"), None), false),
        (1, of(token("a"), one.clone()), true),
        (1, of(token("b"), one.clone()), false),
        (1, of(None, other), true),
        // Of a kubeconfig that has been replaced.
        (0, of(None, one), false),
    ] {
        access.0.publish(source, credentials).unwrap();
        assert_eq!(dropped() != last, drops);
        last = dropped();
    }
    // A certificate without its key changes nothing.
    let broken = of(None, identity("nonsense"));
    assert!(access.0.publish(1, broken).is_err());
    assert_eq!(dropped(), last);
    // What was good is used until its end, and not after it.
    let ended = jiff::Timestamp::from_second(1_700_000_000).unwrap();
    access.0.publish(1, Credentials { until: Some(ended), ..Credentials::default() }).unwrap();
    access.0.fetch_failed(1, "no service", ended - jiff::SignedDuration::from_secs(1));
    access.wait_for_credentials(Duration::ZERO).await.unwrap();
    access.0.fetch_failed(1, "no service", ended);
    assert!(access.wait_for_credentials(LONG_TIMEOUT).await.unwrap_err().to_string().contains("no service"));
}
