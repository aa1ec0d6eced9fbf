//! A client's credentials, a value that expires. One task for each source obtains and publishes it; clients read the
//! published value. No client runs a program or reads a file.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;
use jiff::Timestamp;
use kube::config::AuthInfo;
use tokio_util::task::AbortOnDropHandle;

use super::{
    access::{AccessError, Shared},
    exec_plugin::{Answer, Plugin},
};
use crate::backoff::delay_after;

/// How often a file with a token is read; client-go's.
const TOKEN_FILE_PERIOD: Duration = Duration::from_secs(60);
/// Credentials are replaced this long before their end, or when a tenth of their life is left, whichever is shorter.
const BEFORE_THE_END: Duration = Duration::from_secs(60);
/// Waits between attempts that fail.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The least time between two attempts, whatever the API says of what the first one gave.
const MIN_PERIOD: Duration = Duration::from_secs(10);
/// The longest sleep: the clock may be set while we sleep.
const CLOCK_PERIOD: Duration = Duration::from_secs(60);

/// Credentials at one time. What of the kubeconfig does not change (impersonation) is not among them.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    /// The `Authorization` header.
    pub(super) authorization: Option<HeaderValue>,
    /// A client certificate and its key, as base64 of PEM.
    pub(super) identity: Option<(String, String)>,
    /// When they end.
    pub(super) until: Option<Timestamp>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the credentials.
        f.debug_struct("Credentials").field("until", &self.until).finish_non_exhaustive()
    }
}

/// Where credentials come from.
#[derive(Debug)]
pub(super) enum Source {
    /// They are in the kubeconfig, or there are none.
    Fixed(Credentials),
    /// A token in a file that others replace, and what is used while it cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// What else the kubeconfig has: a certificate, and maybe a token.
        beside: Credentials,
    },
    /// A program prints them.
    Plugin(Box<Plugin>),
}

impl Source {
    /// Of a kubeconfig's user, whose certificate is inlined. As in client-go, a plugin is asked only when the kubeconfig has
    /// nothing itself.
    pub(super) fn of(auth: &AuthInfo) -> Result<Self, AccessError> {
        // The type of secrets is not exported.
        let secrets = serde_json::to_value(auth).map_err(|e| AccessError::Credentials(e.to_string()))?;
        let secret = |name: &str| secrets.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let mut fixed = Credentials {
            identity: given(&auth.client_certificate_data).zip(given(&secret("client-key-data"))),
            ..Credentials::default()
        };
        if let Some(token) = given(&secret("token")) {
            fixed.authorization = Some(bearer(&token)?);
        }
        if let Some(file) = given(&auth.token_file) {
            return Ok(Self::File { path: file.into(), beside: fixed });
        }
        if fixed.authorization.is_some() {
            return Ok(Self::Fixed(fixed));
        }
        if let (Some(user), Some(password)) = (given(&auth.username), secret("password")) {
            fixed.authorization = Some(header(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))?);
        } else if let Some(provider) = &auth.auth_provider {
            // Upstream has dropped all others in favour of plugins, and renews this one over a network.
            let token = provider.config.get("id-token").filter(|_| provider.name == "oidc");
            let token = token.ok_or_else(|| {
                AccessError::Credentials(format!(
                    "no Auth Provider found for name {:?}; use a credential plugin (users[].user.exec) instead",
                    provider.name
                ))
            })?;
            fixed.authorization = Some(bearer(token)?);
        } else if let (None, Some(exec)) = (&fixed.identity, &auth.exec) {
            return Ok(Self::Plugin(Box::new(Plugin::new(exec)?)));
        }
        Ok(Self::Fixed(fixed))
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Fixed(_) => "the kubeconfig".to_owned(),
            Self::File { path, .. } => format!("the token file {}", path.display()),
            Self::Plugin(plugin) => format!("the credential plugin {}", plugin.command()),
        }
    }

    async fn fetch(&self) -> Result<Credentials, AccessError> {
        match self {
            Self::Fixed(credentials) => Ok(credentials.clone()),
            Self::File { path, beside } => match token_of(path).await {
                Ok(token) => Ok(Credentials { authorization: Some(bearer(&token)?), ..beside.clone() }),
                Err(_) if beside.authorization.is_some() => Ok(beside.clone()),
                Err(error) => Err(error),
            },
            Self::Plugin(plugin) => of_answer(plugin.run().await?),
        }
    }
}

async fn token_of(path: &Path) -> Result<String, AccessError> {
    let name = path.display().to_string();
    let text = tokio::fs::read_to_string(path).await;
    let text = text.map_err(|source| AccessError::File { path: name.clone(), source })?;
    match text.trim() {
        "" => Err(AccessError::Credentials(format!("read empty token from file {name:?}"))),
        token => Ok(token.to_owned()),
    }
}

fn of_answer(Answer { token, pair, until }: Answer) -> Result<Credentials, AccessError> {
    let authorization = token.map(|token| bearer(&token)).transpose()?;
    // A plugin need not name the end of its certificate, which names it itself.
    let ends = pair.as_ref().and_then(|(cert, _)| certificate_ends(cert));
    let until = [until, ends].into_iter().flatten().min();
    let identity = pair.map(|(cert, key)| (STANDARD.encode(cert), STANDARD.encode(key)));
    Ok(Credentials { authorization, identity, until })
}

/// When the first certificate of a PEM text ends.
fn certificate_ends(pem: &str) -> Option<Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let seconds = pem.parse_x509().ok()?.validity().not_after.timestamp();
    Timestamp::from_second(seconds).ok()
}

fn bearer(token: &str) -> Result<HeaderValue, AccessError> {
    header(&format!("Bearer {token}"))
}

