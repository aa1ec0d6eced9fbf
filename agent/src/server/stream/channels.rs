//! The channel protocol of WebSocket streams: the first byte of a message is the channel. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{BufMut as _, Bytes, BytesMut};
use tokio_tungstenite::tungstenite::Message;

use super::session::{ExitStatus, Size};

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Since version 5: the next byte is a channel that is closed.
const CLOSE: u8 = 255;

/// The subprotocols; the first that a client offers and that is listed is used.
pub(super) const PROTOCOLS: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"];

/// The encoding of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Channels {
    /// Text: the channel's digit and base64.
    base64: bool,
    /// The final message is a `Status` object rather than a text.
    status: bool,
    /// The client may close one channel.
    closes: bool,
}

/// A decoded message of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Stdin(Bytes),
    Resize(Size),
    StdinClosed,
    /// Data for a channel that clients do not write to; ignored, as upstream.
    Nothing,
}

/// An invalid message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("a message has no channel")]
    Empty,
    #[error("a message begins with {0:#x}, which is no digit of a channel")]
    Digit(u8),
    #[error("a message is not base64")]
    Base64,
}

impl Channels {
    /// The encoding of a subprotocol; `None`, or no name, is the oldest.
    pub(super) fn of(protocol: Option<&str>) -> Self {
        let name = protocol.unwrap_or_default();
        Self {
            base64: name.contains("base64."),
            status: name.starts_with("v4.") || name.starts_with("v5."),
            closes: name.starts_with("v5."),
        }
    }

    /// Encodes bytes for a channel.
    pub(super) fn write(self, channel: u8, bytes: &[u8]) -> Message {
        if self.base64 {
            let mut text = String::with_capacity(2 + bytes.len().div_ceil(3) * 4);
            text.push(char::from(b'0' + channel));
            STANDARD.encode_string(bytes, &mut text);
            return Message::text(text);
        }
        let mut all = BytesMut::with_capacity(1 + bytes.len());
        all.put_u8(channel);
        all.put_slice(bytes);
        Message::Binary(all.freeze())
    }

    /// Encodes the final message; `None` if it would be empty.
    pub(super) fn end(self, ending: &ExitStatus) -> Option<Message> {
        let text = if self.status { ending.status().to_string() } else { ending.text() };
        (!text.is_empty()).then(|| self.write(ERROR, text.as_bytes()))
    }

    /// Splits a message into channel and bytes.
    pub(super) fn split(self, message: Bytes) -> Result<(u8, Bytes), ChannelError> {
        let first = *message.first().ok_or(ChannelError::Empty)?;
        if !self.base64 {
            return Ok((first, message.slice(1..)));
        }
        let channel = first.checked_sub(b'0').filter(|c| *c < 10).ok_or(ChannelError::Digit(first))?;
        Ok((channel, STANDARD.decode(&message[1..]).map_err(|_| ChannelError::Base64)?.into()))
    }

    /// Decodes a message of the client. Some clients send text where bytes were negotiated: it is taken as bytes.
    pub(super) fn read(self, message: Bytes) -> Result<Input, ChannelError> {
        if self.closes && message.first() == Some(&CLOSE) {
            return Ok(if message.get(1) == Some(&STDIN) { Input::StdinClosed } else { Input::Nothing });
        }
        let (channel, bytes) = self.split(message)?;
        Ok(match channel {
            STDIN if !bytes.is_empty() => Input::Stdin(bytes),
            // An invalid size is ignored.
            RESIZE => serde_json::from_slice(&bytes).map_or(Input::Nothing, Input::Resize),
            _ => Input::Nothing,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(protocol: &str, message: &[u8]) -> Result<Input, ChannelError> {
        Channels::of(Some(protocol)).read(Bytes::copy_from_slice(message))
    }

    #[test]
    fn messages_of_clients() {
        let stdin = |bytes: &'static [u8]| Ok(Input::Stdin(Bytes::from_static(bytes)));
        assert_eq!(read("v5.channel.k8s.io", b"\0hello"), stdin(b"hello"));
        assert_eq!(read("base64.channel.k8s.io", b"0aGVsbG8="), stdin(b"hello"));
        assert_eq!(read("v5.channel.k8s.io", &[255, 0]), Ok(Input::StdinClosed));
        assert_eq!(read("v5.channel.k8s.io", &[255]), Ok(Input::Nothing));
        assert_eq!(read("v4.channel.k8s.io", &[255, 0]), Ok(Input::Nothing));
        let size = Ok(Input::Resize(Size { width: 80, height: 24 }));
        assert_eq!(read("channel.k8s.io", b"\x04{\"Width\":80,\"Height\":24}"), size);
        assert_eq!(
            read("v4.base64.channel.k8s.io", format!("4{}", STANDARD.encode(r#"{"Width":80,"Height":24}"#)).as_bytes()),
            size
        );
        assert_eq!(read("channel.k8s.io", b"\x04{\"Width\":-1}"), Ok(Input::Nothing));
        assert_eq!(read("channel.k8s.io", b""), Err(ChannelError::Empty));
        assert_eq!(read("base64.channel.k8s.io", b"/"), Err(ChannelError::Digit(b'/')));
        assert_eq!(read("base64.channel.k8s.io", b"0?"), Err(ChannelError::Base64));
    }

    #[test]
    fn last_words() {
        let end = |protocol, ending: &ExitStatus| Channels::of(protocol).end(ending).map(|m| m.into_data());
        assert_eq!(end(None, &ExitStatus::Exited(0)), None);
        assert!(end(None, &ExitStatus::Exited(3)).is_some_and(|m| m.ends_with(b"exit status 3") && m[0] == ERROR));
        assert!(end(Some("v4.channel.k8s.io"), &ExitStatus::Exited(0)).is_some_and(|m| m[1] == b'{'));
        assert!(end(Some("v4.base64.channel.k8s.io"), &ExitStatus::Done).is_some_and(|m| m.starts_with(b"3ey")));
    }

    proptest! {
        #[test]
        fn bytes_survive(bytes in prop::collection::vec(any::<u8>(), 1..200), which in 0..PROTOCOLS.len()) {
            let channels = Channels::of(Some(PROTOCOLS[which]));
            let message = channels.write(STDIN, &bytes).into_data();
            prop_assert_eq!(channels.read(message), Ok(Input::Stdin(bytes.into())));
        }

        #[test]
        fn hostile_messages(bytes in prop::collection::vec(any::<u8>(), 0..80), which in 0..PROTOCOLS.len()) {
            let _ = Channels::of(Some(PROTOCOLS[which])).read(bytes.into());
        }
    }
}
