//! SPDY frames: decoding and encoding. Pure.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

const VERSION: u16 = 3;
const FIN: u8 = 1;
/// Maximum length of a control frame; those of clients have some hundred bytes.
const MAX_CONTROL_FRAME_BYTES: usize = 64 << 10;
/// Maximum payload of a data frame.
pub(super) const MAX_DATA_FRAME_BYTES: usize = (1 << 24) - 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// Status: the stream was refused.
pub(super) const REFUSED_STREAM: u32 = 3;
/// Status: the stream was cancelled.
pub(super) const CANCEL: u32 = 5;

/// A frame of the peer. Data frames are split as bytes arrive; `fin` is on the last part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Open {
        stream: u32,
        fin: bool,
        /// The compressed header block.
        block: Bytes,
    },
    /// Headers of an open stream, or the reply to its opening.
    Headers {
        stream: u32,
        fin: bool,
        block: Bytes,
    },
    Data {
        stream: u32,
        fin: bool,
        bytes: Bytes,
    },
    Reset {
        stream: u32,
    },
    Ping(u32),
    GoAway,
}

/// A protocol violation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame of SPDY version {0} came where version 3 was agreed")]
    Version(u16),
    #[error("a control frame of type {kind} has {length} bytes, which it cannot have")]
    Length { kind: u16, length: usize },
    #[error("a frame names stream 0")]
    NoStream,
}

/// An incomplete data frame.
#[derive(Debug)]
struct Partial {
    stream: u32,
    fin: bool,
    left: usize,
}

/// Decodes frames from bytes in any chunks.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    buffer: BytesMut,
    partial: Option<Partial>,
}

impl Decoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame; `None` until more bytes are pushed. After an error the connection is unusable.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(partial) = &mut self.partial {
                if partial.left > 0 && self.buffer.is_empty() {
                    return Ok(None);
                }
                let bytes = self.buffer.split_to(partial.left.min(self.buffer.len())).freeze();
                partial.left -= bytes.len();
                let (stream, last) = (partial.stream, partial.left == 0);
                let fin = last && partial.fin;
                if last {
                    self.partial = None;
                }
                return Ok(Some(Frame::Data { stream, fin, bytes }));
            }
            let Some(head) = self.buffer.first_chunk::<8>() else { return Ok(None) };
            let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let flags = head[4];
            let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
            if first >> 31 == 0 {
                if first == 0 {
                    return Err(FrameError::NoStream);
                }
                self.buffer.advance(8);
                self.partial = Some(Partial { stream: first, fin: flags & FIN != 0, left: length });
                continue;
            }
            let version = u16::try_from(first >> 16 & 0x7fff).unwrap_or(0);
            let kind = u16::try_from(first & 0xffff).unwrap_or(0);
            if version != VERSION {
                return Err(FrameError::Version(version));
            }
            if length > MAX_CONTROL_FRAME_BYTES {
                return Err(FrameError::Length { kind, length });
            }
            if self.buffer.len() < 8 + length {
                return Ok(None);
            }
            self.buffer.advance(8);
            let body = self.buffer.split_to(length).freeze();
            if let Some(frame) = control(kind, flags, body)? {
                return Ok(Some(frame));
            }
        }
    }
}

/// Decodes a control frame; `None` for ignored types (settings, window updates, unknown).
fn control(kind: u16, flags: u8, mut body: Bytes) -> Result<Option<Frame>, FrameError> {
    let length = body.len();
    let min_length = match kind {
        SYN_STREAM => 10,
        SYN_REPLY | HEADERS | PING => 4,
        RST_STREAM | GOAWAY => 8,
        _ => return Ok(None),
    };
    if length < min_length {
        return Err(FrameError::Length { kind, length });
    }
    let number = body.get_u32();
    let stream = number & 0x7fff_ffff;
    let fin = flags & FIN != 0;
    if stream == 0 && !matches!(kind, PING | GOAWAY) {
        return Err(FrameError::NoStream);
    }
    Ok(Some(match kind {
        SYN_STREAM => {
            // The associated stream, the priority and the slot of credentials.
            body.advance(6);
            Frame::Open { stream, fin, block: body }
        }
        SYN_REPLY | HEADERS => Frame::Headers { stream, fin, block: body },
        RST_STREAM => Frame::Reset { stream },
        PING => Frame::Ping(number),
        _ => Frame::GoAway,
    }))
}

fn head(kind: u16, flags: u8, length: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(8 + length);
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    put_length(&mut out, flags, length);
    out
}

fn put_length(out: &mut BytesMut, flags: u8, length: usize) {
    out.put_u32(u32::from(flags) << 24 | u32::try_from(length.min(MAX_DATA_FRAME_BYTES)).unwrap_or(0));
}

