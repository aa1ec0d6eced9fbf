//! Fields of a pod that stand for themselves: names, DNS, gates and claims. Pure.

use std::collections::BTreeSet;

use super::container::Pod;
use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::{
        field::Field,
        internal_version::{Internal, Table},
    },
};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
const MAX_HOSTNAME_BYTES: usize = 64;

/// Upstream's type.
const CLAIM: Table = "\
Name name \"\"
ResourceClaimName resourceClaimName null
ResourceClaimTemplateName resourceClaimTemplateName null
";

/// Validates `dnsPolicy`'s configuration.
pub(super) fn dns(spec: &Field<'_>, errors: &mut Errors) {
    let config = spec.at("dnsConfig");
    let servers = config.at("nameservers");
    if spec.at("dnsPolicy").text() == "None" {
        if !config.is_set() {
            return config.required("must provide `dnsConfig` when `dnsPolicy` is None", errors);
        }
        if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return servers.required(why, errors);
        }
    }
    if servers.len() > MAX_NAMESERVERS {
        servers.invalid(&format!("must not have more than {MAX_NAMESERVERS} nameservers"), errors);
    }
    servers.items().for_each(|server| server.fits(names::ip, errors));
    let searches = config.at("searches");
    if searches.len() > MAX_SEARCHES {
        searches.invalid(&format!("must not have more than {MAX_SEARCHES} search paths"), errors);
    }
    if searches.texts().join(" ").len() > MAX_SEARCH_BYTES {
        let why =
            format!("must not have more than {MAX_SEARCH_BYTES} characters (including spaces) in the search list");
        searches.invalid(&why, errors);
    }
    for search in searches.items().filter(|search| search.text() != ".") {
        let domain = search.text().strip_suffix('.').unwrap_or(search.text());
        errors.unless(search.path, domain, names::search_domain(domain));
    }
    for option in config.at("options").items().filter(|option| option.at("name").is_empty()) {
        option.required("must not be empty", errors);
    }
}

/// Refuses aliases that would be other lines of a file than they say.
pub(super) fn host_aliases(aliases: &Field<'_>, errors: &mut Errors) {
    for alias in aliases.items() {
        alias.at("ip").fits(names::ip, errors);
        alias.at("hostnames").items().for_each(|name| name.fits(names::subdomain, errors));
    }
}

/// Validates what holds a pod back from nodes and from being ready.
pub(super) fn gates(spec: &Field<'_>, errors: &mut Errors) {
    spec.at("readinessGates").items().for_each(|gate| gate.at("conditionType").label_key(errors));
    let mut seen = BTreeSet::new();
    for gate in spec.at("schedulingGates").items() {
        // Upstream reports the path of the gate instead of its name's.
        let name = Field { value: &gate.value["name"], path: gate.path };
        name.label_key(errors);
        if !seen.insert(name.text()) {
            name.duplicate(errors);
        }
    }
}

/// Validates the name that the pod has of itself.
pub(super) fn hostname_override(spec: &Field<'_>, errors: &mut Errors) {
    let name = spec.at("hostnameOverride");
    if !name.is_set() {
        return;
    }
    for flag in ["setHostnameAsFQDN", "hostNetwork"].iter().filter(|flag| spec.value[**flag] == true) {
        name.forbidden(&format!("may not be specified when {flag} is true"), errors);
    }
    name.max_bytes(MAX_HOSTNAME_BYTES, errors);
    name.fits(names::subdomain, errors);
}

/// Validates names of other objects and of the pod's host.
pub(super) fn names_of_others(spec: &Field<'_>, errors: &mut Errors) {
    spec.at("serviceAccountName").optionally_fits(names::subdomain, errors);
    spec.at("nodeName").optionally_fits(names::subdomain, errors);
    let deadline = spec.at("activeDeadlineSeconds");
    if deadline.number().is_some_and(|n| !(1..=i64::from(i32::MAX)).contains(&n)) {
        deadline.invalid("must be between 1 and 2147483647, inclusive", errors);
    }
    spec.at("hostname").optionally_fits(names::label, errors);
    spec.at("subdomain").optionally_fits(names::label, errors);
}

/// Validates how important the pod is, and by what it is run.
pub(super) fn classes(spec: &Field<'_>, errors: &mut Errors) {
    spec.at("priorityClassName").optionally_fits(names::subdomain, errors);
    let runtime = spec.at("runtimeClassName");
    if runtime.is_set() {
        runtime.fits(names::subdomain, errors);
    }
    let preemption = spec.at("preemptionPolicy");
    if preemption.is_set() {
        preemption.required_one_of(&["PreemptLowerPriority", "Never"], errors);
    }
}

/// Validates the claims of devices. The nodes' own pods can have none.
pub(super) fn resource_claims(claims: &Field<'_>, is_mirror: bool, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for claim in claims.items() {
        if is_mirror {
            errors.forbidden("[]", "static pods do not support resource claims");
            continue;
        }
        let name = claim.at("name");
        if name.is_empty() {
            name.required("", errors);
        } else if seen.insert(name.text()) {
            name.fits(names::label, errors);
        } else {
            name.duplicate(errors);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"].map(|source| claim.at(source));
        let why = match sources.iter().filter(|source| source.is_set()).count() {
            0 => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            1 => "",
            _ => "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
        };
        if !why.is_empty() {
            claim.invalid_as(&Internal::new(CLAIM, claim.value).text(), why, errors);
        }
        for source in sources.iter().filter(|source| source.is_set()) {
            source.fits(names::subdomain, errors);
        }
    }
}

/// Refuses tokens of a pod that has no service account.
pub(super) fn tokens_of_nobody(spec: &Field<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    if pod.template || !spec.at("serviceAccountName").is_empty() {
        return;
    }
    for source in spec.at("volumes").items().flat_map(|volume| volume.below("projected.sources").items()) {
        let token = source.at("serviceAccountToken");
        if token.is_set() {
            token.forbidden("must not be specified when serviceAccountName is not set", errors);
        }
    }
}
