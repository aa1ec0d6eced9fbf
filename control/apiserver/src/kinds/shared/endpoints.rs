//! Addresses and protocols of endpoints. Pure.

use windlass_kit::{
    addresses::{EndpointIp, SpecialAddress},
    net::parse_ip,
};

use crate::apiserver::pipeline::validation::errors::Errors;

/// The supported protocols of ports.
pub(crate) const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// Refuses an address that packets of others may not be sent to (upstream: `ValidateEndpointIP`). An endpoint of the API
/// itself, and only that, may be on the loopback device.
pub(crate) fn validate_special(field: impl Into<String>, address: &str, of_the_api: bool, errors: &mut Errors) {
    let Some(ip) = parse_ip(address) else {
        return errors.invalid_text(field, address, "must be a valid IP address");
    };
    let read = if of_the_api { EndpointIp::of_the_api(ip) } else { EndpointIp::new(ip) };
    match read {
        Ok(_) => {}
        Err(special @ SpecialAddress::Unspecified) => {
            errors.invalid_text(field, address, &format!("{special} ({address})"));
        }
        Err(special) => errors.invalid_text(field, address, &special.to_string()),
    }
}
