//! Cluster IPs, and the IP families that a service asks for. This server gives IPv4 addresses alone, so that the answers
//! are those of upstream on a cluster of one family (pkg/registry/core/service/storage/alloc.go). Pure.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::{Value, json};
use windlass_kit::net::{Family, parse_ip};

use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::field::Field,
};

const POLICIES: &[&str] = &["PreferDualStack", "RequireDualStack", "SingleStack"];
const FAMILIES: &[&str] = &["IPv4", "IPv6"];

/// The family whose addresses this server gives.
const CONFIGURED: Family = Family::V4;

fn spec(service: &Value) -> Field<'_> {
    Field::root(service).at("spec")
}

/// Whether a service has neither addresses nor families.
fn is_external_name(spec: &Field<'_>) -> bool {
    spec.at("type").text() == "ExternalName"
}

/// Whether a service asks for no address.
pub(super) fn is_headless(spec: &Field<'_>) -> bool {
    spec.at("clusterIPs").texts() == ["None"]
}

/// Headless services without a selector may be of families that the cluster does not have: their endpoints are others'.
fn is_without_selector(spec: &Field<'_>) -> bool {
    spec.at("clusterIP").text() == "None" && spec.at("selector").is_empty()
}

fn family_of(ip: &str) -> Option<&'static str> {
    parse_ip(ip).map(|ip| Family::of(&ip).name())
}

/// A service that prefers two families stays as it is, whatever the cluster has by now.
fn keeps_families(new: &Field<'_>, old: Option<&Field<'_>>) -> bool {
    let prefers = |spec: &Field<'_>| spec.at("ipFamilyPolicy").text() == "PreferDualStack";
    let same = |old: &Field<'_>, list: &'static str| new.at(list).texts() == old.at(list).texts();
    old.is_some_and(|old| {
        new.at("type").text() == old.at("type").text()
            && prefers(new)
            && (prefers(old) || old.at("ipFamilyPolicy").is_empty())
            && same(old, "clusterIPs")
            && same(old, "ipFamilies")
    })
}

/// Fills in the policy and the families of a service whose cluster IPs are in order.
pub(super) fn fill(service: &mut Value, old: Option<&Value>) {
    let old = old.map(spec);
    let new = spec(service);
    // An empty policy is set but invalid, and is refused.
    let is_wrong = new.at("ipFamilyPolicy").value == "";
    if is_external_name(&new) || is_wrong || keeps_families(&new, old.as_ref()) {
        return;
    }
    let policy = match (new.at("ipFamilyPolicy").text(), old.as_ref().map(|old| old.at("ipFamilyPolicy").text())) {
        ("", Some(before)) if !before.is_empty() => before,
        ("", _) if is_without_selector(&new) => "RequireDualStack",
        ("", _) => "SingleStack",
        (asked, _) => asked,
    }
    .to_owned();
    let mut errors = Errors::default();
    cluster_ips(&new, old.as_ref(), &mut errors);
    let mut families: Vec<String> = new.at("ipFamilies").texts().into_iter().map(str::to_owned).collect();
    if errors.0.is_empty() {
        let unchanged = old.as_ref().is_some_and(|old| old.at("ipFamilies").texts() == families);
        if policy == "SingleStack" && unchanged {
            families.truncate(1);
        }
        let ips = new.at("clusterIPs");
        let given = ips.texts().into_iter().take_while(|ip| *ip != "None").filter_map(family_of);
        let inferred: Vec<&str> = given.skip(families.len()).filter(|family| *family == CONFIGURED.name()).collect();
        families.extend(inferred.into_iter().map(str::to_owned));
        // Who names fewer families than there are releases one, and must say so by the policy.
        let released =
            old.as_ref().is_some_and(|old| !families.is_empty() && families.len() < old.at("ipFamilies").len());
        let is_headless = is_without_selector(&new) && !released;
        // Of an address of another family none is inferred: that is refused.
        if families.is_empty() && ips.texts().first().is_none_or(|first| *first == "None") {
            families.push(CONFIGURED.name().to_owned());
        }
        if is_headless && families.len() == 1 && policy != "SingleStack" {
            families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
        }
    }
    service["spec"]["ipFamilyPolicy"] = json!(policy);
    if !families.is_empty() {
        service["spec"]["ipFamilies"] = json!(families);
    }
}

