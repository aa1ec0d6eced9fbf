//! Keys and certificates of others in DER, and PEM of any form around them: reading never panics, and values are within the
//! bytes that they were read from.

use windlass_kit::{der, private_key::PrivateKey};

pub(crate) fn run(bytes: &[u8]) {
    if let Some((value, rest)) = der::first(bytes) {
        assert_eq!(value.len() + rest.len(), bytes.len());
        let content = der::content(value).expect("a value has a content");
        let inside: usize = der::values(value).map(<[u8]>::len).sum();
        assert!(inside <= content.len() && content.len() < value.len());
        assert!(der::tagged(value[0], &[content]).len() <= value.len(), "a value was written shorter than it can be");
    }
    let _ = windlass_kit::serve::identity(bytes);
    let _ = std::str::from_utf8(bytes).map(PrivateKey::from_pem);
}
