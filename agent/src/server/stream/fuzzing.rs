//! What fuzzers and property tests ask of the readers here, whatever bytes a client sends.

use bytes::Bytes;

use super::{
    channels::{Channels, Input, PROTOCOLS, STDIN},
    spdy::fuzzing as spdy,
};

/// Bytes of a SPDY connection: they are read without a panic, and as the same frames however they are cut. The first two
/// bytes say where.
///
/// # Panics
/// When that does not hold.
pub fn spdy_connection(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let at = usize::from(u16::from_be_bytes(*cut)) % (bytes.len() + 1);
    let (first, second) = bytes.split_at(at);
    assert_eq!(spdy::frames(&[bytes]), spdy::frames(&[first, second]));
}

/// Blocks of SPDY headers, one after the other: they are read without a panic and within bounds, and what was read is read
/// the same when it is written again.
///
/// # Panics
/// When that does not hold.
pub fn spdy_headers(bytes: &[u8]) {
    spdy::headers(bytes);
}

/// A message of a WebSocket in one of the protocols, which the first byte says: what is input is so in the same words when
/// it is written again.
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