/// Refuses addresses and families that do not fit each other, or that this server does not give. Upstream refuses them
/// before anything else.
pub(super) fn validate(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    let old = old.map(spec);
    let new = spec(new);
    if is_external_name(&new) {
        return;
    }
    let before = errors.0.len();
    cluster_ips(&new, old.as_ref(), errors);
    if keeps_families(&new, old.as_ref()) || errors.0.len() > before {
        return;
    }
    let policy = new.at("ipFamilyPolicy");
    let (ips, families) = (new.at("clusterIPs"), new.at("ipFamilies"));
    let is_single = policy.text() == "SingleStack";
    if let Some(old) = old.as_ref().filter(|_| !is_single) {
        for (list, what) in [(&ips, "cluster IP"), (&families, "IP family")] {
            let reduced = !list.is_empty() && list.len() < old.at_name(list.path.name()).len();
            if reduced {
                policy.invalid(&format!("must be 'SingleStack' to release the secondary {what}"), errors);
            }
        }
    }
    for (list, what) in [(&ips, "cluster IPs"), (&families, "IP families")] {
        if is_single && list.len() == 2 {
            let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            policy.invalid(&why, errors);
        }
    }
    for (at, ip) in ips.items().enumerate().take_while(|(_, ip)| ip.text() != "None") {
        let family = family_of(ip.text()).unwrap_or_default();
        if at >= families.len() && family != CONFIGURED.name() {
            errors.invalid(ip.path, ips.value, &format!("{family} is not configured on this cluster"));
        }
    }
    if errors.0.len() > before || is_without_selector(&new) {
        return;
    }
    if policy.text() == "RequireDualStack" {
        policy.invalid("this cluster is not configured for dual-stack services", errors);
    }
    for family in families.items().filter(|family| family.text() != CONFIGURED.name()) {
        family.invalid("not configured on this cluster", errors);
    }
}

