use std::time::Duration;

use windlass_kit::duration;
use windlass_proxy::{
    Config, DetectLocal, Objects, Timeout, ValidConfig,
    model::{Family, objects},
    rules_from_objects,
};

use super::*;

/// What `kubeadm init phase addon kube-proxy --print-manifest` of 1.36 puts in its ConfigMap, without a podSubnet, with
/// one, with one of each family, and at an address of IPv6.
const NO_POD_SUBNET: &str = include_str!("fixtures/kubeadm-no-pod-subnet.yaml");
const POD_SUBNET: &str = include_str!("fixtures/kubeadm-pod-subnet.yaml");
const DUAL_STACK: &str = include_str!("fixtures/kubeadm-dual-stack.yaml");
const IPV6: &str = include_str!("fixtures/kubeadm-ipv6.yaml");

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// With a default of our own that must not shine through.
fn own() -> Config {
    Config { node_name: "n1".to_owned(), node_ips: vec!["192.0.2.10".parse().unwrap()], ..Config::default() }
}

fn of_file(text: &str) -> Result<ValidConfig, Vec<String>> {
    let (file, _) = parse(text).unwrap();
    config(own(), Some(&file), &Overrides::default()).map(|(config, _)| config)
}

fn of(more: &str) -> ValidConfig {
    of_file(&format!("{HEAD}{more}")).unwrap()
}

/// The rules of a Service with a cluster IP and an address of a load balancer, whose policy is Local.
fn rules(config: &Config, family: Family) -> String {
    let json = serde_json::json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {
        "type": "LoadBalancer", "clusterIP": "172.30.0.1", "clusterIPs": ["172.30.0.1", "fd00:172::1"],
        "externalTrafficPolicy": "Local", "ports": [{"port": 80, "nodePort": 30001}]}});
    let service: objects::Service = serde_json::from_value(json).unwrap();
    let slice = |of: &str, address: &str| -> objects::EndpointSlice {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": of, "namespace": "ns", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": of, "ports": [{"name": "", "port": 80}], "endpoints": [{"addresses": [address]}]}))
        .unwrap()
    };
    let slices = vec![slice("IPv4", "192.168.7.7"), slice("IPv6", "fd00:7::7")];
    rules_from_objects(&Objects { services: vec![service], slices, ..Objects::default() }, config, family)
}

fn matches_of(config: &Config, family: Family) -> Vec<String> {
    let text = rules(config, family);
    let masquerade = text.lines().filter(|l| l.contains("cluster IP\"") && l.ends_with("-j KUBE-MARK-MASQ"));
    let pods = text.lines().filter(|l| l.contains("pod traffic for"));
    let words = |line: &str| -> String {
        let at = line.find(" ! ").or_else(|| line.find(" -s ")).or_else(|| line.find(" -i "));
        at.map_or("", |at| &line[at + 1..]).split(" -j ").next().unwrap_or_default().to_owned()
    };
    masquerade.chain(pods).map(words).collect()
}

#[test]
fn kubeadms_own_file_starts_a_proxy_with_upstreams_defaults() {
    for text in [NO_POD_SUBNET, POD_SUBNET, DUAL_STACK, IPV6] {
        assert!(is_kube_proxy(text));
        let (file, unknown) = parse(text).unwrap();
        assert_eq!(unknown, [] as [&str; 0]);
        assert_eq!(file.client_connection.kubeconfig, Some("/var/lib/kube-proxy/kubeconfig.conf".into()));
        let config = of_file(text).unwrap();
        assert_eq!((config.sync_period, config.min_sync_period), (Duration::from_secs(30), Duration::from_secs(1)));
        assert_eq!((config.masquerade_bit, config.localhost_node_ports), (14, true));
        assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (32768, 131_072));
        assert_eq!(config.conntrack, Config::default().conntrack);
        assert_eq!((config.bind_address, config.node_name.as_str()), (None, "n1"));
        let (health, metrics) = match text == IPV6 {
            true => ("[::]:10256", "[::1]:10249"),
            false => ("0.0.0.0:10256", "127.0.0.1:10249"),
        };
        assert_eq!(config.healthz_bind, Some(health.parse().unwrap()));
        assert_eq!(config.metrics_bind, Some(metrics.parse().unwrap()));
    }
}

