//! Tokens of clients: verifying never panics, and accepts only what was signed here. The input is used as an
//! Authorization header, as a token, and instead of a part of a valid token, which its first two bytes select.

use std::sync::LazyLock;

use serde_json::json;
use windlass_identity::service_account_tokens::{ISSUER, TokenIssuer};
use windlass_kit::serve::bearer;

const NOW: i64 = 150;

static TOKENS: LazyLock<(TokenIssuer, String)> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    let tokens = TokenIssuer::from_pem(&key).expect("a key of tokens");
    let claims = json!({"iss": ISSUER, "sub": "system:serviceaccount:a:b", "nbf": 100, "exp": 200});
    let good = tokens.sign(&claims).expect("a token");
    assert!(tokens.verify(&good, NOW).is_some());
    (tokens, good)
});

pub(crate) fn run(bytes: &[u8]) {
    let (tokens, good) = &*TOKENS;
    let text = String::from_utf8_lossy(bytes);
    assert!(tokens.verify(&text, NOW).is_none(), "nobody guesses a signature");
    if let Ok(value) = http::HeaderValue::from_bytes(bytes) {
        let headers = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]);
        if let Ok(Some(token)) = bearer(&headers) {
            assert!(!token.is_empty() && token.trim() == token);
            assert!(tokens.verify(token, NOW).is_none());
        }
    }
    let Some((place, put)) = bytes.split_first_chunk::<2>() else { return };
    let at = usize::from(place[0]) % good.len();
    let until = (at + usize::from(place[1])).min(good.len());
    let forged = [&good[..at], &String::from_utf8_lossy(put), &good[until..]].concat();
    assert!(forged == *good || tokens.verify(&forged, NOW).is_none(), "{forged} is accepted as {good}");
}
