//! Reads and verifies the public description of a cluster (the ConfigMap `kube-public/cluster-info`). No I/O besides the
//! certificate authority that a discovery file may name by its path.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Uri;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use windlass_kit::bootstrap::{self, BadSignature, Pin, Token};

/// The cluster's API server, its certificate authority, and credentials if included.
#[derive(Debug, Clone)]
pub(crate) struct ClusterInfo {
    pub(crate) server: Uri,
    /// In PEM; `None` if the system's roots apply.
    pub(crate) authority: Option<String>,
    pub(crate) credentials: Option<AuthInfo>,
}

/// Why a description is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClusterInfoError {
    /// It has no signature with this token, yet or any more.
    Unsigned,
    /// Its signature is invalid.
    Signature(BadSignature),
    /// The certificate authority does not match the pins.
    Pin(String),
    /// It is malformed.
    Text(String),
}

/// Reads a description that must be signed with `token`, and whose certificate authority must match one of `pins`, if
/// any.
pub(super) fn verify(
    data: &BTreeMap<String, String>,
    token: &Token,
    pins: &[Pin],
) -> Result<ClusterInfo, ClusterInfoError> {
    let Some(text) = data.get("kubeconfig") else {
        return Err(ClusterInfoError::Text("it holds no kubeconfig".to_owned()));
    };
    let Some(signature) = data.get(&format!("{}{}", bootstrap::SIGNATURE_PREFIX, token.id())) else {
        return Err(ClusterInfoError::Unsigned);
    };
    bootstrap::verify(token, text.as_bytes(), signature).map_err(ClusterInfoError::Signature)?;
    let described = read(text).map_err(ClusterInfoError::Text)?;
    let Some(authority) = &described.authority else {
        return Err(ClusterInfoError::Text("its kubeconfig names no certificate authority".to_owned()));
    };
    if !pins.is_empty() {
        bootstrap::any_matches(pins, authority).map_err(ClusterInfoError::Pin)?;
    }
    Ok(described)
}

/// Reads a kubeconfig of one cluster, with or without a context: that of cluster-info has neither context nor user.
pub(super) fn read(text: &str) -> Result<ClusterInfo, String> {
    let file = Kubeconfig::from_yaml(text).map_err(|e| format!("its kubeconfig cannot be read: {e}"))?;
    from_kubeconfig(&file)
}

pub(super) fn from_kubeconfig(file: &Kubeconfig) -> Result<ClusterInfo, String> {
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
    Ok(ClusterInfo { server, authority, credentials })
}

fn is_https(url: &Uri) -> bool {
    url.scheme_str() == Some("https") && url.host().is_some_and(|host| !host.is_empty())
}

fn decoded(data: &str) -> Result<String, String> {
    let bytes = STANDARD.decode(data.trim()).map_err(|_| "its certificate-authority-data is not base64")?;
    String::from_utf8(bytes).map_err(|_| "its certificate-authority-data is not PEM".to_owned())
}

/// Reads `HOST[:PORT]` or a URL of it, as somebody types where an API server is.
pub(crate) fn parse_server(typed: &str) -> Result<Uri, String> {
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