/// The matches that distinguish pod traffic from other traffic, for each of kubeadm's files and each family.
#[test]
fn without_a_range_of_pods_nothing_is_masqueraded_for_it() {
    let none: [&str; 0] = [];
    for (text, v4, v6) in [
        (NO_POD_SUBNET, &none[..], &none[..]),
        (POD_SUBNET, &["! -s 10.180.0.0/16", "-s 10.180.0.0/16"], &none),
        (DUAL_STACK, &["! -s 10.180.0.0/16", "-s 10.180.0.0/16"], &["! -s fd00:10:180::/48", "-s fd00:10:180::/48"]),
        (IPV6, &none, &["! -s fd00:10:180::/48", "-s fd00:10:180::/48"]),
    ] {
        let config = of_file(text).unwrap();
        assert_eq!(matches_of(&config, Family::V4), v4, "{text}");
        assert_eq!(matches_of(&config, Family::V6), v6, "{text}");
    }
    // Absent is the same as empty in a file, and a flag wins over both.
    assert_eq!(of("").cluster_cidrs, []);
    let (file, _) = parse(NO_POD_SUBNET).unwrap();
    let flag = |cidr: &str| Overrides {
        fields: KubeProxy { cluster_cidr: Some(cidr.to_owned()), ..KubeProxy::default() },
        ..Overrides::default()
    };
    let over = config(own(), Some(&file), &flag("10.99.0.0/16")).unwrap().0;
    assert_eq!(matches_of(&over, Family::V4), ["! -s 10.99.0.0/16", "-s 10.99.0.0/16"]);
    // Without a file our own range stands, unless the flag says none.
    assert_eq!(config(own(), None, &Overrides::default()).unwrap().0.cluster_cidrs, own().cluster_cidrs);
    assert_eq!(config(own(), None, &flag("")).unwrap().0.cluster_cidrs, []);
}

#[test]
fn a_zero_is_the_default_in_a_file_and_a_value_on_the_command_line() {
    let zero = Overrides {
        fields: KubeProxy {
            iptables: Iptables { min_sync_period: Some("0s".into()), ..Iptables::default() },
            ..KubeProxy::default()
        },
        healthz_port: Some(0),
        metrics_port: Some(7),
    };
    let (file, _) = parse(POD_SUBNET).unwrap();
    let (read, _) = config(own(), Some(&file), &zero).unwrap();
    assert_eq!((read.min_sync_period, read.sync_period), (Duration::ZERO, Duration::from_secs(30)));
    assert_eq!((read.healthz_bind, read.metrics_bind), (None, Some("127.0.0.1:7".parse().unwrap())));
}

#[test]
fn what_a_file_says_is_taken() {
    let read = of("bindAddress: 192.0.2.77\nhealthzBindAddress: 192.0.2.78\nmetricsBindAddress: \"::\"\n\
         clusterCIDR: 10.180.0.1/16,fd00:1::5/48\nnodePortAddresses: [192.0.2.9/24]\nhostnameOverride: N2\n\
         conntrack: {tcpEstablishedTimeout: 2h0m0s, udpTimeout: 5s, maxPerCore: 0}\niptables: {masqueradeBit: 0}\n");
    assert_eq!(read.bind_address, Some("192.0.2.77".parse().unwrap()));
    assert_eq!(read.healthz_bind, Some("192.0.2.78:10256".parse().unwrap()));
    assert_eq!(read.metrics_bind, Some("[::]:10249".parse().unwrap()));
    assert_eq!(read.node_name, "n2");
    let texts: Vec<String> = read.cluster_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.180.0.0/16", "fd00:1::/48"], "bits beyond the length are cleared");
    assert_eq!(read.conntrack.tcp_established, Timeout::Exactly(Duration::from_hours(2)));
    assert_eq!(read.conntrack.udp, Timeout::Exactly(Duration::from_secs(5)));
    assert_eq!((read.conntrack.udp_stream, read.conntrack.max_per_core), (Timeout::Keep, 0));
    assert_eq!(read.masquerade_bit, 0);
    let by_bridge =
        of("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: avz}\nclusterCIDR: anything\n");
    assert_eq!(by_bridge.detect_local, DetectLocal::BridgeInterface("avz".into()));
    assert_eq!(matches_of(&by_bridge, Family::V6), ["! -i avz", "-i avz"]);
}