fn header(text: &str) -> Result<HeaderValue, AccessError> {
    let value = HeaderValue::try_from(text);
    let mut value = value.map_err(|_| {
        AccessError::Credentials(
            "token or password has characters that no HTTP header may have, such as a line's end".to_owned(),
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// How long credentials that were fetched at `now` are kept before they are replaced; `None`: until the API refuses them. Pure.
fn life(now: Timestamp, until: Option<Timestamp>) -> Option<Duration> {
    let left = Duration::try_from(until?.duration_since(now)).unwrap_or_default();
    Some(left.saturating_sub(BEFORE_THE_END.min(left / 10)).max(MIN_PERIOD))
}

/// Fetches credentials until they are given up, and publishes them. `number` is that of the source, so that an old one
/// cannot publish any more.
pub(super) fn maintain(shared: &Arc<Shared>, number: u64, source: Source) -> AbortOnDropHandle<()> {
    let mut refusals = shared.refusals();
    let shared = Arc::downgrade(shared);
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut failures = 0;
        loop {
            let fetched = source.fetch().await;
            refusals.borrow_and_update();
            let Some(wait) = publish(&shared, number, &source, fetched, &mut failures) else { return };
            let at = wait.and_then(|wait| Timestamp::now().checked_add(wait).ok());
            tokio::select! {
                () = until(at) => {}
                // What was just fetched and refused would be refused again.
                refused = async { tokio::time::sleep(MIN_PERIOD).await; refusals.changed().await } => {
                    if refused.is_err() {
                        return;
                    }
                }
            }
        }
    }))
}

/// Publishes fetched credentials, and returns when to fetch again; `None` if they are no longer wanted.
fn publish(
    shared: &Weak<Shared>,
    number: u64,
    source: &Source,
    fetched: Result<Credentials, AccessError>,
    failures: &mut u32,
) -> Option<Option<Duration>> {
    let shared = shared.upgrade()?;
    let now = Timestamp::now();
    let published = fetched.and_then(|credentials| {
        let until = credentials.until;
        shared.publish(number, credentials).map(|()| until)
    });
    match published {
        Ok(until) => {
            *failures = 0;
            Some(if let Source::File { .. } = source { Some(TOKEN_FILE_PERIOD) } else { life(now, until) })
        }
        Err(error) => {
            let (reason, attempt) = (error.to_string(), *failures + 1);
            tracing::warn!(
                source = source.name(),
                reason,
                attempt,
                "failed to fetch credentials for the API; retrying"
            );
            shared.fetch_failed(number, &reason, now);
            let wait = delay_after(RETRY_MIN, RETRY_MAX, *failures);
            *failures += 1;
            Some(Some(wait))
        }
    }
}

/// Sleeps until a time by the clock, or for ever.
async fn until(at: Option<Timestamp>) {
    let Some(at) = at else { return std::future::pending().await };
    loop {
        let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(CLOCK_PERIOD)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(auth: &serde_json::Value) -> Result<Source, String> {
        Source::of(&serde_json::from_value(auth.clone()).unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_user_of_a_kubeconfig_is_read_as_in_client_go() {
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let exec = r#""exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"p","interactiveMode":"Never"}"#;
        for (auth, expected) in [
            ("{}".to_owned(), "Fixed"),
            (r#"{"token":"t"}"#.to_owned(), "Fixed Bearer t"),
            (r#"{"username":"u","password":"p"}"#.to_owned(), "Fixed Basic dTpw"),
            (r#"{"token":"t","tokenFile":"/f","username":"u"}"#.to_owned(), "the token file /f"),
            (format!("{{{exec}}}"), "the credential plugin p"),
            (format!(r#"{{"token":"t",{exec}}}"#), "Fixed Bearer t"),
            (format!(r#"{{"client-certificate-data":"Yw==","client-key-data":"aw==",{exec}}}"#), "Fixed identity"),
            (r#"{"auth-provider":{"name":"oidc","config":{"id-token":"i"}}}"#.to_owned(), "Fixed Bearer i"),
            (r#"{"auth-provider":{"name":"gcp","config":{}}}"#.to_owned(), "no Auth Provider found for name \"gcp\""),
            (r#"{"token":"t\n"}"#.to_owned(), "a line's end"),
        ] {
            let found = match of(&json(&auth)) {
                Ok(Source::Fixed(credentials)) => {
                    let header =
                        credentials.authorization.map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap());
                    let identity = credentials.identity.map(|_| " identity".to_owned()).unwrap_or_default();
                    format!("Fixed{identity}{}", header.map(|text| format!(" {text}")).unwrap_or_default())
                }
                Ok(source) => source.name(),
                Err(why) => why,
            };
            assert!(found.contains(expected), "{auth}: {found}");
        }
    }

    /// Also when the plugin does not say so.
    #[test]
    fn a_certificate_of_a_plugin_ends_when_it_says() {
        let text = windlass_fixtures::files::key("go-p256-sec1.pem");
        let own: Timestamp = "2100-01-01T00:00:00Z".parse().unwrap();
        let earlier: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        for (told, expected) in [(None, own), (Some(earlier), earlier)] {
            let answer = Answer { token: None, pair: Some((text.clone(), text.clone())), until: told };
            assert_eq!(of_answer(answer).unwrap().until, Some(expected));
        }
    }

    #[test]
    fn credentials_are_replaced_before_their_end() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (left, expected) in [(3600, 3540), (600, 540), (100, 90), (5, 10), (-5, 10)] {
            let until = now.checked_add(jiff::SignedDuration::from_secs(left)).unwrap();
            assert_eq!(life(now, Some(until)), Some(Duration::from_secs(expected)), "{left}");
        }
        assert_eq!(life(now, None), None);
    }
}
