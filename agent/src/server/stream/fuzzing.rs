//! Properties of the decoders for fuzzers and property tests, whatever bytes a client sends.

use bytes::Bytes;

use super::{
    channels::{Channels, Input, PROTOCOLS, STDIN},
    spdy::fuzzing as spdy,
};

/// A SPDY connection is decoded without a panic, and into the same frames however the bytes are split. The first two
/// bytes are the position of the split.
///
/// # Panics
/// When that does not hold.
pub fn spdy_connection(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let at = usize::from(u16::from_be_bytes(*cut)) % (bytes.len() + 1);
    let (first, second) = bytes.split_at(at);
    assert_eq!(spdy::frames(&[bytes]), spdy::frames(&[first, second]));
}

/// SPDY header blocks are decoded without a panic and within limits, and decode to the same after encoding.
///
/// # Panics
/// When that does not hold.
pub fn spdy_headers(bytes: &[u8]) {
    spdy::headers(bytes);
}

/// A WebSocket message in the subprotocol that the first byte selects: input decodes to the same after encoding.
///
/// # Panics
/// When that does not hold.
pub fn channel_message(bytes: &[u8]) {
    let Some((which, message)) = bytes.split_first() else { return };
    let channels = Channels::of(PROTOCOLS.get(usize::from(*which) % PROTOCOLS.len()).copied());
    if let Ok(Input::Stdin(input)) = channels.read(Bytes::copy_from_slice(message)) {
        assert!(!input.is_empty() && input.len() < message.len());
        assert_eq!(channels.read(channels.write(STDIN, &input).into_data()), Ok(Input::Stdin(input)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_clients_send(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            spdy_connection(&bytes);
            spdy_headers(&bytes);
            channel_message(&bytes);
        }

        #[test]
        fn frames_that_look_like_some(kind in 0u16..12, cut: u16, body in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut bytes = cut.to_be_bytes().to_vec();
            for _ in 0..3 {
                bytes.extend_from_slice(&[0x80, 3]);
                bytes.extend_from_slice(&kind.to_be_bytes());
                bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
                bytes.extend_from_slice(&body);
            }
            spdy_connection(&bytes);
        }
    }
}