/// The cases of upstream's validation (pkg/proxy/apis/config/validation/validation_test.go): a change of a good file,
/// and the field that is refused, if any.
#[test]
fn upstreams_cases_of_validation() {
    const BASE: &str =
        "bindAddress: 192.168.59.103\nhealthzBindAddress: 0.0.0.0:10256\nmetricsBindAddress: 127.0.0.1:10249\n";
    for (more, refused) in [
        ("clusterCIDR: 192.168.59.0/24\n", None),
        ("clusterCIDR: fd00:192:168:59::/64\n", None),
        ("clusterCIDR: 192.168.59.0/24,fd00:192:168::/64\n", None),
        ("clusterCIDR: 192.168.59.0\n", Some("clusterCIDR")),
        ("clusterCIDR: 192.168.59.0/24,fd00:192:168::/64,10.0.0.0/16\n", Some("clusterCIDR")),
        ("clusterCIDR: 192.168.59.0/24,192.168.60.0/24\n", Some("clusterCIDR")),
        ("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: vethabcde}\n", None),
        ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: avz}\n", None),
        ("detectLocalMode: InterfaceNamePrefix\n", Some("detectLocal.interfaceNamePrefix")),
        ("detectLocalMode: BridgeInterface\n", Some("detectLocal.bridgeInterface")),
        ("detectLocalMode: Guess\n", Some("detectLocalMode")),
        ("iptables: {syncPeriod: -5s}\n", Some("iptables.syncPeriod")),
        ("iptables: {syncPeriod: soon}\n", Some("iptables.syncPeriod")),
        ("iptables: {minSyncPeriod: -2s}\n", Some("iptables.minSyncPeriod")),
        ("iptables: {syncPeriod: 1s, minSyncPeriod: 5s}\n", Some("iptables.minSyncPeriod")),
        ("iptables: {masqueradeBit: 5}\n", None),
        ("iptables: {masqueradeBit: -10}\n", Some("iptables.masqueradeBit")),
        ("iptables: {masqueradeBit: 40}\n", Some("iptables.masqueradeBit")),
        ("conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n", None),
        ("conntrack: {maxPerCore: -1}\n", Some("conntrack.maxPerCore")),
        ("conntrack: {min: -1}\n", Some("conntrack.min")),
        ("conntrack: {tcpEstablishedTimeout: -5s}\n", Some("conntrack.tcpEstablishedTimeout")),
        ("conntrack: {tcpCloseWaitTimeout: -5s}\n", Some("conntrack.tcpCloseWaitTimeout")),
        ("conntrack: {udpTimeout: -5s}\n", Some("conntrack.udpTimeout")),
        ("conntrack: {udpStreamTimeout: -5s}\n", Some("conntrack.udpStreamTimeout")),
        ("oomScoreAdj: 999\n", None),
        ("oomScoreAdj: -1001\n", Some("oomScoreAdj")),
        ("oomScoreAdj: 1001\n", Some("oomScoreAdj")),
        ("nodePortAddresses: [primary]\n", None),
        ("nodePortAddresses: [127.0.0.10/24, 0.0.0.0/0, \"::/0\"]\n", None),
        ("nodePortAddresses: [primary, 127.0.0.1/32]\n", Some("nodePortAddresses")),
        ("nodePortAddresses: [10.20/24]\n", Some("nodePortAddresses")),
        ("logging: {format: unsupported}\n", Some("logging.format")),
        ("mode: ipvs\n", Some("mode")),
        ("mode: other\n", Some("mode")),
    ] {
        let read = of_file(&format!("{HEAD}{BASE}{more}"));
        let fields: Vec<String> =
            read.err().into_iter().flatten().map(|p| p.split(": ").next().unwrap().to_owned()).collect();
        assert_eq!(fields, refused.into_iter().collect::<Vec<_>>(), "{more}");
    }
    for (address, refused) in [
        ("bindAddress: 10.10.12.11:2000\n", Some("bindAddress")),
        ("bindAddress: fd00:192:168:59::103\nmetricsBindAddress: \"[::1]:10249\"\n", None),
        ("healthzBindAddress: 0.0.0.0:12345\n", None),
        ("healthzBindAddress: 0.0.0.0:0\n", Some("healthzBindAddress")),
        ("healthzBindAddress: here:80\n", Some("healthzBindAddress")),
        ("metricsBindAddress: 127.0.0.1:70000\n", Some("metricsBindAddress")),
    ] {
        let problems = of_file(&format!("{HEAD}{address}")).err().unwrap_or_default();
        assert_eq!(problems.first().map(|p| p.split(": ").next().unwrap()), refused, "{address}");
    }
    assert!(parse("apiVersion: kubeproxy.config.k8s.io/v9\nkind: KubeProxyConfiguration\n").is_err());
    assert!(!is_kube_proxy("kind: WindlassConfiguration\n"));
}

