//! `/etc/hosts`, `/etc/resolv.conf` and the host name of a pod. Pure; `steps::sandbox` writes the files.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use windlass_kit::resolv_conf::ResolvConf;

use crate::pods::lifecycle::spec;

/// The DNS configuration of the node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dns {
    /// The cluster's name servers; may be empty.
    pub(crate) servers: Vec<IpAddr>,
    pub(crate) domain: String,
    /// The host's resolv.conf; `None` where pods get none of its name servers.
    pub(crate) host: Option<String>,
}

/// The pod's host name: at most 63 characters of `spec.hostname` or the pod's name.
pub(crate) fn hostname(pod: &Pod) -> String {
    let wanted = pod.spec.as_ref().and_then(|s| s.hostname.as_deref()).unwrap_or_else(|| spec::name(pod));
    let cut: String = wanted.chars().take(63).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// The longest host name that the kernel takes; upstream's.
const MAX_HOSTNAME_LEN: usize = 64;

/// The host name that the kernel has in the pod: its override, its FQDN where it asks for that, or its host name.
///
/// # Errors
/// An FQDN that is too long for the kernel.
pub(crate) fn kernel_hostname(pod: &Pod, domain: &str) -> Result<String, String> {
    let spec = pod.spec.as_ref();
    if let Some(name) = spec.and_then(|s| s.hostname_override.clone()).filter(|n| !n.is_empty()) {
        return Ok(name);
    }
    let full = spec.is_some_and(|s| s.set_hostname_as_fqdn == Some(true)).then(|| fqdn(pod, domain)).flatten();
    match full {
        Some(full) if full.len() > MAX_HOSTNAME_LEN => Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long ({MAX_HOSTNAME_LEN} characters is the max, {} characters requested)",
            full.len()
        )),
        Some(full) => Ok(full),
        None => Ok(hostname(pod)),
    }
}

/// The FQDN of a pod with a subdomain.
fn fqdn(pod: &Pod, domain: &str) -> Option<String> {
    let subdomain = pod.spec.as_ref()?.subdomain.as_deref().filter(|s| !s.is_empty())?;
    Some(format!("{}.{subdomain}.{}.svc.{domain}", hostname(pod), spec::namespace(pod)))
}

/// `/etc/hosts` of a pod with its own network namespace.
pub(crate) fn hosts(pod: &Pod, addresses: &[IpAddr], domain: &str) -> String {
    let mut out = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    for address in addresses {
        let name = hostname(pod);
        match fqdn(pod, domain) {
            Some(full) => out.push_str(&format!("{address}\t{full}\t{name}\n")),
            None => out.push_str(&format!("{address}\t{name}\n")),
        }
    }
    aliases(pod.spec.as_ref(), &mut out);
    out
}

/// `/etc/hosts` of a pod with hostNetwork: the host's, and the pod's aliases.
pub(crate) fn host_network_hosts(pod: &Pod, host: &str) -> String {
    let mut out = format!("# Kubernetes-managed hosts file (host network).\n{host}");
    if !out.ends_with('\n') {
        out.push('\n');
    }
    aliases(pod.spec.as_ref(), &mut out);
    out
}

fn aliases(spec: Option<&PodSpec>, out: &mut String) {
    let aliases: Vec<_> = spec.and_then(|s| s.host_aliases.as_ref()).into_iter().flatten().collect();
    if !aliases.is_empty() {
        out.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.clone().unwrap_or_default().join("\t");
            out.push_str(&format!("{}\t{names}\n", alias.ip));
        }
    }
}

/// Upstream's limits.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;
/// Resolvers may abort at a longer domain.
const MAX_DOMAIN_LEN: usize = 253;

