//! SPDY header blocks: name-value pairs, compressed with one state per connection. Pure.

use std::sync::LazyLock;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Maximum size of a decompressed block.
const MAX_HEADER_BLOCK_BYTES: usize = 64 << 10;
/// Maximum size of all names and values of a block, a name counted with each of its values: a block of one long name and
/// thousands of empty values would be a gigabyte otherwise. Bytes that are not UTF-8 become three.
const MAX_HEADERS_BYTES: usize = 3 * MAX_HEADER_BLOCK_BYTES;

/// Words of the dictionary that SPDY/3 prescribes, each with its length before it.
const WORDS: [&str; 65] = [
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];
/// Its tail, without lengths.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized\
    403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
    Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
    chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,\
    text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for word in WORDS {
        put(&mut all, word.as_bytes());
    }
    all.extend_from_slice(TAIL.as_bytes());
    all
});

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// An invalid header block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("a block of headers cannot be decompressed: {0}")]
    Compression(String),
    #[error("a block of headers has more than {MAX_HEADER_BLOCK_BYTES} bytes")]
    TooLong,
    #[error("a block of headers ends in the middle")]
    Short,
}

/// Headers of one stream; names in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of a header; the first one where there are several.
    pub(in super::super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn parse(mut block: &[u8]) -> Result<Self, HeaderError> {
        let number = |block: &mut &[u8]| -> Result<usize, HeaderError> {
            let (head, rest) = block.split_first_chunk::<4>().ok_or(HeaderError::Short)?;
            *block = rest;
            usize::try_from(u32::from_be_bytes(*head)).map_err(|_| HeaderError::TooLong)
        };
        let count = number(&mut block)?;
        let (mut all, mut size) = (Vec::new(), 0);
        let text = |block: &mut &[u8]| -> Result<String, HeaderError> {
            let length = number(block)?;
            let (text, rest) = block.split_at_checked(length).ok_or(HeaderError::Short)?;
            *block = rest;
            Ok(String::from_utf8_lossy(text).into_owned())
        };
        for _ in 0..count {
            let (name, value) = (text(&mut block)?, text(&mut block)?);
            // Several values of a name are joined by zero bytes.
            for value in value.split('\0') {
                size += name.len() + value.len();
                if size > MAX_HEADERS_BYTES {
                    return Err(HeaderError::TooLong);
                }
                all.push((name.to_ascii_lowercase(), value.to_owned()));
            }
        }
        Ok(Self(all))
    }
}

/// Decompresses the blocks of one direction, in the order of their frames.
pub(super) struct Inflater(Decompress);

impl Inflater {
    pub(super) fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// After an error the compression state is lost, and the connection unusable.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Headers, HeaderError> {
        let wrong = |e: &dyn std::fmt::Display| HeaderError::Compression(e.to_string());
        let mut out = Vec::with_capacity(1 << 10);
        let begun = self.0.total_in();
        loop {
            let used = usize::try_from(self.0.total_in() - begun).unwrap_or(usize::MAX);
            let rest = block.get(used..).unwrap_or_default();
            let before = (self.0.total_in(), out.len());
            match self.0.decompress_vec(rest, &mut out, FlushDecompress::Sync) {
                Ok(Status::StreamEnd) => return Err(wrong(&"it ends the stream")),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&DICTIONARY).map_err(|e| wrong(&e))?;
                    continue;
                }
                Err(error) => return Err(wrong(&error)),
            }
            if out.len() > MAX_HEADER_BLOCK_BYTES {
                return Err(HeaderError::TooLong);
            }
            if out.len() == out.capacity() {
                out.reserve(out.len().max(1 << 10));
            } else if before == (self.0.total_in(), out.len()) {
                break;
            }
        }
        Headers::parse(&out)
    }
}

/// Compresses the blocks of one direction.
pub(super) struct Deflater(Compress);

impl Deflater {
    pub(super) fn new() -> Result<Self, HeaderError> {
        let mut compress = Compress::new(Compression::fast(), true);
        compress.set_dictionary(&DICTIONARY).map_err(|e| HeaderError::Compression(e.to_string()))?;
        Ok(Self(compress))
    }

