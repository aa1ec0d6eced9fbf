//! Negotiates the upgrade of a connection from the request's headers. Pure.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use windlass_kit::serve::headers::items;

const SPDY: &str = "SPDY/3.1";
const SPDY_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const SPDY_ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// The requested upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Upgrade {
    WebSocket {
        /// The value of Sec-WebSocket-Accept.
        accept: String,
        /// Subprotocols that the client offers, most preferred first.
        offered: Vec<String>,
    },
    Spdy {
        offered: Vec<String>,
    },
}

/// An error response instead of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpgradeError {
    pub(super) code: StatusCode,
    pub(super) why: String,
    pub(super) headers: Vec<(HeaderName, &'static str)>,
}

pub(super) fn refuse(code: StatusCode, why: impl Into<String>) -> UpgradeError {
    UpgradeError { code, why: why.into(), headers: Vec::new() }
}

impl Upgrade {
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, UpgradeError> {
        let has = |name: HeaderName, word: &str| items(headers, name.as_str()).any(|v| v.eq_ignore_ascii_case(word));
        if !has(header::CONNECTION, "upgrade") {
            return Err(refuse(StatusCode::BAD_REQUEST, "unable to upgrade: missing upgrade headers in request"));
        }
        if has(header::UPGRADE, "websocket") {
            let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| key.len() <= 64);
            let version = headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|v| v == "13");
            let Some(key) = key.filter(|_| version) else {
                let why = "unable to upgrade: a WebSocket needs Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key";
                return Err(refuse(StatusCode::BAD_REQUEST, why));
            };
            let offered = items(headers, header::SEC_WEBSOCKET_PROTOCOL.as_str()).collect();
            return Ok(Self::WebSocket { accept: derive_accept_key(key.as_bytes()), offered });
        }
        if has(header::UPGRADE, SPDY) {
            return Ok(Self::Spdy { offered: items(headers, SPDY_VERSION.as_str()).collect() });
        }
        let wanted = items(headers, header::UPGRADE.as_str()).collect::<Vec<_>>().join(", ");
        Err(refuse(
            StatusCode::BAD_REQUEST,
            format!("unable to upgrade: {wanted:?} is not spoken here; websocket and {SPDY} are"),
        ))
    }

    /// Selects the protocol: the client's first that is supported. A WebSocket may have none.
    pub(super) fn choose(
        &self,
        websocket: &[&'static str],
        spdy: &[&'static str],
    ) -> Result<Option<&'static str>, UpgradeError> {
        let pick = |offered: &[String], known: &[&'static str]| {
            offered.iter().find_map(|o| known.iter().find(|k| **k == o.as_str()).copied())
        };
        match self {
            Self::WebSocket { offered, .. } if offered.is_empty() => Ok(None),
            Self::WebSocket { offered, .. } => {
                let none = || {
                    let why = format!("requested protocol(s) are not supported: {offered:?}; supports {websocket:?}");
                    refuse(StatusCode::BAD_REQUEST, why)
                };
                pick(offered, websocket).map(Some).ok_or_else(none)
            }
            Self::Spdy { offered } if offered.is_empty() => {
                Err(refuse(StatusCode::BAD_REQUEST, format!("unable to upgrade: {SPDY_VERSION} header is required")))
            }
            Self::Spdy { offered } => {
                let none = || UpgradeError {
                    code: StatusCode::FORBIDDEN,
                    why: format!(
                        "unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server accepts {spdy:?}"
                    ),
                    headers: spdy.iter().map(|known| (SPDY_ACCEPTED, *known)).collect(),
                };
                pick(offered, spdy).map(Some).ok_or_else(none)
            }
        }
    }

    /// The headers of the 101 response.
    pub(super) fn headers(&self, protocol: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        let named = match self {
            Self::WebSocket { accept, .. } => {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
                if let Ok(accept) = HeaderValue::from_str(accept) {
                    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
                }
                header::SEC_WEBSOCKET_PROTOCOL
            }
            Self::Spdy { .. } => {
                headers.insert(header::UPGRADE, HeaderValue::from_static(SPDY));
                SPDY_VERSION
            }
        };
        if let Some(protocol) = protocol {
            headers.insert(named, HeaderValue::from_static(protocol));
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn a_websocket_as_kubectl_asks_for_it() {
        let asked = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "x, v5.channel.k8s.io"),
        ]);
        let upgrade = Upgrade::read(&asked).unwrap();
        let protocol = upgrade.choose(&["v4.channel.k8s.io", "v5.channel.k8s.io"], &[]).unwrap();
        assert_eq!(protocol, Some("v5.channel.k8s.io"));
        let answer = upgrade.headers(protocol);
        assert_eq!(answer["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer["sec-websocket-protocol"], "v5.channel.k8s.io");
        assert_eq!(upgrade.choose(&["other"], &[]).unwrap_err().code, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn spdy_takes_the_client_s_first_choice() {
        let mut asked = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        let none = Upgrade::read(&asked).unwrap();
        assert_eq!(none.choose(&[], &["v4"]).unwrap_err().code, StatusCode::BAD_REQUEST);
        for version in ["v5", "v4", "v3"] {
            asked.append(SPDY_VERSION, HeaderValue::from_static(version));
        }
        let upgrade = Upgrade::read(&asked).unwrap();
        assert_eq!(upgrade.choose(&[], &["v3", "v4"]).unwrap(), Some("v4"));
        let refused = upgrade.choose(&[], &["v1"]).unwrap_err();
        assert_eq!((refused.code, refused.headers.len()), (StatusCode::FORBIDDEN, 1));
        assert_eq!(upgrade.headers(Some("v4"))["x-stream-protocol-version"], "v4");
    }

    #[test]
    fn what_is_no_upgrade() {
        for wrong in [
            &[][..],
            &[("connection", "close")],
            &[("connection", "upgrade"), ("upgrade", "h2c")],
            &[
                ("connection", "upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "12"),
                ("sec-websocket-key", "x"),
            ],
            &[("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")],
        ] {
            assert_eq!(Upgrade::read(&headers(wrong)).unwrap_err().code, StatusCode::BAD_REQUEST, "{wrong:?}");
        }
    }
}