#[test]
fn what_is_wrong_is_named_all_at_once() {
    let text = format!(
        "{HEAD}mode: ipvs\niptables: {{syncPeriod: soon, masqueradeBit: 40}}\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8\noomScoreAdj: 5000\n"
    );
    let wrong = of_file(&text).unwrap_err().join("\n");
    for field in ["mode", "iptables.syncPeriod", "iptables.masqueradeBit", "clusterCIDR", "oomScoreAdj"] {
        assert!(wrong.contains(&format!("{field}: ")), "{field}: {wrong}");
    }
}

#[test]
fn misspelt_fields_are_reported_at_any_depth() {
    let text = format!(
        "{HEAD}surprise: 1\niptables: {{minSyncPeroid: 1s}}\nconntrack: {{tcpBeLiberal: true, max: 1}}\nipvs: {{scheduler: rr, x: 1}}\n\
         nftables: {{y: 1}}\nclientConnection: {{qps: 5, kubecfg: z}}\nlogging: {{options: {{yaml: {{}}}}}}\ndetectLocal: {{bridge: b}}\n"
    );
    let mut unknown = parse(&text).unwrap().1;
    unknown.sort();
    let wanted = [
        "clientConnection.kubecfg",
        "conntrack.max",
        "detectLocal.bridge",
        "iptables.minSyncPeroid",
        "ipvs.x",
        "logging.options.yaml",
        "nftables.y",
        "surprise",
    ];
    assert_eq!(unknown, wanted);
}

#[test]
fn durations_are_read_as_go_writes_them() {
    for (text, seconds) in [
        ("30s", 30.0),
        ("1m30s", 90.0),
        ("24h0m0s", 86_400.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("0", 0.0),
        ("0s", 0.0),
    ] {
        assert_eq!(duration::parse(text).map(|d| d.as_secs_f64()), Some(seconds), "{text}");
    }
    for wrong in ["", "30", "s", "30x", "-1s", "1h 30m"] {
        assert!(duration::parse(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn flags_lie_over_the_file() {
    let in_data_dir =
        KubeProxy { mode: Some("iptables".into()), bind_address: Some("10.0.0.1".into()), ..KubeProxy::default() };
    let above = KubeProxy { bind_address: Some("10.0.0.2".into()), ..KubeProxy::default() };
    let both = in_data_dir.overridden_by(above);
    assert_eq!((both.mode.as_deref(), both.bind_address.as_deref()), (Some("iptables"), Some("10.0.0.2")));
    let verbose = KubeProxy { logging: Logging { verbosity: Some(5), ..Logging::default() }, ..KubeProxy::default() };
    assert_eq!(verbose.log_filter(), Some("info,windlass_proxy=debug"));
}
