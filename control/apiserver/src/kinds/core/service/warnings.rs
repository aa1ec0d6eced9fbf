//! Warnings about an accepted Service (upstream: `GetWarningsForService`). Pure.

use serde_json::Value;

use crate::{
    apiserver::pipeline::validation::names::{cidr_warning, ip_warning},
    kinds::shared::field::Field,
};

pub(super) fn of(service: &Value) -> Vec<String> {
    let spec = Field::root(service).at("spec");
    let is_external_name = spec.at("type").text() == "ExternalName";
    let is_headless = spec.at("type").text() == "ClusterIP" && spec.at("clusterIP").text() == "None";
    let external_ips = spec.at("externalIPs");
    let mut told = Vec::new();
    if service["metadata"]["annotations"]["service.kubernetes.io/topology-aware-hints"].is_string() {
        told.push(
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use \
             service.kubernetes.io/topology-mode instead"
                .to_owned(),
        );
    }
    if !is_external_name && !matches!(spec.at("clusterIP").text(), "" | "None") {
        told.extend(spec.at("clusterIPs").items().filter_map(|ip| ip_warning(&ip.path, ip.text())));
    }
    if is_headless {
        let ignored = [
            (!spec.at("loadBalancerIP").is_empty(), "spec.loadBalancerIP"),
            (!external_ips.is_empty(), "spec.externalIPs"),
            (spec.at("sessionAffinity").text() != "None", "spec.SessionAffinity"),
        ];
        let ignored = ignored.into_iter().filter_map(|(is_set, field)| is_set.then_some(field));
        told.extend(ignored.map(|field| format!("{field} is ignored for headless services")));
    }
    told.extend(external_ips.items().filter_map(|ip| ip_warning(&ip.path, ip.text())));
    if !external_ips.is_empty() && !is_headless && !is_external_name {
        told.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned());
    }
    let balancer = spec.at("loadBalancerIP");
    told.extend(Some(&balancer).filter(|ip| !ip.is_empty()).and_then(|ip| ip_warning(&ip.path, ip.text())));
    let ranges = spec.at("loadBalancerSourceRanges");
    told.extend(ranges.items().flat_map(|range| cidr_warning(&range.path, range.text())));
    if is_external_name && !external_ips.is_empty() {
        told.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !is_external_name && !spec.at("externalName").is_empty() {
        told.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec.at("trafficDistribution").text() == "PreferClose" {
        told.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned());
    }
    told
}
