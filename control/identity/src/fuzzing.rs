//! Entry points of the fuzzers: certificate signing requests.

use std::sync::LazyLock;

use crate::pki::unusual::{Authority, name_of};

/// Requests a certificate with `bytes` as the name of its subject, or as the attributes of one, and signs it: the
/// approver must see the same user that it authenticates. The certificate in PEM and its user, if it has one.
///
/// # Panics
/// When a certificate that is signed is for anybody else than the request said.
pub fn subject(bytes: &[u8]) -> Option<(String, String)> {
    static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::generate);
    let mut signed = None;
    for name in [bytes.to_vec(), name_of(bytes)] {
        let Some((asked, certificate)) = AUTHORITY.issue(&name) else { continue };
        let login = windlass_kit::serve::identity(certificate.der());
        let (user, groups) = login.map(|login| (login.name, login.groups)).unwrap_or_default();
        assert_eq!(user, asked.common_name(), "the login is another one's");
        let asked_groups: Vec<&str> = if user.is_empty() { Vec::new() } else { asked.organizations().collect() };
        assert_eq!(groups, asked_groups, "the login has other groups");
        signed = Some((certificate.pem(), user));
    }
    signed
}
