//! Host names, /etc/hosts and resolv.conf.

use std::fs;

use serde_json::{Value, json};

use crate::case::{CLUSTER_DNS, Case, SLEEP_FOREVER, text};

crate::cases![
    hostname_is_the_name_of_the_pod,
    hostname_of_the_spec,
    hostname_is_cut_to_63_characters,
    hostname_as_fqdn,
    hostname_as_fqdn_too_long,
    hostname_override,
    hostname_of_the_host_network,
    fqdn_of_a_subdomain,
    etc_hosts_content,
    etc_hosts_mode,
    etc_hosts_aliases,
    etc_hosts_of_the_container_itself,
    etc_hosts_of_the_host_network,
    dns_policy_cluster_first,
    dns_policy_cluster_first_and_host_network_is_default,
    dns_policy_cluster_first_with_host_net,
    dns_policy_default,
    dns_policy_none,
    dns_config_is_added,
    dns_config_options_override,
    dns_limits,
];

fn say(case: &Case<'_>, line: &str, spec: Value) -> Vec<String> {
    case.run("p", line, json!({}), spec)
}

fn hostname_is_the_name_of_the_pod(case: &Case<'_>) {
    assert_eq!(say(case, "hostname; cat /etc/hostname; echo $HOSTNAME", json!({})), ["p"; 3]);
}

fn hostname_of_the_spec(case: &Case<'_>) {
    assert_eq!(say(case, "hostname", json!({"hostname": "other"})), ["other"]);
}

fn hostname_is_cut_to_63_characters(case: &Case<'_>) {
    // The 63rd character is a dash, with which no name may end.
    let name = format!("{}-rest", "n".repeat(62));
    case.start(&name, "hostname", json!({}), json!({}), json!({}));
    assert_eq!(case.output(&name), ["n".repeat(62)]);
}

fn hostname_as_fqdn(case: &Case<'_>) {
    let output = say(case, "hostname", json!({"hostname": "a", "subdomain": "web", "setHostnameAsFQDN": true}));
    assert_eq!(output[0].len().min(64), output[0].len());
    assert_eq!(output, [format!("a.web.{}.svc.cluster.local", case.namespace)]);
}

fn hostname_as_fqdn_too_long(case: &Case<'_>) {
    let spec = json!({"hostname": "h".repeat(63), "subdomain": "web", "setHostnameAsFQDN": true});
    case.shell("p", SLEEP_FOREVER, json!({}), spec);
    case.wait_for_event("p", "FQDN");
    assert!(case.events("p").contains("too long"));
    assert!(case.ids("p", "main").is_empty());
}

fn hostname_override(case: &Case<'_>) {
    let spec = json!({"hostname": "a", "subdomain": "web", "hostnameOverride": "quite.another"});
    assert_eq!(say(case, "hostname", spec), ["quite.another"]);
}

fn hostname_of_the_host_network(case: &Case<'_>) {
    assert_eq!(say(case, "hostname", json!({"hostNetwork": true})), [case.testbed.sh("hostname").trim()]);
}

fn fqdn_of_a_subdomain(case: &Case<'_>) {
    let output = say(case, "hostname; cat /etc/hosts", json!({"hostname": "a", "subdomain": "web"}));
    assert_eq!(output[0], "a");
    let names = format!("\ta.web.{}.svc.cluster.local\ta", case.namespace);
    assert!(output.iter().any(|l| l.ends_with(&names)), "{output:?}");
}

fn etc_hosts_content(case: &Case<'_>) {
    let output = say(case, "cat /etc/hosts", json!({}));
    let pod = case.wait_phase("p", "Succeeded");
    let own = format!("{}\tp", text(&pod["status"]["podIP"]));
    assert_eq!(
        output,
        [
            "# Kubernetes-managed hosts file.",
            "127.0.0.1\tlocalhost",
            "::1\tlocalhost ip6-localhost ip6-loopback",
            "fe00::0\tip6-localnet",
            "fe00::0\tip6-mcastprefix",
            "fe00::1\tip6-allnodes",
            "fe00::2\tip6-allrouters",
            &own,
        ]
    );
}

fn etc_hosts_mode(case: &Case<'_>) {
    assert_eq!(say(case, "stat -c %a /etc/hosts", json!({})), ["644"]);
}

fn etc_hosts_aliases(case: &Case<'_>) {
    let aliases =
        json!([{"ip": "192.0.2.9", "hostnames": ["a", "b.example"]}, {"ip": "192.0.2.10", "hostnames": ["c"]}]);
    let output = say(case, "cat /etc/hosts; grep -c . /etc/hosts", json!({"hostAliases": aliases}));
    let at = output.iter().position(|l| l == "# Entries added by HostAliases.").expect("a header of their own");
    assert_eq!(output[at + 1..at + 3], ["192.0.2.9\ta\tb.example", "192.0.2.10\tc"]);
}