/// Refuses cluster IPs that do not fit each other or the families (`ValidateServiceClusterIPsRelatedFields`).
fn cluster_ips(new: &Field<'_>, old: Option<&Field<'_>>, errors: &mut Errors) {
    let (first, ips, families) = (new.at("clusterIP"), new.at("clusterIPs"), new.at("ipFamilies"));
    let listed = ips.texts();
    match listed.first() {
        None if !first.is_empty() => ips.required("", errors),
        Some(_) if first.is_empty() => ips.invalid("must be empty when `clusterIP` is not specified", errors),
        Some(other) if *other != first.text() => ips.invalid("first value must match `clusterIP`", errors),
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for family in families.items() {
        family.one_of(FAMILIES, errors);
        if !seen.insert(family.text()) {
            family.duplicate(errors);
        }
    }
    new.at("ipFamilyPolicy").optional_one_of(POLICIES, errors);
    let existing = old.map(|old| old.at("clusterIPs").texts()).unwrap_or_default();
    let mut readable = true;
    for (at, ip) in ips.items().enumerate() {
        if at == 0 && ip.text() == "None" {
            if listed.len() > 1 {
                ips.invalid("'None' must be the first and only value", errors);
                readable = false;
            }
        } else if !existing.contains(&ip.text())
            && let Some(why) = names::ip(ip.text())
        {
            ip.invalid(&why, errors);
            readable = false;
        }
    }
    if listed.len() > 2 {
        ips.invalid("may only hold up to 2 values", errors);
    }
    if !readable {
        return;
    }
    let of: Vec<Option<IpAddr>> = listed.iter().map(|ip| parse_ip(ip)).collect();
    let both = Family::BOTH.iter().all(|family| of.iter().flatten().any(|ip| Family::of(ip) == *family));
    if listed.len() > 1 && !both {
        ips.invalid("may specify no more than one IP for each IP family", errors);
    }
    if is_headless(new) {
        return;
    }
    for (at, (ip, family)) in ips.items().zip(families.items()).enumerate() {
        let wanted = family.text();
        if FAMILIES.contains(&wanted) && family_of(ip.text()).is_some_and(|own| own != wanted) {
            ip.invalid(&format!("expected an {wanted} value as indicated by `ipFamilies[{at}]`"), errors);
        }
    }
}

/// Refuses changes of what a service has once: its first address and its first family.
pub(super) fn validate_changes(new: &Value, old: &Value, errors: &mut Errors) {
    let (new, old) = (spec(new), spec(old));
    if is_external_name(&new) || is_external_name(&old) {
        return;
    }
    let (is, was) = (is_headless(&new), is_headless(&old));
    if !(is && was) {
        changed(&new.at("clusterIPs"), &old.at("clusterIPs"), true, errors);
        released(&new, new.at("clusterIPs").len(), old.at("clusterIPs").len(), "clusterIP", errors);
    }
    if !is && !was {
        changed(&new.at("ipFamilies"), &old.at("ipFamilies"), false, errors);
        released(&new, new.at("ipFamilies").len(), old.at("ipFamilies").len(), "ipFamily", errors);
    }
}

/// `each` names the place that has changed, as upstream does for addresses and not for families.
fn changed(new: &Field<'_>, old: &Field<'_>, each: bool, errors: &mut Errors) {
    const ONCE: &str = "may not change once set";
    let (is, was) = (new.texts(), old.texts());
    // What is compared of lists of different length is the first item alone.
    let compared = if is.len() == was.len() { is.len() } else { is.len().min(was.len()).min(1) };
    for at in 0..compared {
        if is[at] != was[at] {
            let place = if each { at } else { 0 };
            errors.invalid(format!("{}[{place}]", new.path), new.value, ONCE);
        }
    }
    if is.is_empty() && !was.is_empty() {
        let what = if each { "clusterIP" } else { "ipFamily" };
        errors.invalid(format!("{}[0]", new.path), &json!(is), &format!("primary {what} can not be unset"));
    }
}

fn released(new: &Field<'_>, is: usize, was: usize, what: &str, errors: &mut Errors) {
    let policy = new.at("ipFamilyPolicy");
    if was > is && is == 1 && policy.text() != "SingleStack" {
        policy.invalid(&format!("must be set to 'SingleStack' when releasing the secondary {what}"), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What upstream's API server answers on a cluster of one family: recorded from kube-apiserver 1.36.
    #[test]
    fn families_are_those_that_upstream_fills_in() {
        for (given, policy, families) in [
            (json!({"selector": {"a": "b"}}), "SingleStack", json!(["IPv4"])),
            (json!({"clusterIP": "None"}), "RequireDualStack", json!(["IPv4", "IPv6"])),
            (json!({"clusterIP": "None", "selector": {"a": "b"}}), "SingleStack", json!(["IPv4"])),
            (
                json!({"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack"}),
                "PreferDualStack",
                json!(["IPv4", "IPv6"]),
            ),
            (json!({"clusterIP": "None", "ipFamilyPolicy": "SingleStack"}), "SingleStack", json!(["IPv4"])),
            (json!({"clusterIP": "None", "ipFamilies": ["IPv6"]}), "RequireDualStack", json!(["IPv6", "IPv4"])),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), "PreferDualStack", json!(["IPv4"])),
            (json!({"clusterIP": "10.96.0.9"}), "SingleStack", json!(["IPv4"])),
        ] {
            let mut service = json!({"spec": given});
            super::super::prepare::normalize_cluster_ips(&mut service, None);
            fill(&mut service, None);
            assert_eq!(service["spec"]["ipFamilyPolicy"], policy, "{given}");
            assert_eq!(service["spec"]["ipFamilies"], families, "{given}");
            let mut errors = Errors::default();
            validate(&service, None, &mut errors);
            assert!(errors.0.is_empty(), "{given}: {:?}", errors.0);
        }
    }
}