    pub(super) fn write(&mut self, headers: &[(&str, &str)]) -> Result<Vec<u8>, HeaderError> {
        let mut plain = Vec::new();
        plain.extend_from_slice(&u32::try_from(headers.len()).unwrap_or(0).to_be_bytes());
        for (name, value) in headers {
            put(&mut plain, name.as_bytes());
            put(&mut plain, value.as_bytes());
        }
        let mut out = Vec::with_capacity(plain.len() + 128);
        let begun = self.0.total_in();
        loop {
            let used = usize::try_from(self.0.total_in() - begun).unwrap_or(usize::MAX);
            let rest = plain.get(used..).unwrap_or_default();
            self.0
                .compress_vec(rest, &mut out, FlushCompress::Sync)
                .map_err(|e| HeaderError::Compression(e.to_string()))?;
            // Free capacity means that all output is flushed.
            if out.len() < out.capacity() {
                return Ok(out);
            }
            out.reserve(256);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dictionary_is_the_prescribed_one() {
        assert_eq!(DICTIONARY.len(), 1423);
        // A compressed block begins with the checksum of the dictionary that it needs.
        let block = Deflater::new().and_then(|mut d| d.write(&[])).unwrap();
        assert_eq!(block[2..6], [0xe3, 0xc6, 0xa7, 0xc2]);
    }

    #[test]
    fn several_values_of_a_name() {
        let mut plain = vec![0, 0, 0, 1];
        put(&mut plain, b"Port");
        put(&mut plain, b"80\081");
        let headers = Headers::parse(&plain).unwrap();
        assert_eq!((headers.get("port"), headers.0.len()), (Some("80"), 2));
    }

    #[test]
    fn a_block_that_grows_without_end_is_refused() {
        let mut deflater = Deflater::new().unwrap();
        let block = deflater.write(&[("a", &"x".repeat(4 << 20))]).unwrap();
        assert!(block.len() < 64 << 10, "{}", block.len());
        assert_eq!(Inflater::new().read(&block), Err(HeaderError::TooLong));
    }

    #[test]
    fn a_name_of_too_many_values_is_refused() {
        let block = |values: usize| {
            let mut plain = vec![0, 0, 0, 1];
            put(&mut plain, &[b'n'; 1 << 10]);
            put(&mut plain, &vec![0; values - 1]);
            Headers::parse(&plain).map(|headers| headers.0.len())
        };
        assert_eq!(block(MAX_HEADERS_BYTES >> 10), Ok(MAX_HEADERS_BYTES >> 10));
        assert_eq!(block((MAX_HEADERS_BYTES >> 10) + 1), Err(HeaderError::TooLong));
    }

    #[test]
    fn a_count_beyond_the_block_is_refused() {
        assert_eq!(Headers::parse(&[0xff; 4]), Err(HeaderError::Short));
        assert_eq!(Headers::parse(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]), Err(HeaderError::Short));
        assert_eq!(Headers::parse(&[0, 0]), Err(HeaderError::Short));
    }

    proptest! {
        #[test]
        fn blocks_one_after_another(blocks in prop::collection::vec(
            prop::collection::vec(("[a-z-]{1,20}", "[ -~]{0,2000}"), 0..6), 1..8)
        ) {
            let (mut deflater, mut inflater) = (Deflater::new().expect("a dictionary"), Inflater::new());
            for block in blocks {
                let pairs: Vec<(&str, &str)> = block.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                let wire = deflater.write(&pairs).expect("it can be written");
                let read = inflater.read(&wire).expect("it can be read");
                prop_assert_eq!(read.0, block);
            }
        }

        #[test]
        fn hostile_blocks(wire in prop::collection::vec(any::<u8>(), 0..400), flip in any::<prop::sample::Index>()) {
            let _ = Inflater::new().read(&wire);
            let mut good = Deflater::new().and_then(|mut d| d.write(&[("streamtype", "error"), ("port", "80")])).expect("a block");
            let at = flip.index(good.len());
            good[at] ^= 0x55;
            let _ = Inflater::new().read(&good);
            let _ = Headers::parse(&wire);
        }
    }
}
