//! Cluster IPs as objects: `cidrs` keeps ServiceCIDRs, `repair` finds IPAddresses that do not fit their services. The
//! allocation itself is the API server's.

mod cidrs;
mod repair;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use kube::ResourceExt;
use windlass_kit::net::Cidr;

pub(super) use cidrs::ServiceCidrController;
pub(super) use repair::ServiceAddressRepairController;

const FAMILY_LABEL: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED_BY_LABEL: &str = "ipaddress.kubernetes.io/managed-by";
/// The allocator of services; these controllers ignore addresses with another manager.
const ALLOCATOR: &str = "ipallocator.k8s.io";

fn is_managed(address: &IPAddress) -> bool {
    address.labels().get(MANAGED_BY_LABEL).is_some_and(|by| by == ALLOCATOR)
}

/// The address that an object is named by.
fn ip_of(address: &IPAddress) -> Option<IpAddr> {
    address.metadata.name.as_deref()?.parse().ok()
}

/// The ranges of an object.
fn ranges(cidr: &ServiceCIDR) -> impl Iterator<Item = Cidr> + '_ {
    let all = cidr.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    all.filter_map(|range| Cidr::parse(range))
}

fn covers(cidr: &ServiceCIDR, ip: IpAddr) -> bool {
    ranges(cidr).any(|range| range.contains(&ip))
}