/// The reply to a stream's opening.
pub(super) fn reply(stream: u32, block: &[u8]) -> Bytes {
    let mut out = head(SYN_REPLY, 0, 4 + block.len());
    out.put_u32(stream);
    out.put_slice(block);
    out.freeze()
}

/// Bytes of a stream, at most [`MAX_DATA_FRAME_BYTES`].
pub(super) fn data(stream: u32, fin: bool, bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(8 + bytes.len());
    out.put_u32(stream & 0x7fff_ffff);
    put_length(&mut out, u8::from(fin) * FIN, bytes.len());
    out.put_slice(bytes);
    out.freeze()
}

/// Resets a stream.
pub(super) fn reset(stream: u32, status: u32) -> Bytes {
    let mut out = head(RST_STREAM, 0, 8);
    out.put_u32(stream);
    out.put_u32(status);
    out.freeze()
}

/// A ping, or the reply to one.
pub(super) fn ping(id: u32) -> Bytes {
    let mut out = head(PING, 0, 4);
    out.put_u32(id);
    out.freeze()
}

/// Closes the connection normally.
pub(super) fn go_away(last: u32) -> Bytes {
    let mut out = head(GOAWAY, 0, 8);
    out.put_u32(last);
    out.put_u32(0);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<Vec<Frame>, FrameError> {
        let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
        for piece in pieces {
            decoder.push(piece);
            while let Some(frame) = decoder.next()? {
                match (frames.last_mut(), frame) {
                    (
                        Some(Frame::Data { stream, fin: done @ false, bytes }),
                        Frame::Data { stream: next, fin, bytes: more },
                    ) if *stream == next => {
                        *bytes = [&bytes[..], &more[..]].concat().into();
                        *done = fin;
                    }
                    (_, frame) => frames.push(frame),
                }
            }
        }
        Ok(frames)
    }

    #[test]
    fn an_opening_as_clients_send_it() {
        let mut wire = vec![0x80, 3, 0, 1, FIN, 0, 0, 12];
        wire.extend([0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 7, 8]);
        let block = Bytes::from_static(&[7, 8]);
        assert_eq!(read(&[&wire]), Ok(vec![Frame::Open { stream: 5, fin: true, block }]));
    }

    #[test]
    fn what_asks_for_nothing_is_passed_over() {
        let settings = [0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0];
        let window = [0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 1, 0];
        assert_eq!(read(&[&settings, &window, &ping(7)]), Ok(vec![Frame::Ping(7)]));
    }

    #[test]
    fn what_is_no_spdy_is_an_error() {
        for wire in [
            &[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1][..],
            &[0x80, 3, 0, 1, 0, 0xff, 0, 0],
            &[0x80, 3, 0, 1, 0, 0, 0, 3, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 1, 1],
            &reset(0, 1),
        ] {
            assert!(read(&[wire]).is_err(), "{wire:?}");
        }
    }

    #[test]
    fn an_empty_end_is_a_frame() {
        assert_eq!(read(&[&data(3, true, b"")]), Ok(vec![Frame::Data { stream: 3, fin: true, bytes: Bytes::new() }]));
    }

    proptest! {
        /// However the bytes are cut, the frames are the same.
        #[test]
        fn pieces_do_not_matter(
            frames in prop::collection::vec((1u32..50, any::<bool>(), prop::collection::vec(any::<u8>(), 0..300), 0u8..4), 1..12),
            cuts in prop::collection::vec(1usize..40, 1..200),
        ) {
            let wire: Vec<u8> = frames.iter().flat_map(|(stream, fin, bytes, kind)| match kind {
                0 => data(*stream, *fin, bytes),
                1 => reply(*stream, bytes),
                2 => ping(*stream),
                _ => reset(*stream, CANCEL),
            }).collect();
            let (mut rest, mut pieces, mut cuts) = (&wire[..], Vec::new(), cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (piece, left) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                pieces.push(piece);
                rest = left;
            }
            let whole = read(&[&wire]).expect("what was written can be read");
            prop_assert_eq!(read(&pieces), Ok(whole.clone()));
            let bytes = |frames: &[Frame]| -> usize {
                frames.iter().map(|f| if let Frame::Data { bytes, .. } = f { bytes.len() } else { 0 }).sum()
            };
            prop_assert_eq!(bytes(&whole), frames.iter().filter(|f| f.3 == 0).map(|f| f.2.len()).sum::<usize>());
        }

        /// Whatever comes: an answer or an error, and no more kept than one control frame.
        #[test]
        fn hostile_bytes(wire in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut decoder = Decoder::default();
            decoder.push(&wire);
            while let Ok(Some(_)) = decoder.next() {}
            prop_assert!(decoder.buffer.len() <= wire.len());
        }
    }
}
