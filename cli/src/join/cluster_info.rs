//! What a cluster says of itself to whoever asks (the ConfigMap `kube-public/cluster-info`), and whether it may be believed.
//! Pure.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Uri;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use windlass_kit::bootstrap::{self, BadSignature, Pin, Token};

/// Where a cluster is, whom to trust there, and who to be, if that was told too.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) server: Uri,
    /// In PEM; none where every machine trusts the server's.
    pub(crate) authority: Option<String>,
    pub(crate) credentials: Option<AuthInfo>,
}

/// Why a description is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not signed with this token, yet or any more.
    Unsigned,
    /// It is signed wrongly.
    Signature(BadSignature),
    /// The authority is another one than was pinned.
    Pin(String),
    /// It is no description.
    Text(String),
}

/// Reads a description that must be signed with `token`, and whose authority must be one of `pins` where there are any.
pub(super) fn judge(data: &BTreeMap<String, String>, token: &Token, pins: &[Pin]) -> Result<Described, Refusal> {
    let Some(text) = data.get("kubeconfig") else {
        return Err(Refusal::Text("it holds no kubeconfig".to_owned()));
    };
    let Some(signature) = data.get(&format!("{}{}", bootstrap::SIGNATURE_PREFIX, token.id())) else {
        return Err(Refusal::Unsigned);
    };
    bootstrap::verify(token, text.as_bytes(), signature).map_err(Refusal::Signature)?;
    let described = read(text).map_err(Refusal::Text)?;
    let Some(authority) = &described.authority else {
        return Err(Refusal::Text("its kubeconfig names no certificate authority".to_owned()));
    };
    if !pins.is_empty() {
        bootstrap::any_matches(pins, authority).map_err(Refusal::Pin)?;
    }
    Ok(described)
}

/// Reads a kubeconfig of one cluster, with or without a context: the cluster's own has neither context nor user.
pub(super) fn read(text: &str) -> Result<Described, String> {
    let file = Kubeconfig::from_yaml(text).map_err(|e| format!("its kubeconfig cannot be read: {e}"))?;
    of(&file)
}

pub(super) fn of(file: &Kubeconfig) -> Result<Described, String> {
    let current = file.current_context.as_deref().filter(|name| !name.is_empty());
    let context = current.and_then(|name| file.contexts.iter().find(|c| c.name == name)?.context.as_ref());
    let cluster: Option<&Cluster> = match (current, context) {
        (Some(name), None) => return Err(format!("its kubeconfig has no context {name:?}, its current-context")),
        (_, Some(context)) => file.clusters.iter().find(|c| c.name == context.cluster).and_then(|c| c.cluster.as_ref()),
        (None, None) => match file.clusters.as_slice() {
            [only] => only.cluster.as_ref(),
            all => return Err(format!("its kubeconfig has {} clusters and no current-context", all.len())),
        },
    };
    let cluster = cluster.ok_or("its kubeconfig lacks the cluster of its current-context")?;
    if cluster.insecure_skip_tls_verify == Some(true) {
        return Err("its kubeconfig says that the API server is not to be verified".to_owned());
    }
    let server = cluster.server.as_deref().unwrap_or_default();
    let server: Uri =
        server.parse().ok().filter(is_https).ok_or_else(|| format!("its server {server:?} is no https:// URL"))?;
    let authority = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) => Some(decoded(data)?),
        (None, Some(path)) => {
            Some(std::fs::read_to_string(path).map_err(|e| format!("its certificate authority {path}: {e}"))?)
        }
        (None, None) => None,
    };
    let user = context.and_then(|c| c.user.as_deref()).unwrap_or_default();
    let credentials = file.auth_infos.iter().find(|a| a.name == user).and_then(|a| a.auth_info.clone());
    Ok(Described { server, authority, credentials })
}

fn is_https(url: &Uri) -> bool {
    url.scheme_str() == Some("https") && url.host().is_some_and(|host| !host.is_empty())
}

fn decoded(data: &str) -> Result<String, String> {
    let bytes = STANDARD.decode(data.trim()).map_err(|_| "its certificate-authority-data is not base64")?;
    String::from_utf8(bytes).map_err(|_| "its certificate-authority-data is not PEM".to_owned())
}

/// Reads `HOST[:PORT]` or a URL of it, as somebody types where an API server is.
pub(crate) fn server(typed: &str) -> Result<Uri, String> {
    let wrong = || format!("{typed:?} is not of the form HOST:PORT, such as 192.0.2.1:6443");
    let authority = typed.strip_prefix("https://").unwrap_or(typed).trim_end_matches('/');
    let parsed: http::uri::Authority = authority.parse().map_err(|_| wrong())?;
    if parsed.host().is_empty() || authority.contains('@') {
        return Err(wrong());
    }
    let with_port = if parsed.port().is_some() { authority.to_owned() } else { format!("{authority}:6443") };
    if with_port.ends_with(':') || parsed.port().is_some_and(|port| port.as_str().parse::<u16>().is_err()) {
        return Err(wrong());
    }
    format!("https://{with_port}").parse().map_err(|_| wrong())
}
