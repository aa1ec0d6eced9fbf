//! Subjects of requests for certificates: whoever approves a request, whoever logs in with its certificate, and the node whose
//! certificate it is, read the same user, or none of them any.

use windlass_agent::certificates::CertifiedKey;

pub(crate) fn run(bytes: &[u8]) {
    let Some((cert, user)) = windlass_identity::fuzzing::subject(bytes) else { return };
    let of_node = CertifiedKey { cert, key: String::new() }.user();
    assert_eq!(of_node.unwrap_or_default(), user);
}
