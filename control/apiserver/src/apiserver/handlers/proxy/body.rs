//! The body of a page whose links are rewritten as it passes. Nothing is kept of it but what may be the beginning of a tag.

use std::{
    io::Write as _,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::{
    body::Bytes,
    http::{HeaderMap, header},
};
use flate2::{
    Compression,
    write::{DeflateDecoder, DeflateEncoder, GzEncoder, MultiGzDecoder},
};
use hyper::body::{Body, Frame};

use super::{html::Page, rewrite::Rewrite};

/// A page is unpacked in pieces: a little of a packed one may be much.
const PIECE_BYTES: usize = 4 << 10;

/// How a page is packed.
enum Codec {
    None,
    Gzip(MultiGzDecoder<Vec<u8>>, GzEncoder<Vec<u8>>),
    Deflate(DeflateDecoder<Vec<u8>>, DeflateEncoder<Vec<u8>>),
}

impl Codec {
    /// `None` for one that is not known.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let level = Compression::default();
        match headers.get(header::CONTENT_ENCODING).map(|encoding| encoding.as_bytes()) {
            None | Some(b"") => Some(Self::None),
            Some(b"gzip") => Some(Self::Gzip(MultiGzDecoder::new(Vec::new()), GzEncoder::new(Vec::new(), level))),
            Some(b"deflate") => {
                Some(Self::Deflate(DeflateDecoder::new(Vec::new()), DeflateEncoder::new(Vec::new(), level)))
            }
            Some(_) => None,
        }
    }

    fn unpack(&mut self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(bytes.to_vec()),
            Self::Gzip(decoder, _) => {
                decoder.write_all(bytes)?;
                decoder.flush()?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Self::Deflate(decoder, _) => {
                decoder.write_all(bytes)?;
                decoder.flush()?;
                Ok(std::mem::take(decoder.get_mut()))
            }
        }
    }

    fn pack(&mut self, bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(bytes),
            Self::Gzip(_, encoder) => {
                encoder.write_all(&bytes)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            Self::Deflate(_, encoder) => {
                encoder.write_all(&bytes)?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }

    /// What unpacking still holds, and ends it.
    fn unpack_rest(&mut self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(Vec::new()),
            Self::Gzip(decoder, _) => {
                decoder.try_finish()?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Self::Deflate(decoder, _) => {
                decoder.try_finish()?;
                Ok(std::mem::take(decoder.get_mut()))
            }
        }
    }

    fn pack_rest(&mut self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(Vec::new()),
            Self::Gzip(_, encoder) => {
                encoder.try_finish()?;
                Ok(std::mem::take(encoder.get_mut()))
            }
            Self::Deflate(_, encoder) => {
                encoder.try_finish()?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }
}

/// A page that passes.
pub(super) struct RewrittenPage<B> {
    body: B,
    codec: Codec,
    page: Page,
    rewrite: Rewrite,
    /// What has come and was not unpacked yet.
    arrived: Bytes,
    has_ended: bool,
}

impl<B> RewrittenPage<B> {
    /// The page of a response; the body itself when it is packed in a way that is not known.
    pub(super) fn new(body: B, headers: &HeaderMap, rewrite: Rewrite) -> Result<Self, B> {
        let Some(codec) = Codec::of(headers) else { return Err(body) };
        Ok(Self { body, codec, page: Page::new(), rewrite, arrived: Bytes::new(), has_ended: false })
    }

    fn pass(&mut self, piece: &[u8]) -> std::io::Result<Vec<u8>> {
        let Self { codec, page, rewrite, .. } = self;
        let plain = codec.unpack(piece)?;
        codec.pack(page.feed(&plain, &|url| rewrite.url(url).ok()))
    }

    fn end(&mut self) -> std::io::Result<Vec<u8>> {
        let Self { codec, page, rewrite, .. } = self;
        let plain = codec.unpack_rest()?;
        let mut last = page.feed(&plain, &|url| rewrite.url(url).ok());
        last.extend(page.finish());
        let mut packed = codec.pack(last)?;
        packed.extend(codec.pack_rest()?);
        Ok(packed)
    }
}

impl<B> Body for RewrittenPage<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let data = |bytes: Vec<u8>| Poll::Ready(Some(Ok(Frame::data(bytes.into()))));
        loop {
            if self.has_ended {
                return Poll::Ready(None);
            }
            if !self.arrived.is_empty() {
                let length = self.arrived.len().min(PIECE_BYTES);
                let piece = self.arrived.split_to(length);
                match self.pass(&piece) {
                    Ok(out) if out.is_empty() => continue,
                    Ok(out) => return data(out),
                    Err(error) => {
                        self.has_ended = true;
                        return Poll::Ready(Some(Err(error.into())));
                    }
                }
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                // Trailers would say something of the page as it was.
                Some(Ok(frame)) => self.arrived = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    self.has_ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    self.has_ended = true;
                    return match self.end() {
                        Ok(out) if out.is_empty() => Poll::Ready(None),
                        Ok(out) => data(out),
                        Err(error) => Poll::Ready(Some(Err(error.into()))),
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::http::HeaderValue;
    use flate2::read::{DeflateDecoder, MultiGzDecoder};
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    fn rewrite() -> Rewrite {
        Rewrite { prefix: "/p".to_owned(), backend_host: "b".to_owned(), request_host: "r".to_owned() }
    }

    fn headers(encoding: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static(encoding))])
    }

    async fn pass(bytes: Vec<u8>, encoding: &'static str) -> Result<Vec<u8>, axum::BoxError> {
        let Ok(page) = RewrittenPage::new(Full::new(Bytes::from(bytes)), &headers(encoding), rewrite()) else {
            panic!("{encoding} is known");
        };
        Ok(page.collect().await?.to_bytes().to_vec())
    }

    #[tokio::test]
    async fn packed_pages_are_packed_again() {
        let page = format!("<a href='/x'>{}</a>", "text ".repeat(100_000));
        let wanted = page.replace("'/x'", "\"/p/x\"");
        assert_eq!(pass(page.clone().into(), "").await.unwrap(), wanted.as_bytes());

        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(page.as_bytes()).unwrap();
        let packed = encoder.finish().unwrap();
        let mut plain = String::new();
        let passed = pass(packed.clone(), "gzip").await.unwrap();
        MultiGzDecoder::new(passed.as_slice()).read_to_string(&mut plain).unwrap();
        assert!(plain == wanted);

        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(page.as_bytes()).unwrap();
        let passed = pass(encoder.finish().unwrap(), "deflate").await.unwrap();
        plain.clear();
        DeflateDecoder::new(passed.as_slice()).read_to_string(&mut plain).unwrap();
        assert!(plain == wanted);

        assert!(pass(b"no gzip".to_vec(), "gzip").await.is_err());
        assert!(pass(packed[..packed.len() / 2].to_vec(), "gzip").await.is_err());
        assert!(RewrittenPage::new(Full::new(Bytes::new()), &headers("br"), rewrite()).is_err());
    }
}
