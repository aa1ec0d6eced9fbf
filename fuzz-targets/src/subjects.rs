//! Subjects of certificate signing requests: the approver, the authenticator of the issued certificate, and the node
//! that holds it all read the same user, or none of them reads any.

use windlass_agent::certificates::CertifiedKey;

pub(crate) fn run(bytes: &[u8]) {
    let Some((cert, user)) = windlass_identity::fuzzing::subject(bytes) else { return };
    let of_node = CertifiedKey { cert, key: String::new() }.user();
    assert_eq!(of_node.unwrap_or_default(), user);
}
