use super::*;

fn token(text: &str) -> Token {
    text.parse().unwrap()
}

#[test]
fn tokens_are_read_and_their_secrets_not_told() {
    let good = token("abcdef.0123456789abcdef");
    assert_eq!((good.id(), good.bearer().as_str()), ("abcdef", "abcdef.0123456789abcdef"));
    assert_eq!(format!("{good:?}"), "Token(abcdef)");
    for text in [
        "",
        ".",
        "abcdef",
        "abcde.0123456789abcdef",
        "abcdef.0123456789abcde",
        "abcdef.0123456789abcdef0",
        "ABCDEF.0123456789abcdef",
        "abcdef.0123456789abcdeF",
        "abcdef 0123456789abcdef",
        "abcdef.0123456789.abcde",
        " abcdef.0123456789abcdef",
        "äbcde.0123456789abcdef",
    ] {
        assert_eq!(text.parse::<Token>(), Err(BadToken), "{text:?}");
    }
}

/// What kubeadm's own tests have.
const VECTOR: &str = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..aiG7z8XWjjzLz3AwuhjgjACCUfWawXW2oX1uxgNWBSg";

#[test]
fn signatures_are_kubeadms() {
    let (signer, payload) = (token("abcdef.0123456789abcdef"), b"clusters: []\n");
    assert_eq!(sign(&signer, payload), VECTOR);
    assert_eq!(verify(&signer, payload, VECTOR), Ok(()));
    assert_eq!(verify(&signer, b"clusters: [] ", VECTOR), Err(BadSignature::Wrong));
    assert_eq!(verify(&token("abcdef.0123456789abcdee"), payload, VECTOR), Err(BadSignature::Wrong));
    let other = token("abcdee.0123456789abcdef");
    assert_eq!(verify(&other, payload, VECTOR), Err(BadSignature::Another("abcdef".into())));
    for (wrong, why) in [
        ("", BadSignature::Form),
        ("a.b.c", BadSignature::Form),
        ("..", BadSignature::Form),
        ("e30..", BadSignature::Algorithm(String::new())),
        // {"alg":"none","kid":"abcdef"}
        ("eyJhbGciOiJub25lIiwia2lkIjoiYWJjZGVmIn0..", BadSignature::Algorithm("none".into())),
        // The right header and no signature.
        ("eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..", BadSignature::Wrong),
    ] {
        assert_eq!(verify(&signer, payload, wrong), Err(why), "{wrong:?}");
    }
}

/// A self-signed certificate of P-256, and what `openssl x509 -pubkey | openssl pkey -pubin -outform der | sha256sum`
/// says of it.
const CERTIFICATE: &str = include_str!("tests/ca.crt");
const PIN: &str = include_str!("tests/ca.pin");

#[test]
fn pins_are_openssls() {
    let pin: Pin = PIN.trim().parse().unwrap();
    assert_eq!(pin.to_string(), PIN.trim());
    let upper: Pin = format!("sha256:{}", PIN.trim()["sha256:".len()..].to_uppercase()).parse().unwrap();
    let other: Pin = format!("sha256:{}", "00".repeat(32)).parse().unwrap();
    assert_eq!(any_matches(&[other, upper], CERTIFICATE), Ok(()));
    let two = format!("{CERTIFICATE}{CERTIFICATE}");
    assert_eq!(any_matches(&[pin], &two), Ok(()));
    assert!(any_matches(&[other], CERTIFICATE).unwrap_err().contains(PIN.trim()));
    assert!(any_matches(&[], CERTIFICATE).is_err());
    assert!(any_matches(&[pin], "").unwrap_err().contains("no certificate"));
    assert!(any_matches(&[pin], &CERTIFICATE.replace("MII", "!!!")).is_err());
    for text in [
        "",
        "sha256:",
        "sha512:00",
        &"0".repeat(64),
        &format!("sha256:{}", "0".repeat(63)),
        &format!("sha256:{}", "0g".repeat(32)),
    ] {
        assert!(text.parse::<Pin>().is_err(), "{text}");
    }
}
