//! The names of a pod's interfaces on the host, which the pod network gives and rules match. Pure.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

/// How the host's ends of veth pairs begin.
pub const HOST_PREFIX: &str = "wl";
/// How the interfaces begin that packets of pods pass whose bandwidth is limited.
pub const LIMITER_PREFIX: &str = "wi";

/// Eleven hex digits of a hash of a pod's uid.
fn hash(pod_uid: &str) -> String {
    let mut hex = String::new();
    for byte in digest(&SHA256, pod_uid.as_bytes()).as_ref().iter().take(6) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex.truncate(11);
    hex
}

/// The name of the host's end of a pod's veth pair: `wl` and a hash of its uid.
#[must_use]
pub fn host_interface(pod_uid: &str) -> String {
    format!("{HOST_PREFIX}{}", hash(pod_uid))
}

/// The name of the interface that limits what a pod sends: `wi` and the same hash.
#[must_use]
pub fn limiter_interface(pod_uid: &str) -> String {
    format!("{LIMITER_PREFIX}{}", hash(pod_uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_differ() {
        let (a, b) = (host_interface("a"), host_interface("b"));
        // IFNAMSIZ, with the NUL.
        assert!(a.len() < 16 && a.len() == limiter_interface("a").len());
        assert_ne!(a, b);
        assert_eq!(a[HOST_PREFIX.len()..], limiter_interface("a")[LIMITER_PREFIX.len()..]);
    }
}