/// `/etc/resolv.conf` of a pod, and upstream's events, as reason and message, for what it leaves out.
pub(crate) fn resolv_conf(pod: &Pod, dns: &Dns) -> (String, Vec<(&'static str, String)>) {
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let host_network = spec.is_some_and(spec::host_network);
    let wants_cluster = match policy {
        "ClusterFirst" => !host_network,
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let cluster = wants_cluster && !dns.servers.is_empty();
    let host = if policy == "None" { "" } else { dns.host.as_deref().unwrap_or("") };
    let ResolvConf { mut servers, mut searches, mut options } = ResolvConf::parse(host);
    if dns.host.is_none() && policy != "None" && !cluster {
        // Resolvers take an empty file as this address, and the host's domain.
        (servers, searches) = (vec!["127.0.0.1".to_owned()], vec![".".to_owned()]);
    }
    if cluster {
        let domain = &dns.domain;
        servers = dns.servers.iter().map(IpAddr::to_string).collect();
        let mut all = vec![format!("{}.svc.{domain}", spec::namespace(pod)), format!("svc.{domain}"), domain.clone()];
        all.append(&mut searches);
        searches = all;
        options = vec!["ndots:5".to_owned()];
    }
    if let Some(config) = spec.and_then(|s| s.dns_config.as_ref()) {
        servers.extend(config.nameservers.iter().flatten().cloned());
        searches.extend(config.searches.iter().flatten().cloned());
        for option in config.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            options.retain(|o| o.split(':').next() != Some(name));
            options.push(option.value.as_ref().map_or_else(|| name.clone(), |v| format!("{name}:{v}")));
        }
    }
    let mut events = Vec::new();
    if wants_cluster && !cluster {
        let pod = spec::pod_full_name(pod);
        events.push((
            "MissingClusterDNS",
            format!(
                "pod: {pod:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy."
            ),
        ));
    }
    if dedup(&mut servers, MAX_SERVERS) {
        let line = servers.join(" ");
        events.push((DNS_CONFIG_FORMING, format!("Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {line}")));
    }
    let too_many = dedup(&mut searches, MAX_SEARCHES);
    if truncate_searches(&mut searches) || too_many {
        let line = searches.join(" ");
        events.push((DNS_CONFIG_FORMING, format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {line}"
        )));
    }
    let mut out = String::new();
    for server in servers {
        out.push_str(&format!("nameserver {server}\n"));
    }
    if !searches.is_empty() {
        out.push_str(&format!("search {}\n", searches.join(" ")));
    }
    if !options.is_empty() {
        out.push_str(&format!("options {}\n", options.join(" ")));
    }
    (out, events)
}

const DNS_CONFIG_FORMING: &str = "DNSConfigForming";

/// Drops domains that are too long, and the last ones until the line is short enough; gives whether any was dropped.
fn truncate_searches(searches: &mut Vec<String>) -> bool {
    let before = searches.len();
    searches.retain(|domain| domain.len() <= MAX_DOMAIN_LEN);
    while searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        searches.pop();
    }
    searches.len() < before
}

