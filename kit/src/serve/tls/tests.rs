//! Files of certificates as openssl and people make them: `fixtures/certificates`, each with the names of its certificates in
//! its own.

use super::*;
#[cfg(feature = "bootstrap")]
use crate::bootstrap::{Pin, any_matches};

fn names(certificates: &[CertificateDer<'_>]) -> Vec<String> {
    let name = |certificate: &CertificateDer<'_>| {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).unwrap();
        let name = parsed.subject().iter_common_name().next().unwrap();
        name.as_str().unwrap().to_owned()
    };
    certificates.iter().map(name).collect()
}

#[test]
fn certificates_of_all_programs_are_read() {
    let mut seen = 0;
    for (file, text) in windlass_fixtures::files::certificates() {
        let (name, _) = file.rsplit_once('.').unwrap();
        let found = certificates(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected: Vec<&str> = name.split('-').filter(|part| matches!(*part, "one" | "other")).collect();
        // `one-line` is no certificate.
        let expected = if name.starts_with("one-line") { &expected[1..] } else { &expected[..] };
        assert_eq!(names(&found), expected, "{name}");
        assert_eq!(ends_at(&text).is_some(), !expected.is_empty(), "{name}");
        // All of them are authorities that a client may trust, the last as well as the first.
        #[cfg(feature = "bootstrap")]
        match found.last() {
            Some(last) => any_matches(&[Pin::of(last).unwrap()], &text).unwrap(),
            None => assert!(any_matches(&[], &text).is_err(), "{name}"),
        }
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
}
