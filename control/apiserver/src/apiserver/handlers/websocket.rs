//! An answer as the messages of a WebSocket, for clients that cannot read a stream otherwise, such as browsers. Upstream's
//! `wsstream.Reader`: an empty message first, then what comes; nothing is read of the client but its end.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::headers;

use crate::apiserver::{
    filters::authentication::protocols_without_token,
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
    },
};

/// What a message holds, by the protocol that the client has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Bytes.
    Binary,
    /// Text in base64.
    Base64,
}

impl Form {
    fn message(self, bytes: &[u8]) -> Message {
        match self {
            Self::Binary => Message::binary(bytes.to_vec()),
            Self::Base64 => Message::text(STANDARD.encode(bytes)),
        }
    }
}

/// The protocol that is answered with, if the client names any, and its form. Pure.
fn choose(headers: &HeaderMap) -> Result<(Option<&'static str>, Form), ApiError> {
    const KNOWN: [(&str, Form); 2] = [("binary.k8s.io", Form::Binary), ("base64.binary.k8s.io", Form::Base64)];
    let offered = protocols_without_token(headers);
    if offered.is_empty() {
        return Ok((None, Form::Binary));
    }
    let found = offered.iter().find_map(|offered| KNOWN.iter().find(|(known, _)| known == offered));
    found.map(|(name, form)| (Some(*name), *form)).ok_or_else(|| {
        let known = KNOWN.map(|(name, _)| name);
        ApiError::bad_request(format!("requested protocol(s) are not supported: {offered:?}; supports {known:?}"))
    })
}

/// A request whose response is sent over a WebSocket.
pub(crate) struct WebSocketAnswer {
    upgrade: OnUpgrade,
    head: HeaderMap,
    form: Form,
    closing: CancellationToken,
}

impl ApiRequest {
    /// Whether the client asks for the answer in a WebSocket.
    ///
    /// # Errors
    /// When it asks so in a way that cannot be answered.
    pub(crate) fn websocket(&self) -> Result<Option<WebSocketAnswer>, ApiError> {
        if !headers::shown(&self.headers, header::UPGRADE.as_str()).eq_ignore_ascii_case("websocket") {
            return Ok(None);
        }
        let Some(upgrade) = self.requested_upgrade()? else { return Ok(None) };
        let (protocol, form) = choose(&self.headers)?;
        let key = headers::shown(&self.headers, header::SEC_WEBSOCKET_KEY.as_str());
        let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(ApiError::internal)?;
        let mut head = HeaderMap::new();
        head.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        head.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        head.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        if let Some(protocol) = protocol {
            head.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        Ok(Some(WebSocketAnswer { upgrade, head, form, closing: self.closing().clone() }))
    }
}

impl WebSocketAnswer {
    /// Switches protocols, and sends the body of an answer as messages until it, the client or the server ends.
    pub(crate) fn send(self, answer: Response) -> ApiResult {
        let Self { upgrade, head, form, closing } = self;
        let body = answer.into_body();
        tokio::spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = copy(upgrade, body, form) => {}
            }
        });
        Ok((StatusCode::SWITCHING_PROTOCOLS, head).into_response())
    }
}

async fn copy(upgrade: OnUpgrade, body: Body, form: Form) {
    let Ok(upgraded) = upgrade.await else { return };
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let (mut outgoing, mut incoming) = socket.split();
    let sent = async {
        outgoing.send(form.message(b"")).await?;
        let mut chunks = body.into_data_stream();
        while let Some(Ok(chunk)) = chunks.next().await {
            outgoing.send(form.message(&chunk)).await?;
        }
        outgoing.close().await
    };
    let gone = async { while let Some(Ok(_)) = incoming.next().await {} };
    tokio::select! {
        sent = sent => if let Err(error) = sent {
            tracing::debug!(%error, "client connection closed");
        },
        () = gone => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_decides_what_a_message_holds() {
        let of = |offered: &[&str]| {
            let mut headers = HeaderMap::new();
            for one in offered {
                headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(one).unwrap());
            }
            choose(&headers).map_err(|error| error.code)
        };
        assert_eq!(of(&[]), Ok((None, Form::Binary)));
        assert_eq!(of(&["binary.k8s.io"]), Ok((Some("binary.k8s.io"), Form::Binary)));
        assert_eq!(of(&["x, base64.binary.k8s.io, binary.k8s.io"]), Ok((Some("base64.binary.k8s.io"), Form::Base64)));
        let token = "base64url.bearer.authorization.k8s.io.abc";
        assert_eq!(of(&[token]), Ok((None, Form::Binary)));
        assert_eq!(of(&[token, "binary.k8s.io"]), Ok((Some("binary.k8s.io"), Form::Binary)));
        assert_eq!(of(&["v4.channel.k8s.io"]), Err(400));
        assert_eq!(Form::Base64.message(b"a\n"), Message::text("YQo="));
        assert_eq!(Form::Binary.message(b"a\n"), Message::binary(b"a\n".to_vec()));
    }

    /// As the conformance suite reads logs.
    #[tokio::test]
    async fn a_body_comes_in_messages() {
        use axum::{Router, extract::Request, routing::get};
        let answer = |request: Request| async move {
            let (mut parts, _) = request.into_parts();
            let upgrade: OnUpgrade = parts.extensions.remove().unwrap();
            let (protocol, form) = choose(&parts.headers).ok().unwrap();
            let key = headers::shown(&parts.headers, header::SEC_WEBSOCKET_KEY.as_str());
            let mut head = HeaderMap::new();
            for (name, value) in [
                (header::CONNECTION, "Upgrade"),
                (header::UPGRADE, "websocket"),
                (header::SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()).as_str()),
                (header::SEC_WEBSOCKET_PROTOCOL, protocol.unwrap()),
            ] {
                head.insert(name, HeaderValue::from_str(value).unwrap());
            }
            let answer = WebSocketAnswer { upgrade, head, form, closing: CancellationToken::new() };
            answer.send(Response::new(Body::from("one\ntwo\n"))).ok().unwrap()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/", get(answer))).await });
        for (protocol, wanted) in [("binary.k8s.io", "one\ntwo\n"), ("base64.binary.k8s.io", "b25lCnR3bwo=")] {
            let request = axum::http::Request::get(format!("ws://{address}/"))
                .header(header::HOST, address.to_string())
                .header(header::CONNECTION, "Upgrade")
                .header(header::UPGRADE, "websocket")
                .header(header::SEC_WEBSOCKET_VERSION, "13")
                .header(header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==")
                .header(header::SEC_WEBSOCKET_PROTOCOL, protocol)
                .body(())
                .unwrap();
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
            let mut text = String::new();
            while let Some(Ok(message)) = socket.next().await {
                match message {
                    Message::Binary(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
                    Message::Text(part) => text.push_str(&part),
                    _ => {}
                }
            }
            assert_eq!(text, wanted, "{protocol}");
        }
    }
}