/// Keeps each item once, and the first `max` of them; gives whether any was dropped for that.
fn dedup(list: &mut Vec<String>, max: usize) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    list.retain(|item| seen.insert(item.clone()));
    let too_many = list.len() > max;
    list.truncate(max);
    too_many
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &str) -> Pod {
        serde_json::from_str(&format!(r#"{{"metadata":{{"name":"web-0","namespace":"n"}},"spec":{spec}}}"#)).unwrap()
    }

    #[test]
    fn hosts_name_the_pod_and_its_aliases() {
        let plain = hosts(&pod(r#"{"containers":[]}"#), &["10.244.0.5".parse().unwrap()], "cluster.local");
        assert!(plain.ends_with("10.244.0.5\tweb-0\n"), "{plain}");
        let full = hosts(
            &pod(r#"{"containers":[],"subdomain":"s","hostAliases":[{"ip":"1.2.3.4","hostnames":["a","b"]}]}"#),
            &["10.244.0.5".parse().unwrap()],
            "cluster.local",
        );
        assert!(full.contains("10.244.0.5\tweb-0.s.n.svc.cluster.local\tweb-0\n"), "{full}");
        assert!(full.ends_with("# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"), "{full}");
    }

    #[test]
    fn names_are_cut_to_a_label() {
        let long: Pod = serde_json::from_str(&format!(r#"{{"metadata":{{"name":"{}"}}}}"#, "a-".repeat(40))).unwrap();
        assert_eq!(hostname(&long).len(), 63);
        let dash: Pod = serde_json::from_str(&format!(r#"{{"metadata":{{"name":"{}-b"}}}}"#, "a".repeat(62))).unwrap();
        assert_eq!(hostname(&dash), "a".repeat(62));
    }

    #[test]
    fn policies_of_names() {
        let dns = Dns {
            servers: vec!["10.96.0.10".parse().unwrap()],
            domain: "cluster.local".into(),
            host: Some("nameserver 192.0.2.53\nsearch example.com\noptions rotate\n".into()),
        };
        let host = "nameserver 192.0.2.53\nsearch example.com\noptions rotate\n";
        let first = "nameserver 10.96.0.10\nsearch n.svc.cluster.local svc.cluster.local cluster.local example.com\noptions ndots:5\n";
        for (spec, wanted) in [
            (r#"{"containers":[]}"#, first),
            (r#"{"containers":[],"dnsPolicy":"Default"}"#, host),
            (r#"{"containers":[],"hostNetwork":true}"#, host),
            (r#"{"containers":[],"hostNetwork":true,"dnsPolicy":"ClusterFirstWithHostNet"}"#, first),
            (
                r#"{"containers":[],"dnsPolicy":"None","dnsConfig":{"nameservers":["1.1.1.1"],"options":[{"name":"ndots","value":"2"}]}}"#,
                "nameserver 1.1.1.1\noptions ndots:2\n",
            ),
        ] {
            assert_eq!(resolv_conf(&pod(spec), &dns).0, wanted, "{spec}");
        }
        // Without a cluster's name server the host's is used.
        let none = Dns { servers: vec![], ..dns.clone() };
        let (text, events) = resolv_conf(&pod(r#"{"containers":[]}"#), &none);
        assert_eq!(text, host);
        assert!(
            matches!(events.as_slice(), [("MissingClusterDNS", why)] if why.starts_with("pod: \"web-0_n()\". ")),
            "{events:?}"
        );
        for asks_for_none in [r#"{"containers":[],"hostNetwork":true}"#, r#"{"containers":[],"dnsPolicy":"Default"}"#] {
            assert_eq!(resolv_conf(&pod(asks_for_none), &none).1, []);
        }
        // None of the host's.
        let alone = Dns { host: None, ..dns.clone() };
        let default = pod(r#"{"containers":[],"dnsPolicy":"Default"}"#);
        assert_eq!(resolv_conf(&default, &alone).0, "nameserver 127.0.0.1\nsearch .\n");
        assert_eq!(resolv_conf(&pod(r#"{"containers":[]}"#), &alone).0, first.replace(" example.com", ""));
        // Four servers are one too many, and one that is named twice is one.
        let servers = r#"{"containers":[],"dnsPolicy":"None","dnsConfig":{"nameservers":["1.1.1.1","2.2.2.2","1.1.1.1","3.3.3.3"]}}"#;
        assert_eq!(resolv_conf(&pod(servers), &dns).1, []);
        let (text, cut) = resolv_conf(&pod(&servers.replace("\"3.3.3.3\"", "\"3.3.3.3\",\"4.4.4.4\"")), &dns);
        assert!(
            !text.contains("4.4.4.4") && cut.len() == 1 && cut[0].1.ends_with("is: 1.1.1.1 2.2.2.2 3.3.3.3"),
            "{cut:?}"
        );
    }

    #[test]
    fn a_search_line_is_cut_to_what_resolvers_take() {
        let dns = Dns::default();
        let searching = |domains: &[String]| {
            let config = serde_json::json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"searches": domains}});
            let (text, events) = resolv_conf(&pod(&config.to_string()), &dns);
            let line = text.lines().find_map(|l| l.strip_prefix("search ")).unwrap_or_default().to_owned();
            (line, events.len())
        };
        // Ten of 200 characters and the spaces between them are 2009.
        let domain = |n: usize| format!("{n:02}{}", "x".repeat(198));
        let ten: Vec<String> = (0..10).map(domain).collect();
        assert_eq!(searching(&ten), (ten.join(" "), 0));
        let eleven: Vec<String> = (0..11).map(domain).collect();
        assert_eq!(searching(&eleven), (ten.join(" "), 1));
        let long = ["a.example".to_owned(), "y".repeat(254), "b.example".to_owned()];
        assert_eq!(searching(&long), ("a.example b.example".to_owned(), 1));
        let many: Vec<String> = (0..33).map(|n| format!("d{n}")).collect();
        assert_eq!(searching(&many), (many[..32].join(" "), 1));
    }

    #[test]
    fn the_hostname_in_the_pod() {
        let shown = |spec: &str| {
            let pod: Pod =
                serde_json::from_str(&format!(r#"{{"metadata":{{"name":"p","namespace":"n"}},"spec":{spec}}}"#))
                    .unwrap();
            kernel_hostname(&pod, "cluster.local")
        };
        let full = r#""subdomain":"web","setHostnameAsFQDN":true,"containers":[]"#;
        assert_eq!(shown(&format!("{{{full}}}")).as_deref(), Ok("p.web.n.svc.cluster.local"));
        assert_eq!(shown(r#"{"subdomain":"web","containers":[]}"#).as_deref(), Ok("p"));
        assert_eq!(shown(&format!(r#"{{"hostnameOverride":"x.y",{full}}}"#)).as_deref(), Ok("x.y"));
        assert!(shown(&format!(r#"{{"hostname":"{}",{full}}}"#, "a".repeat(50))).unwrap_err().contains("too long"));
    }
}
