//! Addresses and protocols of endpoints. Pure.

use crate::apiserver::validation::{errors::Errors, names};

/// The supported protocols of ports.
pub(crate) const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// An address that packets can be sent to. Loopback is allowed, unlike upstream: the API itself may listen there.
pub(crate) fn validate_address(field: &str, address: &str, errors: &mut Errors) {
    match address.parse::<std::net::IpAddr>() {
        Err(_) => errors.unless(field, address, names::ip(address)),
        Ok(ip) if ip.is_unspecified() => errors.invalid_text(field, address, "may not be unspecified (0.0.0.0 or ::)"),
        Ok(ip) if ip.is_multicast() => {
            errors.invalid_text(field, address, "may not be in the multicast range (224.0.0.0/4, ff00::/8)")
        }
        Ok(std::net::IpAddr::V4(ip)) if ip.is_link_local() => {
            errors.invalid_text(field, address, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
        }
        Ok(_) => {}
    }
}