fn etc_hosts_of_the_container_itself(case: &Case<'_>) {
    let _ = case.kubectl(&["create", "configmap", "map", "--from-literal=hosts=own"]);
    let mount = json!({"volumeMounts": [{"name": "map", "mountPath": "/etc/hosts", "subPath": "hosts"}]});
    let spec = json!({"volumes": [{"name": "map", "configMap": {"name": "map"}}]});
    assert_eq!(case.run("p", "cat /etc/hosts", mount, spec), ["own"]);
}

fn etc_hosts_of_the_host_network(case: &Case<'_>) {
    let aliases = json!([{"ip": "192.0.2.9", "hostnames": ["alias"]}]);
    let output = say(case, "cat /etc/hosts", json!({"hostNetwork": true, "hostAliases": aliases}));
    assert_eq!(output[0], "# Kubernetes-managed hosts file (host network).");
    let own = fs::read_to_string("/etc/hosts").expect("a machine has one");
    assert_eq!(output[1..=own.lines().count()].join("\n"), own.trim_end());
    assert_eq!(output.last().map(String::as_str), Some("192.0.2.9\talias"));
}

fn machine() -> (Vec<String>, Vec<String>) {
    let own = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let of = |what: &str| {
        let lines = own.lines().filter_map(|l| l.strip_prefix(what));
        lines.flat_map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
    };
    (of("nameserver "), of("search "))
}

fn resolv_conf(case: &Case<'_>, spec: Value) -> Vec<String> {
    say(case, "cat /etc/resolv.conf", spec)
}

fn servers(lines: &[String]) -> Vec<String> {
    lines.iter().filter_map(|l| l.strip_prefix("nameserver ")).map(str::to_owned).collect()
}

/// The resolv.conf of a pod with the cluster's DNS.
#[track_caller]
fn is_of_cluster(case: &Case<'_>, output: &[String]) {
    assert_eq!(output[0], format!("nameserver {CLUSTER_DNS}"));
    let domains = format!("search {}.svc.cluster.local svc.cluster.local cluster.local", case.namespace);
    let mut search = vec![domains];
    search.extend(machine().1);
    assert_eq!(output[1], search.join(" "));
    assert_eq!(output[2..], ["options ndots:5"]);
}

fn dns_policy_cluster_first(case: &Case<'_>) {
    is_of_cluster(case, &resolv_conf(case, json!({})));
}

fn dns_policy_cluster_first_and_host_network_is_default(case: &Case<'_>) {
    let output = resolv_conf(case, json!({"hostNetwork": true}));
    assert_eq!(servers(&output), machine().0.into_iter().take(3).collect::<Vec<_>>());
}

fn dns_policy_cluster_first_with_host_net(case: &Case<'_>) {
    is_of_cluster(case, &resolv_conf(case, json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"})));
}

fn dns_policy_default(case: &Case<'_>) {
    let output = resolv_conf(case, json!({"dnsPolicy": "Default"}));
    assert_eq!(servers(&output), machine().0.into_iter().take(3).collect::<Vec<_>>());
}

fn dns_policy_none(case: &Case<'_>) {
    let spec = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["a.example", "b"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}});
    assert_eq!(resolv_conf(case, spec), ["nameserver 192.0.2.53", "search a.example b", "options ndots:2 edns0"]);
}

fn dns_config_is_added(case: &Case<'_>) {
    let (own, _) = machine();
    let first = own.first().cloned().unwrap_or_else(|| "192.0.2.1".to_owned());
    let spec = json!({"dnsPolicy": "Default", "dnsConfig": {"nameservers": [first, "192.0.2.54"], "searches": ["added.example"]}});
    let output = resolv_conf(case, spec);
    let mut wanted = own.clone();
    wanted.extend([first.clone(), "192.0.2.54".to_owned()].into_iter().filter(|s| !own.contains(s)));
    assert_eq!(servers(&output), wanted.into_iter().take(3).collect::<Vec<_>>());
    assert!(output.iter().any(|l| l.starts_with("search ") && l.ends_with("added.example")), "{output:?}");
}

fn dns_config_options_override(case: &Case<'_>) {
    let options = json!([{"name": "ndots", "value": "3"}, {"name": "ndots", "value": "4"}]);
    let output = resolv_conf(
        case,
        json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.53"], "options": options}}),
    );
    assert_eq!(output.last().map(String::as_str), Some("options ndots:4"));
}

fn dns_limits(case: &Case<'_>) {
    let own: Vec<String> = machine().0;
    let more = json!(["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    assert!(!own.is_empty(), "the machine has a name server");
    let output = resolv_conf(case, json!({"dnsPolicy": "Default", "dnsConfig": {"nameservers": more}}));
    assert_eq!(servers(&output).len(), 3);
    case.wait_for_event("p", "DNSConfigForming");
}
