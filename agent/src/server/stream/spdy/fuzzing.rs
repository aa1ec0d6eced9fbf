//! See [`super::super::fuzzing`].

use bytes::Bytes;

use super::{
    frame::{Decoder, Frame},
    headers::{Deflater, Inflater},
};

/// The frames of a connection whose bytes come in these pieces, and whether they end in an error. Data is put together.
pub(in super::super) fn frames(pieces: &[&[u8]]) -> (Vec<String>, bool) {
    let (mut decoder, mut all) = (Decoder::default(), Vec::<Frame>::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => add(&mut all, frame),
                Ok(None) => break,
                Err(_) => return (shown(&all), true),
            }
        }
    }
    (shown(&all), false)
}

fn shown(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(|frame| format!("{frame:?}")).collect()
}

fn add(all: &mut Vec<Frame>, frame: Frame) {
    if let (Some(Frame::Data { stream, fin, bytes }), Frame::Data { stream: same, fin: ends, bytes: more }) =
        (all.last_mut(), &frame)
        && stream == same
        && !*fin
    {
        *bytes = Bytes::from([bytes.as_ref(), more].concat());
        *fin = *ends;
        return;
    }
    all.push(frame);
}

/// Reads blocks, each with its length in two bytes before it, as one connection's.
pub(in super::super) fn headers(mut bytes: &[u8]) {
    let mut inflater = Inflater::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (block, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
        bytes = rest;
        let Ok(headers) = inflater.read(block) else { return };
        let pairs: Vec<(&str, &str)> = headers.pairs().collect();
        assert!(pairs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= 3 << 16);
        let Ok(mut deflater) = Deflater::new() else { return };
        // What was not UTF-8 is longer now, and may be too long.
        if let Ok(Ok(again)) = deflater.write(&pairs).map(|block| Inflater::new().read(&block)) {
            assert_eq!(again, headers);
        }
    }
}
